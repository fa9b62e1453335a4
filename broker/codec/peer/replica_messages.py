"""Bytes of the messages between replicas of a partition, over the link between brokers.

     0         1      2         3      4           8
    | version | kind | refusal | zero | partition | stream uuid ...                 little-endian
    24
    | fields, 8 bytes each, by kind | batches: header, body, header, body ...
                                    | or: epochs u32 | (epoch u64, start u64) ... | producers

Only an answer with refusal "below_start" has the epochs and producers (a `LogPrefix`).

A stored batch travels as the bytes that it has on disk, and is checked like a read from disk. All
fields are 8-byte aligned, so that Arrow can read a body in the receive buffer. No request names its
sender: the link knows the sender. Counts and sizes are checked against the message's own size
before they are used. Bytes that are not exactly one message raise a CorruptDataError.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any, Final

from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.codec.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    check_body,
    decode_header,
    encode_stored,
)
from broker.errors import EnvelopeError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    LogPrefix,
    NewDataNotice,
    Refusal,
    ReplicaMessage,
)

VERSION: Final = 1
BatchMaker = Callable[[BatchHeader, memoryview], Any]

_HEAD: Final = struct.Struct("<BBBBI16s")
HEAD_SIZE: Final = 24
assert _HEAD.size == HEAD_SIZE
NUMBER_MAX: Final = 1 << 62  # no real epoch, offset or id is larger
REFUSALS: Final[tuple[Refusal | None, ...]] = (
    None, "not_leader", "fenced_epoch", "unknown_epoch", "fenced_broker", "diverged",
    "below_start",
)  # fmt: skip

EPOCHS_MAX: Final = 100_000
_COUNT: Final = struct.Struct("<I")
_EPOCH: Final = struct.Struct("<QQ")

_EPOCH_END_REQUEST, _EPOCH_END_ANSWER, _FETCH_REQUEST, _FETCH_ANSWER, _NOTICE = range(1, 6)
_FIELDS: Final = {  # the numbers of each kind, 8 bytes each
    _EPOCH_END_REQUEST: struct.Struct("<4Q"),
    _EPOCH_END_ANSWER: struct.Struct("<5Q"),
    _FETCH_REQUEST: struct.Struct("<7Q"),
    _FETCH_ANSWER: struct.Struct("<6Q"),
    _NOTICE: struct.Struct("<Q"),
}


def encode(partition: PartitionId, message: ReplicaMessage) -> list[Any]:
    """Return a message as buffers to send one after the other; bodies are not copied."""
    refusal: Refusal | None = None
    tail: list[Any] = []
    m = message
    fields: tuple[int, ...]
    if isinstance(m, FetchAnswer):
        kind, refusal, tail = _FETCH_ANSWER, m.refusal, encode_tail(m)
        fields = (
            m.leader_epoch, m.request_id, m.start, m.high_watermark, m.log_end, len(m.batches),
        )  # fmt: skip
    elif isinstance(m, FetchRequest):
        kind = _FETCH_REQUEST
        fields = (
            m.broker_epoch, m.leader_epoch, m.request_id, m.fetch_from, m.last_epoch,
            m.synced_end, m.wait_ms,
        )  # fmt: skip
    elif isinstance(m, NewDataNotice):
        kind, fields = _NOTICE, (m.leader_epoch,)
    elif isinstance(m, EpochEndRequest):
        kind, fields = _EPOCH_END_REQUEST, (m.broker_epoch, m.leader_epoch, m.request_id, m.epoch)
    else:
        kind, refusal = _EPOCH_END_ANSWER, m.refusal
        fields = (m.leader_epoch, m.request_id, m.epoch, m.known_epoch, m.end)
    number, uuid_bytes = pack_partition_id(partition)
    head = _HEAD.pack(VERSION, kind, REFUSALS.index(refusal), 0, number, uuid_bytes)
    return [head + _FIELDS[kind].pack(*fields), *tail]


def encode_tail(answer: FetchAnswer) -> list[Any]:
    """Return the part of an answer after its fields, batches or a prefix, as buffers."""
    if answer.prefix is not None:
        assert answer.refusal == "below_start", "only a follower that must begin anew gets a prefix"
        assert not answer.batches, "a prefix describes records that no log has, so no batches"
        return [_encode_prefix(answer.prefix)]
    buffers: list[Any] = []
    for batch in answer.batches:
        buffers += (encode_stored(batch.header), batch.body)
    return buffers


def decode(
    data: memoryview, *, sender: BrokerId, batch: BatchMaker
) -> tuple[PartitionId, ReplicaMessage]:
    """Parse one message of ``sender``; ``batch`` makes the caller's type of a stored batch.

    Bodies are views of ``data``, so ``data`` must not change after this call.

    Raises:
        EnvelopeError: the bytes are not exactly one message.
        BatchCorruptError: a batch is damaged.
    """
    if len(data) < HEAD_SIZE:
        raise EnvelopeError(f"{len(data)} bytes are too few for a replica message")
    version, kind, refusal_number, zero, partition_number, uuid_bytes = _HEAD.unpack_from(data)
    layout = _FIELDS.get(kind)
    if version != VERSION or zero or layout is None or refusal_number >= len(REFUSALS):
        raise EnvelopeError(f"not a replica message of version {VERSION}: {bytes(data[:4]).hex()}")
    at = HEAD_SIZE + layout.size
    if len(data) < at or (kind != _FETCH_ANSWER and len(data) != at):
        raise EnvelopeError(f"a replica message of kind {kind} cannot have {len(data)} bytes")
    fields = layout.unpack_from(data, HEAD_SIZE)
    if max(fields) > NUMBER_MAX:
        raise EnvelopeError("a replica message's numbers are out of bounds")
    refusal = REFUSALS[refusal_number]
    if refusal is not None and kind not in (_EPOCH_END_ANSWER, _FETCH_ANSWER):
        raise EnvelopeError(f"a replica message of kind {kind} cannot have a refusal")
    message = _message(kind, fields, refusal, sender=sender, rest=data[at:], batch=batch)
    return unpack_partition_id(partition_number, uuid_bytes), message


def _message(
    kind: int,
    fields: tuple[int, ...],
    refusal: Refusal | None,
    *,
    sender: BrokerId,
    rest: memoryview,
    batch: BatchMaker,
) -> ReplicaMessage:
    if kind == _FETCH_ANSWER:
        leader, request_id, start, high_watermark, log_end, count = fields
        batches, prefix = decode_tail(rest, count, refusal, batch)
        return FetchAnswer(
            leader_epoch=LeaderEpoch(leader), request_id=request_id, start=Offset(start),
            high_watermark=Offset(high_watermark), log_end=Offset(log_end), batches=batches,
            refusal=refusal, prefix=prefix,
        )  # fmt: skip
    if kind == _FETCH_REQUEST:
        broker, leader, request_id, fetch_from, last_epoch, synced_end, wait_ms = fields
        return FetchRequest(
            follower=sender, broker_epoch=BrokerEpoch(broker), leader_epoch=LeaderEpoch(leader),
            request_id=request_id, fetch_from=Offset(fetch_from),
            last_epoch=LeaderEpoch(last_epoch), synced_end=Offset(synced_end), wait_ms=wait_ms,
        )  # fmt: skip
    if kind == _EPOCH_END_REQUEST:
        broker, leader, request_id, epoch = fields
        return EpochEndRequest(
            follower=sender, broker_epoch=BrokerEpoch(broker), leader_epoch=LeaderEpoch(leader),
            request_id=request_id, epoch=LeaderEpoch(epoch),
        )  # fmt: skip
    if kind == _EPOCH_END_ANSWER:
        leader, request_id, epoch, known_epoch, end = fields
        return EpochEndAnswer(
            leader_epoch=LeaderEpoch(leader), request_id=request_id, epoch=LeaderEpoch(epoch),
            known_epoch=LeaderEpoch(known_epoch), end=Offset(end), refusal=refusal,
        )  # fmt: skip
    return NewDataNotice(leader_epoch=LeaderEpoch(fields[0]))


def _encode_prefix(prefix: LogPrefix) -> bytes:
    epochs = b"".join(_EPOCH.pack(*one) for one in prefix.epochs)
    return _COUNT.pack(len(prefix.epochs)) + epochs + prefix.producers


def _decode_prefix(data: memoryview) -> LogPrefix:
    if len(data) < _COUNT.size:
        raise EnvelopeError("a log's prefix is cut off")
    (count,) = _COUNT.unpack_from(data)
    end = _COUNT.size + count * _EPOCH.size
    if count > EPOCHS_MAX or end > len(data):
        raise EnvelopeError(f"{len(data)} bytes cannot hold {count} epochs")
    epochs = tuple(_EPOCH.iter_unpack(data[_COUNT.size : end]))
    grows = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(epochs))
    if not grows or any(max(one) > NUMBER_MAX for one in epochs):
        raise EnvelopeError("the epochs of a log's prefix are out of order")
    return LogPrefix(
        epochs=tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs),
        producers=bytes(data[end:]),
    )


def decode_tail(
    data: memoryview, count: int, refusal: Refusal | None, batch: BatchMaker
) -> tuple[tuple[Any, ...], LogPrefix | None]:
    """Parse the part of an answer after its fields: ``count`` batches or a prefix.

    Raises:
        EnvelopeError: the bytes are not exactly this part.
        BatchCorruptError: a batch is damaged.
    """
    if refusal != "below_start":
        return _decode_batches(data, count, batch), None
    if count:
        raise EnvelopeError('an answer with refusal "below_start" must not have batches')
    return (), _decode_prefix(data)


def _decode_batches(data: memoryview, count: int, batch: BatchMaker) -> tuple[Any, ...]:
    """Parse exactly ``count`` stored batches."""
    if count * HEADER_SIZE > len(data):
        raise EnvelopeError(f"{len(data)} bytes cannot hold {count} batches")
    found = []
    at = 0
    for _ in range(count):
        header = decode_header(data, at)
        end = at + header.size
        if end > len(data):
            raise EnvelopeError(f"the batch at offset {header.base_offset} is cut off")
        body = data[at + HEADER_SIZE : end]
        check_body(header, body)
        found.append(batch(header, body))
        at = end
    if at != len(data):
        raise EnvelopeError("a replica message is longer than its batches")
    return tuple(found)
