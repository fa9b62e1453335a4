"""The public API of Headwater: the client, the read helpers and the ``headwater`` command.

Names are loaded when they are first used, so that ``import headwater`` costs nothing and works
where pyarrow or Spark are not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.client import Client, Fetched, PartitionedProducer, Producer
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

__all__ = [
    "Client",
    "Fetched",
    "PartitionedProducer",
    "Producer",
    "certificate",
    "cut",
    "cut_of",
    "explain",
    "read",
    "read_many",
    "register",
    "release",
    "release_all",
    "session",
    "sql",
]

_HOMES = {
    "Client": "headwater.client",
    "Fetched": "headwater.client",
    "PartitionedProducer": "headwater.client",
    "Producer": "headwater.client",
    "certificate": "headwater.reading",
    "cut": "headwater.reading",
    "cut_of": "headwater.reading",
    "explain": "headwater.reading",
    "read": "headwater.reading",
    "read_many": "headwater.reading",
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
