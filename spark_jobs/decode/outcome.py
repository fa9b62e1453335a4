"""The port of a decoder, its result, and the code that all decoders share.

The main rule: a record's outcome depends only on its own bytes and the pinned spec, never on its
neighbours. So the same offsets give the same rows, however they are cut into batches. A retry after
a crash writes exactly the rows that the first attempt would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.decode.bounds import MALFORMED, TOO_LARGE, WRONG_TYPE, DecodeBounds, Reason

# What libraries raise for bytes that they cannot decode. A shortage of memory is not among them:
# it says nothing about the bytes.
BYTES_ERRORS: Final = (
    pa.ArrowCapacityError,
    pa.ArrowNotImplementedError,
    pa.ArrowSerializationError,
    ArithmeticError,
    ValueError,  # also UnicodeError and ArrowInvalid
    LookupError,
    TypeError,
    EOFError,
    RecursionError,
)
# Years 1 to 9999: all that Delta's log, Spark's types and Python can write.
_DAYS: Final = range(-719_162, 2_932_897)
_MICROSECONDS: Final = range(_DAYS.start * 86_400_000_000, _DAYS.stop * 86_400_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutcome:
    """A decoder's result: one row per good value, in order, and a reason per rejected value."""

    columns: pa.StructArray
    rejected: Mapping[int, Reason] = field(default_factory=dict)  # index among the values
    # Records with fields that the schema does not have; they were decoded without them.
    unknown_count: int = 0


class Decoder(Protocol):
    """One payload format with one schema. Built in the process that uses it, never pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The payload's columns, by their names in the payload."""

    def decode(self, values: pa.Array) -> DecodeOutcome:
        """Decode ``binary`` values without nulls. No content of a value raises an error."""


class Undecodable(Exception):  # noqa: N818  (never leaves this package)
    """A piece with several values, or with one value, cannot be decoded."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.detail)
        self.reason = reason


def too_large(values: pa.Array, bounds: DecodeBounds) -> dict[int, Reason]:
    """Return a reason for each value above the size limit."""
    sizes = pc.binary_length(values)
    limit = bounds.record_bytes_max
    if len(values) == 0 or pc.max(sizes).as_py() <= limit:
        return {}
    found = pc.indices_nonzero(pc.greater(sizes, limit)).to_pylist()
    return {
        at: Reason.of(TOO_LARGE, f"{sizes[at].as_py()} bytes, the limit is {limit}") for at in found
    }


def without(values: pa.Array, rejected: Mapping[int, Reason]) -> tuple[pa.Array, list[int] | None]:
    """Return the values that are not rejected, and their indexes (None: no value is rejected)."""
    if not rejected:
        return values, None
    kept = [at for at in range(len(values)) if at not in rejected]
    return values.take(pa.array(kept, pa.int64())), kept


def decode_pieces(
    values: pa.Array,
    whole: Callable[[pa.Array], pa.StructArray],
    suspects: Callable[[pa.Array], set[int]],
    kind: pa.StructType,
) -> tuple[pa.StructArray, dict[int, Reason]]:
    """Decode with a function that accepts or refuses many values at once; find the refused values.

    If ``whole`` refuses a piece, the values that ``suspects`` returns are tried one by one, and the
    others together. If the others are refused too, they are halved again and again. ``suspects``
    is a guess that only saves time.

    ``whole`` must accept a piece exactly if it accepts each of its values alone, and the row of a
    value must not depend on the other values.
    """
    good: list[tuple[list[int], pa.StructArray]] = []
    bad: dict[int, Reason] = {}
    guessed = False
    todo = [list(range(len(values)))]
    while todo:
        places = todo.pop()
        if not places:
            continue
        everything = len(places) == len(values)
        piece = values if everything else values.take(pa.array(places, pa.int64()))
        try:
            made = whole(piece)
        except Undecodable as error:
            if len(places) == 1:
                bad[places[0]] = error.reason
            elif not guessed:
                guessed = True
                guess = suspects(piece)
                todo += [[at] for at in sorted(guess)]
                todo.append([at for at in places if at not in guess])
            else:
                todo += [places[: len(places) // 2], places[len(places) // 2 :]]
            continue
        assert len(made) == len(places), "a decoder gives one row per value"
        good.append((places, made))
    columns = concat([made for _, made in good], kind)
    if len(good) > 1:
        order = np.argsort(np.fromiter(chain.from_iterable(at for at, _ in good), np.int64))
        columns = columns.take(pa.array(order))
    return columns, bad


def from_objects(
    values: pa.Array, one: Callable[[bytes], Any], kind: pa.StructType, bounds: DecodeBounds
) -> DecodeOutcome:
    """Decode each value to a Python object, then convert all objects to Arrow.

    The conversion is one call if all objects fit the type. ``one`` returns a dict for the struct,
    or raises :class:`Undecodable`.
    """
    rejected = too_large(values, bounds)
    objects: list[Any] = []
    places: list[int] = []
    for at, value in enumerate(values):
        if at in rejected:
            continue
        try:
            objects.append(one(value.as_py()))
            places.append(at)
        except Undecodable as error:
            rejected[at] = error.reason
    columns, refused = to_struct(objects, kind)
    rejected |= {places[at]: reason for at, reason in refused.items()}
    return DecodeOutcome(columns=columns, rejected=rejected)


def to_struct(objects: list[Any], kind: pa.StructType) -> tuple[pa.StructArray, dict[int, Reason]]:
    """Convert dicts to Arrow; a dict that does not fit the type is rejected with a reason."""
    try:
        return _held(objects, kind), {}
    except Undecodable:
        pass  # some object does not fit; find out which
    good: list[pa.StructArray] = []
    refused: dict[int, Reason] = {}
    for at, each in enumerate(objects):
        try:
            good.append(_held([each], kind))
        except Undecodable as error:
            refused[at] = error.reason
    return concat(good, kind), refused


def _held(objects: list[Any], kind: pa.StructType) -> pa.StructArray:
    try:
        made = pa.array(objects, kind)
    except BYTES_ERRORS as error:
        raise Undecodable(Reason.of(MALFORMED, error)) from None
    require_held(made)
    return made


def require_held(values: pa.Array) -> None:
    """Raise Undecodable if a table's column cannot hold a value, at any depth.

    Arrow has dates and times outside of the years 1 to 9999, and decimals of more digits than
    their type. Of such decimals a Parquet file would have a part of the digits.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        inner = values.flatten()
    elif pa.types.is_map(kind):
        inner = [values.keys, values.items]
    elif pa.types.is_list(kind):
        inner = [values.flatten()]
    else:
        _require_within(values)
        return
    for each in inner:
        require_held(each)


def _require_within(values: pa.Array) -> None:
    kind = values.type
    if pa.types.is_decimal128(kind):
        limit = Decimal(10) ** (kind.precision - kind.scale)
        least, greatest = -limit, limit
    elif pa.types.is_date32(kind):
        values, least, greatest = values.view(pa.int32()), _DAYS.start - 1, _DAYS.stop
    elif pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
        least, greatest = _MICROSECONDS.start - 1, _MICROSECONDS.stop
    else:
        return
    found = pc.min_max(values).as_py()
    if found["min"] is not None and not (least < found["min"] and found["max"] < greatest):
        raise Undecodable(Reason.of(WRONG_TYPE, f"a value is outside of a column's {kind}"))


def concat(pieces: list[pa.StructArray], kind: pa.StructType) -> pa.StructArray:
    """Join pieces of one type; the list may be empty."""
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)
