"""Where a member begins that has no position: the newest end, once, unless the application seeks.

The consumer and its threads are the product's; brokers that answer when the test says so stand in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Self, cast

import pytest

from broker.errors import NoAnswerError
from broker.model.groups import MemberView, ToldClaim
from broker.model.ids import StreamUuid
from headwater.client.group import reads
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

CLAIM = ToldClaim(
    stream="s",
    stream_uuid=StreamUuid("00000000-0000-0000-0000-000000000001"),
    partition=0,
    epoch=5,
    position=None,
)
WAIT_S = 30.0


class OneStream:
    """The brokers of one stream; the test says when they answer."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.begun: list[int] = []  # where reads have begun, in order
        self.ends = iter((100, 150, 200))
        self.asked = threading.Semaphore(0)  # once for each read that began
        self.may_answer = threading.Event()  # a request for the stream's end
        self.refusals_count = 0  # of reads to come
        self.closed = threading.Event()

    def perform(self, request: object) -> Event:
        """See ``MemberCalls.perform``."""
        match request:
            case JoinRequest():
                return Joined("a", 5)
            case BeatRequest():
                view = MemberView(epoch=5, coordinator="a", settled=True, claims=(CLAIM,))
                return Beaten(view, monotonic_ms())
            case CommitRequest(writes):
                self.committed += [int(one.offset) for one in writes if one.offset is not None]
                return PositionsStored()
        return Left()

    def high_watermark(self, stream: str, partition: int) -> int:
        """See ``Opening``."""
        assert self.may_answer.wait(WAIT_S)
        return next(self.ends)

    def fetch(self, stream: str, partition: int, start: int, **_: object) -> OneStream:
        """See ``Opening``: a read that gives nothing."""
        self.begun.append(start)
        self.asked.release()
        if self.refusals_count:
            self.refusals_count -= 1
            raise NoAnswerError("no answer")
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """See ``Fetch``."""

    def __iter__(self) -> Iterator[Any]:
        self.closed.wait(WAIT_S)
        return iter(())

    def cancel(self) -> None:
        """See ``Fetch``."""
        self.closed.set()


def consumer_of(brokers: OneStream, on_assigned: Any) -> GroupConsumer:
    """Return a member without a position that begins at the newest end."""
    opening = Opening(
        reset="latest",
        columns=None,
        high_watermark=cast("Any", brokers.high_watermark),
        fetch=cast("Any", brokers.fetch),
    )
    terms = MemberTerms(session_ms=10_000, commit_ms=0, processing_ms_max=60_000)
    return GroupConsumer(
        cast("Any", brokers), opening, terms, member_id="m", static=False, on_assigned=on_assigned
    )


def test_a_seek_is_not_overridden_by_a_late_answer_of_where_the_stream_ends() -> None:
    """The group would go on at the end, behind records that it never processed."""
    brokers = OneStream()
    assigned = threading.Event()

    def seek(_: object) -> None:
        consumer.seek("s", 0, 5)
        assigned.set()

    consumer = consumer_of(brokers, seek)
    with consumer:
        while not assigned.is_set():
            consumer.poll(0.01)
        assert brokers.asked.acquire(timeout=WAIT_S)
        brokers.may_answer.set()
        assert brokers.asked.acquire(timeout=WAIT_S)  # the read that asked for the end has it
        assert consumer.positions == {("s", 0): 5}
    assert set(brokers.committed) == {5}
    assert brokers.begun == [5, 5]


def test_a_beginning_is_chosen_once_though_the_first_read_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records that come until the next try are behind the beginning, so they are read."""
    monkeypatch.setattr(reads, "_AGAIN_S", 0)
    brokers = OneStream()
    brokers.may_answer.set()
    brokers.refusals_count = 1
    with consumer_of(brokers, None) as consumer:
        for _ in range(2):
            while not brokers.asked.acquire(timeout=0.01):
                consumer.poll(0.01)
        assert consumer.positions == {("s", 0): 100}
    assert brokers.begun == [100, 100]
    assert set(brokers.committed) == {100}
