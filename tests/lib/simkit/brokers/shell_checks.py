"""The duties of the shells, as checks that take a folder and milliseconds.

Each is run on the product, and on the product with each bug of ``shell_mutants.py`` that it is
there for: then it has to fail. docs/testing.md has the table.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.adapters.clock import SystemClock
from broker.adapters.disk.files import DiskFiles
from broker.codec.checksum import crc32c
from broker.core.metadata.commands import RegisterBroker
from broker.core.replication.effects import ProposeIsr
from broker.core.replication.standing import StandingFetch, StandingReplica
from broker.core.replication.view import PartitionView
from broker.errors import DiskFullError, HeadwaterError, UnavailableError
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from broker.model.replica_messages import ReplicaMessage
from broker.model.stream import Stream, StreamConfig
from broker.model.tiering import TableState
from broker.runtime.metadata.lone import open_alone
from broker.runtime.partition.tier_view import TierView
from simkit.brokers.brokers import disk_broker
from simkit.brokers.driver_rig import ME, DriverRig
from simkit.disk.disk import SimDisk
from simkit.disk.syscalls import listening
from tiering.store.local_store import LocalStore
from tiering.store.location import StoreConfig

OTHER = BrokerId("other")
KEPT = (".log", "epochs", "recovery")  # the rest is a cache


def acks_stand_on_syncs(folder: Path) -> None:
    """An ack, over rolls too: its segment's bytes and name are durable by real system calls."""
    owed: list[str] = []
    with listening(folder) as calls:
        rig = DriverRig(DiskFiles(folder), segment_bytes_max=4096)
        calls.require(*KEPT)
        for number in range(12):
            answers = rig.put(
                bytes(900),
                producer=7,
                sequence=number,
                done=lambda _: owed.extend(calls.owed(*KEPT)),
            )
            rig.turns.run()
            assert isinstance(answers[0], AppendResult), answers
            assert not owed, f"it was acknowledged, and a power cut takes back {owed}"
        assert len(rig.driver.tier.segments()) > 2
        assert any("producers" in name for name in rig.files.list("log"))
        calls.require(*KEPT)
        rig.close()
        calls.require(*KEPT)
        rig.files.close()  # type: ignore[attr-defined]


def interval_streams_sync_in_time(folder: Path) -> None:
    """``flush=interval`` syncs once its interval is over, without another write."""
    with listening(folder) as calls:
        rig = DriverRig(DiskFiles(folder), flush="interval", flush_interval_ms=1_000)
        rig.driver.maintenance.tick()  # the first of all moves the recovery point
        rig.put(b"x")
        rig.turns.run()
        assert calls.owed(".log"), "it was answered before a sync"
        rig.clock.advance(us=1_100_000)
        rig.driver.maintenance.tick()
        rig.turns.run()
        calls.require(".log")
        rig.close()
        rig.files.close()  # type: ignore[attr-defined]


def whole_files_are_durable(folder: Path) -> None:
    """A file that replaces another has its bytes before its name, and its name before the end."""
    with listening(folder) as calls:
        files = DiskFiles(folder)
        rig = DriverRig(files)
        rig.put(b"x", producer=7, sequence=0)
        rig.turns.run()
        rig.driver._local.log.write_producer_state(b"{}")
        calls.require(*KEPT, "producers")
        rig.driver._local.log.checkpoint()
        calls.require("recovery")
        rig.close()
        calls.require(*KEPT, "producers")
        files.close()


def metadata_is_durable(folder: Path) -> None:
    """Every command that the metadata log of a single broker has answered is on the disk."""
    with listening(folder) as calls:
        files = DiskFiles(folder)
        crashes: list[BaseException] = []
        log = open_alone(files, cluster="test", me=ME, clock=SystemClock(), on_crash=crashes.append)
        calls.require("journal", "member")
        log.propose(RegisterBroker(broker=ME, session="s" * 32, known_sessions=()))
        calls.require("journal", "member")
        assert not crashes
        log.close()
        files.close()


def objects_are_durable(folder: Path) -> None:
    """An object that a local store says it created is durable, with every folder above it."""
    root = folder / "lake"
    root.mkdir()
    with listening(folder) as calls:
        store = LocalStore(StoreConfig.from_env(str(root)))
        assert store.put_if_absent("a/b/c", b"body", crc32c=crc32c(b"body"))
        calls.require()


def leases_hold_local_segments(folder: Path) -> None:
    """Retention frees nothing that a lease covers, and looks at the cold end before the leases."""
    rig = DriverRig(
        DiskFiles(folder), segment_bytes_max=4096, local_retention_bytes=0, dedup_window_ms=0
    )
    for _ in range(30):
        rig.put(bytes(900))
        rig.turns.run()
    sealed = [one for one in rig.driver.tier.segments() if one.sealed]
    assert len(sealed) > 3
    rig.driver.tier.record_cold_end(sealed[1].end_offset)
    rig.turns.elsewhere = True
    assert rig.driver.frees.now(lambda: sealed[0].end_offset) == 1, "a lease holds the second"

    def meanwhile() -> Offset:
        # A shipment and a lease that begins above it, between the two looks.
        rig.driver._local.tier.cold_end = sealed[3].end_offset
        return sealed[3].end_offset

    rig.driver.frees.now(meanwhile)
    assert rig.driver.reads.log_start <= sealed[3].end_offset
    view = TierView(rig.driver.partition_id, rig.driver.stream.config, Offset(0), lambda *_: None)
    view.cold_end = sealed[1].end_offset

    def raises_it() -> Offset:
        view.cold_end = sealed[3].end_offset
        return Offset(2**62)

    plan = view.plan_frees(lambda: sealed, raises_it, rig.clock.now_us())
    assert all(one.end_offset <= sealed[1].end_offset for one in plan), "the lease came too late"
    rig.close()


def live_leases_are_the_floor(folder: Path) -> None:
    """The broker tells retention the lowest floor of the live leases."""
    with disk_broker(folder) as broker:
        broker.streams.create("s", StreamConfig(subject="s"))
        partition = broker.partitions.handle("s", 0)
        assert broker._upkeep._lease_floor(partition.partition_id) > 2**60
        lease = broker.cuts.take_lease("s", owner="me", ttl_ms=60_000)
        assert broker._upkeep._lease_floor(partition.partition_id) == 0
        broker.cuts.drop_lease(lease.lease_id)
        assert broker._upkeep._lease_floor(partition.partition_id) > 2**60


def cuts_lease_before_they_look(folder: Path) -> None:
    """Whenever a cut reads the table's version, a lease already holds its files."""
    with disk_broker(folder) as broker:
        held: list[int] = []

        def table_state(stream: Stream) -> TableState:
            held.append(len(broker.cuts.live_leases(stream.name)))
            return TableState(table_uri="", version=None, ranges={}, files_count=0, files_bytes=0)

        remote: Any = SimpleNamespace(table_state=table_state, table_name_for=lambda name, *_: name)
        broker.cold.attach(remote)
        broker.streams.create("s", StreamConfig(subject="s"))
        broker.cuts.take("s", owner="me", ttl_ms=60_000)
        assert held, "the table was looked at"
        assert all(held), "the table was looked at before there was a lease"


def cold_ends_are_recorded_first(_folder: Path) -> None:
    """Nothing is freed on the word of a cold end that the metadata may not have."""

    def refuses(_partition: PartitionId, _end: Offset) -> None:
        raise UnavailableError("no majority")

    rig = DriverRig(SimDisk(random.Random(1)).files())
    view = TierView(rig.driver.partition_id, rig.driver.stream.config, Offset(0), refuses)
    try:
        view.record(Offset(5))
    except UnavailableError:
        assert view.cold_end == 0, "the cold end moved, and the metadata does not know of it"
    else:
        raise AssertionError("the refusal was swallowed")


class _Links:
    """The links of a leader whose follower is mute."""

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """Lose it."""

    def propose_isr(self, wanted: ProposeIsr, answered: Callable[[bool], None]) -> None:
        """Say nothing."""

    def confirm_leader(
        self, leader_epoch: LeaderEpoch, log_end: Offset, log_epoch: LeaderEpoch
    ) -> None:
        """Say nothing."""

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Say nothing."""

    def lease_until_ms(self, leader_epoch: LeaderEpoch) -> int:
        """Have one for ever."""
        return 1 << 62

    def lease_lapses(self) -> int:
        """Tell of none."""
        return 0

    def keep(self, replica: StandingReplica, standing: Collection[StandingFetch]) -> None:
        """Keep nothing."""

    def withdraw(self, reason: HeadwaterError) -> None:
        """Say nothing."""

    def lead_changed(self, *, leads: bool) -> None:
        """Say nothing."""


def _with_a_mute_follower() -> DriverRig:
    rig = DriverRig(SimDisk(random.Random(1)).files(), links=_Links())
    rig.view(
        PartitionView(
            status="online",
            leader=ME,
            candidate=None,
            leader_epoch=LeaderEpoch(1),
            partition_epoch=PartitionEpoch(1),
            replicas=(ME, OTHER),
            isr=frozenset({ME, OTHER}),
            min_isr=2,
            broker_epochs={ME: BrokerEpoch(1), OTHER: BrokerEpoch(2)},
            joinable=frozenset({ME, OTHER}),
        )
    )
    assert rig.driver.leads
    return rig


def duplicates_wait_like_the_first(_folder: Path) -> None:
    """A retry of a batch that is written and not committed hears nothing either."""
    rig = _with_a_mute_follower()
    first = rig.put(b"x", producer=7, sequence=0)
    rig.turns.run()
    again = rig.put(b"x", producer=7, sequence=0)
    rig.turns.run()
    assert rig.driver.reads.log_end == 1, "it was stored once"
    assert not first
    assert not again, "the retry was acknowledged, and its record is not committed"


def uncommitted_records_are_not_shown(_folder: Path) -> None:
    """Readers see the high watermark; records above it may go again."""
    rig = _with_a_mute_follower()
    rig.put(b"x")
    rig.turns.run()
    assert rig.driver.reads.log_end == 1
    assert rig.driver.reads.high_watermark == 0, "a record was shown that is not committed"
    assert rig.driver.replication.newest_committed in (None, 0)
    assert rig.driver.reads.wait_committed(Offset(0), 0) == 0


def retries_are_known_after_a_crash(_folder: Path) -> None:
    """A process that was killed wrote no state of producers: the log's tail tells."""
    disk = SimDisk(random.Random(1))
    rig = DriverRig(disk.files())
    rig.put(b"a", producer=7, sequence=0)
    rig.turns.run()
    rig.driver._local.log.write_producer_state(rig.driver._local.retries.producers.to_state())
    rig.put(b"b", producer=7, sequence=1)
    rig.turns.run()
    disk.kill()
    rig = DriverRig(disk.files(), epoch=2)
    answers = rig.put(b"b", producer=7, sequence=1)
    rig.turns.run()
    assert isinstance(answers[0], AppendResult), answers
    assert answers[0].duplicate
    assert answers[0].base_offset == 1
    assert rig.values() == [b"a", b"b"]


def failed_writes_are_not_remembered(_folder: Path) -> None:
    """A batch, and a message id, that a full disk refused are new when they come again."""
    disk = SimDisk(random.Random(1))
    rig = DriverRig(disk.files())
    rig.put(b"a", producer=7, sequence=0)
    rig.turns.run()
    roomy, disk.capacity_bytes = disk.capacity_bytes, 0
    size = 9 * 1024 * 1024  # more than was reserved ahead
    refused = rig.put(bytes(size), producer=7, sequence=1)
    with_id = rig.put_ids([bytes(size)], ["id"])
    rig.turns.run()
    assert isinstance(refused[0], DiskFullError), refused
    assert isinstance(with_id[0], DiskFullError), with_id
    disk.capacity_bytes = roomy
    again = rig.put(bytes(size), producer=7, sequence=1)
    with_id = rig.put_ids([b"with id"], ["id"])
    rig.turns.run()
    assert isinstance(again[0], AppendResult), again
    assert not again[0].duplicate
    assert not with_id[0].duplicates
    assert rig.driver.reads.log_end == 3


def a_crash_persists_nothing(_folder: Path) -> None:
    """A turn that raises between plan and append; then a polite stop, and the retry."""
    disk = SimDisk(random.Random(1))
    rig = DriverRig(disk.files())
    rig.put(b"a", producer=7, sequence=0)
    rig.turns.run()
    log: Any = rig.driver._local.log
    original = log.append

    def bug(*_: Any, **__: Any) -> None:
        raise MemoryError

    log.append = bug
    rig.put(b"b", producer=7, sequence=1)
    rig.turns.run()
    assert rig.turns.crashes
    log.append = original
    rig.close()
    rig = DriverRig(disk.files(), epoch=2)
    rig.put(b"other", producer=8, sequence=0)
    answers = rig.put(b"b", producer=7, sequence=1)
    rig.turns.run()
    assert isinstance(answers[0], AppendResult), answers
    assert rig.values()[answers[0].base_offset] == b"b"


Check = Callable[[Path], None]
CHECKS: tuple[Check, ...] = (
    acks_stand_on_syncs,
    interval_streams_sync_in_time,
    whole_files_are_durable,
    metadata_is_durable,
    objects_are_durable,
    leases_hold_local_segments,
    live_leases_are_the_floor,
    cuts_lease_before_they_look,
    cold_ends_are_recorded_first,
    duplicates_wait_like_the_first,
    uncommitted_records_are_not_shown,
    retries_are_known_after_a_crash,
    failed_writes_are_not_remembered,
    a_crash_persists_nothing,
)
