"""Gives a data folder files of its own where it shares them with another folder.

``cp -al`` makes a copy by hard links: both folders name the same files. The log and the journals
are written in place, so what one broker appends would appear in the other folder's files, as
records that nobody published there.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

_PART: Final = ".unshared"  # in the root; what a crash leaves is written over


def unshare(root: Path, *, keep: str) -> int:
    """Replace each file below ``root`` that has another name, too, by a copy; return how many.

    Durable when the call returns. The file ``keep`` in the root stays shared. Costs one look at
    each file. Raises OSError.
    """
    found = 0
    for folder, _, names in os.walk(root):
        shared = [path for name in names if _is_shared(path := Path(folder, name))]
        for path in shared:
            if path == root / keep:
                continue
            part = root / _PART
            with path.open("rb") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, 1024 * 1024)
                os.fchmod(target.fileno(), stat.S_IMODE(path.stat().st_mode))
                target.flush()
                os.fsync(target.fileno())
            part.replace(path)
            found += 1
        if shared:
            _sync(folder)
    if found:
        _sync(root)
    return found


def _is_shared(path: Path) -> bool:
    facts = path.lstat()
    return stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1


def _sync(folder: str | Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
