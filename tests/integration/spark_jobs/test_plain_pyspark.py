"""Issue 11, item 13: plain pyspark finds the format; the docs name the exceptions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(700),
]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark_source.md"
PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("headwater").option("subscribe", "s")
try:
    print("columns", rows.option("server", "grpc://127.0.0.1:1").load().columns)
except Exception as error:
    print("error", " ".join(str(error).split())[:3000])
spark.stop()
"""


def _run(folder: Path, environment: dict[str, str]) -> str:
    """Run a program that knows pyspark only, by this interpreter; return what it printed."""
    program = folder / "plain.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_page_says_of_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    """If `python3` of the path is another interpreter, the page has the error and its remedy."""
    said = " ".join(PAGE.read_text().split())
    (promised,) = re.findall(r'without Headwater: "([^"]+)"', said)
    assert "Set the variable `PYSPARK_PYTHON` to the interpreter that has it" in said
    other = tmp_path / "bin"
    other.mkdir()
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (other / "python3").symlink_to(bare / "bin" / "python3")
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYSPARK", "PYTHON", "SPARK_HOME", "VIRTUAL_ENV"))
    }
    environment["PATH"] = f"{other}:/usr/bin:/bin"
    failed = _run(tmp_path, environment)
    assert promised in failed
    found = _run(tmp_path, {**environment, "PYSPARK_PYTHON": sys.executable})
    assert "'offset'" in found
