"""The Flight data plane as bytes: paths, tickets, row-range marks and acknowledgements.

Text from a client is JSON of bounded size, with known fields of known types. Numbers are
little-endian structs. Nothing is unpickled or evaluated. A request that does not parse raises
InvalidRequestError, which names the field. Drawn in docs/wire_and_disk_formats.md:

    do_put path     [stream, partition] or [stream, partition, stream_uuid], and after it
                    acks=leader or acks=none, if not all; partitions=N, if the keys were
                    placed by N partitions and the batches are refused once there are more
    do_put mark     <qq      producer_id, base_sequence                       (optional, per batch)
    do_put ack      <BB2xIqq 0, duplicate, records_count, base_offset, leader_epoch
                    or 1, JSON of the error
                    or 2: the server closes, so the client must finish its stream
                    or 3, first and under acks=none only: the server is ready for batches
    do_get ticket   JSON, see ReadRequest
    do_get mark     <qqqq    base_offset, end_offset, high_watermark, leader_epoch   (every batch)
                    <q       after it, if key compaction removed records: how many rows are left

Actions are in flight/actions.py. This file does no I/O and knows no Flight type. The file is not
split: it is the drawing above, part by part.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.codec.schema import ROW_SCHEMA
from broker.errors import (
    EnvelopeError,
    HeadwaterError,
    InvalidRequestError,
    SchemaMismatchError,
    bounded_text,
    from_wire,
    to_wire,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import (
    NO_PRODUCER,
    NO_SEQUENCE,
    ProducerId,
    StreamUuid,
    is_stream_name,
    is_uuid,
)
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.records import AckPolicy, AppendResult

VERSION: Final = 1
TICKET_BYTES_MAX: Final = 64 * 1024
PARTITION_MAX: Final = 1023  # StreamConfig allows 1024 partitions
TIMESTAMP_US_MAX: Final = 253_402_300_800_000_000  # year 10000, as the log has it

BATCH_BYTES_MIN: Final = 4 * 1024
BATCH_BYTES_DEFAULT: Final = 4 * 1024 * 1024
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024

# gRPC refuses more than 8 KiB of trailing metadata, which has an error's text beside it.
ERROR_WIRE_BYTES_MAX: Final = 3 * 1024

_PUT_MARK: Final = struct.Struct("<qq")
_ACK: Final = struct.Struct("<BB2xIqq")
_ROWS_MARK: Final = struct.Struct("<qqqq")
_ROWS_LEFT: Final = struct.Struct("<q")
assert (_PUT_MARK.size, _ACK.size, _ROWS_MARK.size) == (16, 24, 32)  # as drawn above
_ACK_OK: Final = 0
_ACK_ERROR: Final = 1
_ACK_CLOSING: Final = 2
_ACK_READY: Final = 3
_ACKS: Final = "acks="  # a partition number or a stream uuid has no equals sign
_PLACED_BY: Final = "partitions="


# ---------------------------------------------------------------------------- paths


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPath:
    """What a Flight descriptor names: a stream, one of its partitions, one incarnation."""

    stream: str
    partition: int | None = None  # None: all of them
    stream_uuid: StreamUuid | None = None  # given: another incarnation is refused
    acks: AckPolicy = AckPolicy.ALL  # only for do_put; other calls refuse it
    placed_by: int | None = None  # only for do_put: how many partitions the producer chose among

    def to_path(self) -> list[bytes]:
        """Return the descriptor's path."""
        parts = [self.stream]
        if self.partition is not None:
            parts.append(str(self.partition))
            if self.stream_uuid is not None:
                parts.append(self.stream_uuid)
        if self.acks is not AckPolicy.ALL:
            parts.append(_ACKS + self.acks.value)
        if self.placed_by is not None:
            parts.append(f"{_PLACED_BY}{self.placed_by}")
        return [part.encode() for part in parts]

    @classmethod
    def from_path(cls, path: Sequence[bytes] | None, *, put: bool = False) -> StreamPath:
        """Parse a descriptor's path; ``put`` for a do_put. Raises InvalidRequestError."""
        acks, placed_by = AckPolicy.ALL, None
        if put and path and len(path) <= 5 and path[-1].startswith(_PLACED_BY.encode()):
            *path, last = path
            placed_by = _count_text(_ascii(last, "partitions").removeprefix(_PLACED_BY))
        if put and path and len(path) <= 4 and path[-1].startswith(_ACKS.encode()):
            *path, last = path
            acks = ack_policy(_ascii(last, "acks").removeprefix(_ACKS))
        if not path or len(path) > 3:
            raise InvalidRequestError(
                "a descriptor must be a path of a stream, then optionally a partition, then "
                "optionally a stream uuid",
                field="path",
            )
        parts = [_ascii(part, "path") for part in path]
        partition = _partition_text(parts[1]) if len(parts) > 1 else None
        uuid = stream_uuid(parts[2], "path") if len(parts) > 2 else None
        name = stream_name(parts[0], "path")
        return cls(
            stream=name, partition=partition, stream_uuid=uuid, acks=acks, placed_by=placed_by
        )


def ack_policy(text: object) -> AckPolicy:
    """Return the policy of this name; raises InvalidRequestError."""
    known = {policy.value: policy for policy in AckPolicy}
    found = known.get(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidRequestError(
            f"acks must be one of {', '.join(known)}, not {_short(text)}", field="acks"
        )
    return found


def _ascii(part: bytes, field: str) -> str:
    if len(part) > 256 or not part.isascii():
        raise InvalidRequestError(
            f"{field} has a part that is too long or is not ASCII text", field=field
        )
    return part.decode("ascii")


def _partition_text(text: str) -> int:
    if not text.isdigit() or len(text) > 4 or int(text) > PARTITION_MAX:
        raise InvalidRequestError(
            f"partition {text!r} is not a number of 0 to {PARTITION_MAX}", field="partition"
        )
    return int(text)


def _count_text(text: str) -> int:
    if not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= PARTITION_MAX + 1:
        raise InvalidRequestError(
            f"{text!r} is not a number of partitions from 1 to {PARTITION_MAX + 1}",
            field="partitions",
        )
    return int(text)


# ---------------------------------------------------------------------------- fields of JSON


def encode_body(values: Mapping[str, Any]) -> bytes:
    """Return the JSON body of an action; ``actions.decode_body`` is the other direction."""
    return json.dumps(values, separators=(",", ":")).encode()


def parse_object(data: bytes, *, what: str, bytes_max: int) -> dict[str, Any]:
    """Parse a JSON object of bounded size; raises InvalidRequestError."""
    if len(data) > bytes_max:
        raise InvalidRequestError(
            f"{what} of {len(data)} bytes exceeds {bytes_max}",
            size_bytes=len(data),
            limit_bytes=bytes_max,
        )
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as cause:
        raise InvalidRequestError(f"{what} is not JSON") from cause
    if not isinstance(body, dict):
        raise InvalidRequestError(f"{what} is not a JSON object")
    return body


def refuse_unknown(body: Mapping[str, Any], known: Sequence[str], *, what: str) -> None:
    """Raise InvalidRequestError for a field that is not known, so that a typo is never ignored."""
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise InvalidRequestError(
            f"{what} has the unknown field {unknown[0][:64]!r}; known: {', '.join(known)}",
            field=unknown[0][:64],
        )


def stream_name(value: object, field: str = "stream") -> str:
    """Return a well-formed stream name; raises InvalidRequestError."""
    if not isinstance(value, str) or not is_stream_name(value):
        raise InvalidRequestError(
            f"{field} {_short(value)} is not a stream name: it must have 1 to 128 letters, digits, "
            "_ and -, and must not begin with -",
            field=field,
        )
    return value


def stream_uuid(value: object, field: str = "stream_uuid") -> StreamUuid:
    """Return a canonical stream uuid; raises InvalidRequestError."""
    if not isinstance(value, str) or not is_uuid(value):
        raise InvalidRequestError(f"{field} {_short(value)} is not a stream uuid", field=field)
    return StreamUuid(value)


def whole_number(value: object, field: str, *, low: int, high: int) -> int:
    """Return an integer of ``[low, high]``, both inclusive; raises InvalidRequestError."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequestError(
            f"{field} must be a whole number of {low} to {high}, not {_short(value)}", field=field
        )
    return value


def true_or_false(value: object, field: str) -> bool:
    """Return a JSON boolean; raises InvalidRequestError."""
    if type(value) is not bool:
        raise InvalidRequestError(
            f"{field} must be true or false, not {_short(value)}", field=field
        )
    return value


def short_text(value: object, field: str, *, bytes_max: int) -> str:
    """Return a printable text of 1 to ``bytes_max`` bytes; raises InvalidRequestError."""
    fits = isinstance(value, str) and value.isprintable() and 0 < len(value) <= bytes_max
    if not fits or len(str(value).encode(errors="replace")) > bytes_max:
        raise InvalidRequestError(
            f"{field} must be a printable text of 1 to {bytes_max} bytes", field=field
        )
    return str(value)


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


# ---------------------------------------------------------------------------- tickets


@dataclass(frozen=True, slots=True)
class AtTime:
    """A start by time: the first record stamped at or after it (µs UTC)."""

    timestamp_us: int


StartAt = int | Literal["earliest", "latest"] | AtTime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A do_get: the committed rows of ``[start, end)`` of one partition, in offset order.

    ``end`` None without ``follow`` means the high watermark at the time of the request; ``end``
    None with ``follow`` means that the read never ends. ``columns`` None means all of ROW_SCHEMA.
    A reader that continues an earlier read gives the ``leader_epoch`` of the record before
    ``start``: if that record was truncated, the read fails with TruncatedError. ``uncommitted``
    reads up to the leader's log end; records above the high watermark may be truncated later.
    """

    stream: str
    partition: int
    start: StartAt = "earliest"
    end: Offset | None = None
    follow: bool = False
    columns: tuple[str, ...] | None = None
    stream_uuid: StreamUuid | None = None
    batch_bytes_max: int = BATCH_BYTES_DEFAULT  # soft: a larger stored batch is sent whole
    leader_epoch: LeaderEpoch | None = None
    uncommitted: bool = False

    def to_ticket(self) -> bytes:
        """Return the ticket's JSON."""
        start = self.start
        body = {
            "v": VERSION,
            "stream": self.stream,
            "stream_uuid": self.stream_uuid,
            "partition": self.partition,
            "start": {"timestamp_us": start.timestamp_us} if isinstance(start, AtTime) else start,
            "end": self.end,
            "follow": self.follow,
            "columns": None if self.columns is None else list(self.columns),
            "batch_bytes_max": self.batch_bytes_max,
            "leader_epoch": self.leader_epoch,
            "uncommitted": self.uncommitted,
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_ticket(cls, ticket: bytes) -> ReadRequest:
        """Parse a ticket.

        Raises:
            InvalidRequestError: not a ticket, or a field is missing, unknown or out of bounds.
            SchemaMismatchError: ``columns`` names a column that rows do not have, or one twice.
        """
        body = parse_object(ticket, what="the ticket", bytes_max=TICKET_BYTES_MAX)
        refuse_unknown(body, _TICKET_FIELDS, what="the ticket")
        whole_number(body.get("v"), "v", low=VERSION, high=VERSION)
        follow = true_or_false(body.get("follow", False), "follow")
        uncommitted = true_or_false(body.get("uncommitted", False), "uncommitted")
        start = _start_at(body.get("start", "earliest"))
        end = body.get("end")
        if end is not None:
            end = Offset(whole_number(end, "end", low=0, high=OFFSET_MAX))
            if isinstance(start, int) and start > end:
                raise InvalidRequestError(f"start {start} is above end {end}", field="start")
        epoch = body.get("leader_epoch")
        if epoch is not None:
            epoch = LeaderEpoch(whole_number(epoch, "leader_epoch", low=0, high=OFFSET_MAX))
            if not isinstance(start, int) or start == 0:
                raise InvalidRequestError(
                    "leader_epoch is the epoch of the record before start: start must be an offset "
                    "above 0",
                    field="leader_epoch",
                )
        uuid = body.get("stream_uuid")
        return cls(
            stream=stream_name(body.get("stream")),
            partition=whole_number(body.get("partition"), "partition", low=0, high=PARTITION_MAX),
            start=start,
            end=end,
            follow=follow,
            columns=_columns(body.get("columns")),
            stream_uuid=None if uuid is None else stream_uuid(uuid),
            batch_bytes_max=whole_number(
                body.get("batch_bytes_max", BATCH_BYTES_DEFAULT),
                "batch_bytes_max",
                low=BATCH_BYTES_MIN,
                high=BATCH_BYTES_MAX,
            ),
            leader_epoch=epoch,
            uncommitted=uncommitted,
        )


_TICKET_FIELDS: Final = (
    "v", "stream", "stream_uuid", "partition", "start", "end", "follow", "columns",
    "batch_bytes_max", "leader_epoch", "uncommitted",
)  # fmt: skip


def _start_at(value: object) -> StartAt:
    match value:
        case "earliest" | "latest":
            return value
        case {"timestamp_us": stamp} if isinstance(value, dict) and len(value) == 1:
            return AtTime(whole_number(stamp, "start", low=0, high=TIMESTAMP_US_MAX))
        case _:
            return whole_number(value, "start", low=0, high=OFFSET_MAX)


def _columns(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not 0 < len(value) <= len(ROW_SCHEMA):
        raise InvalidRequestError(
            f"columns must be null or a list of 1 to {len(ROW_SCHEMA)} names", field="columns"
        )
    for name in value:
        if not isinstance(name, str) or name not in ROW_SCHEMA.names or value.count(name) > 1:
            raise SchemaMismatchError(
                f"columns must name each column once, of {', '.join(ROW_SCHEMA.names)}; "
                f"not {_short(name)}",
                column=_short(name),
                columns=ROW_SCHEMA.names,
            )
    return tuple(value)


# ---------------------------------------------------------------------------- batch metadata, acks


@dataclass(frozen=True, slots=True)
class RowsMark:
    """The metadata of a reply batch: its offsets ``[base_offset, end_offset)``, HW and epoch.

    A batch has a row for each offset, unless key compaction removed records. Then the broker says
    how many are left; a reader that does not know this refuses the batch.
    """

    base_offset: Offset
    end_offset: Offset
    high_watermark: Offset
    leader_epoch: LeaderEpoch  # of the last record; with end_offset, where a reader continues
    rows_left: int | None = None  # None: a row for each offset

    @property
    def rows_count(self) -> int:
        """The number of rows of the batch."""
        return self.end_offset - self.base_offset if self.rows_left is None else self.rows_left

    def to_bytes(self) -> bytes:
        """Return the 32 or 40 bytes of a reply batch's metadata."""
        data = _ROWS_MARK.pack(
            self.base_offset, self.end_offset, self.high_watermark, self.leader_epoch
        )
        return data if self.rows_left is None else data + _ROWS_LEFT.pack(self.rows_left)

    @classmethod
    def from_bytes(cls, data: bytes, *, uncommitted: bool = False) -> RowsMark:
        """Parse and check a mark; ``uncommitted`` as in the request. Raises EnvelopeError."""
        left = None
        if len(data) == _ROWS_MARK.size + _ROWS_LEFT.size:
            (left,) = _ROWS_LEFT.unpack_from(data, _ROWS_MARK.size)
        elif len(data) != _ROWS_MARK.size:
            raise EnvelopeError(f"{len(data)} bytes are not the metadata of a reply batch")
        base, end, high_watermark, epoch = _ROWS_MARK.unpack_from(data)
        bounded = uncommitted or end <= high_watermark
        fewer = left is None or 0 <= left < end - base
        if not 0 <= base < end or not bounded or not fewer or high_watermark < 0 or epoch < 0:
            raise EnvelopeError(
                f"a reply batch cannot have offsets [{base}, {end}), high watermark "
                f"{high_watermark} and leader epoch {epoch}"
                + ("" if left is None else f", with {left} rows left")
            )
        return cls(base, end, high_watermark, epoch, left)


def encode_put_mark(producer_id: ProducerId, base_sequence: int) -> bytes:
    """Return the metadata of a producer's batch, by which the broker recognises a retry."""
    return _PUT_MARK.pack(producer_id, base_sequence)


def decode_put_mark(data: bytes | None) -> tuple[ProducerId, int]:
    """Parse a batch's metadata; no metadata means no producer. Raises InvalidRequestError."""
    if not data:
        return NO_PRODUCER, NO_SEQUENCE
    if len(data) != _PUT_MARK.size:
        raise InvalidRequestError(
            f"a batch's metadata must have {_PUT_MARK.size} bytes, not {len(data)}",
            field="app_metadata",
        )
    producer_id, base_sequence = _PUT_MARK.unpack(data)
    if (producer_id, base_sequence) == (NO_PRODUCER, NO_SEQUENCE):
        return NO_PRODUCER, NO_SEQUENCE
    if producer_id < 0 or base_sequence < 0:
        raise InvalidRequestError(
            f"producer id {producer_id} and sequence {base_sequence} must not be negative",
            field="app_metadata",
        )
    return ProducerId(producer_id), base_sequence


def encode_ack(outcome: AppendResult | HeadwaterError) -> bytes:
    """Return the frame that tells a producer the outcome of one batch."""
    if isinstance(outcome, HeadwaterError):
        return bytes([_ACK_ERROR]) + bounded_wire(outcome)
    return _ACK.pack(
        _ACK_OK,
        outcome.duplicate,
        outcome.records_count,
        outcome.base_offset,
        outcome.leader_epoch,
    )


def encode_closing() -> bytes:
    """Return the frame that asks a producer to finish its stream, because the server closes."""
    return bytes([_ACK_CLOSING])


def encode_ready() -> bytes:
    """Return the frame that tells a producer with acks=none that its put has begun."""
    return bytes([_ACK_READY])


def is_ready(frame: bytes) -> bool:
    """Tell whether a frame says that the put has begun."""
    return frame == bytes([_ACK_READY])


def decode_ack(frame: bytes) -> AppendResult | HeadwaterError | None:
    """Parse a frame of do_put; None is the request to finish the stream. Raises EnvelopeError."""
    if frame == bytes([_ACK_CLOSING]):
        return None
    if frame and frame[0] == _ACK_ERROR:
        error = from_wire(frame[1:].decode(errors="replace"))
        if error is None:
            raise EnvelopeError("an error frame has no error that this build can read")
        return error
    if len(frame) != _ACK.size or frame[0] != _ACK_OK:
        raise EnvelopeError(f"these bytes are not an acknowledgement: {frame[:32].hex()}")
    _, duplicate, records_count, base_offset, leader_epoch = _ACK.unpack(frame)
    if records_count < 1 or base_offset < 0 or leader_epoch < 0 or duplicate > 1:
        raise EnvelopeError(f"an acknowledgement has impossible values: {frame.hex()}")
    return AppendResult(
        base_offset=Offset(base_offset),
        records_count=records_count,
        leader_epoch=LeaderEpoch(leader_epoch),
        duplicate=bool(duplicate),
    )


# ---------------------------------------------------------------------------- errors


def bounded_wire(error: HeadwaterError) -> bytes:
    """Return ``errors.to_wire`` of the error; if it is too long, without its largest facts."""
    facts = dict(error.facts)
    message = bounded_text(error.message)
    while True:
        wire = to_wire(type(error)(message, **facts)).encode()
        if len(wire) <= ERROR_WIRE_BYTES_MAX:
            return wire
        if facts:
            del facts[max(facts, key=lambda name: len(repr(facts[name])))]
        else:
            message = message[: len(message) // 2]
