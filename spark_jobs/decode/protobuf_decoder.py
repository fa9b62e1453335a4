"""Decodes Protobuf messages into columns, by a descriptor set and a message name.

The only file of this package that imports Google's protobuf library. The descriptor set is the
output of ``protoc --include_imports --descriptor_set_out``; no code of the user is imported or run.
Absent fields follow Protobuf's rules: a scalar without presence has its default, a field with
presence is null. Fields that the descriptor does not have are dropped, as in every Protobuf reader,
and their records are counted. The library also counts as unknown what the descriptor does have: a
field of another wire type, and a number that a closed enum lacks. Such a record is rejected.
``uint64`` becomes ``decimal(20,0)``, an enum its name, ``google.protobuf.Timestamp`` a timestamp.
Messages that contain themselves are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from broker.errors import InvalidRequestError
from spark_jobs.decode import types
from spark_jobs.decode.bounds import MALFORMED, WRONG_TYPE, DecodeBounds, Reason
from spark_jobs.decode.outcome import BYTES_ERRORS, DecodeOutcome, Undecodable, from_objects

_DESCRIPTORS_BYTES_MAX: Final = 16 * 1024 * 1024
_PREFIXED: Final = descriptor_pb2.FeatureSet.LENGTH_PREFIXED
_VARINT: Final = 0  # the wire type of an enum's number
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
        self._unknown = _Unknown()
        found, maps = _pool(descriptors, message)
        self._class = message_factory.GetMessageClass(found)
        kind, self._read = _Shape(bounds, maps, self._unknown).message(found)
        self._schema = types.check(pa.schema(list(kind)), bounds)
        self._kind = kind

    @property
    def schema(self) -> pa.Schema:
        """The columns of the payload."""
        return self._schema

    def decode(self, values: pa.Array) -> DecodeOutcome:
        """Decode messages; see :class:`spark_jobs.decode.outcome.Decoder`."""
        self._unknown.records = 0
        made = from_objects(values, self._one, self._kind, self._bounds)
        return replace(made, unknown_count=self._unknown.records)

    def _one(self, body: bytes) -> Any:
        made: Message = self._class()
        try:
            made.ParseFromString(body)
            if not made.IsInitialized():
                raise Undecodable(Reason.of(MALFORMED, "a required field is missing"))
            self._unknown.here = False
            row = self._read(made)  # some texts are decoded only here
        except (DecodeError, *BYTES_ERRORS) as error:
            raise Undecodable(Reason.of(MALFORMED, error)) from None
        self._unknown.records += self._unknown.here
        return row


@dataclass(slots=True)
class _Unknown:
    """Counts the records with unknown fields while they are read."""

    records: int = 0
    here: bool = False  # the present record has one

    def look(self, made: Any, known: Descriptor) -> None:
        """Look at the unknown fields of one message, without those of its inner messages.

        Raises:
            Undecodable: the message has a field that is not unknown but was not read.
        """
        found = UnknownFieldSet(made)
        for each in map(found.__getitem__, range(len(found))):
            field = known.fields_by_number.get(each.field_number)
            if field is None:
                self.here = True
                continue
            detail = f"field {field.full_name} has wire type {each.wire_type}, not its own"
            if field.enum_type is not None and each.wire_type == _VARINT:
                detail = f"enum {field.enum_type.full_name} has no value {each.data}"
            raise Undecodable(Reason.of(WRONG_TYPE, detail))


def _without_maps(messages: Iterable[Any], package: str, *, prefixed: bool) -> set[str]:
    """Turn maps into lists of entries, and return the names of the entries' messages.

    The library tells nothing of an entry's unknown fields while the entry is one of a map. With
    ``prefixed``, of files of an edition, entries and their values keep the encoding that those of a
    map have, whatever encoding of messages the file has.
    """
    names = set()
    for each in messages:
        name = f"{package}.{each.name}".lstrip(".")
        entries = {f".{name}.{one.name}" for one in each.nested_type if one.options.map_entry}
        for field in each.field:
            is_of_map = field.type_name in entries or each.options.map_entry
            if prefixed and is_of_map and field.type == field.TYPE_MESSAGE:
                field.options.features.message_encoding = _PREFIXED
        if each.options.map_entry:
            each.options.ClearField("map_entry")
            names.add(name)
        names |= _without_maps(each.nested_type, name, prefixed=prefixed)
    return names


def _pool(descriptors: bytes, message: str) -> tuple[Descriptor, set[str]]:
    """Return the message's descriptor without maps, and the names of all entries of maps."""
    if len(descriptors) > _DESCRIPTORS_BYTES_MAX:
        raise InvalidRequestError(
            f"the descriptor set has {len(descriptors)} bytes; the limit is "
            f"{_DESCRIPTORS_BYTES_MAX}"
        )
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    maps: set[str] = set()
    try:
        files.ParseFromString(descriptors)
        for each in files.file:
            is_edition = each.syntax == "editions"
            maps |= _without_maps(each.message_type, each.package, prefixed=is_edition)
            pool.Add(each)
        return pool.FindMessageTypeByName(message), maps
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

    def __init__(self, bounds: DecodeBounds, maps: set[str], unknown: _Unknown) -> None:
        self._bounds = bounds
        self._maps = maps
        self._unknown = unknown
        self._open: list[str] = []
        self._left = bounds.columns_max * 4

    def message(self, found: Descriptor) -> tuple[pa.DataType, _Read]:
        if found.full_name == _TIMESTAMP:
            return types.SIMPLE["timestamp"], self._looking(found, _timestamp)
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
        return pa.struct(fields), self._looking(
            found, lambda made: {name: read(made) for name, read in readers}
        )

    def _looking(self, found: Descriptor, read: _Read) -> _Read:
        """Return the reader of a message that looks at unknown fields first."""

        def look_and_read(made: Any) -> Any:
            self._unknown.look(made, found)
            return read(made)

        return look_and_read

    def _field(self, each: FieldDescriptor) -> tuple[pa.DataType, _Read]:
        name = each.name
        entry = each.message_type
        if each.is_repeated and entry is not None and entry.full_name in self._maps:
            key_kind, key_read = self._value(entry.fields_by_name["key"])
            kind, read = self._value(entry.fields_by_name["value"])
            pair = self._looking(entry, lambda made: (key_read(made.key), read(made.value)))
            return pa.map_(key_kind, kind), lambda made: sorted(
                dict(map(pair, getattr(made, name))).items(), key=itemgetter(0)
            )
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
