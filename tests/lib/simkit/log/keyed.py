"""Logs of keyed records, and what key compaction has to leave of them: the model."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from broker.codec.record_batch import PreparedBatch, decode_body, prepare, to_rows
from broker.model.epochs import LeaderEpoch
from broker.model.ids import ProducerId
from broker.model.offsets import Offset
from broker.ports.partition import SegmentInfo
from broker.storage.key_compaction.compaction_pass import (
    MAP_BYTES_MAX,
    ChosenSegment,
    CompactionPass,
)
from broker.storage.log.partition_log import PartitionLog


@dataclass(frozen=True, slots=True)
class Row:
    """One record as a reader sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    leader_epoch: int
    timestamp_us: int


def keyed_batch(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    *,
    stamp_us: int = 1,
    codec: str = "none",
    producer: int = -1,
    sequence: int = -1,
) -> PreparedBatch:
    """Return a batch of these keys and values."""
    keys, values = zip(*pairs, strict=True)
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    return prepare(
        pa.RecordBatch.from_pydict(columns),
        now_us=stamp_us,
        codec=codec,
        producer_id=ProducerId(producer),
        base_sequence=sequence,
    )


def some_pairs(rng: random.Random, keys: int) -> list[tuple[bytes | None, bytes | None]]:
    """Return one to five records; some without key, some tombstones, some of an empty key."""
    count = rng.randrange(1, 6)
    names = [None, b"", *(b"key-%d" % one * (1 + one % 3) for one in range(keys))]
    return [
        (rng.choice(names), None if rng.random() < 0.2 else rng.randbytes(rng.randrange(40)))
        for _ in range(count)
    ]


def fill(
    log: PartitionLog, rng: random.Random, batches: int, *, keys: int = 6, epochs: int = 3
) -> None:
    """Append and sync that many random batches, under some leader epochs."""
    first = log.epochs.latest + 1
    for at in range(batches):
        epoch = LeaderEpoch(first + at * epochs // batches)
        stamp_us = 1000 + rng.randrange(500)
        batch = keyed_batch(some_pairs(rng, keys), stamp_us=stamp_us)
        log.append([batch], leader_epoch=epoch, now_us=1000 + at)
        log.sync()


def rows_of(log: PartitionLog, start: int | None = None) -> list[Row]:
    """Return every record of a log from ``start`` on; batches have to follow one another."""
    found: list[Row] = []
    at = log.log_start if start is None else Offset(start)
    first = at
    while at < log.log_end:
        for batch in log.read(at, log.log_end, bytes_max=2000):
            header = batch.header
            assert header.base_offset <= at < header.end_offset, "a batch does not continue"
            rows = to_rows(header, decode_body(header, batch.body), partition=0, subject="s")
            columns = [
                rows.column(name).to_pylist() for name in ("offset", "key", "value", "leader_epoch")
            ]
            stamps_us = rows.column("timestamp").cast(pa.int64()).to_pylist()
            found += map(Row, *columns, stamps_us)
            at = header.end_offset
    return [one for one in found if one.offset >= first]


def compacted(rows: Iterable[Row], line: int, *, dead: Collection[range] = ()) -> list[Row]:
    """Return what compaction below ``line`` leaves: the model.

    ``dead``: ranges of offsets whose tombstones go, if they are the last of their keys.
    """
    rows = list(rows)
    last = {row.key: row.offset for row in rows if row.offset < line}
    return [
        row
        for row in rows
        if row.offset >= line
        or row.key is None
        or (
            last[row.key] == row.offset
            and not (row.value is None and any(row.offset in one for one in dead))
        )
    ]


def sealed_below(log: PartitionLog, line: int) -> list[SegmentInfo]:
    """Return the sealed segments below an offset."""
    return [one for one in log.segments() if one.sealed and one.end_offset <= line]


def pass_over(
    log: PartitionLog,
    line: int,
    *,
    drops: bool = False,
    retried: Collection[int] = (),
    map_bytes_max: int = MAP_BYTES_MAX,
) -> CompactionPass:
    """Return a pass over the sealed segments below ``line``."""
    chosen = [
        ChosenSegment(one.base_offset, one.end_offset, drops) for one in sealed_below(log, line)
    ]
    return CompactionPass(log, chosen, retried=retried, map_bytes_max=map_bytes_max)


def do_pass(log: PartitionLog, work: CompactionPass) -> int:
    """Do a whole pass, with its exchanges; return how many segments were exchanged."""
    done = 0
    for made in work.steps():
        if made is not None:
            assert log.replace_segment(made), "nothing happened to the segment meanwhile"
            done += 1
    return done


def without_epoch(rows: Iterable[Row]) -> list[Row]:
    """Return rows without their leader epochs."""
    return [replace(row, leader_epoch=0) for row in rows]
