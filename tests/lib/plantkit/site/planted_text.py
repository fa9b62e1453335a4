"""Give one module of the product another text, without a change of any file.

``PLANTED_MODULE`` names the module and ``PLANTED_TEXT`` the file that has the module's text. Where
that text is executed, an empty file named as the text, with ``.loaded`` at its end, says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class _Text(SourceFileLoader):
    """Loads a module from a text elsewhere; no compiled file is read or written."""

    def get_code(self, fullname: str) -> CodeType:
        text = Path(os.environ["PLANTED_TEXT"])
        text.with_name(f"{text.name}.loaded").touch()
        code: Any = self.source_to_code(text.read_bytes(), self.path)
        assert isinstance(code, CodeType), f"the text of {fullname} is compiled"
        return code


class _Finder(MetaPathFinder):
    """Finds the one module that has another text, and leaves every other to Python."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != os.environ.get("PLANTED_MODULE"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Text(fullname, spec.origin)
        return spec


def plant_what_is_asked_for() -> None:
    """Put the finder before Python's own, if the environment names a module."""
    if "PLANTED_MODULE" in os.environ:
        sys.meta_path.insert(0, _Finder())
