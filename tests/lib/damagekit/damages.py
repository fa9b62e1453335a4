"""Does one damage to one file or folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from damagekit.golden import clone

_PLACES = {"begin": 0.0, "quarter": 0.25, "middle": 0.5, "end": 1.0}


def damage(target: Path, kind: str, source: Path | None) -> None:
    """Damage a file or folder.

    What rot or a cut does happens in place, as on a disk; a copy is put there as ``cp`` and a
    rename do, so that a process which has the old file open keeps it.
    """
    match kind.split("-"):
        case ["nothing"]:
            pass
        case ["gone"]:
            _remove(target)
        case ["emptied"] if target.is_dir():
            for entry in target.iterdir():
                _remove(entry)
        case ["emptied"]:
            os.truncate(target, 0)
        case ["cut", place]:
            _cut(target, place)
        case ["flip", place]:
            _flip(target, place)
        case ["hole", place]:
            _hole(target, place)
        case _:
            assert source is not None, f"{kind} needs something to put there"
            beside = target.with_name(f"{target.name}.incoming")
            clone(source, beside)
            if target.is_dir():
                _remove(target)
            beside.rename(target)


def _cut(target: Path, place: str) -> None:
    size = target.stat().st_size
    at = {"begin": min(1, size - 1), "middle": size // 2, "end": size - 1}[place]
    os.truncate(target, at)


def _flip(target: Path, place: str) -> None:
    size = target.stat().st_size
    at = min(size - 1, int(size * _PLACES[place]))
    with target.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << (at % 8))]))


def _hole(target: Path, place: str) -> None:
    """Let a part read as zeros, as blocks that were never written: the size stays."""
    size = target.stat().st_size
    begin, end = {"middle": (size // 3, 2 * size // 3), "end": (2 * size // 3, size)}[place]
    with target.open("r+b") as file:
        file.seek(end)
        rest = file.read()
        file.truncate(begin)
        file.truncate(size)
        file.seek(end)
        file.write(rest)


def _remove(target: Path) -> None:
    """Remove it in one step: a broker that runs may be writing into the folder."""
    if target.is_dir() and not target.is_symlink():
        gone = target.with_name(f".{target.name}.gone")
        target.rename(gone)
        shutil.rmtree(gone)
    else:
        target.unlink()
