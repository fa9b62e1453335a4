"""Decodes Protobuf messages into columns, by a descriptor set and a message name.

The only file of this package that imports Google's protobuf library. The descriptor set is the
output of ``protoc --include_imports --descriptor_set_out``; no code of the user is imported or run.
Absent fields follow Protobuf's rules: a scalar without presence has its default, a field with
presence is null. Fields that the descriptor does not have are dropped, as in every Protobuf reader.
``uint64`` becomes ``decimal(20,0)``, an enum its name, ``google.protobuf.Timestamp`` a timestamp.
Messages that contain themselves are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from broker.errors import InvalidRequestError
from spark_jobs.decode import types
from spark_jobs.decode.bounds import MALFORMED, WRONG_TYPE, DecodeBounds, Reason
from spark_jobs.decode.outcome import BYTES_ERRORS, DecodeOutcome, Undecodable, from_objects

_DESCRIPTORS_BYTES_MAX: Final = 16 * 1024 * 1024
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)  # years 1 to 9999, as the type says
_F: Final = FieldDescriptor
_SCALARS: Final = {
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_INT32: pa.int32(),
    _F.TYPE_SINT32: pa.int32(),
    _F.TYPE_SFIXED32: pa.int32(),
    _F.TYPE_UINT32: pa.int64(),
    _F.TYPE_FIXED32: pa.int64(),
    _F.TYPE_INT64: pa.int64(),
    _F.TYPE_SINT64: pa.int64(),
    _F.TYPE_SFIXED64: pa.int64(),
    _F.TYPE_UINT64: pa.decimal128(20, 0),
    _F.TYPE_FIXED64: pa.decimal128(20, 0),
    _F.TYPE_FLOAT: pa.float32(),
    _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
    _F.TYPE_ENUM: pa.string(),
}
_Read = Callable[[Any], Any]


class ProtobufDecoder:
    """Decodes messages of one type.

    Args:
        descriptors: a serialised FileDescriptorSet with everything that the message needs.
        message: the message's full name, ``package.Message``.
        bounds: limits of a payload.

    Raises:
        InvalidRequestError: the set is not valid, or the message cannot become columns.
    """

    def __init__(self, descriptors: bytes, message: str, bounds: DecodeBounds) -> None:
        self._bounds = bounds
        found = _pool(descriptors, message)
        self._class = message_factory.GetMessageClass(found)
        kind, self._read = _Shape(bounds).message(found)
        self._schema = types.check(pa.schema(list(kind)), bounds)
        self._kind = kind

    @property
    def schema(self) -> pa.Schema:
        """The columns of the payload."""
        return self._schema

    def decode(self, values: pa.Array) -> DecodeOutcome:
        """Decode messages; see :class:`spark_jobs.decode.outcome.Decoder`."""
        return from_objects(values, self._one, self._kind, self._bounds)

    def _one(self, body: bytes) -> Any:
        made: Message = self._class()
        try:
            made.ParseFromString(body)
            if not made.IsInitialized():
                raise Undecodable(Reason.of(MALFORMED, "a required field is missing"))
            return self._read(made)  # some texts are decoded only here
        except (DecodeError, *BYTES_ERRORS) as error:
            raise Undecodable(Reason.of(MALFORMED, error)) from None


def _pool(descriptors: bytes, message: str) -> Descriptor:
    if len(descriptors) > _DESCRIPTORS_BYTES_MAX:
        raise InvalidRequestError(
            f"the descriptor set has {len(descriptors)} bytes; the limit is "
            f"{_DESCRIPTORS_BYTES_MAX}"
        )
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(descriptors)
        for each in files.file:
            pool.Add(each)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = [f"{f.package}.{m.name}".lstrip(".") for f in files.file for m in f.message_type]
        raise InvalidRequestError(
            f"the descriptor set has no message {message!r}; it has {', '.join(known[:50])}"
        ) from None
    except (DecodeError, TypeError, ValueError) as cause:
        raise InvalidRequestError(
            f"the descriptor set is not valid: {cause}; make it with protoc --include_imports "
            "--descriptor_set_out=FILE"
        ) from cause


class _Shape:
    """Builds the Arrow type of a message, and the function that reads a message into a dict."""

    def __init__(self, bounds: DecodeBounds) -> None:
        self._bounds = bounds
        self._open: list[str] = []
        self._left = bounds.columns_max * 4

    def message(self, found: Descriptor) -> tuple[pa.DataType, _Read]:
        if found.full_name == _TIMESTAMP:
            return types.SIMPLE["timestamp"], _timestamp
        if found.full_name in self._open:
            raise InvalidRequestError(
                f"message {found.full_name} contains itself, which columns cannot do"
            )
        if not found.fields:
            raise InvalidRequestError(f"message {found.full_name} has no fields, so no columns")
        if len(self._open) >= self._bounds.depth_max:
            raise InvalidRequestError(f"message {found.full_name} is nested too deep")
        self._open.append(found.full_name)
        fields, readers = [], []
        for each in found.fields:
            self._left -= 1
            if self._left < 0:
                raise InvalidRequestError("the message has too many fields")
            kind, read = self._field(each)
            fields.append(pa.field(each.name, kind))
            readers.append((each.name, read))
        self._open.pop()
        return pa.struct(fields), lambda made: {name: read(made) for name, read in readers}

    def _field(self, each: FieldDescriptor) -> tuple[pa.DataType, _Read]:
        name = each.name
        entry = each.message_type
        if each.is_repeated and entry is not None and entry.GetOptions().map_entry:
            key_kind, key_read = self._value(entry.fields_by_name["key"])
            kind, read = self._value(entry.fields_by_name["value"])
            return pa.map_(key_kind, kind), lambda made: [
                (key_read(key), read(value)) for key, value in sorted(getattr(made, name).items())
            ]
        kind, read = self._value(each)
        if each.is_repeated:
            listed = pa.list_(pa.field("element", kind))
            return listed, lambda made: [read(value) for value in getattr(made, name)]
        if each.has_presence:
            return kind, lambda made: read(getattr(made, name)) if made.HasField(name) else None
        return kind, lambda made: read(getattr(made, name))

    def _value(self, each: FieldDescriptor) -> tuple[pa.DataType, _Read]:
        if each.message_type is not None:
            return self.message(each.message_type)
        kind = _SCALARS.get(each.type)
        if kind is None:
            raise InvalidRequestError(
                f"field {each.full_name} has a type that cannot become a column"
            )
        if each.enum_type is not None:
            return kind, _enum_reader(each.enum_type)
        return kind, lambda value: value


def _enum_reader(kind: EnumDescriptor) -> _Read:
    names = {number: each.name for number, each in kind.values_by_number.items()}
    return lambda number: names.get(number, str(number))


def _timestamp(made: Any) -> int:
    """Return microseconds; smaller units are cut off."""
    if made.seconds not in _SECONDS or not 0 <= made.nanos < 1_000_000_000:
        raise Undecodable(Reason.of(WRONG_TYPE, f"{made.seconds} s is outside of a timestamp"))
    return int(made.seconds * 1_000_000 + made.nanos // 1000)
