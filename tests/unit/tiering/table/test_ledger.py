"""The ledger's entries: their valid values, their bytes, and the entries that cover a range.

Nothing here needs a table: an entry is an object in a store.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.codec.checksum import crc32c
from broker.errors import GapError, ObjectCorruptError, OverlapError
from broker.model.offsets import Offset, OffsetRange
from tiering.store.location import StoreConfig
from tiering.store.opening import open_store
from tiering.table import ledger as ledger_module
from tiering.table.ledger import (
    Ledger,
    LedgerEntry,
    decode_ranges,
    encode_ranges,
    ledger_key,
)

DIGEST = "ab" * 32
LINEAGE_ID = "0123456789abcdef" * 2

# The bytes of entries of an old build and of this one, to be compared with those in the store.
OLD_BYTES = b"""{
 "crc32c": 7,
 "digest": "%s",
 "end": 20,
 "first_leader_epoch": 1,
 "last_leader_epoch": 2,
 "max_timestamp_us": 4,
 "min_timestamp_us": 3,
 "partition": 1,
 "path": "partition=1/x.parquet",
 "records_count": 10,
 "size_bytes": 6,
 "start": 10,
 "v": 1,
 "version": 5
}
""" % DIGEST.encode()
NEW_BYTES = OLD_BYTES.replace(
    b' "max_timestamp_us"', b' "lineage_id": "%s",\n "max_timestamp_us"' % LINEAGE_ID.encode()
).replace(b'"v": 1', b'"v": 2')


def entry(start: int = 10, end: int = 20, *, partition: int = 1, **values: Any) -> LedgerEntry:
    """Return a valid entry of an old build."""
    given = {
        "records_count": end - start,
        "digest": DIGEST,
        "first_leader_epoch": 1,
        "last_leader_epoch": 2,
        "min_timestamp_us": 3,
        "max_timestamp_us": 4,
        "path": f"partition={partition}/x.parquet",
        "size_bytes": 6,
        "crc32c": 7,
        "version": 5,
    }
    return LedgerEntry(
        partition=partition, start=Offset(start), end=Offset(end), **{**given, **values}
    )


def span(start: int, end: int) -> OffsetRange:
    """Return a range of offsets."""
    return OffsetRange(Offset(start), Offset(end))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger in a folder."""
    return Ledger(open_store(StoreConfig.from_env(str(tmp_path))))


def put_raw(ledger: Ledger, key: str, body: bytes) -> None:
    """Store an object as a person would who edits the folder."""
    assert ledger._store.put_if_absent(key, body, crc32c=crc32c(body))


# ------------------------------------------------------------------------------ what is valid


@pytest.mark.parametrize(
    "values",
    [
        {"end": 10, "records_count": 0},
        {"end": 9, "records_count": -1},
        {"start": -1, "records_count": 21},
        {"records_count": 9},
        {"partition": -1},
        {"size_bytes": -1},
        {"crc32c": -1},
        {"digest": "AB" * 32},
        {"digest": "ab" * 31},
        {"digest": DIGEST + "0"},
        {"lineage_id": "x"},
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    """A range with records, their count, a digest of 64 digits, a leadership or none."""
    with pytest.raises(ObjectCorruptError, match="are not valid"):
        entry(**values)


def test_an_entry_has_the_bytes_that_it_always_had(ledger: Ledger) -> None:
    """Entries of an old build too: storing one again is harmless, in any build."""
    assert entry().encode() == OLD_BYTES
    assert entry(lineage_id=LINEAGE_ID).encode() == NEW_BYTES
    for body, wanted in ((OLD_BYTES, ""), (NEW_BYTES, LINEAGE_ID)):
        assert LedgerEntry.from_dict(json.loads(body), key="k") == entry(lineage_id=wanted)
    put_raw(ledger, ledger_key(1, 10), OLD_BYTES)
    ledger.put(entry())


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"size_bytes": True},
        {"size_bytes": "6"},
        {"path": 6},
        {"v": 3},
        {"v": 2},
        {"end": 10.0},
    ],
    ids=str,
)
def test_fields_of_another_format_or_type_are_refused(change: dict[str, Any]) -> None:
    """An entry has exactly the fields of its format, each of its type."""
    with pytest.raises(ObjectCorruptError, match="is not a ledger entry"):
        LedgerEntry.from_dict({**json.loads(OLD_BYTES), **change}, key="k")


def test_a_field_that_is_missing_is_refused() -> None:
    """Every field is required."""
    values = json.loads(NEW_BYTES)
    for name in values:
        rest = {one: value for one, value in values.items() if one != name}
        with pytest.raises(ObjectCorruptError, match="is not a ledger entry"):
            LedgerEntry.from_dict(rest, key="k")


def test_a_commit_tells_its_ranges_and_gets_its_version() -> None:
    """The text of a commit is the entries without their version, which is the commit's own."""
    shipped = [entry(version=ledger_module.NO_VERSION), entry(0, 3, partition=2)]
    assert decode_ranges(encode_ranges(shipped), version=9) == [
        one.at_version(9) for one in shipped
    ]


# ------------------------------------------------------------------------------ in the store


def test_a_second_entry_for_one_start_is_an_error(ledger: Ledger) -> None:
    """The first entry stays."""
    ledger.put(entry())
    ledger.put(entry())
    for other in (entry(end=21), entry(digest="cd" * 32)):
        with pytest.raises(ObjectCorruptError, match="exists already as a different entry"):
            ledger.put(other)
    assert ledger.get(1, Offset(10)) == entry()


def test_an_entry_under_a_key_that_is_not_its_own_is_refused(ledger: Ledger) -> None:
    """An entry of another partition or start, or a far too large object."""
    put_raw(ledger, ledger_key(2, 10), OLD_BYTES)
    put_raw(ledger, ledger_key(1, 11), OLD_BYTES)
    put_raw(ledger, ledger_key(1, 12), entry(12).encode() + b" " * (16 * 1024))
    for partition, start, words in ((2, 10, "another range"), (1, 11, "another range"),
                                    (1, 12, "too large")):  # fmt: skip
        with pytest.raises(ObjectCorruptError, match=words):
            ledger.get(partition, Offset(start))


def test_partitions_have_entries_of_their_own(ledger: Ledger) -> None:
    """Also partitions whose numbers begin alike, as 1 and 10."""
    ledger.put(entry(0, 10))
    ledger.put(entry(0, 50, partition=10))
    ledger.put(entry(50, 60, partition=10))
    assert (ledger.starts(1), ledger.starts(10), ledger.starts(0)) == ([0], [0, 50], [])
    assert (ledger.end(1), ledger.end(10), ledger.end(0)) == (10, 60, 0)


def test_a_range_beyond_an_offset_is_found(ledger: Ledger) -> None:
    """It begins at ``above`` or later and ends above the offset; one that ends there is not."""
    for start in (0, 10, 20):
        ledger.put(entry(start, start + 10))

    def found(offset: int, above: int) -> int | None:
        one = ledger.first_beyond(1, offset, above=above)
        return None if one is None else int(one.start)

    assert [found(offset, offset) for offset in (0, 10, 20, 30, 40)] == [0, 10, 20, None, None]
    assert [found(25, 20), found(25, 25), found(30, 20)] == [20, None, None]
    assert [found(10, 20), found(15, 10), found(19, 10)] == [10, 20, 20]


# ------------------------------------------------------------------------------ covering a range


@pytest.mark.parametrize(
    ("wanted", "starts"),
    [
        ((0, 30), [0, 10, 20]),
        ((10, 20), [10]),
        ((10, 21), [10, 20]),
        ((9, 20), [0, 10]),
        ((5, 6), [0]),
        ((29, 30), [20]),
    ],
)
def test_exactly_the_entries_of_a_range_are_returned(
    ledger: Ledger, wanted: tuple[int, int], starts: list[int]
) -> None:
    """Those that share an offset with it."""
    for start in (0, 10, 20):
        ledger.put(entry(start, start + 10))
    assert [one.start for one in ledger.entries(1, span(*wanted))] == starts


def test_what_a_commit_says_of_another_range_is_left_out(ledger: Ledger) -> None:
    """A commit's account counts above the ledger's last entry, and within the range."""
    ledger.put(entry(0, 10))
    said = [entry(0, 10, digest="cd" * 32), entry(10, 20), entry(20, 30), entry(30, 40)]

    def found(start: int, end: int) -> list[tuple[int, str]]:
        entries = ledger.entries(1, span(start, end), unnoted=said)
        return [(int(one.start), one.digest) for one in entries]

    assert found(0, 10) == [(0, DIGEST)]
    assert found(10, 20) == [(10, DIGEST)]
    assert found(20, 30) == [(20, DIGEST)]
    assert found(5, 21) == [(0, DIGEST), (10, DIGEST), (20, DIGEST)]
    assert found(20, 40) == [(20, DIGEST), (30, DIGEST)]


@pytest.mark.parametrize(
    ("ranges", "gap"),
    [
        ([], (0, 30)),
        ([(0, 10), (20, 30)], (10, 20)),
        ([(0, 10), (10, 29)], (29, 30)),
        ([(1, 30)], (0, 1)),
    ],
)
def test_a_hole_in_the_ledger_is_named(
    ledger: Ledger, ranges: list[tuple[int, int]], gap: tuple[int, int]
) -> None:
    """The error has the bounds of the hole, up to the wanted offset."""
    for one in ranges:
        ledger.put(entry(*one))
    with pytest.raises(GapError) as caught:
        ledger.entries(1, span(0, 30))
    assert (caught.value.start, caught.value.end) == gap


@pytest.mark.parametrize("ranges", [[(0, 11), (10, 30)], [(0, 10), (10, 21), (20, 30)]])
def test_entries_that_overlap_are_named(ledger: Ledger, ranges: list[tuple[int, int]]) -> None:
    """The first two entries, and any later ones."""
    for one in ranges:
        ledger.put(entry(*one))
    with pytest.raises(OverlapError, match="overlap at"):
        ledger.entries(1, span(0, 30))


def test_an_entry_can_be_given_a_version_and_a_leadership() -> None:
    """Everything else stays."""
    changed = entry().at_version(9).of_lineage(LINEAGE_ID)
    assert changed == replace(entry(), version=9, lineage_id=LINEAGE_ID)
