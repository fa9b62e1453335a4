"""Jobs as people start them: the command beside a real server, and spark-submit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headwater.local.embedded import start_up

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

BIN = Path(sys.executable).parent


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which `headwater up` runs, with a stream of ten records."""
    ports = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
    with start_up(tmp_path / "headwater-data", *ports):
        headwater(tmp_path, "stream", "create", "orders", "--puback")
        publish(tmp_path, range(10))
        yield tmp_path


def headwater(folder: Path, *words: str, stdin: str = "") -> str:
    """Run the command in a folder; it must succeed."""
    done = subprocess.run(
        [BIN / "headwater", *words],
        cwd=folder,
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def publish(folder: Path, numbers: range) -> None:
    """Store JSON records with these numbers."""
    headwater(folder, "publish", "orders", stdin="".join(f'{{"n": {n}}}\n' for n in numbers))


def environment() -> dict[str, str]:
    """Return an activated environment, without a server named in it."""
    found = {name: value for name, value in os.environ.items() if name != "HEADWATER_SERVER"}
    return found | {"PATH": f"{BIN}{os.pathsep}{found['PATH']}"}


def numbers(folder: Path) -> list[int]:
    """Return what the decoded table has, in order."""
    table = DeltaTable(str(folder / "curated")).to_pyarrow_table()
    found: list[int] = sorted(table.column("n").to_pylist())
    return found


@pytest.mark.timeout(900)  # three programs start Spark one after the other
def test_a_job_runs_on_until_sigterm_and_spark_submit_goes_on_after_it(folder: Path) -> None:
    """The command follows the stream and ends cleanly; spark-submit finds nothing done twice."""
    words = ["job", "ingest", "--stream", "orders", "--table", "curated"]
    with subprocess.Popen(
        [BIN / "headwater", *words, "--master", "local[1]", "--trigger", "500ms", "--json"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        told = iter(job.stderr.readline, "")
        until_appended(told, 10)
        publish(folder, range(10, 20))
        until_appended(told, 10)
        job.send_signal(signal.SIGTERM)
        _, result = list(told), json.loads(job.stdout.read())
        assert job.wait(60) == 0
    assert (result["stopped_by"], result["records"], result["ends"]) == ("SIGTERM", 20, {"0": 20})

    publish(folder, range(20, 30))
    assert submitted(folder, *words[2:])["records"] == 10
    assert numbers(folder) == list(range(30))


def until_appended(told: Iterator[str], count: int) -> None:
    """Read what a job says until it has appended so many records: in one batch, or in several."""
    done = 0
    while done < count:
        line = next(line for line in told if " appended " in line)
        done += int(line.partition(" records=")[2].split()[0])
    assert done == count


def submitted(folder: Path, *words: str) -> Any:
    """Run ingest by spark-submit with a master and a setting of its own; return its result."""
    arguments = headwater(folder, "job", "submit-args", "ingest").split()
    done = subprocess.run(
        [BIN / "spark-submit", "--master", "local[1]", *arguments, *words, "--json",
         "--server", server(folder)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def server(folder: Path) -> str:
    """Return the address in the server's runtime file."""
    found = json.loads((folder / "headwater-data" / "headwater.json").read_text())
    address: str = found["flight"]
    return address
