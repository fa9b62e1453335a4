"""The answer to a fetch over NATS: Liftbridge's layout, with our fields where readers skip bytes.

     0       4     5     6       7      8               len            len + 8  len + 16
    | magic | ver | len | flags | type | our extension | leader epoch | HW     | batches ...

The envelope says how long its header is, up to 255 bytes. A reader skips header fields that it does
not know, so our own fields are an extension of this header. All numbers are big-endian. The 16
bytes after the header, and the stored batches exactly as on disk, are Liftbridge's layout; its HW
is inclusive. An answer that is too large for one NATS message is cut into parts, and each part has
the whole header. Only an answer with a single large batch needs parts.

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
_HEADER: Final = struct.Struct(">Qq")  # Liftbridge's 16 bytes
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
    answer: FetchAnswer  # without batches
    batches_count: int
    parts_count: int
    part: int
    whole_size: int
    data: memoryview


def fitting(answer: FetchAnswer, payload_bytes_max: int) -> FetchAnswer:
    """Return the answer with as many whole batches as one message holds, but at least one.

    Leaving batches out is harmless: the follower asks for them next.
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
    """Return the NATS messages of an answer; the payload of each is at most ``payload_bytes_max``.

    Raises:
        RecordTooLargeError: the answer would need too many messages of this size.
    """
    whole = memoryview(b"".join(encode_tail(answer)))
    room = payload_bytes_max - _OVERHEAD
    parts = max(1, -(-len(whole) // max(1, room)))
    if room <= 0 or parts > _PARTS_MAX:
        raise RecordTooLargeError(
            f"{len(whole)} bytes of batches need more than {_PARTS_MAX} NATS messages of "
            f"{payload_bytes_max} bytes; raise max_payload of the NATS server",
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
        raise EnvelopeError("a fetch answer lacks Headwater's fields or its header")
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
        raise EnvelopeError(
            "a fetch answer has values that are out of bounds or contradict each other"
        )
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
    """Return the answer that consists of these parts, which must be all parts in order.

    Raises:
        EnvelopeError: the sizes of the parts do not match the size of the answer.
        BatchCorruptError: a batch is damaged.
    """
    first = parts[0]
    data = first.data if len(parts) == 1 else memoryview(b"".join(one.data for one in parts))
    if len(data) != first.whole_size:
        raise EnvelopeError(
            f"the parts of a fetch answer have {len(data)} bytes, not {first.whole_size}"
        )
    answer = first.answer
    batches, prefix = decode_tail(data, first.batches_count, answer.refusal, batch)
    return dataclasses.replace(answer, batches=batches, prefix=prefix)


class AnswerAssembler:
    """Collects the parts of one answer at a time; a gap or a new answer drops earlier parts."""

    def __init__(self) -> None:
        """Begin without parts."""
        self._parts: list[AnswerPart] = []
        self._size = 0

    def add(self, part: AnswerPart) -> Sequence[AnswerPart] | None:
        """Take a part; return all parts of the answer if this was the last one."""
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
