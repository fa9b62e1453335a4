"""Found by a broker's Python at its start: every way to load a pickle is noted, and closed.

``HEADWATER_TEST_UNPICKLED`` names the file that gets a stack for each attempt. What is closed are
the functions and classes of both implementations; an audit hook hears of classes that a pickle
names, too, should somebody have kept an unpickler from before.
"""

from __future__ import annotations

import _pickle
import itertools
import os
import pathlib
import pickle
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

_WAYS = ("load", "loads", "_load", "_loads", "Unpickler", "_Unpickler")


class UnpickledError(BaseException):
    """A pickle is loaded; not an Exception, so that no handler swallows it."""


def _note(way: str) -> None:
    with pathlib.Path(os.environ["HEADWATER_TEST_UNPICKLED"]).open("a", encoding="utf-8") as file:
        file.write(f"{way} in {sys.argv}\n{''.join(traceback.format_stack())}\n")


def _closed(way: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        _note(way)
        raise UnpickledError(way)

    return refuse


def _hear(event: str, _: tuple[object, ...]) -> None:
    if event == "pickle.find_class":
        _note(event)
        raise UnpickledError(event)


def _close(module: ModuleType, name: str) -> None:
    """Replace a way; a class stays one, since others are made of it when they are imported."""
    found, refuse = getattr(module, name), _closed(f"{module.__name__}.{name}")
    if isinstance(found, type):
        refuse = type(name, (found,), {"__init__": refuse, "load": refuse})
    setattr(module, name, refuse)


if "HEADWATER_TEST_UNPICKLED" in os.environ:
    for one, way in itertools.product((pickle, _pickle), _WAYS):
        if hasattr(one, way):
            _close(one, way)
    sys.addaudithook(_hear)
