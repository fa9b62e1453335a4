"""The public API is typed: no ``Any`` in it, each name is in the file that mypy reads.

``user_code.py`` beside this file is that file: `make check` runs mypy over it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, ForwardRef, get_args, get_type_hints

import pytest

import headwater
from broker.model.stream import StreamConfig
from headwater.client.settings import StreamSettings
from projectfiles import ROOMS, ROOT

USER_CODE: Final = "tests/typed/user_code.py"
CLASSES: Final = [name for name in headwater.__all__ if inspect.isclass(getattr(headwater, name))]


def _deferred(module: ModuleType) -> dict[str, object]:
    """Import what a module imports for checkers only, below ``if TYPE_CHECKING``."""
    found: dict[str, object] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    home = importlib.import_module(line.module)
                    for one in line.names:
                        found[one.name] = getattr(home, one.name, None) or _deferred(home)[one.name]
    return found


def _hints(function: Callable[..., object]) -> dict[str, object]:
    module = inspect.getmodule(function)
    assert module is not None
    return get_type_hints(function, localns=_deferred(module))


def _has_any(hint: object) -> bool:
    assert not isinstance(hint, ForwardRef | str), hint
    return hint is Any or any(_has_any(one) for one in get_args(hint) if not isinstance(one, str))


def _public(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") and name not in {"__init__", "__enter__", "__iter__", "__next__"}:
            continue
        found = member.fget if isinstance(member, property) else member
        if inspect.isfunction(found) or inspect.ismethod(found):
            yield name, found


def _signatures() -> list[tuple[str, Callable[..., object]]]:
    made: list[tuple[str, Callable[..., object]]] = []
    for name in headwater.__all__:
        exported = getattr(headwater, name)
        if inspect.isclass(exported):
            made.extend((f"{name}.{member}", one) for member, one in _public(exported))
        else:
            made.append((name, exported))
    return made


@pytest.mark.parametrize(("name", "function"), _signatures())
def test_a_signature_says_what_it_takes_and_gives(
    name: str, function: Callable[..., object]
) -> None:
    """Every parameter and the result have a type, and none of them is or holds ``Any``."""
    hints = _hints(function)
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    assert set(parameters) | {"return"} <= set(hints), name
    assert [one for one, hint in hints.items() if _has_any(hint)] == []


def test_any_is_found_where_it_hides() -> None:
    """The search looks into unions, mappings, tuples and callables."""

    def typed(one: dict[str, list[int]] | None, two: Callable[[int], str]) -> None: ...

    def loose(one: dict[str, list[Any]] | None, two: Any, three: tuple[Any, ...]) -> None: ...

    assert not any(_has_any(hint) for hint in _hints(typed).values())
    assert [name for name, hint in _hints(loose).items() if _has_any(hint)] == [
        "one",
        "two",
        "three",
    ]


def test_the_user_code_calls_everything() -> None:
    """What is exported, and each public member of it, is in the file that mypy checks."""
    names = {
        node.attr
        for node in ast.walk(ast.parse((ROOT / USER_CODE).read_text("utf-8")))
        if isinstance(node, ast.Attribute)
    }
    wanted = {*headwater.__all__} | {
        member
        for name in CLASSES
        for member, _ in _public(getattr(headwater, name))
        if not member.startswith("_")
    }
    assert wanted - names == set()


def test_the_settings_are_those_of_a_stream() -> None:
    """`create_stream` takes each setting of StreamConfig under its name, with its type."""
    settings = get_type_hints(StreamSettings)
    config = get_type_hints(StreamConfig)
    fields = [field.name for field in dataclasses.fields(StreamConfig) if field.name != "subject"]
    assert {name: config[name] for name in fields} == settings


@pytest.mark.parametrize("room", ROOMS)
def test_the_type_marker_is_there(room: str) -> None:
    """A checker believes an installed package's annotations only beside this file."""
    assert (ROOT / room / "py.typed").is_file()


def test_a_misspelt_name_is_an_error_at_run_time_too() -> None:
    """Checkers do not see the module's ``__getattr__``; it is as strict as they are."""
    with pytest.raises(AttributeError, match="no attribute 'rread'"):
        _ = getattr(headwater, "rread")  # noqa: B009


def test_a_function_is_exported_from_where_it_is_defined() -> None:
    """Nothing forwards: a signature, a docstring and an error's traceback are of one function."""
    functions = [name for name in headwater.__all__ if name not in CLASSES]
    assert {name: getattr(headwater, name).__module__ for name in functions} == {
        name: headwater._HOMES[name] for name in functions
    }


def test_every_exported_name_is_listed_before_it_is_loaded() -> None:
    """``dir(headwater)`` helps a notebook that has used nothing yet; loading stays lazy."""
    code = (
        "import sys, headwater; print({*headwater.__all__} <= {*dir(headwater)}, "
        "sorted({'pyspark', 'pyarrow', 'spark_jobs'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "True []"


def test_no_submodule_hides_an_exported_name() -> None:
    """An imported submodule is an attribute of its package; ``__getattr__`` is not asked then."""
    submodules = {path.stem for path in (ROOT / "headwater").iterdir()}
    assert submodules & {*headwater.__all__} == set()
