"""Decodes JSON objects into columns, at the speed of Arrow's parser.

Arrow's JSON parser takes a whole batch of concatenated texts. Three rules make that safe here:

- Each text must begin with ``{`` and end with ``}``, and the parser must find as many objects as
  there are texts. Then no object can span two texts, and no text can hold two objects: after a
  ``}`` that closes nothing, the next text's ``{`` is an error, and so is the line end inside a
  string. (The parser of pyarrow 26 also crashes the process on a text that is just ``null``.)
- Before the parser gets a text, the text is known to be valid UTF-8 and not nested too deep.
- A piece that fails is halved until the bad record is alone. The parser gives the same result for
  a record alone as among others, so a bad record costs some repeated work and nothing else.

Types are strict: ``"5"`` is not a number and ``1.5`` is not an integer. A field that occurs twice
makes a record malformed, and so does ``NaN`` or ``Infinity``, which are no JSON. An integer that a
column of fractions cannot hold exactly is rejected: the parser would change it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from broker.errors import InvalidRequestError
from spark_jobs.decode import types
from spark_jobs.decode.bounds import MALFORMED, NOT_UTF8, TOO_DEEP, WRONG_TYPE, DecodeBounds, Reason
from spark_jobs.decode.outcome import (
    BYTES_ERRORS,
    DecodeOutcome,
    Undecodable,
    concat,
    decode_pieces,
    require_held,
    too_large,
)

_PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
_PIECE_ROWS_MAX: Final = 16_384
_SPACE: Final = " \t\r\n"
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# A number may have more than 38 digits after the point only if its text has one of these.
_SMALL: Final = r"\.[0-9]{29,}|[0-9.][eE]-0*[1-9][0-9]"
_MAYBE_SMALL: Final = rf"{_SMALL}|\\u00"  # in a text, digits and letters may have escapes
_RESCALED_MAX: Final = 38  # digits by which Arrow can move the point of a decimal
# From here on a column of fractions does not have every integer.
_CROWDED: Final = {pa.float32(): 1 << 24, pa.float64(): 1 << 53}
_DOUBLE_DIGITS_MAX: Final = 310  # a number of more digits is infinite in a column of fractions
_NO_NUMBER: Final = r"[:,\[]\s*-?(NaN|Inf)"  # outside of strings, and seldom inside


class JsonDecoder:
    """Decodes JSON objects by a fixed schema; fields without a column are dropped and counted."""

    def __init__(self, schema: pa.Schema, bounds: DecodeBounds) -> None:
        self._schema = types.check(schema, bounds)
        self._bounds = bounds
        self._parsed = pa.schema([pa.field(each.name, _parsed_type(each.type)) for each in schema])
        self._kind = pa.struct(list(schema))
        kinds = _leaves(self._kind)
        scales = [each.scale for each in kinds if pa.types.is_decimal(each)]
        self._maybe_unheld = _maybe_unheld(max(scales)) if scales else None
        self._floats = {each for each in kinds if pa.types.is_floating(each)}
        digits = min((_CROWDED[each] for each in self._floats), default=0)
        self._maybe_lost = rf"[:,\[]\s*-?[0-9]{{{len(str(digits))},}}\s*[,}}\]]"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the payload."""
        return self._schema

    def decode(self, values: pa.Array) -> DecodeOutcome:
        """Decode texts; see :class:`spark_jobs.decode.outcome.Decoder`."""
        rejected = too_large(values, self._bounds)
        places = _all_but(rejected, len(values))
        texts, refused = _texts(_taken(values, places), self._bounds)
        rejected |= {int(places[at]): reason for at, reason in refused.items()}
        places = np.delete(places, list(refused))
        for look in (_with_no_number, self._unheld):
            refused = look(texts)
            rejected |= {int(places[at]): reason for at, reason in refused.items()}
            texts = _taken(texts, _all_but(refused, len(texts)))
            places = np.delete(places, list(refused))
        good: list[pa.StructArray] = []
        unknown = 0
        for start, end in _pieces(texts):
            counting = _Counting(self)
            made, bad = decode_pieces(
                texts.slice(start, end - start), counting.parse, self._suspects, self._kind
            )
            good.append(made)
            unknown += counting.unknown_count
            rejected |= {int(places[start + at]): reason for at, reason in bad.items()}
        return DecodeOutcome(
            columns=concat(good, self._kind), rejected=rejected, unknown_count=unknown
        )

    def unknown_fields(self, texts: pa.Array) -> list[dict[str, Any]]:
        """Return the objects that have fields, at any depth, which the schema lacks."""
        found = []
        for text in texts.to_pylist():
            try:
                body = json.loads(text)
            except (ValueError, RecursionError):  # Arrow's parser accepts a few more spellings
                continue
            if isinstance(body, dict) and _has_unknown(body, self._kind):
                found.append(body)
        return found

    def parse(self, texts: pa.Array, *, strict: bool) -> pa.StructArray:
        """Parse all texts at once; with ``strict`` an unknown field is a failure too."""
        joined = pc.binary_join(
            pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n"
        )
        body = joined[0].as_buffer()
        try:
            table = pj.read_json(
                pa.BufferReader(body),
                read_options=pj.ReadOptions(use_threads=False, block_size=body.size + 16),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._parsed,
                    unexpected_field_behavior="error" if strict else "ignore",
                ),
            )
            if table.num_rows != len(texts):
                raise Undecodable(Reason.of(MALFORMED, "more than one JSON value in a record"))
            made = _conformed(table, self._kind)
        except BYTES_ERRORS as error:
            raise Undecodable(_reason(error)) from None
        require_held(made)
        if self._floats:
            self._require_kept(made, texts)
        return made

    def _require_kept(self, made: pa.StructArray, texts: pa.Array) -> None:
        """Raise Undecodable if a column of fractions has infinity, or changed an integer."""
        crowded = False
        for each in _float_leaves(made):
            found = pc.min_max(each).as_py()
            if found["min"] is None:
                continue
            size = max(abs(found["min"]), abs(found["max"]))
            if math.isinf(size):
                raise Undecodable(Reason.of(WRONG_TYPE, f"a number is too large for {each.type}"))
            crowded |= size >= _CROWDED[each.type]
        if not crowded:
            return
        for at in pc.indices_nonzero(pc.match_substring_regex(texts, self._maybe_lost)).to_pylist():
            try:
                body = json.loads(texts[at].as_py(), parse_int=_whole, strict=False)
            except (ValueError, RecursionError) as error:
                raise Undecodable(Reason.of(MALFORMED, error)) from None
            if not _keeps_integers(body, self._kind):
                detail = "an integer has more digits than its column of fractions can hold"
                raise Undecodable(Reason.of(WRONG_TYPE, detail))

    def _unheld(self, texts: pa.Array) -> dict[int, Reason]:
        """Return the texts with a decimal that Arrow's parser must not get.

        Such a decimal has far more digits after the point than its column. The parser of pyarrow 26
        reads beyond a table of powers then: the value is wrong, or the process ends. Or the decimal
        has so many digits before the point that the parser's 128 bits overflow: the value is wrong.
        """
        if self._maybe_unheld is None:
            return {}
        refused = {}
        found = pc.match_substring_regex(texts, self._maybe_unheld)
        for at in pc.indices_nonzero(found).to_pylist():
            try:
                body = json.loads(
                    texts[at].as_py(), parse_float=str, parse_int=str, object_pairs_hook=_Pairs,
                    strict=False,
                )  # fmt: skip
            except (ValueError, RecursionError) as error:
                refused[at] = Reason.of(MALFORMED, error)
                continue
            if not _rescalable(body, self._kind):
                refused[at] = Reason.of(WRONG_TYPE, "a decimal has too many digits for its column")
        return refused

    def _suspects(self, texts: pa.Array) -> set[int]:
        return {
            at for at, text in enumerate(texts.to_pylist()) if not _fits(_loaded(text), self._kind)
        }


class _Counting:
    """Parses texts, and counts the good ones with fields that were dropped."""

    def __init__(self, decoder: JsonDecoder) -> None:
        self._decoder = decoder
        self.unknown_count = 0

    def parse(self, texts: pa.Array) -> pa.StructArray:
        try:
            return self._decoder.parse(texts, strict=True)
        except Undecodable:
            made = self._decoder.parse(texts, strict=False)  # fails again for any other cause
        self.unknown_count += len(self._decoder.unknown_fields(texts))
        return made


def check_json_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema if JSON can fill it.

    Raises:
        InvalidRequestError: a column is a map or binary; JSON has several spellings for these.
    """
    todo = [(each.name, each.type) for each in schema]
    while todo:
        path, kind = todo.pop()
        if pa.types.is_map(kind) or pa.types.is_binary(kind):
            raise InvalidRequestError(
                f"column {path} is {kind}, for which JSON has several spellings; declare the "
                "column as a struct or a string"
            )
        todo += [(f"{path}.{each.name}", each.type) for each in types.children(kind)]
    return schema


def _texts(values: pa.Array, bounds: DecodeBounds) -> tuple[pa.Array, dict[int, Reason]]:
    """Return the values that look like one JSON object each, and the reasons of the others.

    Only encoding, first and last character and depth are checked here.
    """
    refused: dict[int, Reason] = {}
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        good = []
        for at, value in enumerate(values.to_pylist()):
            try:
                good.append(value.decode())
            except UnicodeDecodeError:
                refused[at] = Reason.of(NOT_UTF8, "the bytes are not UTF-8")
                good.append("{}")  # a placeholder, which is dropped below
        texts = pa.array(good, pa.string())
    framed = _framed(texts)
    if not pc.all(framed, min_count=0).as_py():
        texts = pc.utf8_trim(texts, characters=_SPACE)
        framed = _framed(texts)
    for at in pc.indices_nonzero(pc.invert(framed)).to_pylist():
        refused[at] = Reason.of(MALFORMED, "the text is not one JSON object")
    for at in _with_many_brackets(texts, bounds.depth_max):
        depth = _depth(texts[at].as_py().encode())
        if depth > bounds.depth_max and at not in refused:
            refused[at] = Reason.of(TOO_DEEP, f"depth {depth}, the limit is {bounds.depth_max}")
    return _taken(texts, _all_but(refused, len(texts))), refused


def _with_many_brackets(texts: pa.Array, openers_max: int) -> list[int]:
    """Return which texts have more than ``openers_max`` opening brackets, so may be too deep."""
    ends = _ends(texts)
    body = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    openers = np.flatnonzero((body == ord("{")) | (body == ord("[")))
    counts = np.diff(np.searchsorted(openers, ends - ends[0]))
    return [int(at) for at in np.flatnonzero(counts > openers_max)]


def _ends(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return where each text begins in the data buffer, and where the last one ends."""
    buffer = texts.buffers()[1]
    if buffer is None:  # an array without texts may have none
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all of its names, also those that occur twice."""


def _leaves(kind: pa.DataType) -> set[pa.DataType]:
    """Return the simple types in a type."""
    inner = types.children(kind)
    return {leaf for each in inner for leaf in _leaves(each.type)} if inner else {kind}


def _float_leaves(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of fractions in an array, at any depth."""
    if pa.types.is_struct(values.type):
        for each in values.flatten():
            yield from _float_leaves(each)
    elif pa.types.is_list(values.type):
        yield from _float_leaves(values.flatten())
    elif pa.types.is_floating(values.type):
        yield values


def _maybe_unheld(scale: int) -> str:
    """Return a pattern of all texts with a decimal that Arrow's parser must not get."""
    digits = types.DECIMAL_DIGITS_MAX + 1 - scale
    return rf"{_MAYBE_SMALL}|[eE]\+?0*[1-9]|[0-9]{{{digits},}}"


def _with_no_number(texts: pa.Array) -> dict[int, Reason]:
    """Return the texts with NaN or Infinity, which Arrow's parser takes and JSON does not have."""
    refused = {}
    for at in pc.indices_nonzero(pc.match_substring_regex(texts, _NO_NUMBER)).to_pylist():
        try:
            json.loads(
                texts[at].as_py(), parse_float=str, parse_int=str, parse_constant=no_constant,
                strict=False,
            )  # fmt: skip
        except (ValueError, RecursionError) as error:
            refused[at] = Reason.of(MALFORMED, error)
    return refused


def no_constant(name: str) -> None:
    """Refuse NaN and Infinity; for ``json.loads(…, parse_constant=)``."""
    raise ValueError(f"{name} is no JSON")


def _whole(text: str) -> int:
    """Return an integer; of one that no column of fractions holds, any other will do."""
    return int(text) if len(text) <= _DOUBLE_DIGITS_MAX else 0


def _keeps_integers(body: Any, kind: pa.DataType) -> bool:
    """Tell whether the columns of fractions can hold the integers of a JSON value exactly."""
    if isinstance(body, dict) and pa.types.is_struct(kind):
        return all(
            _keeps_integers(body[each.name], each.type) for each in kind if each.name in body
        )
    if isinstance(body, list) and pa.types.is_list(kind):
        return all(_keeps_integers(each, kind.value_type) for each in body)
    if type(body) is not int or not pa.types.is_floating(kind):
        return True
    return types.is_exact(body, kind)


def _rescalable(body: Any, kind: pa.DataType) -> bool:
    """Tell whether Arrow can give all decimals in a JSON value the scale of their columns."""
    if isinstance(body, _Pairs):
        if not pa.types.is_struct(kind):
            return True
        fields = {each.name: each.type for each in kind}
        return all(_rescalable(inner, fields[name]) for name, inner in body if name in fields)
    if isinstance(body, list):
        return not pa.types.is_list(kind) or all(
            _rescalable(each, kind.value_type) for each in body
        )
    if not (pa.types.is_decimal(kind) and isinstance(body, str)):
        return True
    try:
        number = Decimal(body)
    except InvalidOperation:
        # The exponent has too many digits, or the text is no number and means no decimal.
        return not re.search(_SMALL, body)
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        return True
    return -exponent <= kind.scale + _RESCALED_MAX and (
        number == 0 or number.adjusted() < kind.precision - kind.scale
    )


def _framed(texts: pa.Array) -> pa.Array:
    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))


def _all_but(refused: Collection[int], count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.delete(np.arange(count, dtype=np.int64), list(refused))


def _taken(values: pa.Array, places: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    return values if len(places) == len(values) else values.take(pa.array(places))


def _depth(text: bytes) -> int:
    """Return how deep brackets are nested outside strings; exact for well-formed JSON."""
    marks = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    opened = (marks == ord("{")) | (marks == ord("["))
    closed = (marks == ord("}")) | (marks == ord("]"))
    steps = opened.astype(np.int64) - closed.astype(np.int64)
    return int(np.cumsum(steps).max(initial=0))


def _pieces(values: pa.Array) -> list[tuple[int, int]]:
    """Cut a batch into pieces that are short enough for one call of the parser."""
    if values.nbytes <= _PIECE_BYTES_MAX and len(values) <= _PIECE_ROWS_MAX:
        return [(0, len(values))]
    ends = _ends(values)
    pieces, start = [], 0
    while start < len(values):
        within = int(np.searchsorted(ends, int(ends[start]) + _PIECE_BYTES_MAX, "right")) - 1
        end = min(max(within, start + 1), start + _PIECE_ROWS_MAX, len(values))
        pieces.append((start, end))
        start = end
    return pieces


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """Return the type for the parser: it cannot parse dates, so they are parsed as strings."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _parsed_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _parsed_type(each.type)) for each in kind])
    return kind


def _conformed(table: pa.Table, kind: pa.StructType) -> pa.StructArray:
    """Return the parsed table as one struct array of exactly the schema's types."""
    columns = []
    for each in kind:
        column = table.column(each.name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # pyarrow's result for a column without chunks
            column = pa.concat_arrays(column.chunks) if column.chunks else pa.nulls(0, each.type)
        columns.append(column if column.type == each.type else column.cast(each.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _reason(error: Exception) -> Reason:
    text = str(error).removeprefix("JSON parse error: ")
    typed = "changed from" in text or "Failed to " in text or "Failed of" in text
    # A rejected record was parsed alone, so its row is always 0 and says nothing.
    return Reason.of(WRONG_TYPE if typed else MALFORMED, text.removesuffix(" in row 0"))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _fits(body: Any, kind: pa.DataType) -> bool:
    """Guess whether the parser accepts a JSON value as the type; a wrong guess costs only time."""
    if pa.types.is_struct(kind):
        return isinstance(body, dict) and all(
            body.get(each.name) is None or _fits(body[each.name], each.type) for each in kind
        )
    if pa.types.is_list(kind):
        return isinstance(body, list) and all(
            each is None or _fits(each, kind.value_type) for each in body
        )
    if pa.types.is_boolean(kind):
        return isinstance(body, bool)
    if pa.types.is_integer(kind):
        return type(body) is int and -(1 << kind.bit_width - 1) <= body < 1 << kind.bit_width - 1
    if pa.types.is_floating(kind):
        if type(body) is int:
            return types.is_exact(body, kind)
        return isinstance(body, float) and math.isfinite(body)
    if not isinstance(body, str):
        return pa.types.is_decimal(kind) and type(body) in {int, float}
    try:
        if pa.types.is_date(kind):
            date.fromisoformat(body)
        elif pa.types.is_timestamp(kind):
            datetime.fromisoformat(body)
    except ValueError:
        return False
    return True


def _has_unknown(body: Any, kind: pa.DataType) -> bool:
    if isinstance(body, dict) and pa.types.is_struct(kind):
        for name, inner in body.items():
            at = types.position(kind, name)
            if at < 0 or _has_unknown(inner, kind.field(at).type):
                return True
    if isinstance(body, list) and pa.types.is_list(kind):
        return any(_has_unknown(inner, kind.value_type) for inner in body)
    return False
