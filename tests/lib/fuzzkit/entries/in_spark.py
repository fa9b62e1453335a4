"""Decoders of records in Spark's jobs: payloads by JSON, Avro and Protobuf, and their schemas.

A payload stands between two good ones. Whatever it is, each value becomes a row or a reason, and
its neighbours decode as they do without it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from broker.codec.schema import ROW_SCHEMA
from broker.model.offsets import Offset
from fuzzkit.decoder import Decoder
from spark_jobs.decode import ddl, json_inference, outcome, types
from spark_jobs.decode.avro_decoder import AvroDecoder
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.json_decoder import JsonDecoder
from spark_jobs.decode.pins import Pin
from spark_jobs.decode.protobuf_decoder import ProtobufDecoder
from spark_jobs.decode.rows import RowDecoder
from spark_jobs.decode.spec import DecodeSpec

_DDL: Final = (
    "a bigint, b string, c double, d array<struct<e: int, f: boolean>>, g timestamp, h date,"
    " i decimal(9,2)"
)
_JSON: Final = (
    b'{"a":1,"b":"x","c":1.5,"d":[{"e":2,"f":true}],"g":"2026-01-01T00:00:00Z","i":0.5}',
    b'{"b":"\\u00e4\\n","d":[],"h":"0001-01-01","i":1.5e-1,"zzz":{"y":[null]}}',
)
_AVRO: Final = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": ["null", "string"]},
        {"name": "d", "type": {"type": "array", "items": "string"}},
        {"name": "m", "type": {"type": "map", "values": "bytes"}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["x", "y"]}},
    ],
}
_AVRO_ROW: Final = {"a": 7, "b": "x", "d": ["p", "q"], "m": {"k": b"v"}, "t": 1, "e": "y"}


def _avro() -> list[bytes]:
    found = io.BytesIO()
    fastavro.schemaless_writer(found, fastavro.parse_schema(_AVRO), _AVRO_ROW)
    return [found.getvalue()]


@cache
def _descriptors() -> bytes:
    field = descriptor_pb2.FieldDescriptorProto
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    inner = descriptor_pb2.DescriptorProto(
        name="I", field=[field(name="n", number=1, label=one, type=field.TYPE_UINT64)]
    )
    outer = descriptor_pb2.DescriptorProto(
        name="O",
        field=[
            field(name="a", number=1, label=one, type=field.TYPE_INT64),
            field(name="b", number=2, label=one, type=field.TYPE_STRING),
            field(name="c", number=3, label=many, type=field.TYPE_DOUBLE),
            field(name="i", number=4, label=many, type=field.TYPE_MESSAGE, type_name=".p.I"),
            field(name="k", number=5, label=one, type=field.TYPE_BYTES),
        ],
    )
    file = descriptor_pb2.FileDescriptorProto(
        name="p.proto", package="p", syntax="proto3", message_type=[inner, outer]
    )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def _protobuf() -> list[bytes]:
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(_descriptors()).file:
        pool.Add(one)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.O"))
    made = kind(a=-1, b="x", c=[1.5], i=[{"n": 1 << 63}], k=b"\xff")
    return [made.SerializeToString()]


def _json_decoder() -> JsonDecoder:
    return JsonDecoder(ddl.parse(_DDL), DecodeBounds())


def _avro_decoder() -> AvroDecoder:
    return AvroDecoder(json.dumps(_AVRO), schema_id=None, bounds=DecodeBounds())


def _protobuf_decoder() -> ProtobufDecoder:
    return ProtobufDecoder(_descriptors(), "p.O", DecodeBounds())


def _between(
    make: Callable[[], outcome.Decoder], good: Callable[[], bytes]
) -> Callable[[bytes], object]:
    """Return a function that decodes a payload between two good ones, and compares all three."""
    decoder = cache(make)

    @cache
    def alone() -> pa.StructArray:
        return decoder().decode(pa.array([good()], pa.binary())).columns

    def decode(data: bytes) -> object:
        found = decoder().decode(pa.array([good(), data, good()], pa.binary()))
        assert set(found.rejected) <= {1}, found.rejected
        assert len(found.columns) + len(found.rejected) == 3, "a value became no row and no reason"
        for at in (0, -1):
            place = at % len(found.columns)
            assert found.columns.slice(place, 1).equals(alone()), "a neighbour was changed"
        return found

    return decode


def _spec() -> DecodeSpec:
    return DecodeSpec(format="json", schema=types.to_json(ddl.parse(_DDL)))


def _pin() -> Pin:
    uuid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    return Pin(stream="s", stream_uuid=uuid, starts={0: Offset(3)}, spec=_spec(), number=1)


@cache
def _rows() -> RowDecoder:
    return RowDecoder(_spec())


def _row(data: bytes) -> object:
    names = {name: pa.nulls(2, ROW_SCHEMA.field(name).type) for name in ROW_SCHEMA.names}
    names["value"] = pa.array([data, None], pa.binary())
    names["partition"] = pa.array([0, 0], ROW_SCHEMA.field("partition").type)
    names["offset"] = pa.array([5, 6], ROW_SCHEMA.field("offset").type)
    names["timestamp"] = pa.array([1, 2], ROW_SCHEMA.field("timestamp").type)
    found = _rows().decode(pa.RecordBatch.from_arrays(list(names.values()), schema=ROW_SCHEMA))
    offsets = found.decoded["offset"].to_pylist() + found.rejected["offset"].to_pylist()
    assert sorted(offsets) == [5, 6], "a row is in both tables, or in none"
    return found


def _inferred(data: bytes) -> object:
    """Infer columns from a payload, and decode it by them."""
    found = json_inference.infer(json_inference.objects([data]), DecodeBounds())
    if not found.names:
        return found
    return JsonDecoder(found, DecodeBounds()).decode(pa.array([data], pa.binary()))


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield from _of_payloads("spark_jobs.decode")
    yield from _of_schemas("spark_jobs.decode")


def _of_payloads(decode: str) -> Iterator[Decoder]:
    yield Decoder(
        name="spark_json",
        covers=(
            f"{decode}.json_decoder.JsonDecoder.decode",
            f"{decode}.json_decoder.JsonDecoder.parse",
        ),
        decode=_between(_json_decoder, lambda: _JSON[0]),
        make_seeds=lambda: list(_JSON),
        errors=(),
    )
    yield Decoder(
        name="spark_inference",
        covers=(f"{decode}.json_inference.infer",),
        decode=_inferred,
        make_seeds=lambda: list(_JSON),
        errors=(),
    )
    yield Decoder(
        name="spark_avro",
        covers=(f"{decode}.avro_decoder.AvroDecoder.decode",),
        decode=_between(_avro_decoder, lambda: _avro()[0]),
        make_seeds=_avro,
        errors=(),
    )
    yield Decoder(
        name="spark_protobuf",
        covers=(f"{decode}.protobuf_decoder.ProtobufDecoder.decode",),
        decode=_between(_protobuf_decoder, lambda: _protobuf()[0]),
        make_seeds=_protobuf,
        errors=(),
    )
    yield Decoder(
        name="spark_rows",
        covers=(f"{decode}.rows.RowDecoder.decode", f"{decode}.outcome.decode_pieces"),
        decode=_row,
        make_seeds=lambda: list(_JSON),
        errors=(),
    )


def _of_schemas(decode: str) -> Iterator[Decoder]:
    yield Decoder(
        name="spark_avro_schema",
        covers=(f"{decode}.avro_decoder.AvroDecoder",),
        decode=lambda data: AvroDecoder(_text(data), schema_id=1, bounds=DecodeBounds()),
        make_seeds=lambda: [json.dumps(_AVRO).encode()],
    )
    yield Decoder(
        name="spark_descriptors",
        covers=(f"{decode}.protobuf_decoder.ProtobufDecoder",),
        decode=lambda data: ProtobufDecoder(data, "p.O", DecodeBounds()),
        make_seeds=lambda: [_descriptors()],
    )
    yield Decoder(
        name="spark_ddl",
        covers=(f"{decode}.ddl.parse",),
        decode=lambda data: ddl.parse(_text(data)),
        make_seeds=lambda: [_DDL.encode(), b"`a b` decimal(20,3), m map<string,array<int>>"],
    )
    yield Decoder(
        name="spark_type_json",
        covers=(f"{decode}.types.from_json",),
        decode=lambda data: types.from_json(_text(data)),
        make_seeds=lambda: [types.to_json(ddl.parse(_DDL)).encode()],
    )
    yield Decoder(
        name="spark_spec",
        covers=(f"{decode}.spec.DecodeSpec.from_text",),
        decode=lambda data: DecodeSpec.from_text(_text(data)).decoder(),
        make_seeds=lambda: [_spec().to_text().encode()],
    )
    yield Decoder(
        name="spark_pin",
        covers=(f"{decode}.pins.Pin.from_text",),
        decode=lambda data: Pin.from_text(_text(data), 1),
        make_seeds=lambda: [_pin().to_text().encode()],
    )
