"""Arrow's threads hold nothing of Python's when a program that has read ends."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.errors import ObjectCorruptError
from tiering.store import arrow_file
from tiering.store.local_store import LocalStore
from tiering.store.location import StoreConfig


class _Body(bytes):
    """Notes which threads drop such bytes."""

    dropped_by: set[int]

    def __del__(self) -> None:
        self.dropped_by.add(threading.get_ident())


class _NotedStore(LocalStore):
    """A folder whose objects are noted when they are dropped."""

    dropped_by: set[int]

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        body = _Body(super().get(key, start, end))
        body.dropped_by = self.dropped_by
        return body


@pytest.fixture
def store(tmp_path: Path) -> _NotedStore:
    """A store with one Parquet object, "rows"."""
    rows = pa.table({name: [b"a", b"b"] for name in ("key", "value", "other")})
    pq.write_table(rows, tmp_path / "rows")
    made = _NotedStore(StoreConfig.from_env(str(tmp_path), {}))
    made.dropped_by = set()
    return made


def test_the_bytes_of_an_object_are_dropped_by_the_thread_that_read_it(store: _NotedStore) -> None:
    """Arrow's pool is the last to drop its source once in ten to twenty reads."""
    size = store.head("rows").size_bytes
    for _ in range(300):
        pq.ParquetFile(arrow_file.object_file(store, "rows", size)).read()
    assert store.dropped_by == {threading.get_ident()}


def test_the_exit_waits_for_files_that_are_read_in_ranges(
    store: _NotedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends once another thread has dropped the file, and after its time if nobody does."""
    monkeypatch.setattr(arrow_file, "WHOLE_BYTES_MAX", 0)
    held = [arrow_file.object_file(store, "rows", store.head("rows").size_bytes)]
    assert pq.ParquetFile(held[0]).metadata.num_rows == 2
    assert not arrow_file.await_drops(timeout_ms=1)
    dropper = threading.Thread(target=held.clear)
    dropper.start()
    assert arrow_file.await_drops(timeout_ms=60_000)
    dropper.join()


def test_a_footer_that_contradicts_itself_is_refused() -> None:
    """Arrow itself takes memory for the rows of a row group, however many, and reads two."""
    body = _parquet(pa.table({"a": pa.array([1, 2], pa.int8())}))
    assert arrow_file.parquet_file(arrow_file.bytes_file(body), "x").metadata.num_rows == 2
    said = b"\x16\x04\x26\x08"  # in Thrift: two rows; the row group begins at byte 4
    assert body.count(said) == 1
    lies = body.replace(said, b"\x16\x06\x26\x08")
    with pytest.raises(ObjectCorruptError, match="its footer says 2 rows, and 3"):
        arrow_file.parquet_file(arrow_file.bytes_file(lies), "x")


def test_a_few_bytes_are_not_millions_of_rows() -> None:
    """Rows of ours have an offset each, so a file cannot be packed like one column of nothing."""
    body = _parquet(pa.table({"a": pa.nulls(2_000_000, pa.int8())}))
    assert len(body) < 1000
    with pytest.raises(ObjectCorruptError, match="its footer says 2000000 rows"):
        arrow_file.parquet_file(arrow_file.bytes_file(body), "x")


def _parquet(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    count = len(rows)
    pq.write_table(rows, out, max_rows_per_page=count, row_group_size=count)
    return out.getvalue()
