"""Protobuf payloads by a descriptor set: presence, defaults, maps, enums, damage."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import InvalidRequestError
from spark_jobs.decode.bounds import MALFORMED, TOO_LARGE, WRONG_TYPE, DecodeBounds
from spark_jobs.decode.protobuf_decoder import ProtobufDecoder

F: Final = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: int, kind: int, **more: Any) -> descriptor_pb2.FieldDescriptorProto:
    made = F(name=name, number=number, label=F.LABEL_OPTIONAL, type=kind)  # type: ignore[arg-type]
    for key, value in more.items():
        setattr(made, key, value)
    return made


def _descriptors() -> bytes:
    """Return what protoc would write for a file with the messages Order, Line and Loop."""
    file = descriptor_pb2.FileDescriptorProto(name="demo.proto", package="demo", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="BIG", number=1)
    file.message_type.add(name="Line").field.append(_field("x", 1, F.TYPE_INT32))
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="RatesEntry")
    entry.options.map_entry = True
    entry.field.extend([_field("key", 1, F.TYPE_STRING), _field("value", 2, F.TYPE_DOUBLE)])
    many = {"label": F.LABEL_REPEATED}
    order.oneof_decl.add(name="_price")
    order.field.extend([
        _field("id", 1, F.TYPE_INT64),
        _field("kind", 2, F.TYPE_ENUM, type_name=".demo.Kind"),
        _field("lines", 3, F.TYPE_MESSAGE, type_name=".demo.Line", **many),
        _field("rates", 4, F.TYPE_MESSAGE, type_name=".demo.Order.RatesEntry", **many),
        _field("at", 5, F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
        _field("price", 6, F.TYPE_DOUBLE, proto3_optional=True, oneof_index=0),
        _field("big", 7, F.TYPE_UINT64),
        _field("raw", 8, F.TYPE_BYTES),
        _field("one", 9, F.TYPE_MESSAGE, type_name=".demo.Line"),
    ])  # fmt: skip
    loop = file.message_type.add(name="Loop")
    loop.field.append(_field("inner", 1, F.TYPE_MESSAGE, type_name=".demo.Loop"))
    file.message_type.add(name="Empty")
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return descriptor_pb2.FileDescriptorSet(file=[timestamp, file]).SerializeToString()


DESCRIPTORS: Final = _descriptors()


def order(**fields: Any) -> Any:
    """Return a message of class Order, made by a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file:
        pool.Add(each)
    made: Message = message_factory.GetMessageClass(pool.FindMessageTypeByName("demo.Order"))(
        **fields
    )
    return made


def decoder(message: str = "demo.Order", **bounds: int) -> ProtobufDecoder:
    """Return a decoder of the descriptors above."""
    return ProtobufDecoder(DESCRIPTORS, message, DecodeBounds(**bounds))


def test_every_kind_of_field_has_its_value() -> None:
    """Set fields are there, an unset optional is null, an unset scalar has its default."""
    made = order(id=5, kind=1, lines=[{"x": 1}, {}], rates={"b": 1.5, "a": 2}, price=0.0,
                 big=2**64 - 1, raw=b"\xff")  # fmt: skip
    made.at.FromMicroseconds(1_000_002)
    payloads = [made.SerializeToString(), b""]
    full, empty = decoder().decode(pa.array(payloads, pa.binary())).columns.to_pylist()
    assert full == {
        "id": 5,
        "kind": "BIG",
        "lines": [{"x": 1}, {"x": 0}],
        "rates": [("a", 2.0), ("b", 1.5)],
        "at": dt.datetime(1970, 1, 1, 0, 0, 1, 2, dt.UTC),
        "price": 0.0,
        "big": Decimal(2**64 - 1),
        "raw": b"\xff",
        "one": None,
    }
    assert (empty["id"], empty["kind"], empty["lines"], empty["at"]) == (0, "NONE", [], None)
    assert empty["price"] is None


def test_damage_is_rejected_alone() -> None:
    """Noise, a time outside the calendar and a giant do not stop the message beside them."""
    late = order()
    late.at.seconds = 10**12
    payloads = [b"\xff\xff", order(id=1).SerializeToString(), late.SerializeToString(), b"x" * 999]
    found = decoder(record_bytes_max=500).decode(pa.array(payloads, pa.binary()))
    assert [row["id"] for row in found.columns.to_pylist()] == [1]
    codes = {at: reason.code for at, reason in found.rejected.items()}
    assert codes == {0: MALFORMED, 2: WRONG_TYPE, 3: TOO_LARGE}


@given(st.binary(max_size=40))
def test_no_bytes_raise(noise: bytes) -> None:
    """Whatever arrives, it decodes or is rejected."""
    found = decoder().decode(pa.array([noise], pa.binary()))
    assert len(found.columns) + len(found.rejected) == 1


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("demo.Loop", "contains itself"),
        ("demo.Empty", "no fields"),
        ("demo.Nobody", "it has .*demo.Order"),
    ],
)
def test_messages_that_cannot_be_columns_are_refused(message: str, words: str) -> None:
    """A recursive, an empty and an unknown message are refused by name."""
    with pytest.raises(InvalidRequestError, match=words):
        decoder(message)
    with pytest.raises(InvalidRequestError, match="descriptor set"):
        ProtobufDecoder(b"junk", message, DecodeBounds())


def _closed() -> ProtobufDecoder:
    """Return a decoder of a message of proto2, whose enums are closed."""
    file = descriptor_pb2.FileDescriptorProto(name="shut.proto", package="shut", syntax="proto2")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="BIG", number=1)
    made = file.message_type.add(name="M")
    entry = made.nested_type.add(name="MpEntry")
    entry.options.map_entry = True
    enum = {"type_name": ".shut.Kind"}
    many = {"label": F.LABEL_REPEATED}
    entry.field.extend([_field("key", 1, F.TYPE_INT32), _field("value", 2, F.TYPE_ENUM, **enum)])
    made.field.extend([
        _field("one", 1, F.TYPE_ENUM, **enum),
        _field("some", 2, F.TYPE_ENUM, **enum, **many),
        _field("mp", 3, F.TYPE_MESSAGE, type_name=".shut.M.MpEntry", **many),
    ])  # fmt: skip
    body = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return ProtobufDecoder(body, "shut.M", DecodeBounds())


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\x01x",  # id, as a text
        b"\x15\x01\x00\x00\x00",  # kind, as four bytes
        b"\x18\x05",  # lines, as a number
        b"\x1a\x05\x0d\x01\x00\x00\x00",  # x of a line, as four bytes
        b"\x20\x05",  # rates, as a number
        b"\x22\x05\x0a\x01a\x10\x01",  # the value of a rate, as a number
        b"\x22\x02\x08\x01",  # the key of a rate, as a number
        b"\x2a\x02\x0a\x00",  # the seconds of a time, as a text
        b"\x4a\x02\x0a\x00",  # x of the one line, as a text
    ],
)
def test_a_field_of_another_wire_type_is_rejected(payload: bytes) -> None:
    """It is no unknown field: its value is there, and would be missing in the table."""
    good = order(id=1).SerializeToString()
    found = decoder().decode(pa.array([good, good + payload], pa.binary()))
    assert {at: reason.code for at, reason in found.rejected.items()} == {1: WRONG_TYPE}
    assert "wire type" in found.rejected[1].detail
    assert found.unknown_count == 0


@pytest.mark.parametrize(
    "payload",
    [b"\x08\x07", b"\x10\x01\x10\x07", b"\x12\x02\x01\x07", b"\x1a\x04\x08\x01\x10\x07"],
    ids=["alone", "in a list", "in a packed list", "in a map"],
)
def test_a_value_that_a_closed_enum_does_not_have_is_rejected(payload: bytes) -> None:
    """Protobuf puts it among the unknown fields; the column would be null or a row shorter."""
    good = b"\x08\x01\x10\x00\x1a\x04\x08\x01\x10\x01"
    found = _closed().decode(pa.array([good, payload], pa.binary()))
    assert found.columns.to_pylist() == [{"one": "BIG", "some": ["NONE"], "mp": [(1, "BIG")]}]
    assert {at: reason.code for at, reason in found.rejected.items()} == {1: WRONG_TYPE}
    assert "shut.Kind" in found.rejected[1].detail
    assert "7" in found.rejected[1].detail


def test_unknown_fields_are_left_out_and_their_records_counted() -> None:
    """A newer writer's fields stop no record, at any depth; open enums have any number."""
    payloads = [
        order(id=1).SerializeToString(),
        order(id=2).SerializeToString() + b"\xa0\x06\x01",
        order(id=3).SerializeToString() + b"\x1a\x03\xa0\x06\x01" * 2,
        order(id=4).SerializeToString() + b"\x22\x08\x0a\x03new\xa0\x06\x01",
        order(id=5, kind=9).SerializeToString(),
        order(id=6).SerializeToString() + b"\xa0\x06\x01\x0a\x01x",
    ]
    one = decoder()
    for _ in range(2):  # a count begins anew with each batch
        found = one.decode(pa.array(payloads, pa.binary()))
        assert list(found.rejected) == [5]
        assert found.unknown_count == 3
        assert [row["id"] for row in found.columns.to_pylist()] == [1, 2, 3, 4, 5]
        assert found.columns.field("kind").to_pylist()[-1] == "9"
        assert found.columns.field("rates").to_pylist()[3] == [("new", 0.0)]


def test_the_last_entry_of_a_key_is_the_one_of_the_map() -> None:
    """As in every Protobuf reader; a missing key or value is the default."""
    one, two = (order(rates={"a": rate}).SerializeToString() for rate in (1.0, 2.0))
    found = decoder().decode(pa.array([one + two + b"\x22\x00"], pa.binary()))
    assert found.columns.field("rates").to_pylist() == [[("", 0.0), ("a", 2.0)]]


def test_a_key_of_a_map_that_is_no_text_is_rejected() -> None:
    """In proto2 a text is decoded only when the field is read."""
    file = descriptor_pb2.FileDescriptorProto(name="two.proto", package="two", syntax="proto2")
    made = file.message_type.add(name="M")
    entry = made.nested_type.add(name="MpEntry")
    entry.options.map_entry = True
    entry.field.extend([_field("key", 1, F.TYPE_STRING), _field("value", 2, F.TYPE_INT32)])
    made.field.append(
        _field("mp", 1, F.TYPE_MESSAGE, type_name=".two.M.MpEntry", label=F.LABEL_REPEATED)
    )
    body = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    payloads = [b"", b"\n\x05\n\x01\xff\x10\x01", b"\n\x05\n\x01a\x10\x01"]
    found = ProtobufDecoder(body, "two.M", DecodeBounds()).decode(pa.array(payloads, pa.binary()))
    assert {at: reason.code for at, reason in found.rejected.items()} == {1: MALFORMED}
    assert found.columns.to_pylist() == [{"mp": []}, {"mp": [("a", 1)]}]


@pytest.mark.parametrize("at", ["file", "message", "none"])
def test_maps_of_a_file_with_delimited_messages_are_read(at: str) -> None:
    """In editions only fields that are no maps, nor in maps, take the encoding of their file."""
    file = descriptor_pb2.FileDescriptorProto(
        name="ed.proto", package="ed", syntax="editions", edition=descriptor_pb2.EDITION_2023
    )
    delimited = descriptor_pb2.FeatureSet.DELIMITED
    if at == "file":
        file.options.features.message_encoding = delimited
    file.message_type.add(name="V").field.append(_field("x", 1, F.TYPE_INT32))
    made = file.message_type.add(name="M")
    entry = made.nested_type.add(name="MpEntry")
    entry.options.map_entry = True
    value = _field("value", 2, F.TYPE_MESSAGE, type_name=".ed.V")
    entry.field.extend([_field("key", 1, F.TYPE_STRING), value])
    made.field.extend([
        _field("mp", 1, F.TYPE_MESSAGE, type_name=".ed.M.MpEntry", label=F.LABEL_REPEATED),
        _field("one", 2, F.TYPE_MESSAGE, type_name=".ed.V"),
    ])  # fmt: skip
    if at == "message":
        made.field[1].options.features.message_encoding = delimited
    body = descriptor_pb2.FileDescriptorSet(file=[file])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    record: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("ed.M"))()
    record.mp["a"].x = 1
    record.one.x = 2
    payload = record.SerializeToString()
    assert (b"\x13" in payload) == (at != "none"), "a group begins"
    found = ProtobufDecoder(body.SerializeToString(), "ed.M", DecodeBounds()).decode(
        pa.array([payload], pa.binary())
    )
    assert found.rejected == {}
    assert found.columns.to_pylist() == [{"mp": [("a", {"x": 1})], "one": {"x": 2}}]
