"""What a member's application is given when it leaves a batch in the middle, or seeks meanwhile.

The consumer and its threads are the product's; brokers that answer when the test says so stand in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Self, cast

import pyarrow as pa
import pytest

from broker.errors import InvalidRequestError
from broker.model.epochs import LeaderEpoch
from broker.model.groups import MemberView, ToldClaim, ToldPosition
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from headwater.cli.subscribe import _as_member, _Joining
from headwater.client import AsyncGroupConsumer
from headwater.client.fetch import Fetched
from headwater.client.group.calls import monotonic_ms
from headwater.client.group.consumer import GroupConsumer
from headwater.client.group.events import (
    Beaten,
    BeatRequest,
    CommitRequest,
    Event,
    Joined,
    JoinRequest,
    Left,
    PositionsStored,
)
from headwater.client.group.held import MemberTerms
from headwater.client.group.opening import Opening
from headwater.client.group.records import AssignedPartition

ROWS = 3  # in a batch
END = 30
WAIT_S = 30.0


def claim(partition: int = 0, **facts: Any) -> ToldClaim:
    """Return a claim that begins at 0."""
    return ToldClaim(
        stream="s",
        stream_uuid=StreamUuid("00000000-0000-0000-0000-000000000001"),
        partition=partition,
        epoch=5,
        position=ToldPosition(offset=Offset(0)),
        **facts,
    )


class Rows:
    """A read that gives batches of three rows up to the end, then waits."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """See ``Fetch``."""

    def __iter__(self) -> Iterator[Fetched]:
        for base in range(self._start, END, ROWS):
            if self._closed.is_set():
                return
            end = min(END, base + ROWS)
            offsets = list(range(base, end))
            rows = pa.RecordBatch.from_pydict(
                {"value": [b"%d" % one for one in offsets], "offset": offsets}
            )
            yield Fetched(rows, Offset(base), Offset(end), Offset(END), LeaderEpoch(1))
        self._closed.wait(WAIT_S)

    def cancel(self) -> None:
        """See ``Fetch``."""
        self._closed.set()


class Brokers:
    """The brokers of one stream; the test says which claims they tell."""

    def __init__(self, *claims: ToldClaim) -> None:
        self.view = MemberView(epoch=5, coordinator="a", settled=False, claims=claims)
        self.committed: dict[int, int] = {}
        self.begun: list[tuple[int, int]] = []  # partitions and offsets of reads, in order

    def tell(self, *claims: ToldClaim) -> None:
        """Give the member these claims with its next heartbeat."""
        self.view = replace(self.view, epoch=self.view.epoch + 1, claims=claims)

    def perform(self, request: object) -> Event:
        """See ``MemberCalls.perform``."""
        match request:
            case JoinRequest():
                return Joined("a", 5)
            case BeatRequest():
                return Beaten(self.view, monotonic_ms())
            case CommitRequest(writes):
                for one in writes:
                    if one.offset is not None:
                        self.committed[one.partition] = int(one.offset)
                return PositionsStored()
        return Left()

    def fetch(self, stream: str, partition: int, start: int, **_: object) -> Rows:
        """See ``Opening``."""
        self.begun.append((partition, start))
        return Rows(start)


def member_of(
    brokers: Brokers, *, commit_ms: int | None = None, **call_backs: Any
) -> GroupConsumer:
    """Return a member of a group whose brokers are these."""
    opening = Opening(
        reset="earliest",
        columns=None,
        high_watermark=lambda *_: Offset(END),
        fetch=cast("Any", brokers.fetch),
    )
    terms = MemberTerms(session_ms=10_000, commit_ms=commit_ms, processing_ms_max=60_000)
    return GroupConsumer(
        cast("Any", brokers), opening, terms, member_id="m", static=False, **call_backs
    )


def wait_until(consumer: GroupConsumer, reached: Callable[[], bool]) -> None:
    """Wait for what the consumer's own threads do."""
    with consumer._changed:
        assert consumer._changed.wait_for(reached, WAIT_S)


def by_break(consumer: GroupConsumer) -> list[int]:
    """Leave the loop at the first record."""
    for record in consumer:
        return [record.offset]
    return []


def by_islice(consumer: GroupConsumer) -> list[int]:
    """Take four records: one batch, and one record of the next."""
    return [one.offset for one in islice(consumer, 4)]


def by_an_error(consumer: GroupConsumer) -> list[int]:
    """Fail at the second record."""
    given: list[int] = []
    records = cast("Any", iter(consumer))
    with closing(records), suppress(ZeroDivisionError):
        for record in records:
            given.append(record.offset)
            if len(given) == 2:
                raise ZeroDivisionError
    return given


def by_poll(consumer: GroupConsumer) -> list[int]:
    """Begin to iterate, then ask for rows."""
    given = [next(iter(consumer)).offset]
    rows = consumer.poll(WAIT_S)
    assert rows is not None
    offsets = rows.rows.column("offset").to_pylist()
    assert (rows.base_offset, rows.end_offset) == (offsets[0], offsets[-1] + 1)
    return [*given, *offsets]


def by_asking_anew(consumer: GroupConsumer) -> list[int]:
    """Begin a coroutine's iteration twice."""

    async def first(reader: AsyncGroupConsumer) -> int:
        async for record in reader:
            return int(record.offset)
        return -1

    async def both() -> list[int]:
        return [
            await first(AsyncGroupConsumer(consumer)),
            await first(AsyncGroupConsumer(consumer)),
        ]

    return asyncio.run(both())


@pytest.mark.parametrize("ask", [by_break, by_islice, by_an_error, by_poll, by_asking_anew])
def test_the_rest_of_a_batch_is_given_after_the_loop_was_left(
    ask: Callable[[GroupConsumer], list[int]],
) -> None:
    """Else the next commit would pass over it."""
    brokers = Brokers(claim())
    given: list[int] = []
    with member_of(brokers) as consumer:
        for _ in range(3):
            given += ask(consumer)
            consumer.commit()
            assert brokers.committed == {0: given[-1] + 1}
    assert given == list(range(len(given)))


def test_a_call_back_that_raises_takes_no_record_with_it() -> None:
    """The iteration ends with the error; the next one goes on where it was."""
    told: list[object] = []

    def fail(places: object) -> None:
        told.append(places)
        raise ZeroDivisionError

    brokers = Brokers(claim())
    with member_of(brokers, on_assigned=fail) as consumer:
        with pytest.raises(ZeroDivisionError):
            next(iter(consumer))
        records = iter(consumer)
        assert next(records).offset == 0
        brokers.tell(claim(), claim(1))
        wait_until(consumer, lambda: len(consumer.assignment) == 2)
        with pytest.raises(ZeroDivisionError):
            next(records)
        assert by_islice(consumer)[:2] == [1, 2]
    assert len(told) == 2


def test_a_seek_in_the_middle_of_a_batch_drops_the_rest() -> None:
    """The records that follow are those of the place that was sought."""
    with member_of(Brokers(claim())) as consumer:
        assert by_break(consumer) == [0]
        consumer.seek("s", 0, 20)
        assert by_break(consumer) == [20]
        consumer.pause(("s", 0))
        consumer.resume(("s", 0))
        assert by_islice(consumer) == [21, 22, 23, 24]


def test_a_seek_of_a_partition_that_is_given_up_blocks_no_other() -> None:
    """Nobody would stop its read, and its first batch would wait before all others."""

    def seek(_: object) -> None:
        consumer.seek("s", 1, 7)

    brokers = Brokers(claim(), claim(1))
    consumer = member_of(brokers, on_revoked=seek)
    with consumer:
        consumer.pause(*until_assigned(consumer))
        brokers.tell(claim(), claim(1, wanted=True))
        wait_until(consumer, lambda: any(one.stopping for one in consumer._core.held.values()))
        consumer.poll(0)
        with pytest.raises(InvalidRequestError):
            consumer.seek("s", 2, 0)
        consumer.seek("s", 1, 8)
        consumer.resume(("s", 0))
        assert [next_row(consumer) for _ in range(END // ROWS)] == [*range(0, END, ROWS)]
        brokers.tell(claim(), claim(1))
        wait_until(consumer, lambda: not any(one.given_up for one in consumer._core.held.values()))
        assert next_row(consumer) == 8
        assert brokers.begun == [(0, 0), (1, 8)]


def until_assigned(consumer: GroupConsumer) -> list[AssignedPartition]:
    """Return the partitions that a new member is told; nothing of them is read."""
    wait_until(consumer, lambda: bool(consumer._core.held))
    return consumer.assignment


def next_row(consumer: GroupConsumer) -> int:
    """Return the first offset of the next batch."""
    found = consumer.poll(WAIT_S)
    assert found is not None
    return found.base_offset


def test_a_command_that_fails_to_print_a_batch_leaves_its_records_to_the_group() -> None:
    """With ``--count`` the position behind the last printed record waits for the printing, too."""
    brokers = Brokers(claim())

    class Calls:
        """The client's calls that the command makes."""

        def stream(self, name: str) -> None:
            """See ``Client``."""

        def consumer(self, *_: object, **__: object) -> GroupConsumer:
            """See ``Client``."""
            return member_of(brokers, commit_ms=1_000)

    def batches() -> Any:
        wanted = _Joining(group="g", member=None, reset="earliest", follow=True, count=ROWS - 1)
        return _as_member(cast("Any", Calls()), "s", wanted)

    failing = batches()
    assert next(failing).column("offset").to_pylist() == [0, 1]
    failing.close()  # as an error in the loop body does
    assert brokers.committed == {}
    assert [one.column("offset").to_pylist() for one in batches()] == [[0, 1]]
    assert brokers.committed == {0: 2}
