"""Tasks of a kept read ask whether the stream still has its records; how often, and about what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import ForeignHistoryError, InvalidRequestError, NoAnswerError
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from headwater.client import Client
from spark_jobs.read.scans import log_options
from spark_jobs.source.batch_plan import StreamPlan
from spark_jobs.source.batch_reader import HeadwaterReader
from spark_jobs.source.lookup import CommittedEnds
from spark_jobs.source.options import parse_batch
from spark_jobs.source.partitions import HistoryPositions, OffsetSlice, SliceTask, pack
from spark_jobs.source.task_history import checked, from_text, of_cut, of_ranges, to_text

UUID = StreamUuid("0f0e0d0c-0b0a-4908-8706-050403020100")
A, B = "a" * 32, "b" * 32
POSITIONS: HistoryPositions = ((A, 100), (B, 0))


class Broker(Client):
    """Answers as told, the last answer again and again; keeps what it was asked."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers or (None,))
        self.asked: list[tuple[str, str, Any]] = []

    def check_history(
        self, name: str, stream_uuid: str, positions: Sequence[tuple[str, int]]
    ) -> None:
        """Confirm the positions, or refuse them."""
        self.asked.append((name, stream_uuid, positions))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is not None:
            raise answer


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return seconds."""
        return self.now_s


def task(stream: str = "s", history: HistoryPositions | None = POSITIONS) -> SliceTask:
    """Return a task of a small slice."""
    return SliceTask(stream, UUID, OffsetSlice(0, Offset(0), Offset(10)), history=history)


def read(
    broker: Broker,
    batches: Iterator[int] | Sequence[int],
    tasks: Sequence[SliceTask] | None = None,
    *,
    by_broker: bool = True,
    clock: Clock | None = None,
) -> Iterator[int]:
    """Read numbers in place of batches."""
    return checked(
        batches,
        [task()] if tasks is None else tasks,
        broker,
        asks_broker=lambda: by_broker,
        monotonic_s=clock or Clock(),
    )


FOREIGN = ForeignHistoryError("other records", stream="s", partition=0, lineage_id=A, end=100)
AWAY = NoAnswerError("nobody is there")


def test_a_task_with_one_batch_asks_once() -> None:
    """After the batch was read, about all positions of the stream."""
    broker = Broker()
    assert list(read(broker, [1])) == [1]
    assert broker.asked == [("s", UUID, POSITIONS)]


def test_a_thousand_small_slices_ask_once_in_each_pack() -> None:
    """A question for each partition would cost as much as its records."""
    tasks = [
        SliceTask("s", UUID, OffsetSlice(n, Offset(0), Offset(40)), history=POSITIONS)
        for n in range(1000)
    ]
    broker = Broker()
    packs = pack(tasks, packs_min=0, records_max=2_000_000)
    for one in packs:
        list(read(broker, [1], one))
    assert len(broker.asked) == len(packs) == 16


def test_no_batch_is_given_before_the_first_answer() -> None:
    """An action with LIMIT ends the task after its first rows."""
    with pytest.raises(ForeignHistoryError, match="Read it anew") as caught:
        next(read(Broker(FOREIGN), [1, 2]))
    assert caught.value.facts == FOREIGN.facts


def test_what_was_read_after_the_first_answer_is_confirmed_at_the_end() -> None:
    """The stream may have been put back meanwhile."""
    broker = Broker(None, FOREIGN)
    rows = read(broker, [1, 2, 3])
    assert [next(rows), next(rows), next(rows)] == [1, 2, 3]
    with pytest.raises(ForeignHistoryError):
        next(rows)
    assert len(broker.asked) == 2


def test_an_old_answer_does_not_count_for_a_new_batch() -> None:
    """Spark may take a batch, and the next one much later."""
    broker, clock = Broker(None, FOREIGN), Clock()
    rows = read(broker, [1, 2], clock=clock)
    assert next(rows) == 1
    clock.now_s += 5
    with pytest.raises(ForeignHistoryError):
        next(rows)


def test_a_task_without_rows_asks_too() -> None:
    """That nothing is left of a slice is an answer like another."""
    with pytest.raises(ForeignHistoryError):
        list(read(Broker(FOREIGN), []))


def test_each_stream_of_a_pack_is_asked_about() -> None:
    """A task without positions is of a streaming query, which checks its checkpoint."""
    broker = Broker()
    list(read(broker, [1], [task("s"), task("s"), task("t"), task("u", None)]))
    assert [one[0] for one in broker.asked] == ["s", "t"]
    silent = Broker(FOREIGN)
    assert list(read(silent, [1, 2], [task("u", None)])) == [1, 2]
    assert silent.asked == []


def test_rows_of_the_table_need_no_broker() -> None:
    """Its commits were proved. But a broker that answers may refuse."""
    assert list(read(Broker(AWAY), [1, 2], by_broker=False)) == [1, 2]
    with pytest.raises(ForeignHistoryError):
        list(read(Broker(FOREIGN), [1], by_broker=False))


def test_a_broker_that_is_not_needed_and_silent_is_left_alone() -> None:
    """Each question to it may take half a minute."""
    broker, clock = Broker(AWAY), Clock()
    for _ in read(broker, range(20), by_broker=False, clock=clock):
        clock.now_s += 2
    assert len(broker.asked) == 2, "at the beginning and at the end"


def test_rows_of_a_broker_that_is_away_wait_for_it() -> None:
    """It may be put back just now."""
    broker = Broker(AWAY, None)
    assert list(read(broker, [1])) == [1]
    assert len(broker.asked) == 2


def a_cut(*lineage_ids: str | None, until: int | None = None) -> Cut:
    """Return a cut of partitions [0, 100)."""
    return Cut(
        cluster="c",
        stream="s",
        stream_uuid=UUID,
        subject="s",
        table_uri="/lake/default/s",
        table_version=None,
        partitions=tuple(
            PartitionCut(
                partition=number,
                start=Offset(0),
                cold_end=Offset(0),
                hot_end=Offset(100),
                leader_epoch=LeaderEpoch(1),
                lineage_id=lineage_id,
                until=None if until is None else Offset(until),
            )
            for number, lineage_id in enumerate(lineage_ids)
        ),
        taken_us=1,
        lease=Lease(lease_id=LeaseId("lease"), expires_us=2),
    )


def test_the_positions_of_a_cut_are_where_its_read_ends() -> None:
    """A cut from before there were lineage ids cannot be checked."""
    assert of_cut(a_cut(A, B)) == ((A, 100), (B, 100))
    assert of_cut(a_cut(A, until=7)) == ((A, 7),)
    assert of_cut(a_cut(A, None)) is None


def test_the_positions_of_ranges_are_committed_and_of_every_partition() -> None:
    """The broker takes no position above what a leadership has reached."""
    now = CommittedEnds(UUID, (Offset(50), Offset(60), Offset(9)), (A, B, A))
    ranges = {0: OffsetRange(Offset(3), Offset(40)), 1: OffsetRange(Offset(3), Offset(90))}
    assert of_ranges(ranges, now) == ((A, 40), (B, 60), (A, 0))


def test_each_task_of_a_plan_has_its_positions() -> None:
    """Tasks run in other processes, and have nothing else."""
    given = parse_batch({"stream": "s"})
    plan = StreamPlan("s", UUID, {0: OffsetRange(Offset(0), Offset(100))}, None, history=POSITIONS)
    [part] = HeadwaterReader(given, ("offset",), (plan,)).partitions()
    assert [one.history for one in part.value] == [POSITIONS]


def test_a_unified_read_gives_the_positions_to_its_tasks() -> None:
    """Its plan asks the broker nothing, so the option has them."""
    span = {0: OffsetRange(Offset(0), Offset(100))}
    given = parse_batch(log_options(a_cut(A, B), ["offset"], span, server="grpc://h:1"))
    assert given.history_positions == ((A, 100), (B, 100))
    without = parse_batch(log_options(a_cut(None, None), ["offset"], span, server="grpc://h:1"))
    assert without.history_positions is None
    assert replace(given, history_positions=None) == without


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1]", '[["x",1]]', f'[["{A}"]]', f'[["{A}",-1]]', f'[["{A}",true]]',
     f'[["{A}",0.5]]', f'[[1,"{A}"]]', "[" * 100_000, f'[{",".join([f"""["{A}",1]"""] * 1025)}]'],
    ids=range(12),
)  # fmt: skip
def test_the_option_comes_back_and_nothing_else_is_taken(text: str) -> None:
    """It comes from outside of the process that reads."""
    assert from_text(to_text(POSITIONS)) == POSITIONS
    with pytest.raises(InvalidRequestError, match="leave it out"):
        from_text(text)
