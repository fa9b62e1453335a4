"""Decoders of what a broker finds in its logs' folders: segments, indexes, state, promises.

Their bytes end with checksums, which nearly every change breaks. So half of the inputs are
resealed: a checksum hides what a decoder does with values that nobody can mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from broker.codec import record_batch, sealed_body, sparse
from broker.codec.checksum import crc32c
from broker.codec.disk import (
    index_format,
    log_state_format,
    promise_format,
    segment_format,
)
from broker.codec.flight.reply_batches import replies
from broker.codec.schema import ROW_SCHEMA
from broker.core.dedup import ProducerTable
from broker.keys.xaes import Xaes256Gcm
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, ProducerId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.storage.segments import scan
from fuzzkit.decoder import Decoder, consumed
from simkit.brokers.memory_broker import records

UUID: Final = StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10")
PARTITION: Final = PartitionId(UUID, PartitionNumber(3))
STREAM: Final = Stream(
    name="orders", uuid=UUID, config=StreamConfig(subject="orders"), created_us=5, table_name="t"
)
_EPOCHS: Final = (EpochStart(LeaderEpoch(1), Offset(0)), EpochStart(LeaderEpoch(4), Offset(20)))
_OWNER: Final = bytes(range(16))
_ROWS_MAX: Final = 10_000  # of a batch beside others
_U32: Final = struct.Struct("<I")
_KEY: Final = Xaes256Gcm(bytes(range(32)))


# ------------------------------------------------------------------------------------- checksums


def sealed(at: int) -> Callable[[bytes], bytes]:
    """Return a reseal of a head whose checksum is at ``at``; below 0: counted from the end."""

    def reseal(data: bytes) -> bytes:
        place = at if at >= 0 else len(data) + at
        if not 0 <= place <= len(data) - _U32.size:
            return data
        return data[:place] + _U32.pack(crc32c(data[:place])) + data[place + _U32.size :]

    return reseal


def _index_resealed(data: bytes) -> bytes:
    tables = data[index_format.INDEX_HEADER_SIZE :]
    at = 4 + 1 + 1 + 2 + 5 * 8 + 3 * 4  # of the checksum of the tables
    data = data[:at] + _U32.pack(crc32c(tables)) + data[at + _U32.size :]
    return sealed(index_format.INDEX_HEADER_SIZE - _U32.size)(data)


def _producers_resealed(data: bytes) -> bytes:
    end = log_state_format.PRODUCERS_HEADER_SIZE - _U32.size
    crc = crc32c(data[end + _U32.size :], crc32c(data[:end]))
    return data[:end] + _U32.pack(crc) + data[end + _U32.size :]


def batch_resealed(data: bytes) -> bytes:
    """Put the checksums of a record batch right: of its body, then of its header."""
    if len(data) < record_batch.HEADER_SIZE:
        return data
    body = data[record_batch.HEADER_SIZE :]
    head = bytearray(data[: record_batch.HEADER_SIZE])
    head[72:80] = struct.pack("<II", len(body), crc32c(body))
    head[84:88] = _U32.pack(crc32c(bytes(head[:84])))
    return bytes(head) + body


# ------------------------------------------------------------------------------------- batches


def batch_bytes(codec: str = "none") -> bytes:
    """Return a record batch as the log has it."""
    rows = records([b"first", b"second", None], key=[b"k", None, b"k"])
    prepared = record_batch.prepare(
        rows, now_us=7, codec=codec, producer_id=ProducerId(7), base_sequence=3
    )
    header = record_batch.encode_header(prepared, base_offset=41, leader_epoch=4, synced_end=40)
    return header + bytes(prepared.body)


def sparse_bytes() -> bytes:
    """Return a record batch that key compaction wrote."""
    data = batch_bytes()
    header = record_batch.decode_header(data)
    body = record_batch.decode_body(header, data[record_batch.HEADER_SIZE :])
    left = sparse.Survivors(record_batch.offsets_of(header, body)[1:], body.slice(1))
    found, changed = sparse.encode_sparse(header, header.end_offset, [left])
    return record_batch.encode_stored(found) + bytes(changed)


def _sealed_batch() -> bytes:
    data = batch_bytes()
    header = record_batch.decode_header(data)
    found, body = sealed_body.seal_stored(
        header, data[record_batch.HEADER_SIZE :], _KEY, 1, partition_id=PARTITION
    )
    return record_batch.encode_stored(found) + body


def _checked(data: bytes) -> tuple[record_batch.BatchHeader, bytes]:
    header = record_batch.decode_header(data)
    body = data[record_batch.HEADER_SIZE : record_batch.HEADER_SIZE + header.body_size]
    record_batch.check_body(header, body)
    return header, body


def decode_batch(data: bytes) -> object:
    """Read a batch as a broker does: header, checksum of the body, columns, rows."""
    header, body = _checked(data)
    if header.encrypted:
        header, body = sealed_body.unseal(header, body, lambda _: _KEY, partition_id=PARTITION)
    decoded = record_batch.decode_body(header, body)
    if header.sparse and header.base_offset + 1 < header.end_offset:
        sparse.from_offset(header, body, Offset(header.base_offset + 1))
    rows = record_batch.to_rows(header, decoded, partition=3, subject="s")
    return rows.validate()  # whoever wrote a good checksum has checked what is in the columns


def _beside_others(data: bytes) -> object:
    """Read a batch with small neighbours, which are decoded together: as each is alone."""
    header, body = _checked(data)
    if header.encrypted or header.sparse or header.records_count > _ROWS_MAX:
        return None
    try:
        record_batch.decode_body(header, body).validate(full=True)
    except pa.ArrowException:
        return None  # whoever wrote a good checksum has checked what is in the columns
    found, at = [], 0
    for one, part in ((header, body), _checked(batch_bytes()), (header, body)):
        found.append((replace(one, base_offset=Offset(at), leader_epoch=header.leader_epoch), part))
        at += one.offset_span

    def rows(stored: list[tuple[record_batch.BatchHeader, bytes]]) -> list[pa.RecordBatch]:
        start, end = stored[0][0].base_offset, stored[-1][0].end_offset
        many = replies(stored, start=start, end=end, partition=3, subject="s", schema=ROW_SCHEMA)
        return [reply.rows for reply in many]

    together = pa.Table.from_batches(rows(found))
    alone = pa.Table.from_batches([part for one in found for part in rows([one])])
    assert together.equals(alone), "batches that are decoded together are others than alone"
    return together


class _File:
    """Bytes as a file of the port."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, position: int, size: int) -> bytes:
        """Return the bytes there."""
        return self._data[position : position + size]


def _scanned(data: bytes) -> object:
    window = scan.Window(_File(data), len(data))  # type: ignore[arg-type]  # reads only
    return consumed(scan.scan(window, position=0, offset=Offset(41)))


def _producers() -> bytes:
    table = ProducerTable()
    for number in range(3):
        table.add(ProducerId(number), 5, 2, Offset(40 + number))
        table.add(ProducerId(number), 7, 2, Offset(50 + number))
    return table.to_state()


_DISK: Final = "broker.codec.disk"


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield from _batches()
    yield from _segment_files()
    yield from _state_files()


def _batches() -> Iterator[Decoder]:
    yield Decoder(
        name="record_batch",
        covers=(
            "broker.codec.record_batch.decode_header",
            "broker.codec.record_batch.check_body",
            "broker.codec.record_batch.decode_body",
            "broker.codec.sealed_body.unseal",
            "broker.codec.sealed_body.key_version_of",
            "broker.codec.sparse.from_offset",
        ),
        decode=decode_batch,
        make_seeds=lambda: [
            batch_bytes(), batch_bytes("lz4"), batch_bytes("zstd"), sparse_bytes(), _sealed_batch(),
        ],
        reseal=batch_resealed,
    )  # fmt: skip
    yield Decoder(
        name="record_batches_of_a_reply",
        covers=("broker.codec.flight.reply_batches.replies",),
        decode=_beside_others,
        make_seeds=lambda: [batch_bytes(), batch_bytes("lz4"), batch_bytes("zstd")],
        reseal=batch_resealed,
    )
    yield Decoder(
        name="segment_scan",
        covers=("broker.storage.segments.scan.scan", "broker.storage.segments.scan.is_zero"),
        decode=_scanned,
        make_seeds=lambda: [batch_bytes() + bytes(64), batch_bytes() * 2 + sparse_bytes()],
        reseal=batch_resealed,
    )


def _segment_files() -> Iterator[Decoder]:
    yield Decoder(
        name="segment_header",
        covers=(f"{_DISK}.segment_format.decode_segment_header",),
        decode=segment_format.decode_segment_header,
        make_seeds=lambda: [
            segment_format.encode_segment_header(
                segment_format.SegmentHeader(
                    partition_id=PARTITION, base_offset=Offset(7), created_us=8
                )
            )
        ],
        reseal=sealed(60),
    )
    yield Decoder(
        name="segment_name",
        covers=(f"{_DISK}.segment_format.parse_segment_name",),
        decode=lambda data: segment_format.parse_segment_name(data.decode(errors="replace")),
        make_seeds=lambda: [segment_format.segment_name(41, "log").encode()],
    )
    yield Decoder(
        name="index",
        covers=(
            f"{_DISK}.index_format.decode_index", f"{_DISK}.index_format.decode_index_summary",
        ),
        decode=index_format.decode_index,
        make_seeds=lambda: [
            index_format.encode_index(
                partition_id=PARTITION,
                base_offset=Offset(7),
                end_offset=Offset(30),
                covered=900,
                max_timestamp_us=5,
                created_us=6,
                sealed=True,
                entries=index_format.IndexEntries.of([7, 12], [64, 300], [0, 4]),
                epochs=_EPOCHS,
            )
        ],
        reseal=_index_resealed,
    )  # fmt: skip


def _state_files() -> Iterator[Decoder]:
    point = log_state_format.RecoveryPoint(
        partition_id=PARTITION,
        sequence=9,
        segment_base=Offset(7),
        position=900,
        log_start=Offset(0),
        log_end=Offset(30),
    )
    yield Decoder(
        name="recovery_point",
        covers=(f"{_DISK}.log_state_format.decode_recovery_point",),
        decode=log_state_format.decode_recovery_point,
        make_seeds=lambda: [log_state_format.encode_recovery_point(point)],
        reseal=sealed(log_state_format.SLOT_SIZE - 4),
    )
    yield Decoder(
        name="epochs",
        covers=(f"{_DISK}.log_state_format.decode_epochs",),
        decode=log_state_format.decode_epochs,
        make_seeds=lambda: [log_state_format.encode_epochs(PARTITION, _EPOCHS)],
        reseal=sealed(-4),
    )
    yield Decoder(
        name="producer_state",
        covers=(f"{_DISK}.log_state_format.decode_producer_state",),
        decode=log_state_format.decode_producer_state,
        make_seeds=lambda: [log_state_format.encode_producer_state(Offset(30), _producers())],
        reseal=_producers_resealed,
    )
    yield Decoder(
        name="producers",
        covers=("broker.core.dedup.ProducerTable.from_state",),
        decode=ProducerTable.from_state,
        make_seeds=lambda: [_producers()],
    )
    yield Decoder(
        name="promises",
        covers=(f"{_DISK}.promise_format.decode_header",),
        decode=promise_format.decode_header,
        make_seeds=lambda: [promise_format.encode_header(UUID)],
        reseal=sealed(promise_format.HEADER_SIZE - 4),
    )
    values = promise_format.SlotValues(1, 5, _OWNER, 3, 1, 7, 8, 9)
    yield Decoder(
        name="promise",
        covers=(f"{_DISK}.promise_format.decode_slot",),
        decode=promise_format.decode_slot,
        make_seeds=lambda: [promise_format.encode_slot(values)],
        reseal=sealed(promise_format.SLOT_SIZE - 4),
    )
