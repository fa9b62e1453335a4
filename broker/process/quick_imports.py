"""Imports large libraries in less time, for commands and brokers whose start somebody waits for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import without the garbage collector and without numpy's threads of linear algebra.

    Objects made by an import stay in memory, and the collector would scan them again and again.
    numpy starts a thread for each core when it is imported; Headwater multiplies no matrices.
    Of large libraries a function is bound when it is first called, not all of them at the import.
    Children of this process see none of these settings.
    """
    collects = gc.isenabled()
    gc.disable()
    ours = _BLAS_THREADS not in os.environ
    if ours:
        os.environ[_BLAS_THREADS] = "1"
    binding = sys.getdlopenflags()
    sys.setdlopenflags(binding & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        yield
    finally:
        sys.setdlopenflags(binding)
        if ours:
            os.environ.pop(_BLAS_THREADS, None)
        if collects:
            gc.freeze()  # imported objects are not scanned again
            gc.enable()


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Import as if a library were not installed, unless this process has loaded it already.

    It can be imported as usual afterwards.
    """
    finder = _Hidden(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_structlog() -> None:
    """Import structlog without rich, by which it would draw what no broker logs.

    rich is a fifteenth of the CPU of a broker's imports. For entry points, before they import a
    module that logs.
    """
    with hidden("rich"):
        import structlog  # noqa: F401, PLC0415 - it remembers whether it found rich


class _Hidden(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is kept out of this process", name=fullname)
        return None
