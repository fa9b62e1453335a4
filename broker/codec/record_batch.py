"""The record batch, version 1: a fixed header, then an Arrow IPC record-batch message.

The same bytes are on the leader's disk, on each follower's disk, and in the leader's answers to
followers. Replies to readers are decoded from these bytes. Little-endian:

     0        4     5     6       8            16             24           32
     | magic  | ver | len | flags | base offset | leader epoch | synced end | first timestamp ...
    40               48            56              64            68            72
     | max timestamp | producer id | base sequence | record count | offset span | body size ...
    76          80        84           88
     | body crc | columns | header crc | body: an encapsulated Arrow message, 8-byte aligned

``synced end`` is the leader's synced log end when it wrote the batch. If a later batch has a synced
end above a damaged batch, the damaged batch was once durable: the damage is rot, not a torn write
(docs/decisions/0002). A batch of a newer version is refused with an error that names the version.
Frozen by tests/golden.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.codec.checksum import crc32c
from broker.codec.constant_columns import repeated
from broker.codec.schema import (
    COLUMNS_MASK,
    OFFSET_DELTA_FIELD,
    OPTIONAL_COLUMNS,
    PRODUCER_FIELDS,
    ROW_SCHEMA,
    TIMESTAMP_FIELD,
    TIMESTAMP_TYPE,
    body_schema,
)
from broker.errors import (
    BatchCorruptError,
    EncryptionKeyError,
    OverloadedError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE, ProducerId
from broker.model.offsets import OFFSET_MAX, Offset

MAGIC: Final = b"HWRB"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sBBHqqqqqqqIIIIII")
HEADER_SIZE: Final = 88
assert _HEADER.size == HEADER_SIZE  # the drawing, the struct and the document agree
_HEADER_BODY: Final = struct.Struct("<4sBBHqqqqqqqIIIII")  # all but the header's own CRC
_CRC: Final = struct.Struct("<I")
_STAMP: Final = struct.Struct("<q")

_CODEC_MASK: Final = 0b11
_CODECS: Final = ("none", "lz4", "zstd")
_SPARSE: Final = 1 << 2
_ENCRYPTED: Final = 1 << 3  # the body is as broker/codec/sealed_body.py says
_KNOWN_FLAGS: Final = _CODEC_MASK | _SPARSE | _ENCRYPTED

BODY_BYTES_MAX: Final = 256 * 1024 * 1024
RECORDS_COUNT_MAX: Final = 4 * 1024 * 1024
_END_OF_STREAM_SIZE: Final = 8  # Arrow IPC: continuation mark and a zero length
_TIMESTAMP_US_MAX: Final = 253_402_300_800_000_000  # year 10000; Spark and Parquet go no further


@dataclass(slots=True, kw_only=True)  # one for each batch: a frozen one costs a third more
class BatchHeader:
    """A decoded header. Its batch has the offsets ``[base_offset, base_offset + offset_span)``.

    A dense batch has a record at each offset. A sparse batch, which key compaction wrote, lacks
    some or all of the records (``sparse.py``).
    """

    base_offset: Offset
    leader_epoch: LeaderEpoch
    synced_end: Offset
    first_timestamp_us: int
    max_timestamp_us: int
    producer_id: ProducerId
    base_sequence: int
    records_count: int
    offset_span: int
    body_size: int
    body_crc: int
    columns: int
    codec: str
    sparse: bool
    encrypted: bool = False

    @property
    def end_offset(self) -> Offset:
        """First offset after this batch."""
        return Offset(self.base_offset + self.offset_span)

    @property
    def size(self) -> int:
        """Bytes of header and body."""
        return HEADER_SIZE + self.body_size


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """A batch without the fields that its leader decides: base offset, leader epoch, synced end."""

    body: Any  # bytes-like, a multiple of 8 long
    body_crc: int
    records_count: int
    first_timestamp_us: int
    max_timestamp_us: int
    columns: int
    codec: str = "none"
    producer_id: ProducerId = NO_PRODUCER
    base_sequence: int = NO_SEQUENCE
    encrypted: bool = False
    placed_by: int | None = None  # not stored: how many partitions the producer chose among

    @property
    def size(self) -> int:
        """Bytes that the batch takes in a segment."""
        return HEADER_SIZE + len(self.body)


class Preparer:
    """Encodes batches of one schema; the schema is checked once. Safe on any thread.

    Raises:
        SchemaMismatchError: a column is unknown, repeated or of another type.
    """

    def __init__(self, schema: pa.Schema, *, codec: str = "none") -> None:
        try:
            names = schema.names
        except UnicodeDecodeError as cause:
            raise SchemaMismatchError("the name of a column is not UTF-8") from cause
        _check_columns(names, schema.types)
        self._codec = codec
        self._options = None if codec == "none" else pa.ipc.IpcWriteOptions(compression=codec)
        self._timestamp = names.index("timestamp") if "timestamp" in names else None
        self._optional = [
            (bit, names.index(field.name)) for bit, field in OPTIONAL_COLUMNS if field.name in names
        ]

    def prepare(
        self,
        batch: pa.RecordBatch,
        *,
        now_us: int,
        producer_id: ProducerId = NO_PRODUCER,
        base_sequence: int = NO_SEQUENCE,
        placed_by: int | None = None,
    ) -> PreparedBatch:
        """Encode a batch of this schema as a body, and checksum the body, as :func:`prepare` does.

        Raises:
            SchemaMismatchError: a timestamp is out of bounds.
            RecordTooLargeError: no rows, too many rows, or a body over the limit.
        """
        rows = batch.num_rows
        if not 0 < rows <= RECORDS_COUNT_MAX:
            raise RecordTooLargeError(
                f"a batch holds 1 to {RECORDS_COUNT_MAX} records, not {rows}",
                size_records=rows,
                limit_records=RECORDS_COUNT_MAX,
            )
        stamps, first_us, max_us = self._stamps(batch, now_us)
        columns = 0
        arrays = [stamps]
        for bit, index in self._optional:
            column = batch.column(index)
            if column.null_count < rows:
                columns |= bit
                arrays.append(column)
        schema = body_schema(columns, sparse=False)
        body = _serialize(pa.RecordBatch.from_arrays(arrays, schema=schema), self._options)
        if len(body) > BODY_BYTES_MAX:
            raise RecordTooLargeError(
                f"a batch body of {len(body)} bytes exceeds {BODY_BYTES_MAX}",
                size_bytes=len(body),
                limit_bytes=BODY_BYTES_MAX,
            )
        return PreparedBatch(
            body=body,
            body_crc=crc32c(body),
            records_count=rows,
            first_timestamp_us=first_us,
            max_timestamp_us=max_us,
            columns=columns,
            codec=self._codec,
            producer_id=producer_id,
            base_sequence=base_sequence,
            placed_by=placed_by,
        )

    def _stamps(self, batch: pa.RecordBatch, now_us: int) -> tuple[pa.Array, int, int]:
        """Return the timestamps, the first timestamp and the largest timestamp."""
        if self._timestamp is None:
            same = pa.py_buffer(_STAMP.pack(now_us) * batch.num_rows)
            return pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, same]), now_us, now_us
        stamps = batch.column(self._timestamp)
        if stamps.null_count:
            stamps = stamps.fill_null(now_us)
        values = np.asarray(stamps)
        min_us, max_us = int(values.min()), int(values.max())
        if min_us < 0 or max_us >= _TIMESTAMP_US_MAX:
            raise SchemaMismatchError(
                "a timestamp must be microseconds since 1970 and before the year 10000, not "
                f"{min_us if min_us < 0 else max_us}",
                column="timestamp",
                got=min_us if min_us < 0 else max_us,
            )
        return stamps, int(values[0]), max_us


def prepare(
    batch: pa.RecordBatch,
    *,
    now_us: int,
    codec: str = "none",
    producer_id: ProducerId = NO_PRODUCER,
    base_sequence: int = NO_SEQUENCE,
) -> PreparedBatch:
    """Encode producer columns (any subset of PRODUCER_FIELDS) as a body and checksum it.

    Columns without a single value are left out. A batch without timestamps, or with a null one,
    is stamped ``now_us``. Safe on any thread.

    Raises:
        SchemaMismatchError: unknown column, wrong type, repeated column.
        RecordTooLargeError: no rows, too many rows, or a body over the limit.
    """
    preparer = Preparer(batch.schema, codec=codec)
    return preparer.prepare(
        batch, now_us=now_us, producer_id=producer_id, base_sequence=base_sequence
    )


def _check_columns(names: list[str], types: list[pa.DataType]) -> None:
    if len(set(names)) != len(names):
        raise SchemaMismatchError(f"a column occurs twice in the columns {names}", columns=names)
    for name, got in zip(names, types, strict=True):
        expected = PRODUCER_FIELDS.get(name)
        if expected is None or got != expected.type:
            wanted = {known.name: str(known.type) for known in PRODUCER_FIELDS.values()}
            raise SchemaMismatchError(
                f"a record has no column {name!r} of type {got}; its columns are {wanted}",
                column=name,
                got=str(got),
                columns=wanted,
            )


def encode_body(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """Return a body of :func:`broker.codec.schema.body_schema`'s columns as bytes."""
    return _serialize(batch, None if codec == "none" else pa.ipc.IpcWriteOptions(compression=codec))


def _serialize(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None) -> pa.Buffer:
    """Return the encapsulated message; of a sliced batch Arrow copies only the slice's rows."""
    if options is None:
        return batch.serialize()
    # Only a stream writer takes options: write a stream, then cut off its schema message and end.
    prefix = len(_stream(batch.schema, None, options)) - _END_OF_STREAM_SIZE
    stream = _stream(batch.schema, batch, options)
    return stream.slice(prefix, len(stream) - prefix - _END_OF_STREAM_SIZE)


def _stream(
    schema: pa.Schema, batch: pa.RecordBatch | None, options: pa.ipc.IpcWriteOptions
) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        if batch is not None:
            writer.write_batch(batch)
    return sink.getvalue()


def encode_header(
    batch: PreparedBatch, *, base_offset: int, leader_epoch: int, synced_end: int
) -> bytes:
    """Return the 88 header bytes of a prepared batch at its place in the log."""
    flags = _CODECS.index(batch.codec) | (_ENCRYPTED if batch.encrypted else 0)
    head = _HEADER_BODY.pack(
        MAGIC,
        VERSION,
        HEADER_SIZE,
        flags,
        base_offset,
        leader_epoch,
        synced_end,
        batch.first_timestamp_us,
        batch.max_timestamp_us,
        batch.producer_id,
        batch.base_sequence,
        batch.records_count,
        batch.records_count,
        len(batch.body),
        batch.body_crc,
        batch.columns,
    )
    return head + _CRC.pack(crc32c(head))


def encode_stored(header: BatchHeader) -> bytes:
    """Return the bytes from which :func:`decode_header` made ``header``."""
    flags = _CODECS.index(header.codec) | (_SPARSE if header.sparse else 0)
    head = _HEADER_BODY.pack(
        MAGIC,
        VERSION,
        HEADER_SIZE,
        flags | (_ENCRYPTED if header.encrypted else 0),
        header.base_offset,
        header.leader_epoch,
        header.synced_end,
        header.first_timestamp_us,
        header.max_timestamp_us,
        header.producer_id,
        header.base_sequence,
        header.records_count,
        header.offset_span,
        header.body_size,
        header.body_crc,
        header.columns,
    )
    return head + _CRC.pack(crc32c(head))


def decode_header(data: Any, position: int = 0) -> BatchHeader:
    """Parse and check the header at ``position``. Raises BatchCorruptError, nothing else."""
    view = memoryview(data)[position : position + HEADER_SIZE]
    if len(view) < HEADER_SIZE:
        raise BatchCorruptError(f"{len(view)} bytes are too few for a header", position=position)
    (
        magic, version, size, flags, base_offset, leader_epoch, synced_end, first_us, max_us,
        producer_id, base_sequence, count, span, body_size, body_crc, columns, header_crc,
    ) = _HEADER.unpack(view)  # fmt: skip
    if magic != MAGIC:
        raise BatchCorruptError(
            f"no record batch begins here: found the bytes {bytes(magic).hex()}", position=position
        )
    if version != VERSION or size != HEADER_SIZE:
        raise BatchCorruptError(
            f"record batch version {version} (header of {size} bytes) is not known; "
            f"this build reads version {VERSION}",
            position=position,
            version=version,
        )
    if crc32c(view[: HEADER_SIZE - 4]) != header_crc:
        raise BatchCorruptError("header checksum mismatch", position=position)
    codec_index = flags & _CODEC_MASK
    sparse = bool(flags & _SPARSE)
    sane = (
        flags & ~_KNOWN_FLAGS == 0
        and codec_index < len(_CODECS)
        and columns & ~COLUMNS_MASK == 0
        and count <= RECORDS_COUNT_MAX
        and (span == count > 0 if not sparse else span >= max(1, count))
        and 0 < body_size <= BODY_BYTES_MAX
        and 0 <= base_offset <= OFFSET_MAX - span
        and leader_epoch >= 0
        and synced_end >= 0
    )
    if not sane:
        raise BatchCorruptError("header values are out of bounds", position=position)
    return BatchHeader(
        base_offset=base_offset, leader_epoch=leader_epoch, synced_end=synced_end,
        first_timestamp_us=first_us, max_timestamp_us=max_us, producer_id=producer_id,
        base_sequence=base_sequence, records_count=count, offset_span=span, body_size=body_size,
        body_crc=body_crc, columns=columns, codec=_CODECS[codec_index], sparse=sparse,
        encrypted=bool(flags & _ENCRYPTED),
    )  # fmt: skip


def check_body(header: BatchHeader, body: Any) -> None:
    """Compare a body with its header's size and checksum; raises BatchCorruptError."""
    if len(body) != header.body_size or crc32c(body) != header.body_crc:
        raise BatchCorruptError(
            f"the body of the batch at offset {header.base_offset} fails its checksum",
            offset=header.base_offset,
        )


def decode_body(header: BatchHeader, body: Any) -> pa.RecordBatch:
    """Decode a checked body, zero-copy.

    Raises:
        BatchCorruptError: the body is not Arrow, or has another number of rows.
        OverloadedError: there is no memory for what the body unpacks to.
        EncryptionKeyError: the body is encrypted: `broker.codec.sealed_body.unseal` opens it.
    """
    if header.encrypted:
        raise EncryptionKeyError(
            f"the batch at offset {header.base_offset} is encrypted, and this reader has no keys",
            offset=header.base_offset,
        )
    schema = body_schema(header.columns, sparse=header.sparse)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        batch.validate()  # of lengths only: reading does not compare columns with their buffers
    except MemoryError as cause:  # Arrow's: honest memory is short, or the body lies about a size
        raise OverloadedError(
            f"no memory to unpack the body at offset {header.base_offset}: {cause}",
            offset=header.base_offset,
        ) from cause
    except (pa.ArrowException, OSError, EOFError) as cause:
        raise BatchCorruptError(
            f"the body at offset {header.base_offset} is not Arrow: {cause}",
            offset=header.base_offset,
        ) from cause
    if batch.num_rows != header.records_count:
        raise BatchCorruptError(
            f"the body at offset {header.base_offset} has {batch.num_rows} rows, its header says "
            f"{header.records_count}",
            offset=header.base_offset,
        )
    if header.sparse and not _ascends(batch.column(OFFSET_DELTA_FIELD.name), header.offset_span):
        raise BatchCorruptError(
            f"the offsets in the sparse batch at {header.base_offset} do not ascend within it",
            offset=header.base_offset,
        )
    return batch


def _ascends(deltas: pa.Array, span: int) -> bool:
    """Tell whether the offsets of a sparse batch ascend and are within its span."""
    if not len(deltas):
        return True
    values = np.asarray(deltas)
    return bool(values[-1] < span and (values[1:] > values[:-1]).all())


def offsets_of(header: BatchHeader, body: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the offset of each record of a decoded batch: int64 [records]."""
    if header.sparse:
        deltas = np.asarray(body.column(OFFSET_DELTA_FIELD.name)).astype(np.int64)
        return deltas + header.base_offset
    return np.arange(header.base_offset, header.base_offset + body.num_rows, dtype=np.int64)


def to_rows(
    header: BatchHeader,
    body: pa.RecordBatch,
    *,
    partition: int,
    subject: str,
    schema: pa.Schema = ROW_SCHEMA,
) -> pa.RecordBatch:
    """Return the batch as rows of ``schema``, a subset of ROW_SCHEMA's fields in any order.

    Without a ``subject`` column every row has the partition's own subject. Other absent columns
    become nulls.
    """
    arrays = []
    for name in schema.names:
        if name == "partition":
            array = repeated(name, partition, body.num_rows)
        elif name == "subject":
            array = _subjects(body, subject)
        else:
            array = _row_column(name, header, body)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row_column(name: str, header: BatchHeader, body: pa.RecordBatch) -> pa.Array:
    rows = body.num_rows
    if name == "offset":
        offsets = pa.py_buffer(offsets_of(header, body))
        return pa.Array.from_buffers(pa.int64(), rows, [None, offsets])
    if name == "timestamp":
        stamps = body.column(TIMESTAMP_FIELD.name)
        return pa.Array.from_buffers(TIMESTAMP_TYPE, rows, stamps.buffers(), offset=stamps.offset)
    if name == "leader_epoch":
        return repeated(name, header.leader_epoch, rows)
    index = body.schema.get_field_index(name)
    return repeated(name, None, rows) if index < 0 else body.column(index)


def _subjects(body: pa.RecordBatch, partition_subject: str) -> pa.Array:
    index = body.schema.get_field_index("subject")
    if index < 0:
        return repeated("subject", partition_subject, body.num_rows)
    column = body.column(index)
    return column.fill_null(partition_subject) if column.null_count else column
