"""Cuts, lineages and cold ends, with old metadata and a failing lake."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.core.metadata.commands import Command, DropLease, RecordColdEnd, TakeLease
from broker.errors import ForeignHistoryError, RemoteTierUnavailableError, StreamRecreatedError
from broker.model.cut_positions import CutPosition
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.lineage import Leadership, Lineage
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream, StreamConfig
from broker.model.tiering import TableState
from broker.ports.api import PartitionStanding
from broker.runtime.api.cold_tier import ColdEnds
from broker.runtime.api.cuts import Cuts
from broker.runtime.api.known_lineages import KnownLineages
from simkit.wall_clock import WallClock

OURS, OTHER = (StreamUuid(f"00000000-0000-0000-0000-{number:012}") for number in (1, 2))
AT = PartitionId(OURS, PartitionNumber(0))
STREAM = Stream(name="s", uuid=OURS, config=StreamConfig(subject="s"), created_us=1, table_name="s")
TABLE = TableState(
    table_uri="file:///lake/s", version=3, ranges={0: OffsetRange(Offset(0), Offset(10))},
    files_count=1, files_bytes=1,
)  # fmt: skip


def leadership(epoch: int) -> Leadership:
    """Return a leadership that began at ten times its epoch, less ten."""
    start = Offset(epoch * 10 - 10)
    return Leadership(leader_epoch=LeaderEpoch(epoch), lineage_id=f"{epoch:032x}", start=start)


class Metadata:
    """A broker's local metadata, and the state that its next barrier brings."""

    def __init__(self, lineage: Lineage, *, cold_end: int = 10) -> None:
        self.lineage, self.cold_end = lineage, Offset(cold_end)
        self.coming: list[Callable[[], None]] = []
        self.proposed: list[Command] = []

    @property
    def state(self) -> Any:
        """Return the local state."""
        row = SimpleNamespace(lineage=self.lineage, cold_end=self.cold_end, purged_end=Offset(0))
        return SimpleNamespace(
            partitions={OURS: (row,)}, partition=lambda _: row, leases={}, tenants={}
        )

    def barrier(self, *, timeout_ms: int) -> None:
        """Apply the newest state."""
        assert timeout_ms == 7
        for one in self.coming:
            one()

    def propose(self, command: Command) -> dict[str, Any]:
        """Take a command."""
        self.proposed.append(command)
        return {}

    def learns(self, lineage: Lineage) -> None:
        """Let the next barrier bring another lineage."""

        def learn() -> None:
            self.lineage = lineage

        self.coming.append(learn)


class Lake:
    """A lake with a fixed table, which calls ``look`` before it answers."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self.look = look

    def table_state(self, _: Stream) -> TableState:
        """Return the table."""
        self.look()
        return TABLE


def cuts(metadata: Any, lake: Any, *, epoch: int = 1) -> Cuts:
    """Return a taker of cuts for a stream whose leader has this epoch."""
    standing = PartitionStanding(Offset(0), Offset(30), LeaderEpoch(epoch))
    streams: Any = SimpleNamespace(get=lambda _: STREAM)
    partitions: Any = SimpleNamespace(standing_of=lambda *_: standing)
    return Cuts(
        "c", metadata, WallClock(), streams=streams, partitions=partitions, cold=lake,
        ends=ColdEnds(metadata), lineages=KnownLineages(metadata, confirm_ms=7),
    )  # fmt: skip


def lineages(metadata: Any) -> KnownLineages:
    """Return a finder of lineages in this metadata."""
    return KnownLineages(metadata, confirm_ms=7)


def test_a_cut_that_fails_leaves_no_lease() -> None:
    """The lease that was taken first is dropped."""

    def fail() -> None:
        raise RemoteTierUnavailableError("503")

    metadata = Metadata((leadership(1),))
    with pytest.raises(RemoteTierUnavailableError):
        cuts(metadata, Lake(fail)).take("s", owner="me", ttl_ms=60_000)
    taken, dropped = metadata.proposed
    assert isinstance(taken, TakeLease)
    assert isinstance(dropped, DropLease)
    assert dropped.lease_id == taken.lease_id


def test_a_cut_names_the_leadership_of_its_leader() -> None:
    """The named leadership is that of the leader's epoch, not an earlier or a newer known one."""
    metadata = Metadata((leadership(1), leadership(2), leadership(3)))
    (part,) = cuts(metadata, Lake(), epoch=2).take("s", owner="me", ttl_ms=60_000).partitions
    assert part.lineage_id == leadership(2).lineage_id


def test_cold_ends_are_read_before_the_table() -> None:
    """Cold ends recorded during the read of the table may belong to a newer version."""
    metadata = Metadata((leadership(1),))

    def record() -> None:
        metadata.cold_end = Offset(20)

    (part,) = cuts(metadata, Lake(record)).take("s", owner="me", ttl_ms=60_000).partitions
    assert (part.cold_end, part.hot_end) == (10, 30)


def test_a_cut_of_another_incarnation_is_refused() -> None:
    """It is refused even if its positions belong to the present history."""
    known = lineages(Metadata((leadership(1),)))
    position = CutPosition(leadership(1).lineage_id, Offset(5))
    known.require(STREAM, OURS, [position], believe_forgotten=False)
    for positions in ([position], []):
        with pytest.raises(StreamRecreatedError):
            known.require(STREAM, OTHER, positions, believe_forgotten=False)


def test_nothing_is_refused_by_metadata_that_is_behind() -> None:
    """A lineage that the newest metadata knows is accepted; only one that it lacks is refused."""
    metadata = Metadata((leadership(1),))
    metadata.learns((leadership(1), leadership(2)))
    position = CutPosition(leadership(2).lineage_id, Offset(15))
    lineages(metadata).require(STREAM, OURS, [position], believe_forgotten=False)
    foreign = position._replace(lineage_id="f" * 32)
    with pytest.raises(ForeignHistoryError):
        lineages(metadata).require(STREAM, OURS, [foreign], believe_forgotten=False)


def test_a_leadership_has_its_id_as_soon_as_the_newest_metadata_knows_it() -> None:
    """A leader elsewhere may know of its leadership before this broker."""
    metadata = Metadata((leadership(1),))
    metadata.learns((leadership(1), leadership(2)))
    assert lineages(metadata).id_of(STREAM, 0, LeaderEpoch(2)) == leadership(2).lineage_id
    assert lineages(metadata).id_of(STREAM, 0, LeaderEpoch(9)) is None
    assert lineages(metadata).id_of(STREAM, 1, LeaderEpoch(1)) is None


def test_a_cold_end_is_recorded_when_it_is_higher() -> None:
    """A known cold end costs no command, and a lower one changes nothing."""
    metadata = Metadata((), cold_end=10)
    known: Any = metadata
    for end in (0, 9, 10):
        ColdEnds(known).record(AT, Offset(end))
    assert metadata.proposed == []
    ColdEnds(known).record(AT, Offset(11))
    (command,) = metadata.proposed
    assert isinstance(command, RecordColdEnd)
    assert (command.stream_uuid, command.partition, command.cold_end) == (OURS, 0, 11)
