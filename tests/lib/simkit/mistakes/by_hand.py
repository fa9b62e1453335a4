"""Calls unit tests by their names, so that a planted mistake can be shown to be noticed by one.

Only tests without fixtures: they are functions whose parameters are in ``parametrize`` marks.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

from projectfiles import ROOT


def calls_of(test_id: str) -> list[Callable[[], None]]:
    """Return one call for each set of parameters of ``path::name``."""
    path, _, name = test_id.partition("::")
    return list(_calls(getattr(_module(path), name)))


def names_in(path: str) -> list[str]:
    """Return the ids of the tests of a file that can be called."""
    functions = vars(_module(path)).items()
    names = [name for name, one in functions if name.startswith("test_") and callable(one)]
    return [f"{path}::{name}" for name in names if _is_callable(getattr(_module(path), name))]


@cache
def _module(path: str) -> ModuleType:
    name = "by_hand_" + path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _marks(test: Any) -> list[tuple[list[str], list[Any]]]:
    """Return the names and values of each ``parametrize`` of a test."""
    found = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            split = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
            found.append((split, list(values)))
    return found


def _is_callable(test: Any) -> bool:
    given = {name for names, _ in _marks(test) for name in names}
    return set(inspect.signature(test).parameters) <= given


def _calls(test: Any) -> Iterator[Callable[[], None]]:
    marks = _marks(test)
    for chosen in itertools.product(*(values for _, values in marks)):
        arguments: dict[str, Any] = {}
        for (names, _), value in zip(marks, chosen, strict=True):
            values = getattr(value, "values", value)
            several = len(names) > 1 or hasattr(value, "marks")
            arguments.update(zip(names, values if several else [value], strict=True))
        yield lambda arguments=arguments: test(**arguments)  # type: ignore[misc]
