"""Each program in ``examples/`` runs as a user would run it, and prints what its docstring says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from headwater.local import embedded
from headwater.local.runtime_file import RuntimeFile
from projectfiles import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WITH_SPARK = {"nats_to_dataframe.py", "structured_streaming.py"}
_TIMEOUT_S = 560  # a Spark session on a machine that is busy with other tests


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeFile]:
    """Start the server that all examples use."""
    data = tmp_path_factory.mktemp("examples")
    free_ports = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
    with embedded.start_up(data, *free_ports):
        yield RuntimeFile.read(data)


def _docstring(example: Path) -> str:
    return ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_what_it_says(example: Path, server: RuntimeFile, tmp_path: Path) -> None:
    """The lines below "Prints::" are what comes out, twice: a second run starts afresh."""
    spark = example.name in WITH_SPARK
    if spark and "HEADWATER_TEST_ALL_EXAMPLES" not in os.environ:
        pytest.skip("with Spark a minute or more: `make examples` runs it")
    expected = dedent(_docstring(example).partition("Prints::\n")[2]).strip()
    assert expected, "no `Prints::` in the docstring"
    for _ in range(1 if spark else 2):
        done = subprocess.run(
            [sys.executable, example],
            cwd=tmp_path,
            env={**os.environ, "HEADWATER_SERVER": server.flight, "NATS_URL": server.nats},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected


def test_every_example_is_in_the_list() -> None:
    """examples/README.md links each program, and says which of them need Spark."""
    page = (ROOT / "examples/README.md").read_text("utf-8")
    for example in EXAMPLES:
        (row,) = [line for line in page.splitlines() if f"]({example.name})" in line]
        assert row.endswith("| yes |") == (example.name in WITH_SPARK)
