"""Inputs that found something, as text in ``tests/fuzz/corpus``: a file for each decoder.

A line is an input in hex, or in base64 of its zlib form if that is much shorter (``z:…``), then why
it is there. Every line is run by ``make test`` and at the beginning of each campaign.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[2] / "fuzz/corpus"
_PACKED: Final = "z:"
_HEX_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Kept:
    """One input of the corpus."""

    decoder: str
    data: bytes
    why: str


def kept(folder: Path = FOLDER) -> Iterator[Kept]:
    """Yield every input; raises ValueError for a line that is none."""
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text(encoding="ascii").splitlines():
            text, _, why = line.partition("  # ")
            if not why:
                raise ValueError(f"{path.name}: a line is an input and, behind '  # ', why")
            yield Kept(path.stem, data_of(text), why)


def line_of(data: bytes, why: str) -> str:
    """Return the line of an input."""
    packed = _PACKED + base64.b64encode(zlib.compress(data, 9)).decode()
    plain = data.hex()
    text = packed if len(plain) > _HEX_MAX and len(packed) < len(plain) else plain
    return f"{text or _PACKED + base64.b64encode(zlib.compress(b'')).decode()}  # {why}"


def data_of(text: str) -> bytes:
    """Return the input that a line begins with."""
    if text.startswith(_PACKED):
        return zlib.decompress(base64.b64decode(text.removeprefix(_PACKED)))
    return bytes.fromhex(text)
