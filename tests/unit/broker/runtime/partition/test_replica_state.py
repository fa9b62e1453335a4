"""A replica has one named state at any moment, and its driver reports it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.errors import HeadwaterError, HistoryClaimedError
from broker.model.cluster_status import PartitionStatus
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from broker.model.replica_state import ReplicaState
from broker.runtime.partition.leadership_gate import SETTLE_MS, Claims
from simkit.brokers.driver_rig import FOLDER, ME, DriverRig, alone_view
from simkit.brokers.quiet_links import OTHER, QuietLinks
from simkit.disk.disk import SimDisk

LINEAGE = "1" * 32


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DiskFiles]:
    """Give a folder."""
    found = DiskFiles(tmp_path)
    yield found
    found.close()


def test_a_replica_without_a_view_is_opening(files: DiskFiles) -> None:
    """Its log is open, and no view of the metadata has named its role yet."""
    rig = DriverRig(files, links=QuietLinks())
    assert rig.driver.state is ReplicaState.OPENING
    rig.close()


@pytest.mark.parametrize(
    ("leader", "candidate", "status", "state"),
    [
        (ME, None, "online", ReplicaState.LEADING),
        (OTHER, None, "online", ReplicaState.FOLLOWING),
        (None, ME, "candidate_found", ReplicaState.CANDIDATE),
        (None, OTHER, "candidate_found", ReplicaState.WAITING),
        (None, None, "offline", ReplicaState.WAITING),
    ],
)
def test_the_metadata_says_who_does_what(
    files: DiskFiles,
    leader: BrokerId | None,
    candidate: BrokerId | None,
    status: PartitionStatus,
    state: ReplicaState,
) -> None:
    """Each role in a view is one state."""
    rig = DriverRig(files, links=QuietLinks())
    both = {ME: BrokerEpoch(1), OTHER: BrokerEpoch(2)}
    rig.view(
        replace(
            alone_view(),
            status=status,
            leader=leader,
            candidate=candidate,
            replicas=(ME, OTHER),
            isr=frozenset(both),
            broker_epochs=both,
            joinable=frozenset(both),
        )
    )
    assert rig.driver.state is state
    rig.close()
    assert rig.driver.state is ReplicaState.CLOSING


def test_a_leader_claims_before_it_leads_and_may_be_replaced(files: DiskFiles) -> None:
    """Writes wait for the claim; if another process has it, they are refused for good."""
    rig = DriverRig(files, claims=Claims(lambda _stream, _source: True))
    begun = Leadership(leader_epoch=LeaderEpoch(1), lineage_id=LINEAGE, start=Offset(0))
    rig.view(replace(alone_view(), lineage=(begun,)))
    seen = [rig.driver.state]
    rig.clock.advance(us=SETTLE_MS * 1000)
    assert not rig.put(b"asks the gate for the time")
    rig.turns.run()
    seen.append(rig.driver.state)
    rig.driver.tier.refuse_writes(LINEAGE, HistoryClaimedError("another process leads a copy"))
    rig.turns.run()
    seen.append(rig.driver.state)
    assert seen == [ReplicaState.CLAIMING, ReplicaState.LEADING, ReplicaState.REPLACED]
    rig.close()


def test_a_disk_that_refuses_a_sync_fails_the_replica() -> None:
    """It stays failed, because the disk's content is unknown."""
    disk = SimDisk(random.Random(1))
    rig = DriverRig(disk.files())
    disk.datasync_failures = 1
    answers = rig.put(b"v")
    rig.turns.run()
    assert isinstance(answers[0], HeadwaterError)
    assert rig.driver.state is ReplicaState.FAILED


@pytest.mark.parametrize("copies", [1, 2])
def test_a_damaged_log_shows_only_what_is_committed(
    files: DiskFiles, tmp_path: Path, copies: int
) -> None:
    """A single replica's synced records are committed; of several, only the leader knows."""
    rig = DriverRig(files)
    for value in (b"one", b"two", b"three"):
        rig.put(value)
        rig.turns.run()
    rig.close()
    (segment,) = (tmp_path / FOLDER).glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"one")] ^= 1
    segment.write_bytes(content)
    (tmp_path / FOLDER / "suspect").touch()
    again = DriverRig(files, links=QuietLinks())
    assert again.driver.state is ReplicaState.DAMAGED
    replicas = (ME, OTHER)[:copies]
    epochs = {one: BrokerEpoch(1) for one in replicas}
    again.view(replace(alone_view(), replicas=replicas, isr=frozenset({ME}), broker_epochs=epochs))
    reads = again.driver.reads
    assert reads.high_watermark == (3 if copies == 1 else 0)
    assert reads.log_end == 3
    assert reads.read(Offset(1), Offset(3), bytes_max=1)[0].header.base_offset == 1


def test_a_log_that_is_cut_is_damaged_from_its_opening_on(files: DiskFiles, tmp_path: Path) -> None:
    """Nothing is removed, and the state tells why reads are refused."""
    rig = DriverRig(files)
    for value in (b"one", b"two"):
        rig.put(value)
        rig.turns.run()
    rig.close()
    (segment,) = (tmp_path / FOLDER).glob("*.log")
    half = segment.read_bytes()[: segment.stat().st_size // 2]
    segment.write_bytes(half)
    again = DriverRig(files)
    assert again.driver.state is ReplicaState.DAMAGED
    assert segment.read_bytes() == half


def test_a_log_that_is_opened_damaged_is_withdrawn_whenever_that_is(
    files: DiskFiles, tmp_path: Path
) -> None:
    """Its opening may come long after the start: then nobody else asks for damaged logs."""
    rig = DriverRig(files)
    for value in (b"one", b"two"):
        rig.put(value)
        rig.turns.run()
    rig.close()
    whole = QuietLinks()
    DriverRig(files, links=whole).close()
    assert whole.withdrawn == []
    (segment,) = (tmp_path / FOLDER).glob("*.log")
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])
    links = QuietLinks()
    again = DriverRig(files, links=links)
    assert links.withdrawn == [again.driver.health.failure]
