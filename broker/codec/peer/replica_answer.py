"""The answer to a fetch as it travels over NATS: Liftbridge's layout, ours in what it passes over.

     0       4     5     6       7      8               len            len + 8  len + 16
    | magic | ver | len | flags | type | our extension | leader epoch | HW     | batches ...

The envelope says how long its header is, up to 255 bytes, and readers skip what they do not know:
there our own fields are, big-endian as all of it. The 16 bytes behind the header and the stored
batches, exactly as on disk, are the seed's; its HW is inclusive. An answer that no NATS message
can hold is cut into parts, each with its whole header; only a single batch is ever so large.

    extension | version u8 | refusal u8 | parts u16 | part u16 | batches u32 | stream uuid 16 |
              | partition u32 | request id u64 | start u64 | log end u64 | whole size u32 | sender |
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.codec.peer.replica_messages import (
    NUMBER_MAX,
    REFUSALS,
    BatchMaker,
    decode_tail,
    encode_tail,
)
from broker.codec.record_batch import BODY_BYTES_MAX
from broker.errors import EnvelopeError, RecordTooLargeError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, is_stream_name
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchAnswer

VERSION: Final = 1
_EXTENSION: Final = struct.Struct(">BBHHI16sIQQQI")
_HEADER: Final = struct.Struct(">Qq")  # the seed's 16 bytes
WHOLE_BYTES_MAX: Final = BODY_BYTES_MAX + 4096
SENDER_BYTES_MAX: Final = 128
_OVERHEAD: Final = envelope.HEADER_SIZE + _EXTENSION.size + SENDER_BYTES_MAX + _HEADER.size
assert 255 + _HEADER.size >= _OVERHEAD
_PARTS_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """One NATS message of an answer; most answers have one part."""

    sender: BrokerId
    partition_id: PartitionId
    answer: FetchAnswer  # without its batches
    batches_count: int
    parts_count: int
    part: int
    whole_size: int
    data: memoryview


def fitting(answer: FetchAnswer, payload_bytes_max: int) -> FetchAnswer:
    """Return the answer with as many whole batches as one message holds, but at least one.

    Fewer is no loss: a follower asks for what follows.
    """
    room = payload_bytes_max - _OVERHEAD
    count = 0
    for batch in answer.batches:
        room -= batch.header.size
        if room < 0 and count:
            break
        count += 1
    if count == len(answer.batches):
        return answer
    return dataclasses.replace(answer, batches=answer.batches[:count])


def encode(
    partition: PartitionId, answer: FetchAnswer, *, sender: BrokerId, payload_bytes_max: int
) -> Iterator[bytes]:
    """Return the NATS messages of an answer; their payload is at most ``payload_bytes_max``.

    Raises:
        RecordTooLargeError: a server that takes so little would need too many.
    """
    whole = memoryview(b"".join(encode_tail(answer)))
    room = payload_bytes_max - _OVERHEAD
    parts = max(1, -(-len(whole) // max(1, room)))
    if room <= 0 or parts > _PARTS_MAX:
        raise RecordTooLargeError(
            f"{len(whole)} bytes of batches do not go over NATS in messages of {payload_bytes_max}",
            size_bytes=len(whole),
            limit_bytes=payload_bytes_max,
        )
    number, uuid_bytes = pack_partition_id(partition)
    header = _HEADER.pack(answer.leader_epoch, answer.high_watermark - 1)

    def message(part: int) -> bytes:
        extension = _EXTENSION.pack(
            VERSION, REFUSALS.index(answer.refusal), parts, part, len(answer.batches), uuid_bytes,
            number, answer.request_id, answer.start, answer.log_end, len(whole),
        ) + sender.encode()  # fmt: skip
        data = whole[part * room : (part + 1) * room]
        return envelope.encode(
            EnvelopeKind.REPLICATION_RESPONSE, b"".join((header, data)), extension=extension
        )

    return map(message, range(parts))


def decode(frame: bytes) -> AnswerPart:
    """Parse one message. Raises EnvelopeError for everything else, and nothing else."""
    extension, payload = envelope.decode_extended(frame, EnvelopeKind.REPLICATION_RESPONSE)
    if len(extension) < _EXTENSION.size or len(payload) < _HEADER.size:
        raise EnvelopeError("an answer between replicas without our fields")
    (
        version, refusal, parts, part, batches, uuid_bytes, number, request_id, start, log_end,
        whole_size,
    ) = _EXTENSION.unpack_from(extension)  # fmt: skip
    leader_epoch, last_committed = _HEADER.unpack_from(payload)
    sender = bytes(extension[_EXTENSION.size :]).decode("ascii", "replace")
    data = payload[_HEADER.size :]
    sound = (
        version == VERSION
        and refusal < len(REFUSALS)
        and part < parts
        and max(request_id, start, log_end, leader_epoch, last_committed) <= NUMBER_MAX
        and last_committed >= -1
        and whole_size <= WHOLE_BYTES_MAX
        and (len(data) == whole_size if parts == 1 else 0 < len(data) < whole_size)
        and is_stream_name(sender)
    )
    if not sound:
        raise EnvelopeError("an answer between replicas does not add up")
    answer = FetchAnswer(
        leader_epoch=LeaderEpoch(leader_epoch),
        request_id=request_id,
        start=Offset(start),
        high_watermark=Offset(last_committed + 1),
        log_end=Offset(log_end),
        refusal=REFUSALS[refusal],
    )
    return AnswerPart(
        sender=BrokerId(sender),
        partition_id=unpack_partition_id(number, uuid_bytes),
        answer=answer,
        batches_count=batches,
        parts_count=parts,
        part=part,
        whole_size=whole_size,
        data=data,
    )


def assembled(parts: Sequence[AnswerPart], batch: BatchMaker) -> FetchAnswer:
    """Make the answer of all its parts, in order.

    Raises:
        EnvelopeError: they do not add up.
        BatchCorruptError: a batch is damaged.
    """
    first = parts[0]
    data = first.data if len(parts) == 1 else memoryview(b"".join(one.data for one in parts))
    if len(data) != first.whole_size:
        raise EnvelopeError("the parts of an answer do not add up")
    answer = first.answer
    batches, prefix = decode_tail(data, first.batches_count, answer.refusal, batch)
    return dataclasses.replace(answer, batches=batches, prefix=prefix)


class AnswerAssembler:
    """Parts of one answer after the other; a gap or a new answer drops what was there."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parts: list[AnswerPart] = []
        self._size = 0

    def add(self, part: AnswerPart) -> Sequence[AnswerPart] | None:
        """Take a part; return all of them when it was the last one."""
        if part.part == 0:
            self._parts, self._size = [], 0
        first = self._parts[0] if self._parts else part
        continues = (
            part.part == len(self._parts)
            and part.answer == first.answer
            and (part.sender, part.parts_count) == (first.sender, first.parts_count)
            and part.whole_size == first.whole_size >= self._size + len(part.data)
        )
        if not continues:
            self._parts, self._size = [], 0
            return None
        self._parts.append(part)
        self._size += len(part.data)
        if len(self._parts) < part.parts_count:
            return None
        whole, self._parts, self._size = self._parts, [], 0
        return whole
