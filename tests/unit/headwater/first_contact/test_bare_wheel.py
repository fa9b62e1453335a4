"""Issue 11, item 13: with the wheel alone, the error names the missing packages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headwater
from headwater.extras import install_hint
from projectfiles import ROOT

# First on the path: it lets no import of the command's packages succeed.
_HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich", "click", "cryptography"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hiding())
"""


@pytest.mark.parametrize("words", [("--help",), ("publish", "orders")])
def test_the_command_of_a_bare_wheel_says_which_extra_to_install(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """One line, no traceback, exit code 2; before, 15 lines about typer were printed."""
    (tmp_path / "sitecustomize.py").write_text(_HIDING)
    done = subprocess.run(
        [sys.executable, "-m", "headwater", *words],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "headwater[cli]" in line


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ('{"url": "file:///tmp/headwater-0.1.0-py3-none-any.whl"}', "file:///tmp/headwater-0.1.0"),
        (None, "'headwater[spark]'"),
        ("{", "'headwater[spark]'"),
        ("[]", "'headwater[spark]'"),
    ],
)
def test_no_hint_names_a_package_that_is_not_ours_to_name(
    monkeypatch: pytest.MonkeyPatch, told: str | None, named: str
) -> None:
    """A distribution from a file is installed from that file again, with the extra."""

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return told

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed())
    assert named in install_hint("spark")
    assert f"{sys.executable} -m pip install" in install_hint("spark")


def test_the_package_shows_its_names_and_its_version() -> None:
    """`dir(headwater)` has the API before anything is loaded; the version is the project's."""
    names = json.loads(
        subprocess.run(
            [sys.executable, "-c", "import headwater, json; print(json.dumps(dir(headwater)))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert {*headwater.__all__, "__version__"} <= set(names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert headwater.__version__ == project["version"]
    assert project["readme"] == "README.md"


def test_no_module_hides_a_function_of_the_package() -> None:
    """`headwater.sql(…)` was a module, and not callable, once a query was answered here."""
    modules = {one.name for one in pkgutil.iter_modules(headwater.__path__)}
    assert modules & set(headwater.__all__) == set()
