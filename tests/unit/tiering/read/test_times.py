"""The first record at a time in a table: by statistics if they suffice, otherwise by rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.model.offsets import Offset, OffsetRange
from headwater.client import Client
from simkit.tier.lake_broker import serving
from tiering.read.times import first_reaching
from tiering.store.object_store import ObjectStore
from tiering.table.table import TableSnapshot, last_of_ms

BASE_US = 1_700_000_000_000_000
# Times within one millisecond, and a step back: millisecond statistics do not distinguish them.
STAMPS = [1, 2, 999, 1_000, 5_000, 4_000, 5_001, 9_000, 9_000, 8_000, 12_000, 20_999]

Table = tuple[TableSnapshot, ObjectStore]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """Twelve records in four files of three."""
    lake: Path = tmp_path_factory.mktemp("times") / "lake"
    with serving(str(lake)) as served, Client(served.server) as client:
        client.create_stream("s")
        with client.producer("s") as producer:
            producer.send([{"value": b"v", "timestamp": BASE_US + stamp} for stamp in STAMPS])
        served.broker.ship("s", 0, Offset(12), files=4)
        found = served.broker.table("s")
        yield found.snapshot(), found.store


def slow(stamp: int, start: int, end: int) -> int | None:
    """Return the answer by looking at every record."""
    return next((n for n in range(start, end) if STAMPS[n] >= stamp), None)


@pytest.mark.parametrize("known", ["all", "none", "some"])
@pytest.mark.parametrize(("start", "end"), [(0, 12), (4, 12), (0, 7), (5, 6), (3, 3)])
def test_the_answer_does_not_depend_on_statistics(
    table: Table, known: str, start: int, end: int
) -> None:
    """Every time around every record is looked up with all, half or none of the statistics."""
    snapshot, store = table
    files = tuple(
        replace(file, max_timestamp_us=None)
        if known == "none" or (known == "some" and number % 2)
        else file
        for number, file in enumerate(snapshot.files)
    )
    assert len(files) == 4
    assert all(file.max_timestamp_us is not None for file in snapshot.files)
    bent = replace(snapshot, files=files)
    wanted = OffsetRange(Offset(start), Offset(end))
    for stamp in sorted({stamp + step for stamp in STAMPS for step in (-1, 0, 1)}):
        found = first_reaching(bent, store, 0, wanted, BASE_US + stamp)
        assert found == slow(stamp, start, end), stamp


def test_files_that_end_before_the_time_are_not_opened(table: Table) -> None:
    """Only the file that may hold the answer is read; the others may be missing."""
    snapshot, store = table
    away = [replace(file, path=f"gone-{file.path}") for file in snapshot.files[:3]]
    bent = replace(snapshot, files=(*away, snapshot.files[3]))
    wanted = OffsetRange(Offset(0), Offset(12))
    assert first_reaching(bent, store, 0, wanted, BASE_US + 12_000) == 10


def test_files_in_any_order_give_the_smallest_offset(table: Table) -> None:
    """After OPTIMIZE files come in any order, and some have no bounds of offsets."""
    snapshot, store = table
    files = [replace(file, min_offset=None, max_offset=None) for file in snapshot.files]
    for turned in (tuple(reversed(snapshot.files)), tuple(reversed(files)), tuple(files)):
        bent = replace(snapshot, files=turned)
        wanted = OffsetRange(Offset(0), Offset(12))
        for stamp in (0, 1_000, 5_001, 9_001, 30_000):
            assert first_reaching(bent, store, 0, wanted, BASE_US + stamp) == slow(stamp, 0, 12)


def test_statistics_in_milliseconds_hide_no_record(table: Table) -> None:
    """OPTIMIZE by others rounds them down: a file may hold a record above its stated time."""
    snapshot, store = table
    files = tuple(
        replace(file, max_timestamp_us=last_of_ms(BASE_US + max(STAMPS[at : at + 3])))
        for at, file in zip(range(0, 12, 3), snapshot.files, strict=True)
    )
    bent = replace(snapshot, files=files)
    wanted = OffsetRange(Offset(0), Offset(12))
    for stamp in STAMPS:
        found = first_reaching(bent, store, 0, wanted, BASE_US + stamp)
        assert found == slow(stamp, 0, 12), stamp
