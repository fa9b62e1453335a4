"""Rebuild the retry tables from the log at start: the tables are caches of the log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.codec.nats.conditions import MESSAGE_ID
from broker.codec.record_batch import BatchHeader, decode_body, offsets_of
from broker.codec.schema import OPTIONAL_COLUMNS, TIMESTAMP_FIELD
from broker.core.dedup import ProducerTable
from broker.core.message_ids import MessageIdWindow, digest_of
from broker.errors import MetadataCorruptError
from broker.model.ids import NO_PRODUCER
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import StoredBatch
from broker.storage.log.partition_log import PartitionLog

_READ_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 16 * 1024 * 1024  # bytes of batches whose ids are added together
_PART_BYTES: Final = 4 * 1024  # memory of a decoded batch in addition to its bytes
_HEADERS_BIT: Final = next(bit for bit, field in OPTIONAL_COLUMNS if field.name == "headers")

OpenBatches = Callable[[Sequence[StoredBatch]], list[StoredBatch]]  # decrypts; may refuse
_Part = tuple[BatchHeader, pa.RecordBatch]


def rebuild_producers(log: PartitionLog) -> ProducerTable:
    """Return the producer table at the log's end: the newest state, then the batches after it."""
    table, start = ProducerTable(), log.log_start
    stored = log.read_producer_state()
    if stored is not None:
        state, end = stored
        with contextlib.suppress(MetadataCorruptError):  # a cache: if damaged, read the whole log
            table, start = ProducerTable.from_state(state), max(start, end)
    for batch in _batches(log, start):
        header = batch.header
        if header.producer_id != NO_PRODUCER:
            table.add(
                header.producer_id, header.base_sequence, header.offset_span, header.base_offset
            )
    return table


def rebuild_window(
    log: PartitionLog,
    window: MessageIdWindow,
    now_us: int,
    config: StreamConfig,
    opened: OpenBatches,
) -> None:
    """Fill the window from the records that may still be within it.

    Raises:
        HeadwaterError: of ``opened``, and of the log.
    """
    if not config.dedup_window_ms:
        return
    horizon = log.offset_at(now_us - config.dedup_window_ms * 1000)
    start = max(log.log_start, horizon, Offset(log.log_end - config.dedup_ids_max))
    parts: list[_Part] = []
    size = 0
    for batch in _batches(log, start):
        if batch.header.columns & _HEADERS_BIT:
            (plain,) = opened((batch,))
            parts.append((batch.header, decode_body(plain.header, plain.body)))
            size += batch.header.size + _PART_BYTES
        if size >= _CHUNK_BYTES:
            _add_ids(parts, window)
            parts, size = [], 0
    if parts:
        _add_ids(parts, window)


def _batches(log: PartitionLog, start: Offset) -> Iterator[StoredBatch]:
    while start < log.log_end:
        batches = log.read(start, log.log_end, bytes_max=_READ_BYTES)
        yield from batches
        start = batches[-1].header.end_offset


def _add_ids(parts: Sequence[_Part], window: MessageIdWindow) -> None:
    """Add the ids of many batches at once: with little traffic each batch has one record."""
    headers = pa.concat_arrays([body.column("headers") for _, body in parts])
    offsets = np.concatenate([offsets_of(header, body) for header, body in parts])
    stamps = np.concatenate([np.asarray(body.column(TIMESTAMP_FIELD.name)) for _, body in parts])
    entries = headers.flatten()
    hits = np.flatnonzero(np.asarray(pc.equal(entries.field("key"), MESSAGE_ID)))
    rows = np.asarray(pc.list_parent_indices(headers))[hits]
    ids = entries.field("value").take(pa.array(hits)).to_pylist()
    last_offset = -1
    for message_id, offset, stamp in zip(
        ids, offsets[rows].tolist(), stamps[rows].tolist(), strict=True
    ):
        if message_id and offset != last_offset:  # only a record's first id counts, as in ingest
            window.add(digest_of(message_id.decode(errors="replace")), Offset(offset), stamp)
            last_offset = offset
