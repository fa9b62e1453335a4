"""Bytes of writes that a broker hands to the leader of their partition.

     0         1      2        3      4            12
    | version | kind | policy | zero | request id | fields ...                    little-endian

A write has its partition (4 + 16 bytes), the log end that it expects (8 bytes, -1: any), and then
an Arrow IPC stream. An answer has the leader epoch and the offset of each row (8 bytes each). A
refusal has the error as text (`broker/errors.py`). Everything else raises EnvelopeError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.errors import EnvelopeError, HeadwaterError, OverloadedError, from_wire, to_wire
from broker.model.forwarded_writes import ForwardingMessage, WriteAnswered, WriteForwarded
from broker.model.offsets import Offset
from broker.model.records import AckPolicy

VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBBBQ")
_WRITE: Final = struct.Struct("<I16sq")
_EPOCH: Final = struct.Struct("<q")
_WRITE_KIND, _ANSWER_KIND, _REFUSAL_KIND = range(1, 4)
_POLICIES: Final = (AckPolicy.NONE, AckPolicy.LEADER, AckPolicy.ALL)
_OFFSET_BYTES: Final = 8
_REFUSAL_BYTES_MAX: Final = 64 * 1024


def encode(message: ForwardingMessage) -> Sequence[bytes]:
    """Return a message's bytes, in pieces; rows are not copied."""
    if isinstance(message, WriteForwarded):
        policy = _POLICIES.index(message.policy)
        head = _HEAD.pack(VERSION, _WRITE_KIND, policy, 0, message.request_id)
        number, uuid = pack_partition_id(message.partition_id)
        end = -1 if message.expected_end is None else message.expected_end
        return head + _WRITE.pack(number, uuid, end), message.rows
    if message.refused is not None:
        head = _HEAD.pack(VERSION, _REFUSAL_KIND, 0, 0, message.request_id)
        return (head + to_wire(message.refused).encode()[:_REFUSAL_BYTES_MAX],)
    head = _HEAD.pack(VERSION, _ANSWER_KIND, 0, 0, message.request_id)
    told = _EPOCH.pack(message.leader_epoch)
    return (head + told + struct.pack(f"<{len(message.offsets)}q", *message.offsets),)


def decode(data: memoryview) -> ForwardingMessage:
    """Parse one message; raises EnvelopeError for everything else, and nothing else."""
    if len(data) < _HEAD.size:
        raise EnvelopeError(f"{len(data)} bytes are too few for a forwarded write")
    version, kind, policy, zero, request_id = _HEAD.unpack_from(data)
    if version != VERSION or zero or policy >= len(_POLICIES) or (policy and kind != _WRITE_KIND):
        raise EnvelopeError(f"not a forwarded write of version {VERSION}: {bytes(data[:4]).hex()}")
    body = data[_HEAD.size :]
    if kind == _WRITE_KIND:
        if len(body) <= _WRITE.size:
            raise EnvelopeError("a forwarded write has no rows")
        number, uuid, end = _WRITE.unpack_from(body)
        if end < -1:
            raise EnvelopeError(f"a forwarded write expects the log end {end}, below 0")
        return WriteForwarded(
            request_id=request_id,
            partition_id=unpack_partition_id(number, uuid),
            policy=_POLICIES[policy],
            expected_end=None if end < 0 else Offset(end),
            rows=bytes(body[_WRITE.size :]),
        )
    if kind == _ANSWER_KIND:
        return _answer(request_id, body)
    if kind == _REFUSAL_KIND:
        return _refusal(request_id, body)
    raise EnvelopeError(f"a forwarded write of the unknown kind {kind}")


def _answer(request_id: int, body: memoryview) -> WriteAnswered:
    count, rest = divmod(len(body) - _EPOCH.size, _OFFSET_BYTES)
    if count < 0 or rest:
        raise EnvelopeError(f"an answer to a forwarded write has {len(body)} bytes")
    (leader_epoch,) = _EPOCH.unpack_from(body)
    offsets = struct.unpack_from(f"<{count}q", body, _EPOCH.size)
    if leader_epoch < 0 or min(offsets, default=0) < 0:
        raise EnvelopeError("an answer to a forwarded write has negative numbers")
    return WriteAnswered(
        request_id=request_id, offsets=tuple(map(Offset, offsets)), leader_epoch=leader_epoch
    )


def _refusal(request_id: int, body: memoryview) -> WriteAnswered:
    if len(body) > _REFUSAL_BYTES_MAX:
        raise EnvelopeError(f"a refusal of {len(body)} bytes is too long")
    error = from_wire(bytes(body).decode(errors="replace"))
    if error is None:
        raise EnvelopeError("a refusal of a forwarded write has no error that this build knows")
    return WriteAnswered(request_id=request_id, refused=error)


def rows_to_bytes(rows: pa.RecordBatch) -> bytes:
    """Return a batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def rows_from_bytes(data: bytes) -> pa.RecordBatch | HeadwaterError:
    """Return the one batch of an Arrow IPC stream, checked, or why there is none."""
    try:
        with pa.ipc.open_stream(data) as stream:
            rows = stream.read_next_batch()
            rows.validate(full=True)
    except MemoryError as cause:  # Arrow's: honest memory is short, or the bytes lie about a size
        return OverloadedError(f"no memory to unpack the rows of a forwarded write: {cause}")
    except (pa.ArrowException, OSError, EOFError, StopIteration) as cause:
        return EnvelopeError(f"the rows of a forwarded write are not readable: {cause}")
    return rows
