"""Parses Spark's DDL for columns, ``id BIGINT, tags ARRAY<STRING>``, without a JVM.

Spark has a parser, but only in a driver with a running JVM; decoders are also built in workers and
in tests. This parser knows the types of :mod:`spark_jobs.decode.types`, and names that are plain or
in backticks. It accepts and ignores ``NOT NULL`` and ``COMMENT``.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from broker.errors import InvalidRequestError
from spark_jobs.decode import types

_WORDS: Final = {
    **types.SIMPLE,
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "timestamp_ltz": types.SIMPLE["timestamp"],
}
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>[^\W\d]\w*)|(?P<number>\d+)"""
    r"""|(?P<text>'(?:[^'\\]|\\.)*')|(?P<mark>[<>(),:]))"""
)
_TEXT_MAX: Final = 1024 * 1024
_DEPTH_MAX: Final = 100


def parse(text: str) -> pa.Schema:
    """Return the schema of a DDL text, every column nullable.

    Raises:
        InvalidRequestError: the text is not DDL; the message shows the place of the error.
    """
    if len(text) > _TEXT_MAX:
        raise InvalidRequestError(
            f"the schema has {len(text)} characters; the limit is {_TEXT_MAX}"
        )
    reader = _DdlReader(text)
    fields = reader.fields(separator="", end="", depth=0)
    return pa.schema(fields)


class _DdlReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._start = self._at = 0  # of the present token: its first character and its end
        self.kind = ""
        self.here = ""
        self._advance()

    def fields(self, *, separator: str, end: str, depth: int) -> list[pa.Field]:
        """Read ``name type, …`` up to ``end``; ``separator`` may stand between name and type."""
        found = []
        while True:
            if self.kind not in {"word", "quoted"}:
                raise self._bad("a column name")
            name = self.here
            self._advance()
            if separator and self.here == separator:
                self._advance()
            found.append(pa.field(name, self._type(depth)))
            self._skip_constraints()
            if self.here != "," or self.kind != "mark":
                break
            self._advance()
        if self.here != end or (end == "" and self.kind):
            raise self._bad(f"{end!r}" if end else "a comma or the end")
        return found

    def _type(self, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise InvalidRequestError(f"the schema is nested deeper than the limit of {_DEPTH_MAX}")
        if self.kind != "word":
            raise self._bad("a type")
        word = self.here.lower()
        self._advance()
        if word in {"decimal", "dec", "numeric"}:
            return self._decimal()
        if word in {"array", "map", "struct"}:
            return self._nested(word, depth + 1)
        if word not in _WORDS:
            raise InvalidRequestError(
                f"type {word!r} is not known; the known types are {', '.join(sorted(_WORDS))}, "
                "decimal(p,s), array<…>, map<…,…>, struct<name: type, …>"
            )
        return _WORDS[word]

    def _nested(self, word: str, depth: int) -> pa.DataType:
        self._expect("<")
        if word == "struct":
            made = pa.struct(self.fields(separator=":", end=">", depth=depth))
        elif word == "array":
            made = pa.list_(pa.field("element", self._type(depth)))
        else:
            key = self._type(depth)
            self._expect(",")
            made = pa.map_(key, self._type(depth))
        self._expect(">")
        return made

    def _decimal(self) -> pa.DataType:
        if self.here != "(":
            return types.decimal(10, 0)
        self._advance()
        precision = self._number()
        scale = 0
        if self.here == ",":
            self._advance()
            scale = self._number()
        self._expect(")")
        return types.decimal(precision, scale)

    def _number(self) -> int:
        if self.kind != "number" or len(self.here) > 4:
            raise self._bad("a number")
        value = int(self.here)
        self._advance()
        return value

    def _skip_constraints(self) -> None:
        """Skip ``NOT NULL`` and ``COMMENT '…'``."""
        if self.kind == "word" and self.here.lower() == "not":
            self._advance()
            if self.here.lower() != "null":
                raise self._bad("NULL")
            self._advance()
        if self.kind == "word" and self.here.lower() == "comment":
            self._advance()
            if self.kind != "text":
                raise self._bad("a text in quotes")
            self._advance()

    def _expect(self, mark: str) -> None:
        if self.kind != "mark" or self.here != mark:
            raise self._bad(repr(mark))
        self._advance()

    def _advance(self) -> None:
        self._start = self._at
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            if self._text[self._at :].strip():
                self.here = self._text[self._at :].strip()[:1]
                raise self._bad("a name, a type or a comma")
            self.kind = self.here = ""
            return
        self._at = found.end()
        self.kind = found.lastgroup or ""
        self.here = found.group(self.kind)
        if self.kind == "quoted":
            self.here = self.here[1:-1].replace("``", "`")

    def _bad(self, wanted: str) -> InvalidRequestError:
        before = self._text[: self._start].strip()[-60:]
        return InvalidRequestError(
            f"the schema's text must continue with {wanted} after {before!r}, but there is "
            f"{self.here!r}"
        )
