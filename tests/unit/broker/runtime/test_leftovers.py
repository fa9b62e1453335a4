"""Logs without a replica here: removed after a deletion or a move, and never otherwise."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.core.metadata.commands import Command
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import MetadataState, PartitionState
from broker.errors import DiskFullError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import StreamConfig
from broker.process.samples import BrokerSamples
from broker.runtime.metadata.metadata_log import Answered
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.log.partition_log import PartitionLog
from simkit.brokers.brokers import disk_broker
from simkit.brokers.lone_broker import OWNER, STREAM, Killed, Running, killed

UNKNOWN = "00000000-0000-4000-8000-000000000000"
Change = Callable[[MetadataState], MetadataState]


class Cluster:
    """The metadata of a cluster, which other brokers may have changed."""

    def __init__(self, log: RaftMetadataLog) -> None:
        self._log = log
        self.change: Change = lambda state: state

    @property
    def state(self) -> MetadataState:
        """The cluster's present state."""
        return self.change(self._log.state)

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """See ``ProposingMetadata.propose_soon``."""
        self._log.propose_soon(command, answered, timeout_ms=timeout_ms)

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """See ``MetadataLog.propose``."""
        return self._log.propose(command, timeout_ms=timeout_ms)

    def barrier(self, *, timeout_ms: int = 1_000) -> int:
        """See ``MetadataLog.barrier``."""
        return self._log.barrier(timeout_ms=timeout_ms)


def _moved(uuid: str, number: int, epoch: int) -> Change:
    """Say that a partition has its one replica on another broker, in this leader epoch."""
    other = BrokerId("b2")

    def change(state: MetadataState) -> MetadataState:
        key = StreamUuid(uuid)
        row = PartitionState(
            leader=other,
            leader_epoch=LeaderEpoch(epoch),
            cold_end=state.partitions[key][number].cold_end,
            replicas=(other,),
            isr=(other,),
        )
        rows = tuple(row if at == number else one for at, one in enumerate(state.partitions[key]))
        return replace(state, partitions={**state.partitions, key: rows})

    return change


def _files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()
    }


@pytest.fixture
def at(tmp_path: Path) -> Killed:
    """What a broker left."""
    return killed(tmp_path)


def test_a_log_that_the_cluster_does_not_know_is_moved_aside(at: Killed) -> None:
    """The log is kept whole; the probe and a warning at each start name it."""
    unknown = at.folder / "streams" / UNKNOWN
    put: dict[str, bytes] = {}

    def put_there(log: RaftMetadataLog) -> RaftMetadataLog:
        shutil.copytree(at.log, unknown / "3")
        put.update(_files_below(unknown / "3"))
        return log

    with disk_broker(at.folder, watched=put_there, owner=OWNER) as broker:
        assert Running(broker, at.folder).rows() == at.values
        (aside,) = (at.folder / "unknown").iterdir()
        assert aside.name.startswith(f"{UNKNOWN}-3-")
        assert _files_below(aside) == put
        failure = BrokerSamples(broker, None).failure()
        assert failure is not None
        assert aside.name in failure
    with disk_broker(at.folder, owner=OWNER) as broker:
        assert Running(broker, at.folder).rows() == at.values
        assert BrokerSamples(broker, None).failure() is None
        assert aside.exists()


@pytest.mark.parametrize(("epoch", "is_kept"), [(9, False), (1, False), (0, True)])
def test_a_replica_that_was_moved_away_is_removed_unless_it_is_newer(
    at: Killed, epoch: int, *, is_kept: bool
) -> None:
    """Other replicas have its records, unless it has a leader epoch that they do not know."""

    def moved(log: RaftMetadataLog) -> Cluster:
        cluster = Cluster(log)
        cluster.change = _moved(at.uuid, 0, epoch)
        return cluster

    with disk_broker(at.folder, watched=moved, owner=OWNER):
        assert not at.log.exists()
        kept = [one.name for one in (at.folder / "unknown").glob("*")]
        assert [one.rpartition("-")[0] for one in kept] == [f"{at.uuid}-0"] * is_kept


def test_a_replica_with_an_epoch_history_that_is_not_legible_is_kept(at: Killed) -> None:
    """It is unknown whether other replicas have its records."""
    (at.log / "epochs").write_bytes(b"rot")

    def moved(log: RaftMetadataLog) -> Cluster:
        cluster = Cluster(log)
        cluster.change = _moved(at.uuid, 0, 9)
        return cluster

    with disk_broker(at.folder, watched=moved, owner=OWNER):
        assert len(list((at.folder / "unknown").iterdir())) == 1


def test_a_replica_that_goes_leaves_its_neighbour_that_could_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that waits for disk space still has its log."""
    clusters: list[Cluster] = []

    def watched(log: RaftMetadataLog) -> Cluster:
        clusters.append(Cluster(log))
        return clusters[-1]

    with disk_broker(tmp_path, owner=OWNER) as broker:
        uuid = broker.streams.create(STREAM, StreamConfig(subject="s", partitions=2)).uuid
    opened = PartitionLog.open

    def open_but_one(files: Any, folder: str, *args: Any, **settings: Any) -> PartitionLog:
        if folder.endswith("/1"):
            raise DiskFullError("no room")
        return opened(files, folder, *args, **settings)

    monkeypatch.setattr(PartitionLog, "open", open_but_one)
    with disk_broker(tmp_path, watched=watched, owner=OWNER) as broker:
        clusters[-1].change = _moved(uuid, 0, 9)
        with pytest.raises(DiskFullError):
            broker.reconcile()
        left = [one.name for one in (tmp_path / "streams" / uuid).iterdir()]
        assert left == ["1"]
