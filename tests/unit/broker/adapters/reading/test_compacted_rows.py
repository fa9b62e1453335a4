"""Reading what key compaction left, and what it did not: without a table, and with one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.reading.rows import read_rows, resolve
from broker.codec.flight.protocol import AtTime, ReadRequest, RowsMark
from broker.codec.record_batch import prepare
from broker.errors import GapError
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from broker.ports.tiering import ColdRows
from simkit.brokers.memory_broker import MemoryBroker, numbered

BATCH = 10
COUNT = 60
LEFT = (7, 12, 13, 29)  # of the first thirty records
BELOW = Offset(30)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give a broker with the streams "local", without a table, and "tiered"."""
    broker = MemoryBroker()
    for name in ("local", "tiered"):
        broker.streams.create(name, StreamConfig(subject=name, tiering=name == "tiered"))
        handle = broker.partitions.handle(name, 0)
        for start in range(0, COUNT, BATCH):
            stored = threading.Event()
            batch = prepare(numbered(start, BATCH), now_us=1000 + start)
            handle.submit([batch], partial(_set, stored))
            assert stored.wait(60)
        handle.compact(BELOW, LEFT)
    yield broker
    broker.close()


def _set(stored: threading.Event, _: object) -> None:
    stored.set()


def read(
    broker: MemoryBroker, stream: str, **request: Any
) -> list[tuple[pa.RecordBatch, RowsMark]]:
    """Return everything that a request gives; the marks have to join."""
    wanted = resolve(broker, ReadRequest(stream=stream, partition=0, **request))
    found = list(read_rows(broker, wanted, idle_check_ms=10, check_stop=lambda: False))
    for (_, before), (_, after) in pairwise(found):
        assert before.end_offset == after.base_offset
    for rows, mark in found:
        assert rows.num_rows == mark.rows_count
        again = RowsMark.from_bytes(mark.to_bytes())
        assert again == mark
    return found


def offsets(found: list[tuple[pa.RecordBatch, RowsMark]]) -> list[int]:
    """Return the offsets of all rows."""
    return [offset for rows, _ in found for offset in rows.column("offset").to_pylist()]


@pytest.mark.parametrize("start", ["earliest", *range(32)])
def test_without_a_table_a_reader_gets_what_is_left(broker: MemoryBroker, start: Any) -> None:
    """From any offset, also one that is gone; then everything above the line."""
    low = 0 if start == "earliest" else start
    wanted = [one for one in (*LEFT, *range(30, COUNT)) if one >= low]
    found = read(broker, "local", start=start)
    assert offsets(found) == wanted
    assert (found[0][1].base_offset, found[-1][1].end_offset) == (low, COUNT)


@pytest.mark.parametrize(
    ("start", "end", "left"), [(14, 29, []), (12, 13, [12]), (8, 14, [12, 13])]
)
def test_a_range_may_have_few_rows_or_none(
    broker: MemoryBroker, start: int, end: int, left: list[int]
) -> None:
    """The read still ends where it was asked to end."""
    found = read(broker, "local", start=start, end=Offset(end))
    assert offsets(found) == left
    assert found[-1][1].end_offset == end


@pytest.mark.parametrize("start", [0, 8, 29, 30, 45])
def test_with_a_table_a_reader_gets_the_whole_history(broker: MemoryBroker, start: int) -> None:
    """What the local log has thinned out comes from the table."""
    found = read(broker, "tiered", start=start)
    assert offsets(found) == list(range(start, COUNT))
    assert [mark.rows_left for _, mark in found] == [None] * len(found)
    assert broker.cold_reads == ([OffsetRange(Offset(start), BELOW)] if start < BELOW else [])


@pytest.mark.parametrize(("stream", "stamp_us", "first"), [
    ("local", 1000, 7), ("local", 1010, 12), ("local", 1020, 29), ("local", 1030, 30),
    ("tiered", 1000, 0), ("tiered", 1010, 10), ("tiered", 1020, 20), ("tiered", 1030, 30),
])  # fmt: skip
def test_a_time_leads_to_the_first_record_that_readers_get(
    broker: MemoryBroker, stream: str, stamp_us: int, first: int
) -> None:
    """Among what is left, or in the whole history."""
    assert offsets(read(broker, stream, start=AtTime(stamp_us)))[0] == first


def test_a_range_that_is_compacted_during_a_read_comes_from_the_table(
    broker: MemoryBroker,
) -> None:
    """The reader looked where the log is whole before that changed."""
    handle = broker.partitions.handle("tiered", 0)
    request = ReadRequest(stream="tiered", partition=0, start=30, batch_bytes_max=1024)
    rows = read_rows(broker, resolve(broker, request), idle_check_ms=10, check_stop=lambda: False)
    seen = next(rows)[0].column("offset").to_pylist()
    handle.compact(Offset(60), ())
    for batch, _ in rows:
        seen += batch.column("offset").to_pylist()
    assert seen == list(range(30, COUNT))


class ThinnedTable:
    """A table that has few of its first records; it takes the place of a broker's cold tier."""

    def __init__(self, broker: MemoryBroker, left: tuple[int, ...], whole_start: int) -> None:
        self._whole, self._start = broker.read, Offset(whole_start)
        self.left = {*left, *range(whole_start, COUNT)}

    def read(self, *request: Any) -> ColdRows:
        """See ``ColdTierApi.read``."""
        found = self._whole(*request)
        return ColdRows(map(self._thinned, found.rows), self._start)

    def _thinned(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        kept = [at for at, one in enumerate(rows["offset"].to_pylist()) if one in self.left]
        return rows.take(pa.array(kept, pa.int64()))


@pytest.fixture
def thinned(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> ThinnedTable:
    """Key compaction has left four records below 30 in the table of "tiered"."""
    broker.partitions.handle("tiered", 0).make_cold(Offset(50))
    table = ThinnedTable(broker, LEFT, 30)
    monkeypatch.setattr(broker, "read", table.read)
    return table


@pytest.mark.parametrize("start", ["earliest", 0, 8, 13, 14, 29, 30, 45])
@pytest.mark.usefixtures("thinned")
def test_of_a_compacted_table_a_reader_gets_what_is_left(broker: MemoryBroker, start: Any) -> None:
    """From any offset, also one that is gone; every reply says how many rows it has."""
    low = 0 if start == "earliest" else start
    found = read(broker, "tiered", start=start)
    assert offsets(found) == [one for one in (*LEFT, *range(30, COUNT)) if one >= low]
    assert (found[0][1].base_offset, found[-1][1].end_offset) == (low, COUNT)
    assert all(mark.end_offset - 1 == rows["offset"][-1].as_py() for rows, mark in found)


@pytest.mark.parametrize(
    ("start", "end", "left"), [(14, 29, []), (12, 13, [12]), (8, 20, [12, 13]), (20, 31, [29, 30])]
)
@pytest.mark.usefixtures("thinned")
def test_a_range_of_a_compacted_table_ends_where_it_was_asked_to(
    broker: MemoryBroker, start: int, end: int, left: list[int]
) -> None:
    """Also if its last records are gone, or all of them."""
    found = read(broker, "tiered", start=start, end=Offset(end))
    assert offsets(found) == left
    assert found[-1][1].end_offset == end


def test_a_record_that_is_missing_above_the_sparse_range_is_an_error(
    broker: MemoryBroker, thinned: ThinnedTable
) -> None:
    """The table has each record from its whole start on; a gap is never taken for compaction."""
    for gone in (30, 31, 49):
        thinned.left.discard(gone)
        with pytest.raises(GapError):
            read(broker, "tiered", start=14)
        thinned.left.add(gone)
    assert offsets(read(broker, "tiered", start=14)) == [29, *range(30, COUNT)]
