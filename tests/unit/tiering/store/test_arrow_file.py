"""Arrow's threads hold nothing of Python's when a program that has read ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
