"""Imports large libraries in less time, for commands and brokers whose start somebody waits for."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
