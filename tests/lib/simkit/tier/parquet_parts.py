"""The positions of page headers, pages and footer in a Parquet file, for tests of damage.

Page headers are Thrift structures in the compact protocol; only as much of it is read here as
tells how long each is, and its integers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

_MAGIC_BYTES: Final = 4
_FOOTER_END_BYTES: Final = 8
_PAGE_KINDS: Final = {0: "data", 2: "dictionary", 3: "data"}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file: ``[start, end)``."""

    what: str  # magic, header, body, footer, length
    column: str  # empty where it is no column's
    page: str  # data, dictionary, or empty
    start: int
    end: int


def parts_of(path: Path) -> list[Part]:
    """Return the parts of a file, in its order."""
    body = path.read_bytes()
    found = [Part("magic", "", "", 0, _MAGIC_BYTES)]
    footer = pq.ParquetFile(path).metadata
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            column = footer.row_group(group).column(place)
            at = column.dictionary_page_offset or column.data_page_offset
            end = at + column.total_compressed_size
            while at < end:
                fields, page = _structure(body, at)
                size, kind = fields[3], _PAGE_KINDS[fields[1]]
                found.append(Part("header", column.path_in_schema, kind, at, page))
                found.append(Part("body", column.path_in_schema, kind, page, page + size))
                at = page + size
    size = len(body)
    (footer_bytes,) = struct.unpack("<I", body[-_FOOTER_END_BYTES:-_MAGIC_BYTES])
    start = size - _FOOTER_END_BYTES - footer_bytes
    found.append(Part("footer", "", "", start, size - _FOOTER_END_BYTES))
    found.append(Part("length", "", "", size - _FOOTER_END_BYTES, size - _MAGIC_BYTES))
    found.append(Part("magic", "", "", size - _MAGIC_BYTES, size))
    return found


def _structure(body: bytes, at: int) -> tuple[dict[int, int], int]:
    """Return a structure's integers by field number, and where it ends."""
    number = 0
    found: dict[int, int] = {}
    while body[at]:
        delta, kind = body[at] >> 4, body[at] & 15
        at += 1
        if delta:
            number += delta
        else:
            raw, at = _varint(body, at)
            number = _unzigzag(raw)
        if kind in (4, 5, 6):  # i16, i32, i64
            raw, at = _varint(body, at)
            found[number] = _unzigzag(raw)
        else:
            at = _skipped(body, at, kind)
    return found, at + 1


def _skipped(body: bytes, at: int, kind: int) -> int:
    if kind in (1, 2):  # a boolean lies in its field's head
        return at
    if kind == 8:  # binary
        size, at = _varint(body, at)
        return at + size
    if kind == 12:  # structure
        return _structure(body, at)[1]
    raise ValueError(f"no page header has fields of kind {kind}")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def _unzigzag(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)
