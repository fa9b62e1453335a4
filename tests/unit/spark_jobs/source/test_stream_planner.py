"""Planning batches without Spark or a broker: beginnings, ceilings, losses, new partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from broker.errors import (
    ForeignHistoryError,
    HeadwaterError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownStreamError,
)
from broker.model.cut_positions import CutPosition, refusal
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.lineage import Leadership
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.lookup import CommittedEnds, StreamPositions
from spark_jobs.source.options import parse_stream
from spark_jobs.source.positions import AtMs
from spark_jobs.source.selection import Selection
from spark_jobs.source.stream_offsets import QueryOffsets, parse_offsets
from spark_jobs.source.stream_planner import StreamPlanner

A = StreamUuid("0f0e0d0c-0b0a-4908-8706-050403020100")
B = StreamUuid("1f0e0d0c-0b0a-4908-8706-050403020100")


def lineage_id(letter: str) -> str:
    """Return the id of a leadership."""
    return letter * 32


@dataclass
class World:
    """A broker's answers, which a test changes as it likes; also the leases."""

    streams: dict[str, tuple[StreamUuid, dict[int, tuple[int, int]]]] = field(default_factory=dict)
    lost: HeadwaterError | None = None
    held: set[str] = field(default_factory=set)
    at: dict[int, int] = field(default_factory=dict)
    record_bytes: int = 100
    lineage: list[tuple[str, int]] = field(default_factory=lambda: [(lineage_id("a"), 0)])
    asked: int = 0  # how often a history was checked

    def names(self, selection: Selection) -> tuple[str, ...]:
        """Return the streams of the read."""
        return selection.names or selection.matching(self.streams)

    def uuid(self, name: str) -> StreamUuid:
        """Return an incarnation."""
        return self.streams[name][0]

    def positions(self, name: str, selection: Selection) -> StreamPositions:
        """Return the positions of a stream."""
        if name not in self.streams:
            raise UnknownStreamError(f"no stream {name}")
        uuid, ranges = self.streams[name]
        spans = {n: OffsetRange(Offset(a), Offset(b)) for n, (a, b) in ranges.items()}
        return StreamPositions(
            name, uuid, {n: span for n, span in spans.items() if selection.takes(name, n)}
        )

    def offset_at(self, stream: StreamPositions, partition: int, at: AtMs) -> Offset:
        """Return the offset at a time."""
        return Offset(self.at[partition])

    def bytes_per_record(self, stream: StreamPositions, partition: int, start: Offset) -> int:
        """Return the mean size of a record."""
        return self.record_bytes

    def committed(self, name: str) -> CommittedEnds:
        """Return the committed ends and their lineage, which is the same for all partitions."""
        if name not in self.streams:
            raise UnknownStreamError(f"no stream {name}")
        uuid, ranges = self.streams[name]
        ends = tuple(Offset(ranges[n][1]) for n in sorted(ranges))
        return CommittedEnds(uuid, ends, (self.lineage[-1][0],) * len(ends))

    def check_history(self, name: str, uuid: StreamUuid, ends: Sequence[tuple[str, int]]) -> None:
        """Refuse ends of other histories, as a broker does."""
        self.asked += 1
        assert self.streams[name][0] == uuid
        lineage = tuple(
            Leadership(leader_epoch=LeaderEpoch(at), lineage_id=one, start=Offset(start))
            for at, (one, start) in enumerate(self.lineage)
        )
        positions = [CutPosition(one, Offset(end)) for one, end in ends]
        refused = refusal(name, [lineage] * len(self.streams[name][1]), positions)
        if refused is not None:
            raise refused

    def hold(self, stream: str) -> HeadwaterError | None:
        """Hold a stream."""
        self.held.add(stream)
        return self.lost


def one(start: int = 0, end: int = 100) -> World:
    """Return a world with stream `s` of one partition."""
    return World({"s": (A, {0: (start, end)})})


def planner(world: World, **options: str) -> StreamPlanner:
    """Return the planner of a new process, with no time to wait for a leader."""
    given = {"startingOffsets": "earliest", **options}
    if not {"subscribe", "subscribePattern", "assign"} & set(given):
        given["subscribe"] = "s"
    return StreamPlanner(parse_stream(given), world, world, patience_s=0)


def ends(offsets: QueryOffsets, stream: str = "s") -> dict[int, int]:
    """Return where a batch ends."""
    return dict(offsets.streams[stream].ends)


def test_batches_until_the_end_and_none_after_it() -> None:
    """Each batch goes on where the last one ended; without news, the same offsets come back."""
    world = one()
    plan = planner(world, maxOffsetsPerTrigger="40")
    at = plan.initial()
    seen = []
    while (after := plan.latest(at, limited=True)) is not at:
        seen.append(ends(after)[0])
        at = after
    world.streams["s"] = (A, {0: (0, 101)})

    assert seen == [40, 80, 100]
    assert ends(plan.latest(at, limited=True)) == {0: 101}
    assert world.held == {"s"}


def test_a_limit_does_not_bind_a_single_run_over_everything() -> None:
    """Trigger.Once asks for all that there is."""
    plan = planner(one(), maxOffsetsPerTrigger="40")

    assert ends(plan.latest(plan.initial(), limited=False)) == {0: 100}


def test_bytes_become_records_by_their_size() -> None:
    """`maxBytesPerTrigger` is an estimate, and never an empty batch."""
    world = one()
    plan = planner(world, maxBytesPerTrigger="1000")
    assert ends(plan.latest(plan.initial(), limited=True)) == {0: 10}
    world.record_bytes = 8_000_000
    assert ends(plan.latest(plan.initial(), limited=True)) == {0: 1}


def test_latest_stays_where_the_query_began() -> None:
    """Spark asks again until a batch has ended; records that came meanwhile are not skipped."""
    world = one()
    plan = planner(world, startingOffsets="latest")
    first = plan.initial()
    world.streams["s"] = (A, {0: (0, 130)})

    assert plan.initial() == first
    end = plan.latest(first, limited=True)
    assert (end.streams["s"].starts, ends(end)) == ({0: 100}, {0: 130})


def test_latest_is_pinned_by_an_empty_batch() -> None:
    """The empty batch puts the beginning into the checkpoint, so a restart does not begin later."""
    plan = planner(one(), startingOffsets="latest")

    pinned = plan.latest(plan.initial(), limited=True)

    assert not pinned.first
    assert (pinned.streams["s"].starts, ends(pinned)) == ({0: 100}, {0: 100})
    assert plan.latest(pinned, limited=True) is pinned


def test_beginning_at_offsets_and_at_a_time() -> None:
    """Offsets must name every partition; a time is looked up in each."""
    world = World({"s": (A, {0: (0, 100), 1: (0, 50)})}, at={0: 30, 1: 50})

    by_offset = planner(world, startingOffsets='{"0": 7, "1": -1}').initial()
    by_time = planner(world, startingTimestamp="5").initial()

    assert ends(by_offset) == {0: 7, 1: 50}
    assert ends(by_time) == {0: 30, 1: 50}
    with pytest.raises(InvalidRequestError, match="name each"):
        planner(world, startingOffsets='{"0": 7}').initial()


def test_a_beginning_that_was_never_there_is_refused() -> None:
    """An offset below the retained ones, or above the end, is refused."""
    for beyond in ("3", "101"):
        plan = planner(one(start=5), startingOffsets=f'{{"0": {beyond}}}')
        with pytest.raises(OffsetOutOfRangeError):
            plan.latest(plan.initial(), limited=True)


def test_a_run_over_what_is_there_has_a_ceiling() -> None:
    """AvailableNow reads nothing that is younger than its start, new partitions included."""
    world = one()
    plan = planner(world)
    plan.prepare_available_now()
    world.streams["s"] = (A, {0: (0, 200), 1: (0, 10)})

    end = plan.latest(plan.initial(), limited=True)

    assert ends(end)[0] == 100
    assert plan.latest(end, limited=True) is end


def test_a_partition_added_later_begins_at_its_earliest() -> None:
    """The batch's own offsets have that beginning."""
    world = one()
    plan = planner(world, startingOffsets="latest")
    at = plan.latest(plan.initial(), limited=True)
    world.streams["s"] = (A, {0: (0, 100), 1: (3, 3)})
    assert plan.latest(at, limited=True) is at
    world.streams["s"] = (A, {0: (0, 100), 1: (3, 9)})

    end = plan.latest(at, limited=True)

    assert at.ranges(end)["s"][1] == {
        0: OffsetRange(Offset(100), Offset(100)),
        1: OffsetRange(Offset(3), Offset(9)),
    }


def test_a_stream_that_appears_later_is_read_from_its_beginning() -> None:
    """The streams match a pattern, and each has its own offsets."""
    world = World({"a1": (A, {0: (0, 5)})})
    plan = planner(world, subscribePattern="a.*")
    at = plan.latest(plan.initial(), limited=True)
    world.streams |= {"a2": (B, {0: (2, 4)}), "b": (B, {0: (0, 9)})}

    end = plan.latest(at, limited=True)

    assert (ends(end, "a1"), ends(end, "a2"), set(end.streams)) == ({0: 5}, {0: 4}, {"a1", "a2"})
    assert end.streams["a2"].starts == {0: 2}


def test_assigned_partitions_only() -> None:
    """Other partitions of the stream are not read."""
    world = World({"s": (A, {0: (0, 5), 1: (0, 6)})})

    assert ends(planner(world, assign='{"s": [1]}').initial()) == {1: 0}


@pytest.mark.parametrize("change", ["recreated", "deleted"])
def test_another_stream_is_never_mixed_in(change: str) -> None:
    """A name that means another stream, or none, ends the query by name."""
    world = one()
    plan = planner(world)
    at = plan.latest(plan.initial(), limited=True)
    world.streams = {"s": (B, {0: (0, 500)})} if change == "recreated" else {}

    kind = StreamRecreatedError if change == "recreated" else UnknownStreamError
    with pytest.raises(kind):
        plan.latest(at, limited=True)


def test_told_so_a_query_outlives_one_of_its_streams() -> None:
    """failOnDataLoss=false allows that; the deleted stream's offsets stay in the checkpoint."""
    world = World({"s": (A, {0: (0, 5)}), "t": (B, {0: (0, 5)})})
    plan = planner(world, subscribePattern=".", failOnDataLoss="false")
    at = plan.latest(plan.initial(), limited=True)
    world.streams = {"s": (A, {0: (0, 9)})}

    end = plan.latest(at, limited=True)

    assert (ends(end), ends(end, "t")) == ({0: 9}, {0: 5})
    assert at.ranges(end)["t"][1] == {0: OffsetRange(Offset(5), Offset(5))}


def test_a_wanted_incarnation_is_checked_at_the_beginning() -> None:
    """`streamUuid` refuses another stream of the name."""
    with pytest.raises(StreamRecreatedError):
        planner(one(), streamUuid=B).initial()


@pytest.mark.parametrize("lost", [True, False])
def test_records_that_are_gone_end_the_query(lost: bool) -> None:
    """Never fewer rows: the error says whether a lost lease was the reason."""
    world = one()
    plan = planner(world)
    at = parse_offsets({"v": 1, "id": A, "p": {"0": 10}}, single="s", names={})
    world.streams["s"] = (A, {0: (50, 100)})
    world.lost = UnknownLeaseError("ended", lease_id="l") if lost else None

    kind = UnknownLeaseError if lost else OffsetOutOfRangeError
    with pytest.raises(kind, match=r"\[10, 50\)"):
        plan.latest(at, limited=True)


def test_a_lost_lease_without_a_loss_goes_on() -> None:
    """The broker forgot the lease, and nothing was deleted."""
    world = one()
    world.lost = UnknownLeaseError("ended", lease_id="l")
    plan = planner(world)

    assert ends(plan.latest(plan.initial(), limited=True)) == {0: 100}


def test_told_so_a_query_goes_on_after_a_loss() -> None:
    """failOnDataLoss=false; where it went on is in the offsets, so a repeat reads the same."""
    world = one(start=50)
    plan = planner(world, failOnDataLoss="false")
    at = parse_offsets({"v": 1, "id": A, "p": {"0": 10}}, single="s", names={})

    end = plan.latest(at, limited=True)

    assert at.ranges(end)["s"][1] == {0: OffsetRange(Offset(50), Offset(100))}


def test_a_log_that_ends_before_what_was_read_is_refused() -> None:
    """It is refused after a while only, because a new leader may know less for a moment."""
    plan = planner(one())
    at = parse_offsets({"v": 1, "id": A, "p": {"0": 101}}, single="s", names={})

    with pytest.raises(OffsetOutOfRangeError, match="ends at 100"):
        plan.latest(at, limited=True)


def test_progress_shows_the_high_watermarks() -> None:
    """Spark's progress computes the lag from them."""
    plan = planner(one(), maxOffsetsPerTrigger="1")
    assert plan.reported() is None
    plan.latest(plan.initial(), limited=True)

    found = plan.reported()

    assert found is not None
    assert found.to_json("s") == {"v": 1, "id": A, "p": {"0": 100}}


# ------------------------------------------------------------------ whose history it is


def stored(offsets: QueryOffsets) -> QueryOffsets:
    """Return offsets as the checkpoint gives them back."""
    return parse_offsets(offsets.to_json("s"), single="s", names={})


@pytest.mark.parametrize("end", [90, 100, 130], ids=["shorter", "as long", "longer"])
def test_a_query_does_not_go_on_in_another_history(end: int) -> None:
    """Everything was restored to offset 60, and other records were stored since."""
    world = one()
    plan = planner(world)
    at = plan.latest(plan.initial(), limited=True)
    world.lineage = [(lineage_id("a"), 0), (lineage_id("b"), 60)]
    world.streams["s"] = (A, {0: (0, end)})
    for new in (plan, planner(world)):
        with pytest.raises(ForeignHistoryError, match="another checkpoint") as refused:
            new.latest(stored(at), limited=True)
        assert (refused.value.facts["partition"], refused.value.facts["end"]) == (0, 100)
        with pytest.raises(ForeignHistoryError):
            new.require_history(stored(at))


def test_a_query_goes_on_over_restarts_and_new_leaders() -> None:
    """The end belongs to the history; the broker is not asked while the leadership is the same."""
    world = one()
    plan = planner(world)
    at = stored(plan.latest(plan.initial(), limited=True))
    assert dict(at.streams["s"].lineage_ids) == {0: lineage_id("a")}
    assert plan.latest(at, limited=True) is at
    plan.require_history(at)
    assert world.asked == 0
    world.lineage.append((lineage_id("b"), 100))
    assert plan.latest(at, limited=True) is at  # the same text: no batch
    assert world.asked == 1
    world.streams["s"] = (A, {0: (0, 120)})
    after = plan.latest(at, limited=True)
    assert (ends(after), dict(after.streams["s"].lineage_ids)) == ({0: 120}, {0: lineage_id("b")})


def test_a_query_that_has_read_less_than_was_lost_goes_on() -> None:
    """The records that it has read are those of the stream."""
    world = one()
    plan = planner(world, maxOffsetsPerTrigger="40")
    at = stored(plan.latest(plan.initial(), limited=True))
    world.lineage = [(lineage_id("a"), 0), (lineage_id("b"), 60)]
    assert ends(planner(world).latest(at, limited=True)) == {0: 100}


def test_an_old_checkpoint_opens_and_learns_whose_history_it_is() -> None:
    """An old checkpoint has no lineage id: only its stream and its offsets can be checked."""
    world = one()
    old = parse_offsets({"v": 1, "id": A, "p": {"0": 40}}, single="s", names={})
    after = planner(world).latest(old, limited=True)
    assert dict(after.streams["s"].lineage_ids) == {0: lineage_id("a")}
    planner(world).require_history(old)


def test_a_batch_ends_where_its_history_is_known_to() -> None:
    """The ends were read before the lineage: records lost in between are not read."""
    world = one()
    plan = planner(world)
    start = plan.initial()
    positions = world.positions

    def then_lost(name: str, selection: Selection) -> StreamPositions:
        found = positions(name, selection)
        world.streams["s"] = (A, {0: (0, 60)})
        return found

    world.positions = then_lost  # type: ignore[method-assign]
    after = plan.latest(start, limited=True)
    assert (ends(after), dict(after.streams["s"].lineage_ids)) == ({0: 60}, {0: lineage_id("a")})
