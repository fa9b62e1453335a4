"""Keeps pyarrow from importing pandas into a broker, if pandas is installed for other programs.

pyarrow imports pandas when it first converts a Python list to an array: 0.7 s and 55 MB, in the
middle of ingest. pyarrow looks for pandas once. This module makes it look early, while pandas is
hidden. pandas itself can still be imported later. For entry points only, never for a library.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from broker.process.quick_imports import hidden


def keep_pandas_out() -> None:
    """Let pyarrow work without pandas from now on; nothing happens if pandas is imported already.

    ``to_pandas`` fails in this process afterwards.
    """
    if "pandas" in sys.modules:
        return
    with hidden("pandas"):
        pa.array([b""])  # here pyarrow looks for pandas, and remembers the result
