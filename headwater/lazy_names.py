"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, namespace: Mapping[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    ``namespace`` is the package's ``globals()``, ``homes`` the module that defines each name.
    """

    def load(name: str) -> object:
        """Import the module that defines ``name`` and return it."""
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)

    def names() -> list[str]:
        """Return the public names, too, although they are not loaded yet."""
        return sorted({*namespace, *namespace["__all__"]})

    return load, names
