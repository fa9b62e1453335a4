"""The public API of Headwater: the client, the read helpers and the ``headwater`` command.

Names are loaded when they are first used, so that ``import headwater`` costs nothing and works
where pyarrow or Spark are not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.client import (
        AsyncClient,
        Client,
        Consumed,
        Consumer,
        Fetched,
        PartitionedProducer,
        Producer,
    )
    from headwater.reading import (
        certificate,
        cut,
        cut_of,
        explain,
        read,
        read_many,
        register,
        release,
        release_all,
        session,
        sql,
    )
    from headwater.reads.whole import read_table

__version__ = "0.1.0"  # as in pyproject.toml; a test compares them

__all__ = [
    "AsyncClient",
    "Client",
    "Consumed",
    "Consumer",
    "Fetched",
    "PartitionedProducer",
    "Producer",
    "certificate",
    "cut",
    "cut_of",
    "explain",
    "read",
    "read_many",
    "read_table",
    "register",
    "release",
    "release_all",
    "session",
    "sql",
]

_HOMES = {
    "AsyncClient": "headwater.client",
    "Client": "headwater.client",
    "Consumed": "headwater.client",
    "Consumer": "headwater.client",
    "Fetched": "headwater.client",
    "PartitionedProducer": "headwater.client",
    "Producer": "headwater.client",
    "certificate": "headwater.reading",
    "cut": "headwater.reading",
    "cut_of": "headwater.reading",
    "explain": "headwater.reading",
    "read": "headwater.reading",
    "read_many": "headwater.reading",
    "read_table": "headwater.reads.whole",
    "register": "headwater.reading",
    "release": "headwater.reading",
    "release_all": "headwater.reading",
    "session": "headwater.reading",
    "sql": "headwater.reading",
}


if not TYPE_CHECKING:  # a checker would believe every name, misspelt ones too

    def __getattr__(name: str) -> object:
        """Import the module that defines ``name`` and return it."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'headwater' has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)

    def __dir__() -> list[str]:
        """Return the public names, too, although they are not loaded yet."""
        return sorted({*globals(), *__all__})
