"""Log batches to one Parquet object, and the proof that it came back."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.codec.digest import digest_of
from broker.codec.schema import FILE_SCHEMA
from broker.errors import BatchCorruptError, GapError, ObjectCorruptError
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import StoredBatch
from simkit.tier.source import FIRST_US, TIMESTAMP_US_LAST, MemoryTierSource, make_stream
from tiering.ship import segment_writer
from tiering.ship.segment_writer import (
    RangeFacts,
    SegmentPlace,
    WrittenSegment,
    check_segment,
    log_rows,
    stats_json,
    write_segment,
)
from tiering.table.commit_files import facts_of, file_in, file_of
from tiering.table.ledger import LedgerEntry, decode_ranges, encode_ranges


@pytest.fixture
def source() -> MemoryTierSource:
    """A log of 100 records of various shapes."""
    source = MemoryTierSource(make_stream())
    source.append(100)
    return source


def batches(source: MemoryTierSource) -> list[StoredBatch]:
    """Return the whole log."""
    return source.read(Offset(0), source.log_end, bytes_max=1 << 30)


def write(source: MemoryTierSource, start: int = 0, end: int = 100) -> WrittenSegment:
    """Write a range of the log."""
    place = SegmentPlace(
        cluster="c", partition=source.partition_id, subject=source.subject, path="partition=0/x"
    )
    return write_segment(batches(source), OffsetRange(Offset(start), Offset(end)), place)


def rows_of(built: WrittenSegment) -> pa.Table:
    """Read an object as any Parquet reader would."""
    return pq.read_table(pa.BufferReader(built.body))


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (3, 5), (13, 98), (99, 100)])
def test_the_object_holds_exactly_the_range(source: MemoryTierSource, start: int, end: int) -> None:
    """This holds for a range that begins or ends inside a batch, too."""
    built = write(source, start, end)
    truth = source.truth(start, end).select(FILE_SCHEMA.names)
    assert rows_of(built).equals(truth)
    assert built.entry.range == OffsetRange(Offset(start), Offset(end))
    assert built.entry.digest == digest_of(truth.combine_chunks().to_batches()[0])
    check_segment(built.body, built.entry)


def test_row_groups_keep_their_limits(
    source: MemoryTierSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups are limited by rows and by bytes; the rows stay the same."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS_MAX", 30)
    footer = pq.ParquetFile(pa.BufferReader(write(source).body)).metadata
    assert [footer.row_group(at).num_rows for at in range(4)] == [30, 30, 30, 10]
    monkeypatch.setattr(segment_writer, "ROW_GROUP_BYTES_MAX", 1)
    built = write(source)
    assert pq.ParquetFile(pa.BufferReader(built.body)).metadata.num_row_groups == 100
    assert rows_of(built).equals(source.truth().select(FILE_SCHEMA.names))


def test_joined_batches_are_bounded(
    source: MemoryTierSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a joined batch are bounded, because it is in memory twice while it is packed."""
    source.append(900)
    wanted = OffsetRange(Offset(0), Offset(1000))
    place = SegmentPlace(
        cluster="c", partition=source.partition_id, subject=source.subject, path="partition=0/x"
    )
    joined = list(log_rows(batches(source), wanted, place))
    monkeypatch.setattr(segment_writer, "_RUN_BYTES_MAX", 1)
    single = list(log_rows(batches(source), wanted, place))
    assert len(joined) < len(single) == len(batches(source))
    assert pa.Table.from_batches(joined).equals(pa.Table.from_batches(single))


def test_a_check_reads_few_wide_rows_at_once(
    source: MemoryTierSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads all narrow rows of a group at once, because each read has a cost of its own."""
    built = write(source)
    seen: list[int] = []
    add = RangeFacts.add

    def counted(facts: RangeFacts, rows: pa.RecordBatch) -> None:
        seen.append(rows.num_rows)
        add(facts, rows)

    monkeypatch.setattr(RangeFacts, "add", counted)
    check_segment(built.body, built.entry)
    monkeypatch.setattr(segment_writer, "_READ_BYTES_MAX", 1)
    check_segment(built.body, built.entry)
    assert seen == [100] + [1] * 100


def test_only_offset_and_timestamp_have_statistics(source: MemoryTierSource) -> None:
    """Keys and values would bloat every footer."""
    group = pq.ParquetFile(pa.BufferReader(write(source).body)).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {one.path_in_schema for one in columns if one.is_stats_set} == {"offset", "timestamp"}


def test_the_footer_says_whose_rows_these_are(source: MemoryTierSource) -> None:
    """An object found alone can be placed again."""
    built = write(source, 10, 20)
    footer = pq.ParquetFile(pa.BufferReader(built.body)).metadata.metadata
    told = {name.decode(): text.decode() for name, text in footer.items() if b"headwater" in name}
    assert told == {
        "headwater.format_version": "1",
        "headwater.cluster": "c",
        "headwater.stream_uuid": source.partition_id.stream_uuid,
        "headwater.partition": "0",
        "headwater.start": "10",
        "headwater.end": "20",
        "headwater.records_count": "10",
        "headwater.digest": built.entry.digest,
        "headwater.first_leader_epoch": "1",
        "headwater.last_leader_epoch": "1",
    }


def test_statistics_never_lose_a_row_by_rounding(source: MemoryTierSource) -> None:
    """Delta keeps milliseconds: the lower bound is rounded down, the upper one up."""
    entry = write(source).entry
    stats = json.loads(stats_json(entry))
    assert stats["numRecords"] == 100
    assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (0, 99)
    assert stats["nullCount"] == {"offset": 0, "timestamp": 0}
    low = pa.array([stats["minValues"]["timestamp"]]).cast(pa.timestamp("us", tz="UTC"))
    high = pa.array([stats["maxValues"]["timestamp"]]).cast(pa.timestamp("us", tz="UTC"))
    assert low.view(pa.int64())[0].as_py() <= entry.min_timestamp_us
    assert high.view(pa.int64())[0].as_py() >= entry.max_timestamp_us
    assert entry.min_timestamp_us >= FIRST_US


@pytest.mark.parametrize("below", [0, 1, 998, 999, 1000])
def test_the_last_times_that_a_log_takes_have_statistics(
    source: MemoryTierSource, below: int
) -> None:
    """The year 10000 has no ISO text: the last millisecond is stated as other engines state it."""
    last_us = TIMESTAMP_US_LAST - below
    entry = replace(write(source).entry, min_timestamp_us=last_us, max_timestamp_us=last_us)
    added = {
        "path": entry.path,
        "size": entry.size_bytes,
        "partitionValues": {"partition": "0"},
        "stats": stats_json(entry),
    }
    file = file_in(added)
    assert file.min_timestamp_us is not None
    assert file.max_timestamp_us is not None
    assert file.min_timestamp_us <= last_us <= file.max_timestamp_us
    assert facts_of(file) == facts_of(file_of(entry)), "a repair says what the commit said"


def test_missing_batches_are_a_gap(source: MemoryTierSource) -> None:
    """A batch is missing at the front, in the middle, or at the end."""
    whole = batches(source)
    place = SegmentPlace(
        cluster="c", partition=source.partition_id, subject="s", path="partition=0/x"
    )
    for kept in (whole[1:], whole[:4] + whole[5:], whole[:-1], []):
        with pytest.raises(GapError):
            write_segment(kept, OffsetRange(Offset(0), Offset(100)), place)


def test_a_flipped_bit_in_the_log_is_found(source: MemoryTierSource) -> None:
    """Every batch's checksum is compared once more before anything is uploaded."""
    source.damage(50)
    with pytest.raises(BatchCorruptError):
        write(source)


def test_what_came_back_must_be_what_was_written(source: MemoryTierSource) -> None:
    """A difference in size, checksum, rows, bounds or digest alone is refused."""
    built, other = write(source, 0, 50), write(source, 50, 100)
    body = bytes(built.body)
    for damaged in (
        body[:-1],
        body[:100] + bytes([body[100] ^ 1]) + body[101:],
        b"",
        bytes(other.body),
    ):
        with pytest.raises(ObjectCorruptError):
            check_segment(damaged, built.entry)
    for field, value in (("digest", "0" * 64), ("size_bytes", 1), ("crc32c", 1), ("start", 1),
                         ("end", 51)):  # fmt: skip
        facts = {**built.entry.to_dict(), field: value}
        facts["records_count"] = facts["end"] - facts["start"]
        with pytest.raises(ObjectCorruptError):
            check_segment(body, LedgerEntry.from_dict(facts, key="k"))
    shifted = {**built.entry.to_dict(), "start": 1, "end": 51}  # as many rows, other offsets
    with pytest.raises(ObjectCorruptError, match="offsets is"):
        check_segment(body, LedgerEntry.from_dict(shifted, key="k"))


def test_rows_keep_the_epoch_that_they_were_written_in() -> None:
    """Small batches of one shape are decoded together, those of one epoch only."""
    source = MemoryTierSource(make_stream())
    for _ in range(40):
        source.append(3, batch_records=3)
        source.lead_again()
    shapes = [one.header.columns for one in batches(source)]
    assert any(one == other for one, other in pairwise(shapes))
    built = write(source, 0, 120)
    assert rows_of(built).equals(source.truth().select(FILE_SCHEMA.names))
    assert (built.entry.first_leader_epoch, built.entry.last_leader_epoch) == (1, 40)


def test_the_facts_of_a_range_are_those_of_all_its_rows() -> None:
    """Times need not be in order: the greatest may be in any batch."""
    source = MemoryTierSource(make_stream())
    source.append(9, batch_records=3)
    rows = [one.select(FILE_SCHEMA.names) for one in source.truth().to_batches(max_chunksize=3)]
    times = [one.column("timestamp").cast(pa.int64()).to_pylist() for one in rows]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        facts = RangeFacts()
        for at in order:
            facts.add(rows[at])
        assert facts.max_us == max(max(one) for one in times)
        assert facts.min_us == min(min(one) for one in times)


def test_ledger_entries_survive_a_commit(source: MemoryTierSource) -> None:
    """What a commit carries is the entry, with the version it got."""
    entry = write(source).entry
    assert decode_ranges(encode_ranges([entry]), version=7) == [entry.at_version(7)]
    for text in ("", "{}", "[1]", '[{"v": 2}]'):
        with pytest.raises(ObjectCorruptError):
            decode_ranges(text, version=7)


def test_a_dictionary_of_the_subject_is_small(source: MemoryTierSource, tmp_path: Path) -> None:
    """A column of one value costs next to nothing."""
    built = write(source)
    path = tmp_path / "x.parquet"
    path.write_bytes(bytes(built.body))
    group = pq.ParquetFile(path).metadata.row_group(0)
    sizes = {group.column(at).path_in_schema: group.column(at).total_compressed_size
             for at in range(group.num_columns)}  # fmt: skip
    assert sizes["subject"] < 200
