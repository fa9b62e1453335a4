"""Turn parsed JSON into typed values, by the annotations of dataclasses; other JSON is refused.

Commands and snapshots come from a disk or from another broker. ``apply`` must never raise. So every
value that reaches ``apply`` has the type with which mypy checked the code, and every number fits
into an int64.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from broker.model.stream import Stream

INT_MAX: Final = 2**63 - 1
_Reader = Callable[[Any], Any]
_T = TypeVar("_T")


def build(kind: type[_T], values: Any) -> _T:
    """Return ``kind(**values)`` with every field checked; absent fields get their default.

    Raises:
        TypeError, ValueError: a field is unknown, missing, or of another type.
        HeadwaterError: a value object refused its content.
    """
    return cast("_T", _reader(cast("Any", kind))(values))


@cache
def _reader(hint: Any) -> _Reader:
    supertype = getattr(hint, "__supertype__", None)
    if supertype is not None:
        return _reader(supertype)
    if hint is Stream:
        return _stream
    if dataclasses.is_dataclass(hint):
        return _dataclass_reader(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        return _tuple_reader(args[0])
    if origin is Mapping:
        return _mapping_reader(args[1])
    if origin is Literal:
        return _choice_reader(args)
    if origin in (types.UnionType, Union):
        (inner,) = (one for one in args if one is not type(None))
        return _optional_reader(inner)
    assert hint in (int, str, bool), f"no reader for {hint}"
    return _primitive_reader(hint)


def _stream(value: Any) -> Stream:
    if not isinstance(value, dict):
        raise TypeError("a stream is an object")
    return Stream.from_dict(value)


def _dataclass_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    fields = {one.name: _reader(hints[one.name]) for one in dataclasses.fields(kind)}

    def read(values: Any) -> Any:
        if not isinstance(values, dict):
            raise TypeError(f"{kind.__name__} is an object, not {type(values).__name__}")
        unknown = values.keys() - fields.keys()
        if unknown:
            raise TypeError(f"{kind.__name__} has no field {min(unknown)!r}")
        return kind(**{name: fields[name](value) for name, value in values.items()})

    return read


def _tuple_reader(item: Any) -> _Reader:
    read_item = _reader(item)

    def read(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list):
            raise TypeError(f"a list was expected, not {type(values).__name__}")
        return tuple(read_item(one) for one in values)

    return read


def _mapping_reader(item: Any) -> _Reader:
    read_item = _reader(item)

    def read(values: Any) -> dict[str, Any]:
        if not isinstance(values, dict):
            raise TypeError(f"an object was expected, not {type(values).__name__}")
        return {name: read_item(one) for name, one in values.items()}

    return read


def _choice_reader(choices: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"one of {choices} was expected, not {value!r}")
        return value

    return read


def _optional_reader(inner: Any) -> _Reader:
    read_inner = _reader(inner)
    return lambda value: None if value is None else read_inner(value)


def _primitive_reader(expected: Any) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not expected:
            raise TypeError(f"{expected.__name__} was expected, not {type(value).__name__}")
        if expected is int and not -INT_MAX <= value <= INT_MAX:
            raise ValueError("a number exceeds 63 bits")
        return value

    return read
