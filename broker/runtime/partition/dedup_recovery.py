"""Rebuild the retry tables from the log: the tables are caches of the log.

The message ids that count after a restart are those that counted before: the ids of records that
NATS ingest stored. A batch says whether its ids count (``broker/model/ids.py``). Many batches of
builds before 2026-11-28 do not say: their ids count, unless the batch has a producer, a compaction
rewrote it, or a time of it lies so far ahead that no broker can have stamped it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from broker.codec.nats.conditions import MESSAGE_ID
from broker.codec.record_batch import BatchHeader, decode_body, offsets_of
from broker.codec.schema import OPTIONAL_COLUMNS, TIMESTAMP_FIELD
from broker.core.dedup import ProducerTable
from broker.core.message_ids import MessageIdWindow, digest_of
from broker.errors import MetadataCorruptError
from broker.model.ids import IDS_COUNT, NO_PRODUCER, NO_SEQUENCE
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import StoredBatch
from broker.storage.log.partition_log import PartitionLog

_log = structlog.get_logger(__name__)

_READ_BYTES: Final = 16 * 1024 * 1024
_HEADERS_BIT: Final = next(bit for bit, field in OPTIONAL_COLUMNS if field.name == "headers")

OpenBatches = Callable[[Sequence[StoredBatch]], list[StoredBatch]]  # decrypts; may refuse
_Part = tuple[BatchHeader, pa.RecordBatch]


def rebuild_producers(log: PartitionLog) -> ProducerTable:
    """Return the producer table at the log's end: the newest state, then the batches after it.

    States that cannot be used are named in the broker's log. If no usable state reaches the log's
    start, the producers of freed records are not known: that is in the broker's log, too, and the
    table says up to where.
    """
    states = log.read_producer_states()
    table, end, refused = ProducerTable(), Offset(0), list(states.unreadable)
    for state, covered, path in states.valid:
        try:
            table, end = ProducerTable.from_state(state), covered
        except MetadataCorruptError:  # a cache: the next older state, and more of the log
            refused.append(path)
        else:
            break
    if refused:
        _log.warning("producers_state_unreadable", folder=states.folder, files=refused, used=end)
    start = max(log.log_start, end)
    for batch in _batches(log, start):
        header = batch.header
        if header.producer_id != NO_PRODUCER:
            table.add(
                header.producer_id, header.base_sequence, header.offset_span, header.base_offset
            )
    table.forgotten = 0  # they were counted when they were forgotten
    if end < log.log_start:
        table.unknown_below = log.log_start
        _log.warning(
            "producers_unknown",
            folder=states.folder,
            start=end,
            end=log.log_start,
            effect="a batch of these records that its producer sends again may be stored again",
        )
    return table


class WindowReading:
    """Fills a window with the ids of the records that may still be within it, slice by slice.

    If there are more records than the window may have ids, the ids are counted first. That takes
    far less time than to remember ids which the window forgets at once.

    Nothing may be appended to the log meanwhile. The start of the log may move.
    """

    def __init__(
        self, log: PartitionLog, window: MessageIdWindow, now_us: int, config: StreamConfig
    ) -> None:
        """Prepare to read the records that were stored within the window until ``now_us``."""
        self._log = log
        self._window = window
        self._config = config
        self._now_us = now_us
        self._next: Offset | None = None  # None: the first record to read is not known yet
        self._counted: list[tuple[Offset, int]] | None = None  # slices, while ids are counted

    def step(self, opened: OpenBatches, *, slice_bytes: int) -> bool:
        """Read about ``slice_bytes`` of the log; return whether all ids are in the window.

        After an error the next call reads the same slice.

        Raises:
            HeadwaterError: of ``opened``, which decrypts, and of the log.
        """
        if self._next is None:
            self._next = self._first()
            if self._log.log_end - self._next > self._config.dedup_ids_max:
                self._counted = []
        start, end = max(self._next, self._log.log_start), self._log.log_end
        if start < end:
            batches = self._log.read(start, end, bytes_max=slice_bytes)
            plain = opened([one for one in batches if self._may_count(one.header)])
            parts = [(one.header, decode_body(one.header, one.body)) for one in plain]
            if self._counted is not None:
                self._counted.append((start, _count_ids(parts) if parts else 0))
            elif parts:
                _add_ids(parts, self._window, self._now_us)
                self._window.expire(self._now_us)  # to hold no more than a window's ids meanwhile
            start = batches[-1].header.end_offset
        self._next = start
        if start >= end and self._counted is not None:
            self._next, self._counted = self._skip(self._counted), None
            return False
        return start >= end

    def _may_count(self, header: BatchHeader) -> bool:
        """Tell whether the batch's message ids were in the window of the leader that wrote it.

        Compaction leaves segments alone while an id of them is in the window.
        """
        if not header.columns & _HEADERS_BIT or header.sparse or header.producer_id != NO_PRODUCER:
            return False
        if header.base_sequence == NO_SEQUENCE:  # an older build wrote the batch
            ahead_us = header.max_timestamp_us - self._now_us
            return ahead_us <= self._config.dedup_window_ms * 1000
        return header.base_sequence == IDS_COUNT

    def _skip(self, counted: list[tuple[Offset, int]]) -> Offset:
        """Return where the ids begin that the window may have; it has forgotten those before."""
        first, ids = self._log.log_end, 0
        while counted and ids < self._config.dedup_ids_max:
            first, count = counted.pop()
            ids += count
        self._window.forgotten_early += sum(count for _, count in counted)
        return first

    def _first(self) -> Offset:
        """Return the first offset whose id may be within the window.

        It is not nearer to the end if the window holds few ids: records without ids take no place.
        """
        log, config = self._log, self._config
        if not config.dedup_window_ms:
            return log.log_end
        return log.offset_at(self._now_us - config.dedup_window_ms * 1000)


def _batches(log: PartitionLog, start: Offset) -> Iterator[StoredBatch]:
    while start < log.log_end:
        batches = log.read(start, log.log_end, bytes_max=_READ_BYTES)
        yield from batches
        start = batches[-1].header.end_offset


def _count_ids(parts: Sequence[_Part]) -> int:
    keys = pa.concat_arrays([body.column("headers") for _, body in parts]).flatten().field("key")
    return int(np.count_nonzero(np.asarray(pc.equal(keys, MESSAGE_ID))))


def _add_ids(parts: Sequence[_Part], window: MessageIdWindow, now_us: int) -> None:
    """Add the ids of many batches at once: with little traffic each batch has one record.

    A time after ``now_us`` counts as ``now_us``: the id would not leave the window otherwise.
    """
    headers = pa.concat_arrays([body.column("headers") for _, body in parts])
    offsets = np.concatenate([offsets_of(header, body) for header, body in parts])
    times = pa.concat_arrays([body.column(TIMESTAMP_FIELD.name) for _, body in parts])
    stamps = np.minimum(np.asarray(times), now_us)
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
