"""Flight's protobuf messages, built field by field, so that any byte of them can be wrong."""

from __future__ import annotations


def field(number: int, data: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a protobuf varint."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def flight_data(message: bytes, *, descriptor: bytes = b"") -> bytes:
    """Return FlightData around an encapsulated Arrow message."""
    metadata_size = int.from_bytes(message[4:8], "little")
    header, body = message[8 : 8 + metadata_size], message[8 + metadata_size :]
    return field(1, descriptor) * bool(descriptor) + field(2, header) + field(1000, body)


def put_descriptor(stream: str, partition: str) -> bytes:
    """Return a descriptor with a path."""
    return b"\x08\x01" + field(3, stream.encode()) + field(3, partition.encode())


def action_message(name: str, body: bytes) -> bytes:
    """Return an Action."""
    return field(1, name.encode()) + field(2, body)
