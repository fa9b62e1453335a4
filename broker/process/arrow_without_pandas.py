"""Keeps pyarrow from importing pandas into a broker, if pandas is installed for other programs.

pyarrow imports pandas when it first converts a Python list to an array: 0.7 s and 55 MB, in the
middle of ingest. pyarrow looks for pandas once. This module makes it look early, while pandas is
hidden. pandas itself can still be imported later. For entry points only, never for a library.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=fullname)
        return None


def keep_pandas_out() -> None:
    """Let pyarrow work without pandas from now on; nothing happens if pandas is imported already.

    ``to_pandas`` fails in this process afterwards.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([b""])  # here pyarrow looks for pandas, and remembers the result
    finally:
        sys.meta_path.remove(finder)
