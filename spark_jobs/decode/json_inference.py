"""Infers the columns of JSON objects: once for a new table, and for fields that appear later.

Columns are inferred from a sample and then pinned. They need not fit every later value: a value
that does not fit makes its record a rejected record with a reason, and nothing is lost. The rules:
whole numbers are ``bigint``; whole numbers and fractions together are ``double``, or
``decimal(38,18)`` if a double would change one of the whole numbers; strings stay strings, whatever
they contain; if records disagree, the type that most of them have wins; a field with only null or
empty values gets no column yet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_jobs.decode import types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.json_decoder import no_constant

_NAME_CHARACTERS_MAX: Final = 255
_INT64: Final = range(-(1 << 63), 1 << 63)
# Of kinds with as many votes the first wins.
_KINDS: Final = ("struct", "list", "string", "decimal", "double", "bigint", "boolean")
_SIMPLE: Final = {
    "string": pa.string(),
    "decimal": types.decimal(38, 18),  # 20 digits before the point: every integer of 64 bits
    "double": pa.float64(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
}


def objects(texts: Iterable[bytes | None]) -> list[dict[str, Any]]:
    """Parse the texts that are JSON objects; the others tell nothing about columns."""
    found = []
    for text in texts:
        if text is None:
            continue
        try:
            body = json.loads(text, parse_constant=no_constant)
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict):
            found.append(body)
    return found


def infer(sample: Sequence[Mapping[str, Any]], bounds: DecodeBounds) -> pa.Schema:
    """Return the columns of a sample of objects, in the order in which their names appear."""
    return new_fields(sample, pa.schema([]), bounds)


def new_fields(
    sample: Sequence[Mapping[str, Any]], known: pa.Schema, bounds: DecodeBounds
) -> pa.Schema:
    """Return columns for top-level fields that the schema lacks, up to ``bounds.columns_max``.

    New fields inside a known struct are ignored: the type of a struct stays as it was pinned.
    """
    room = bounds.columns_max - _leaves(list(known))
    names: dict[str, None] = {}
    for body in sample:
        names |= dict.fromkeys(name for name in body if types.position(known, name) < 0)
    fields = []
    for name in names:
        if not _usable(name):
            continue
        kind = _kind([body.get(name) for body in sample], bounds.depth_max - 1)
        if kind is None:
            continue
        size = _leaves([pa.field(name, kind)])
        if size > room:
            break
        room -= size
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _kind(values: Sequence[Any], depth_left: int) -> pa.DataType | None:
    """Return the type that most values have; None if no value has a type."""
    votes = Counter(kind for kind in map(_vote, values) if kind is not None)
    if not votes or depth_left <= 0:
        return None
    if votes["double"]:
        votes["double"] += votes.pop("bigint", 0)
        if not all(types.is_exact(each, pa.float64()) for each in values if type(each) is int):
            votes["decimal"] = votes.pop("double")
    best = max(votes, key=lambda kind: (votes[kind], -_KINDS.index(kind)))
    if best == "list":
        inner = _kind(
            [x for each in values if isinstance(each, list) for x in each], depth_left - 1
        )
        return None if inner is None else pa.list_(pa.field("element", inner))
    if best == "struct":
        return _struct([each for each in values if isinstance(each, dict)], depth_left - 1)
    return _SIMPLE[best]


def _struct(bodies: Sequence[Mapping[str, Any]], depth_left: int) -> pa.DataType | None:
    names: dict[str, None] = {}
    for body in bodies:
        names |= dict.fromkeys(body)
    fields: dict[str, pa.Field] = {}
    for name in names:
        kind = _kind([body.get(name) for body in bodies], depth_left)
        # An inner field whose name Delta does not allow is dropped, like every unknown field.
        if kind is not None and _usable(name) and not types.FORBIDDEN.search(name):
            fields.setdefault(name.lower(), pa.field(name, kind))
    return pa.struct(list(fields.values())) if fields else None


def _vote(value: Any) -> str | None:
    match value:
        case bool():
            return "boolean"
        case int():
            return "bigint" if value in _INT64 else "double"
        case float():
            return "double"
        case str():
            return "string"
        case dict():
            return "struct" if value else None
        case list():
            return "list" if value else None
    return None


def _usable(name: str) -> bool:
    """Whether a column may have the name. Half of a surrogate pair is not printable: no UTF-8."""
    return 0 < len(name) <= _NAME_CHARACTERS_MAX and name.isprintable()


def _leaves(fields: Sequence[pa.Field]) -> int:
    return sum(
        _leaves(types.children(each.type)) if types.children(each.type) else 1 for each in fields
    )
