"""What an installed Headwater consists of: our packages, whole, and nothing else.

The wheel is built from the source distribution, as a release builds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Final

import pytest

from projectfiles import ROOMS, ROOT, project_files

# Run without site-packages, so that a third-party import fails instead of going unnoticed.
FREE_IMPORT: Final = """
import sys
import broker, tiering, spark_jobs, headwater
from importlib.metadata import packages_distributions

rooms = {"broker", "tiering", "spark_jobs", "headwater"}
loaded = {name.partition(".")[0] for name in sys.modules}
foreign = loaded - set(sys.stdlib_module_names) - rooms - {"__main__"}
assert not foreign, foreign
assert {name: packages_distributions()[name] for name in rooms} == dict.fromkeys(
    rooms, ["headwater"]
)
"""


def names_in(wheel: Path) -> list[str]:
    """List the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_only_our_packages_are_in_the_wheel(wheel: Path) -> None:
    """Tests, protobuf sources, benchmarks and DAGs stay out."""
    tops = {name.split("/")[0] for name in names_in(wheel)}
    metadata = {top for top in tops if top.startswith("headwater-") and top.endswith(".dist-info")}
    assert len(metadata) == 1
    assert set(ROOMS) <= tops
    assert tops - metadata - set(ROOMS) <= {"pyspark_headwater.py"}
    assert not [name for name in names_in(wheel) if "__pycache__" in name]


def test_the_wheel_has_a_description(wheel: Path) -> None:
    """Issue 11, item 13: an index shows the first page, as Markdown."""
    (name,) = (name for name in names_in(wheel) if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        told = Parser().parsestr(archive.read(name).decode())
    assert told["Description-Content-Type"] == "text/markdown"
    assert str(told.get_payload()).lstrip().startswith("# Headwater")


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_of_a_package_is_lost(wheel: Path, room: str) -> None:
    """Modules, stubs, type markers and data files of the tree are all in the wheel."""
    expected = {path for path in project_files() if path.startswith(f"{room}/")}
    assert f"{room}/py.typed" in expected
    assert expected - set(names_in(wheel)) == set()


def test_the_top_level_module_is_in_the_wheel_when_it_exists(wheel: Path) -> None:
    """Spark finds pyspark_headwater by its name, so it has to be installed beside the packages."""
    module = "pyspark_headwater.py"
    assert (module in names_in(wheel)) == (ROOT / module).is_file()


def test_metadata_names_the_roles(wheel: Path) -> None:
    """The wheel carries the licence, the Python bound and one extra per role."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    assert metadata["Name"] == "headwater"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    roles = {"broker", "tiering", "cli", "spark", "sql", "liftbridge", "demo", "dev"}
    assert set(metadata.get_all("Provides-Extra", [])) == roles


def test_importing_the_installed_packages_is_free(wheel: Path, tmp_path: Path) -> None:
    """`import broker` and its sisters load the standard library only: Spark workers do it often."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    result = subprocess.run(
        [sys.executable, "-S", "-P", "-c", FREE_IMPORT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
