"""Column types in three spellings: Arrow's, Spark's DDL and Spark's schema JSON.

Only types that Parquet, Delta and Spark all store without loss are known here. A schema is refused
as a whole, at the start, if one of its columns has another type, a name that Delta does not allow,
or a name that differs from another only by case.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pyarrow as pa

from broker.errors import InvalidRequestError
from spark_jobs.decode.bounds import DecodeBounds

SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_NAMES: Final = {kind: name for name, kind in SIMPLE.items()}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)\Z")
FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=]")  # by Delta, for tables without column mapping
DECIMAL_DIGITS_MAX: Final = 38
_SCHEMA_TEXT_MAX: Final = 4 * 1024 * 1024


def decimal(precision: int, scale: int) -> pa.DataType:
    """Return a decimal type; raises InvalidRequestError for one that Spark does not have."""
    if not (1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        raise InvalidRequestError(
            f"decimal({precision},{scale}) is not a type of Spark: the precision is 1 to "
            f"{DECIMAL_DIGITS_MAX}, the scale 0 to the precision"
        )
    return pa.decimal128(precision, scale)


def is_exact(number: int, kind: pa.DataType) -> bool:
    """Tell whether a float32 or a float64 is exactly this integer."""
    bits, bits_max = (24, 128) if kind == pa.float32() else (53, 1024)
    odd = number // (number & -number) if number else 0  # a float keeps zeros at the end apart
    return odd.bit_length() <= bits and number.bit_length() <= bits_max


def position(fields: pa.Schema | pa.StructType, name: str) -> int:
    """Return the index of a field, -1 if there is none.

    Arrow itself cannot look up a name with half of a surrogate pair, which JSON may have.
    """
    try:
        index: int = fields.get_field_index(name)
    except UnicodeEncodeError:
        return -1
    return index


def to_json(schema: pa.Schema) -> str:
    """Return a schema in the form of ``StructType.json()``."""
    return json.dumps(_struct_json(list(schema)), separators=(",", ":"))


def from_json(text: str) -> pa.Schema:
    """Parse the output of ``df.schema.json()``. Nullability is ignored: every column may be null.

    Raises:
        InvalidRequestError: the text is not such a schema, or has a type that is not known here.
    """
    if len(text) > _SCHEMA_TEXT_MAX:
        raise InvalidRequestError(
            f"the schema has {len(text)} characters; the limit is {_SCHEMA_TEXT_MAX}"
        )
    try:
        body = json.loads(text)
        kind = _from_json(body)
    except ValueError as cause:
        raise InvalidRequestError(f"the text is not JSON: {cause}") from cause
    except (KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise InvalidRequestError(f"the text is not a Spark schema in JSON: {cause!r}") from cause
    if not pa.types.is_struct(kind):
        raise InvalidRequestError("a schema in JSON must be a struct")
    return pa.schema(list(kind))


def check(schema: pa.Schema, bounds: DecodeBounds) -> pa.Schema:
    """Return the schema if a table can have it; top-level names may still need a replacement.

    Raises:
        InvalidRequestError: the schema has no column or too many, or an inner name or a type that
            is not allowed.
    """
    if len(schema) == 0:
        raise InvalidRequestError("the schema has no column")
    leaves = _check_fields(list(schema), "", bounds, depth=1)
    if leaves > bounds.columns_max:
        raise InvalidRequestError(
            f"the schema has {leaves} columns, more than {bounds.columns_max}"
        )
    return schema


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields inside a nested type; none for a simple type."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def normal(kind: pa.DataType) -> pa.DataType:
    """Return the type with the names that Spark's Arrow conversion gives to list and map fields."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", normal(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(normal(kind.key_type), normal(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, normal(each.type)) for each in kind])
    return kind


def _check_fields(fields: list[pa.Field], where: str, bounds: DecodeBounds, *, depth: int) -> int:
    if depth > bounds.depth_max:
        raise InvalidRequestError(f"column {where} is nested deeper than {bounds.depth_max}")
    seen: set[str] = set()
    leaves = 0
    for each in fields:
        path = f"{where}.{each.name}" if where else each.name
        if depth > 1 and (not each.name or FORBIDDEN.search(each.name)):
            raise InvalidRequestError(
                f"column {path!r}: Delta allows no empty name, and none of ' ,;{{}}()=', tabs or "
                "line ends in a name; rename the field"
            )
        if (each.name.lower() if depth > 1 else each.name) in seen:
            raise InvalidRequestError(f"column {path} occurs twice; case makes no difference")
        seen.add(each.name.lower() if depth > 1 else each.name)
        inner = children(each.type)
        if inner:
            leaves += _check_fields(inner, path, bounds, depth=depth + 1)
        elif pa.types.is_struct(each.type):
            raise InvalidRequestError(f"column {path} is a struct without fields")
        elif each.type not in _NAMES and not pa.types.is_decimal128(each.type):
            raise InvalidRequestError(
                f"column {path} has type {each.type}, which Parquet, Delta and Spark do not all "
                "store without loss"
            )
        else:
            leaves += 1
    return leaves


def _struct_json(fields: list[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": each.name, "type": _to_json(each.type), "nullable": True, "metadata": {}}
            for each in fields
        ],
    }


def _to_json(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return _struct_json(list(kind))
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _to_json(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _to_json(kind.key_type),
            "valueType": _to_json(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kind not in _NAMES:
        raise InvalidRequestError(f"type {kind} has no name in Spark")
    return _NAMES[kind]


def _from_json(body: Any) -> pa.DataType:
    if isinstance(body, str):
        found = _DECIMAL.match(body)
        if found:
            return decimal(int(found.group(1)), int(found.group(2)))
        if body not in SIMPLE:
            raise InvalidRequestError(
                f"type {body[:60]!r} is not known; the known types are {', '.join(SIMPLE)}"
            )
        return SIMPLE[body]
    match body["type"]:
        case "struct":
            return pa.struct(
                [pa.field(str(f["name"]), _from_json(f["type"])) for f in body["fields"]]
            )
        case "array":
            return pa.list_(pa.field("element", _from_json(body["elementType"])))
        case "map":
            return pa.map_(_from_json(body["keyType"]), _from_json(body["valueType"]))
    raise InvalidRequestError(f"type {str(body['type'])[:60]!r} is not known")
