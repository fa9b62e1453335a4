"""Our import names are plain words, so it is shown that they are ours and nobody else's.

Another project publishes a package called ``broker``. Installed into the same environment it would
replace or mix with our files without a word from pip; here that becomes a failing test.
"""

from __future__ import annotations

import importlib
from importlib.metadata import distribution, entry_points, packages_distributions
from pathlib import Path

import pytest

from projectfiles import ROOMS, ROOT


@pytest.mark.parametrize("name", ROOMS)
def test_no_other_distribution_installs_our_name(name: str) -> None:
    """Only the distribution `headwater` may provide the name, if any says it does."""
    assert set(packages_distributions().get(name, [])) <= {"headwater"}


@pytest.mark.parametrize("name", ROOMS)
def test_the_imported_package_is_the_one_in_this_tree(name: str) -> None:
    """The folder of this repository is what the name imports, also from another directory."""
    origin = importlib.import_module(name).__file__
    assert origin is not None
    assert Path(origin).resolve() == ROOT / name / "__init__.py"


def test_the_commands_are_those_of_the_project() -> None:
    """The distribution installs the two console scripts that the documents name."""
    assert distribution("headwater").version
    scripts = entry_points(group="console_scripts")
    ours = {script.name: script.value for script in scripts if script.name.startswith("headwater")}
    assert ours == {
        "headwater": "headwater.__main__:main",
        "headwater-broker": "broker.__main__:main",
    }


def test_proto_is_no_package_of_ours() -> None:
    """Sources of protobuf stay without an __init__.py, which would shadow a package `proto`."""
    assert list((ROOT / "proto").rglob("*.py")) == []
