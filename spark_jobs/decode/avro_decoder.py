"""Decodes Avro binary records into columns, with the writer's schema. The only user of fastavro.

A payload is a single datum without a container file. It may begin with the five bytes that schema
registries add (a zero and the schema's number). No registry is asked. The number must be the given
one, because bytes of another schema may decode to wrong values without an error.

A schema is refused at the start if its data could make the decoder loop or guess: items without an
encoded size (an array of a billion nulls takes five bytes), recursion, unions of several types.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa

from broker.errors import InvalidRequestError
from spark_jobs.decode import types
from spark_jobs.decode.bounds import MALFORMED, OTHER_SCHEMA, DecodeBounds, Reason
from spark_jobs.decode.outcome import BYTES_ERRORS, DecodeOutcome, Undecodable, from_objects

_FRAME: Final = struct.Struct(">BI")  # 0, then the registry's number of the schema
_SCHEMA_TEXT_MAX: Final = 4 * 1024 * 1024
_DECIMAL: Final = "headwater-decimal"  # the logical type's name for fastavro
# Each number of more than 64 bits has nine bytes that go on, and a tenth that is more than one bit.
_MAYBE_LONG: Final = re.compile(rb"[\x80-\xff]{9}[\x02-\xff]")
_EXACT: Final = Context(prec=types.DECIMAL_DIGITS_MAX)
_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMESTAMP: Final = types.SIMPLE["timestamp"]
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _TIMESTAMP,
    ("long", "timestamp-micros"): _TIMESTAMP,
    ("string", "uuid"): pa.string(),
}


# What fastavro raises for JSON that is not a schema; the last five where it does not look first.
_NO_SCHEMA: Final = (
    fastavro.schema.SchemaParseException,
    fastavro.schema.UnknownType,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
)


class AvroDecoder:
    """Decodes Avro datums of one record schema.

    Args:
        schema_text: the writer's schema as JSON.
        schema_id: None if payloads have no frame; else the number that each frame must have.
        bounds: limits of a payload.

    Raises:
        InvalidRequestError: the schema cannot be decoded safely into columns.
    """

    def __init__(self, schema_text: str, *, schema_id: int | None, bounds: DecodeBounds) -> None:
        self._bounds = bounds
        self._schema_id = schema_id
        body = _parsed_text(schema_text)
        try:
            kind = _Mapping(bounds).kind_of(body)
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            raise InvalidRequestError(f"the text is not an Avro schema: {cause!r}") from cause
        if not pa.types.is_struct(kind):
            raise InvalidRequestError("the Avro schema must be a record")
        self._schema = types.check(pa.schema(list(kind)), bounds)
        self._kind = kind
        self._writer = _strict(_parsed(_as_read(body)))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the payload."""
        return self._schema

    def decode(self, values: pa.Array) -> DecodeOutcome:
        """Decode datums; see :class:`spark_jobs.decode.outcome.Decoder`."""
        return from_objects(values, self._one, self._kind, self._bounds)

    def _one(self, body: bytes) -> Any:
        if self._schema_id is not None:
            body = self._unframed(body)
        source = io.BytesIO(body)
        try:
            found = fastavro.schemaless_reader(source, self._writer, None)
            if _MAYBE_LONG.search(body):
                _Numbers(body, self._writer["__named_schemas"]).read(self._writer)
        except BYTES_ERRORS as error:
            raise Undecodable(Reason.of(MALFORMED, f"{type(error).__name__} {error}")) from None
        if source.tell() != len(body):
            left = len(body) - source.tell()
            raise Undecodable(Reason.of(MALFORMED, f"{left} bytes are left after the datum"))
        return found

    def _unframed(self, body: bytes) -> bytes:
        if len(body) < _FRAME.size or body[0] != 0:
            raise Undecodable(Reason.of(MALFORMED, "the value has no frame with a schema's number"))
        _, number = _FRAME.unpack_from(body)
        if number != self._schema_id:
            detail = f"the frame names schema {number}, not {self._schema_id}"
            raise Undecodable(Reason.of(OTHER_SCHEMA, detail))
        return body[_FRAME.size :]


def _parsed_text(text: str) -> Any:
    if len(text) > _SCHEMA_TEXT_MAX:
        raise InvalidRequestError(
            f"the schema has {len(text)} characters; the limit is {_SCHEMA_TEXT_MAX}"
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise InvalidRequestError(f"the Avro schema is not JSON: {cause}") from cause


def _as_read(body: Any) -> Any:
    """Return the schema as fastavro reads it: uuids as encoded, decimals by :func:`_decimal`."""
    if isinstance(body, dict):
        kept = {name: _as_read(value) for name, value in body.items()}
        if kept.get("logicalType") == "uuid":
            del kept["logicalType"]
        if kept.get("logicalType") == "decimal":
            kept["logicalType"] = _DECIMAL
        return kept
    return [_as_read(each) for each in body] if isinstance(body, list) else body


def _decimal(found: bytes, kind: Any, _: Any = None) -> Decimal:
    """Return the decimal of these bytes.

    fastavro's own makes a Decimal first, which for a number of n digits takes n * n steps: one
    datum of 8 MB would take hours.

    Raises:
        ValueError: the number has more digits than the schema says.
    """
    number = int.from_bytes(found, "big", signed=True)
    precision: int = kind["precision"]
    if abs(number) >= 10**precision:
        raise ValueError(f"a decimal of {len(found)} bytes has more than {precision} digits")
    return Decimal(number).scaleb(-kind.get("scale", 0), _EXACT)


for _type in ("bytes", "fixed"):
    fastavro.read.LOGICAL_READERS[f"{_type}-{_DECIMAL}"] = _decimal


def _parsed(body: Any) -> Any:
    """Return the schema in fastavro's form; fastavro checks what :class:`_Mapping` did not."""
    try:
        return fastavro.parse_schema(body)
    except _NO_SCHEMA as cause:
        raise InvalidRequestError(f"the text is not an Avro schema: {cause}") from cause


class _Numbered(list[Any]):
    """Symbols or branches, which a datum names by a number from 0.

    To a negative number fastavro adds the length, as if it counted from the end. So fastavro is
    told that the length is 0, and a negative number gets here as it is. It asks for no other length
    while it reads.
    """

    def __len__(self) -> int:
        return 0

    def __getitem__(self, place: Any) -> Any:
        if place < 0:
            raise IndexError(f"{place} is the number of no symbol and of no branch")
        return super().__getitem__(place)


def _strict(body: Any) -> Any:
    """Return a parsed schema whose unions and enums take no negative numbers."""
    if isinstance(body, dict):
        return {
            name: [_strict(each) for each in value] if name == "fields" else _strict(value)
            for name, value in body.items()
        }
    return _Numbered(_strict(each) for each in body) if isinstance(body, list) else body


class _Numbers:
    """Refuses a datum with a number of more than 64 bits, which fastavro lets overflow.

    Such a number has no end within ten bytes, or bits beyond the 64th. All else in the datum was
    read by fastavro before.
    """

    def __init__(self, body: bytes, named: Mapping[str, Any]) -> None:
        self._body = body
        self._named = named
        self._at = 0

    def read(self, kind: Any) -> None:
        """Go through one value of a parsed schema; raises ValueError."""
        if isinstance(kind, str):
            kind = self._named.get(kind, {"type": kind})
        if isinstance(kind, list):
            self.read(kind[self._number()])
            return
        match kind["type"]:
            case "boolean" | "float" | "double" as name:
                self._at += {"boolean": 1, "float": 4, "double": 8}[name]
            case "int" | "long" | "enum":
                self._number()
            case "bytes" | "string":
                size = self._number()  # which moves the place, too
                self._at += size
            case "fixed":
                self._at += kind["size"]
            case "record" | "error":
                for each in kind["fields"]:
                    self.read(each["type"])
            case "array":
                self._blocks(kind["items"])
            case "map":
                self._blocks("string", kind["values"])
            case dict() | list() as inner:
                self.read(inner)

    def _blocks(self, *kinds: Any) -> None:
        while count := self._number():
            if count < 0:
                self._number()  # the bytes of the block
            for _ in range(abs(count)):
                for kind in kinds:
                    self.read(kind)

    def _number(self) -> int:
        number = 0
        for place in range(10):
            byte = self._body[self._at]
            self._at += 1
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80 and number < 1 << 64:
                return (number >> 1) ^ -(number & 1)
            if byte < 0x80:
                break
        raise ValueError(f"the number that ends at byte {self._at} has more than 64 bits")


class _Mapping:
    """Maps Avro types to Arrow types. Resolves names, and refuses unsafe types."""

    def __init__(self, bounds: DecodeBounds) -> None:
        self._named: dict[str, tuple[Any, str]] = {}
        self._open: list[str] = []  # named types that enclose the present one
        self._left = bounds.columns_max * 4
        self._depth_max = bounds.depth_max

    def kind_of(self, body: Any, namespace: str = "", depth: int = 0) -> pa.DataType:
        """Return the Arrow type of a schema; raises InvalidRequestError."""
        self._left -= 1
        if self._left < 0 or depth > self._depth_max:
            raise InvalidRequestError("the Avro schema has too many fields or is nested too deep")
        if isinstance(body, list):
            return self._union(body, namespace, depth)
        if isinstance(body, str):
            return self._by_name(body, namespace, depth)
        if not isinstance(body, Mapping) or "type" not in body:
            raise InvalidRequestError(f"{str(body)[:80]!r} is not an Avro type")
        kind = body["type"]
        if isinstance(kind, dict | list):
            return self.kind_of(kind, namespace, depth + 1)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._define(body, namespace, depth)
        if kind == "array":
            self._refuse_empty_items(body.get("items"), namespace)
            inner = self.kind_of(body.get("items"), namespace, depth + 1)
            return pa.list_(pa.field("element", inner))
        if kind == "map":
            return pa.map_(pa.string(), self.kind_of(body.get("values"), namespace, depth + 1))
        return self._logical(body) or self._by_name(kind, namespace, depth)

    def _logical(self, body: Mapping[str, Any]) -> pa.DataType | None:
        logical = body.get("logicalType")
        if logical is None:
            return None
        if logical == "decimal" and body["type"] in {"bytes", "fixed"}:
            precision, scale = body.get("precision"), body.get("scale", 0)
            if not isinstance(precision, int) or not isinstance(scale, int):
                raise InvalidRequestError("an Avro decimal needs a precision")
            return types.decimal(precision, scale)
        found = _LOGICAL.get((body["type"], logical))
        if found is None:
            raise InvalidRequestError(
                f"Avro's logical type {logical!r} on {body['type']!r} cannot become a column"
            )
        return found

    def _by_name(self, name: str, namespace: str, depth: int) -> pa.DataType:
        if name in _SIMPLE:
            return _SIMPLE[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            full = name
        if full not in self._named:
            raise InvalidRequestError(
                f"Avro type {name[:80]!r} is not known, or may not be used alone"
            )
        if full in self._open:
            raise InvalidRequestError(f"Avro type {full} contains itself, which columns cannot do")
        known, inside = self._named[full]
        return self.kind_of(known, inside, depth + 1)

    def _define(self, body: Mapping[str, Any], namespace: str, depth: int) -> pa.DataType:
        name = str(body.get("name", ""))
        inside = str(body.get("namespace", "")) or (
            name.rpartition(".")[0] if "." in name else namespace
        )
        full = name if "." in name or not inside else f"{inside}.{name}"
        self._named[full] = (body, namespace)
        if body["type"] == "enum":
            return pa.string()
        if body["type"] == "fixed":
            return self._logical(body) or pa.binary()
        fields = body.get("fields")
        if not isinstance(fields, list):
            raise InvalidRequestError(f"Avro record {full} has no fields")
        self._open.append(full)
        made = [
            pa.field(str(each["name"]), self.kind_of(each["type"], inside, depth + 1))
            for each in fields
        ]
        self._open.pop()
        return pa.struct(made)

    def _union(self, body: list[Any], namespace: str, depth: int) -> pa.DataType:
        kinds = [each for each in body if each != "null"]
        if len(kinds) != 1:
            raise InvalidRequestError(
                "an Avro union must consist of null and one type, but this one is "
                f"{json.dumps(body)[:120]}"
            )
        return self.kind_of(kinds[0], namespace, depth + 1)

    def _refuse_empty_items(self, items: Any, namespace: str) -> None:
        if not self._takes_bytes(items, namespace, depth=0):
            raise InvalidRequestError(
                "an Avro array has items that take no bytes; a few bytes could then claim a "
                "billion items, so this schema is refused"
            )

    def _takes_bytes(self, body: Any, namespace: str, *, depth: int) -> bool:
        """Tell whether each datum of the type is encoded in at least one byte."""
        if depth > self._depth_max:
            return False
        if isinstance(body, dict):
            if body.get("type") == "fixed":
                return int(body.get("size", 0)) > 0
            if body.get("type") in {"record", "error"}:
                return any(
                    self._takes_bytes(each.get("type"), namespace, depth=depth + 1)
                    for each in body.get("fields", [])
                )
            return self._takes_bytes(body.get("type"), namespace, depth=depth + 1)
        if isinstance(body, str) and body not in _SIMPLE:
            full = body if "." in body or not namespace else f"{namespace}.{body}"
            known = self._named.get(full) or self._named.get(body)
            if known is not None:
                return self._takes_bytes(known[0], namespace, depth=depth + 1)
            return body in {"array", "map", "enum"}
        return bool(body)  # True: a union writes its branch, a simple type its value
