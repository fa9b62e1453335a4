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
