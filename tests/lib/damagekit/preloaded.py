"""What Arrow and the broker load when they first need it, loaded once for all forked processes.

Without it each broker would spend a second of its short life on the first table that it opens.
"""

from __future__ import annotations

import importlib
from typing import Final

MODULES: Final = tuple(
    importlib.import_module(name)
    for name in (
        "deltalake",
        "encodings.idna",
        "pandas",
        "pyarrow.dataset",
        "pyarrow.pandas_compat",
        "pyarrow.parquet",
        "pyarrow.vendored.version",
        "tiering.store.local_store",
    )
)
