"""What the campaign knows of a decoder: how to call it, its errors, bytes that it accepts."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from broker.errors import HeadwaterError


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One decoder of bytes from outside."""

    name: str  # the name of its file in tests/fuzz/corpus, too
    covers: tuple[str, ...]  # dotted names of the functions that it calls, as rooms.py finds them
    decode: Callable[[bytes], object]
    make_seeds: Callable[[], list[bytes]]
    errors: tuple[type[Exception], ...] = (HeadwaterError,)
    # Puts right the checksums of changed bytes, so that a change gets past them.
    reseal: Callable[[bytes], bytes] | None = None
    raw_seeds: bool = True  # whether each seed has to be accepted as it is

    @cached_property
    def seeds(self) -> list[bytes]:
        """Valid bytes to begin with."""
        found = self.make_seeds()
        assert found, f"{self.name} has no seed"
        return found

    def accepts(self, data: bytes) -> bool:
        """Tell whether the bytes are decoded; an error that is not one of its own is raised."""
        try:
            self.decode(data)
        except self.errors:
            return False
        return True


@cache
def scratch() -> Path:
    """Return a folder of this process for decoders of files; it is removed when the process ends.

    The files are rewritten for each input.
    """
    folder = Path(mkdtemp(prefix="headwater-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def consumed(found: Any) -> object:
    """Use up an iterator, whose errors come one by one."""
    return list(found)
