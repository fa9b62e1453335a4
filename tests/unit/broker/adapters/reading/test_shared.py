"""Followers of a partition share its newest rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.reading import rows
from broker.adapters.reading.rows import read_rows, resolve
from broker.adapters.reading.shared import SHARED_BYTES_MAX, Followed, Found, NewestRows
from broker.codec.flight import reply_batches
from broker.codec.flight.protocol import ReadRequest
from broker.codec.flight.reply_batches import Reply
from broker.codec.record_batch import prepare
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from simkit.brokers.memory_broker import MemoryBroker, numbered

WAIT_S = 60.0
HANDLE = object()


class Reads:
    """Counts reads, each of which finds one record."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, stored_bytes: int = 1) -> tuple[list[Found], int]:
        """Find the record."""
        self.count += 1
        reply = Reply(pa.RecordBatch.from_pydict({"value": [b"x"]}), Offset(0), Offset(1))
        return [(reply, LeaderEpoch(1))], stored_bytes


@pytest.fixture
def now_s() -> list[float]:
    """Give the time that the rows are told, to be changed."""
    return [0.0]


@pytest.fixture
def newest(now_s: list[float]) -> Iterator[NewestRows]:
    """Give the newest rows of a partition that two readers follow."""
    followed = Followed(lambda: now_s[0])
    with followed.follow(HANDLE) as first, followed.follow(HANDLE) as second:
        assert first is second
        yield first


def test_the_second_follower_gets_what_the_first_has_read(newest: NewestRows) -> None:
    """The same rows, for a second."""
    read = Reads()
    found = newest.take("key", Offset(1), read)
    assert newest.take("key", Offset(1), read) is found
    assert read.count == 1


def test_other_keys_and_lower_limits_are_read(newest: NewestRows) -> None:
    """A key names the epoch, the position and the columns; nobody gets more than is committed."""
    read = Reads()
    newest.take("key", Offset(1), read)
    newest.take("other", Offset(1), read)
    newest.take("key", Offset(0), read)
    assert read.count == 3


def test_rows_are_served_for_a_second(newest: NewestRows, now_s: list[float]) -> None:
    """What was deleted from the log since is not served from memory."""
    read = Reads()
    newest.take("key", Offset(1), read)
    now_s[0] = 1.1
    newest.take("key", Offset(1), read)
    assert read.count == 2


def test_few_rows_are_kept(newest: NewestRows) -> None:
    """So that memory is bounded."""
    read = Reads()
    for number in range(5):
        newest.take(number, Offset(1), read)
    newest.take(4, Offset(1), read)
    assert read.count == 5
    newest.take(0, Offset(1), read)
    assert read.count == 6


def test_what_rows_refer_to_counts(newest: NewestRows) -> None:
    """A slice or a column of a large batch keeps the whole batch in memory."""
    large = pa.RecordBatch.from_pydict({"value": [b"x" * SHARED_BYTES_MAX, b"y"]}).slice(1)
    found = [(Reply(large, Offset(0), Offset(1)), LeaderEpoch(1))]
    newest.take("slice", Offset(1), lambda: (found, 1))
    newest.take("column", Offset(1), partial(Reads(), SHARED_BYTES_MAX + 1))
    assert [one.found for one in newest._entries.values()] == [None, None]


def test_large_rows_are_read_by_all_at_the_same_time(newest: NewestRows) -> None:
    """Once one follower has seen that they are too large."""
    newest.take("key", Offset(1), partial(Reads(), SHARED_BYTES_MAX + 1))
    both = threading.Barrier(2)

    def read() -> tuple[list[Found], int]:
        both.wait(WAIT_S)
        return Reads()()

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: newest.take("key", Offset(1), read), range(2)))
    assert [one[0][0].end_offset for one in found] == [1, 1]


def test_nothing_is_kept_of_a_read_that_fails_or_finds_nothing(newest: NewestRows) -> None:
    """The next follower reads by itself."""

    def fail() -> tuple[list[Found], int]:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        newest.take("key", Offset(1), fail)
    assert newest.take("key", Offset(1), lambda: ([], 0)) == []
    read = Reads()
    newest.take("key", Offset(1), read)
    assert read.count == 1


def test_nothing_stays_of_a_partition_that_nobody_follows() -> None:
    """The next one begins anew, and whether there are others is told."""
    followed, shared = Followed(), []
    with followed.follow(HANDLE) as newest:
        shared.append(newest.is_shared)
        with followed.follow(HANDLE):
            shared.append(newest.is_shared)
        shared.append(newest.is_shared)
    assert shared == [False, True, False]
    assert not followed._newest


def test_what_followers_wait_for_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them gets every record, in order."""
    decoded, real = [], reply_batches.replies

    def replies(*args: Any, **options: Any) -> Any:
        decoded.append(options["start"])
        return real(*args, **options)

    monkeypatch.setattr(rows, "replies", replies)
    monkeypatch.setattr(rows, "_FOLLOWED", Followed(lambda: 0.0))  # the machine may stand still
    broker, over = MemoryBroker(), threading.Event()
    broker.streams.create("s", StreamConfig(subject="s"))
    wanted = resolve(broker, ReadRequest(stream="s", partition=0, follow=True))
    with ExitStack() as stack:
        stack.callback(broker.close)
        stack.callback(over.set)
        open_ = [
            read_rows(broker, wanted, idle_check_ms=5, check_stop=over.is_set) for _ in range(5)
        ]
        for one in open_:
            stack.callback(one.close)  # type: ignore[attr-defined]
        for number in range(3):
            put(broker, numbered(number, 1))
            if number == 0:
                assert [next(one)[1].base_offset for one in open_] == [0] * 5
                decoded.clear()  # the first one was alone
            else:
                found = [next(one) for one in open_]
                assert [mark.base_offset for _, mark in found] == [number] * 5
                assert all(batch is found[0][0] for batch, _ in found)
    assert decoded == [1, 2]


def put(broker: MemoryBroker, batch: pa.RecordBatch) -> None:
    """Store a batch and wait until it is."""
    stored = threading.Event()
    prepared = prepare(batch, now_us=broker.clock.now_us())
    broker.partitions.handle("s", 0).submit([prepared], lambda _: stored.set())
    assert stored.wait(WAIT_S)
