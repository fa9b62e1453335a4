"""Serializes many messages of one partition, without a protobuf object for each.

Protobuf objects, each with a map of headers, took most of a subscription's time, and a third of a
publisher's. The fields that all messages of a batch share are serialized once, by protobuf; the
others are written one after another here. Protobuf allows fields in any order, and fields that are
zero. Source: protobuf's encoding; the field numbers of ``Message`` and ``Ack`` in message.proto and
of ``PublishResponse`` in api.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_PREFIX: Final = struct.Struct(">BI")  # of a message of gRPC: not compressed, and its length
OFFSET_TAG: Final = b"\x08"  # field 1, a varint
KEY_TAG: Final = b"\x12"  # field 2, bytes
VALUE_TAG: Final = b"\x1a"  # field 3, bytes
STAMP_TAG: Final = b"\x20"  # field 4, a varint
# Of Ack, and of PublishResponse, in which an Ack lies.
_ACK_OFFSET_TAG: Final = b"\x20"  # field 4, a varint
_ACK_INBOX_TAG: Final = b"\x2a"  # field 5, a string
_ACK_ID_TAG: Final = b"\x32"  # field 6, a string
_ACK_RECEIVED_TAG: Final = b"\x40"  # field 8, a varint
_RESPONSE_ACK_TAG: Final = b"\x0a"  # field 1, a message
_RESPONSE_ID_TAG: Final = b"\x1a"  # field 3, a string
VARINT_BITS: Final = 7  # of a varint's byte
_LOW_NUMBERS: Final = 1 << 2 * VARINT_BITS
_LOW_PARTS: Final = [
    bytes((low & 0x7F | 0x80, low >> VARINT_BITS | 0x80)) for low in range(_LOW_NUMBERS)
]  # the first two bytes of a varint that goes on


def lay_out(
    common: bytes,
    offsets: Sequence[int],
    stamps_ns: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
) -> bytes:
    """Return the messages, each with its prefix, joined.

    ``common`` has the other fields of all of them.
    """
    parts: list[bytes] = []
    sizes = (-1, -1, -1, -1)
    begin = value_field = key_field = stamp = b""
    last = -1
    for offset_number, stamp_ns, key, value in zip(offsets, stamps_ns, keys, values, strict=True):
        if stamp_ns != last:  # records that came together share their time
            last, stamp = stamp_ns, varint(stamp_ns)
        data, name, offset = value or b"", key or b"", varint(offset_number)
        if (len(offset), len(stamp), len(data), len(name)) != sizes:
            sizes = len(offset), len(stamp), len(data), len(name)
            value_field = field_begin(VALUE_TAG, len(data))
            key_field = field_begin(KEY_TAG, len(name)) if name else b""
            fields = len(OFFSET_TAG) + len(STAMP_TAG) + len(value_field) + len(key_field)
            begin = _PREFIX.pack(0, sum(sizes) + fields + len(common)) + OFFSET_TAG
        parts += (
            begin, offset, STAMP_TAG, stamp, value_field, data, key_field, name, common,
        )  # fmt: skip
    return b"".join(parts)


def lay_out_answers(
    common: bytes,
    offsets: Sequence[int],
    received_ns: Sequence[int],
    ids: Sequence[str],
    inboxes: Sequence[str],
) -> list[bytes]:
    """Return an answer of Publish for each message, with its prefix.

    ``common`` has the other fields of each ``Ack``; ``ids`` are the correlation ids.
    """
    found: list[bytes] = []
    join, sizes, last = b"".join, (-1, -1, -1), -1
    head = begin = id_field = inbox_field = id_again = b""
    for offset, received, name, inbox in zip(offsets, received_ns, ids, inboxes, strict=True):
        if received != last:  # messages that came together share their time
            last, sizes = received, (-1, -1, -1)
            head = common + _ACK_RECEIVED_TAG + varint(received) + _ACK_OFFSET_TAG
        ident, to, number = name.encode(), inbox.encode(), varint(offset)
        if (len(number), len(ident), len(to)) != sizes:  # the parts between are the same otherwise
            sizes = len(number), len(ident), len(to)
            id_field = field_begin(_ACK_ID_TAG, len(ident)) if ident else b""
            inbox_field = field_begin(_ACK_INBOX_TAG, len(to)) if to else b""
            id_again = field_begin(_RESPONSE_ID_TAG, len(ident)) if ident else b""
            ack_bytes = len(head) + sum(sizes) + len(id_field) + len(inbox_field)
            ack_field = field_begin(_RESPONSE_ACK_TAG, ack_bytes)
            whole = len(ack_field) + ack_bytes + len(id_again) + len(ident)
            begin = _PREFIX.pack(0, whole) + ack_field
        found.append(join((begin, head, number, id_field, ident, inbox_field, to, id_again, ident)))
    return found


@lru_cache(maxsize=4096)
def field_begin(tag: bytes, size: int) -> bytes:
    """Return the begin of a field of bytes, up to the bytes."""
    return tag + varint(size)


def varint(number: int) -> bytes:
    """Return a number that is not negative as a varint, sooner if others had its higher bits."""
    if number < 1 << VARINT_BITS:
        return bytes((number,))
    if number < _LOW_NUMBERS:
        return bytes((number & 0x7F | 0x80, number >> VARINT_BITS))
    return _LOW_PARTS[number % _LOW_NUMBERS] + _high_part(number // _LOW_NUMBERS)


@lru_cache(maxsize=4096)
def _high_part(number: int) -> bytes:
    return varint(number)
