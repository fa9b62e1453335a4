"""What a decoder is, what it returns, and how the two halves become rows of two tables.

One rule carries everything: a record's outcome depends on its own bytes and the pinned spec alone,
never on its neighbours. So the same offsets give the same rows however they are cut into batches,
and a retry after a crash writes exactly what the first attempt would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.decode.bounds import MALFORMED, TOO_LARGE, DecodeBounds, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutcome:
    """Decoded payloads: ``columns`` has one row per good value, in order; the rest has reasons."""

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
        """Decode ``binary`` values without nulls. Raises nothing on account of their content."""


class Undecodable(Exception):  # noqa: N818  (never leaves this package)
    """A piece of values, or the one value in it, does not decode."""

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
    """Return the values that are not rejected yet, and where they were (None: all are there)."""
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
    """Decode with a function that takes or refuses many values at once; find what it refuses.

    When it refuses, the suspects are tried one by one and the others together; should those be
    refused too, they are halved. ``suspects`` is a guess that only saves time.

    ``whole`` must accept values exactly if it accepts each of them alone, and must give each the
    same row in any company.
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
    """Decode value by value through Python objects, then to Arrow in one go where that works.

    ``one`` returns a dict for the struct, or raises :class:`Undecodable`.
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
    """Convert dicts to Arrow; those that do not fit the type are left out, with a reason."""
    try:
        return pa.array(objects, kind), {}
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        pass  # some object does not fit; find out which
    good: list[pa.StructArray] = []
    refused: dict[int, Reason] = {}
    for at, each in enumerate(objects):
        try:
            good.append(pa.array([each], kind))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            refused[at] = Reason.of(MALFORMED, error)
    return concat(good, kind), refused


def concat(pieces: list[pa.StructArray], kind: pa.StructType) -> pa.StructArray:
    """Join pieces of one type; also none of them."""
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)
