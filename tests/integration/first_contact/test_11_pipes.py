"""Issue 11, item 11: a reader that goes away ends a command quietly, as it ends other tools."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from crashkit.stage import Stage, staged

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COUNT = 20_000  # of 60 bytes: far more than a pipe holds
SIGPIPE_CODE = 141  # 128 + SIGPIPE, as a shell says of a tool that the signal ended


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker with a stream of many records."""
    with staged(tmp_path_factory.mktemp("pipes")) as found:
        found.client.create_stream("s")
        values = pa.array([b"%05d " % number * 10 for number in range(COUNT)], pa.binary())
        with found.client.producer("s") as producer:
            producer.send(pa.record_batch([values], names=["value"])).result(60)
        found.client.take_lease("s", ttl_ms=86_400_000)  # so that a list of leases is not empty
        yield found


def _assert_quiet(complaints: str) -> None:
    for trace in ("Traceback", "BrokenPipe", "Broken pipe", "Exception ignored", "Internal error"):
        assert trace not in complaints, complaints


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--version",
        "stream --help",
        "stream list",
        "stream list --json",
        "lease list",
        "stream describe s",
        "cluster status",
        "cluster partitions",
        "tier status",
        "lease list --json",
        "cut s",
        "subscribe s",
        "subscribe s --format raw",
        "read s",
        "read s --format csv",
        "read s --format table",
        "query 'select offset from s'",
        "query 'select offset from s' --format csv",
        "query 'select offset from s' --format table",
        "verify s",
        "verify s --json",
    ],
)
def test_a_pipe_that_nobody_reads(stage: Stage, words: str) -> None:
    """``… | head -0``: the pipe is closed before the command writes its first byte."""
    ours, theirs = os.pipe()
    os.close(ours)
    arguments = shlex.split(words)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headwater", *arguments],
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            env={**os.environ, "HEADWATER_SERVER": stage.broker.url},
            check=False,
        )
    finally:
        os.close(theirs)
    _assert_quiet(done.stderr)
    assert done.returncode == SIGPIPE_CODE, done.stderr


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("subscribe s --format raw", "00000 " * 10),
        ("read s --columns offset,value --format csv", "offset,value"),
        ("query 'select offset, hex(value) v from s order by offset'", None),
    ],
)
def test_head_takes_the_first_line(stage: Stage, words: str, first: str | None) -> None:
    """In a shell with ``pipefail`` the command prints the first line and ends with 141."""
    headwater = f"{shlex.quote(sys.executable)} -m headwater"
    done = subprocess.run(
        ["bash", "-c", f'{headwater} {words} | head -1; echo "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HEADWATER_SERVER": stage.broker.url},
        check=False,
    )
    _assert_quiet(done.stderr)
    line, code = done.stdout.splitlines()
    assert int(code) == SIGPIPE_CODE, done.stderr
    assert first is None or line == first


def test_remarks_and_rows_into_the_same_closed_pipe(stage: Stage, tmp_path: Path) -> None:
    """``… 2>&1 | head -0``: no output is possible any more, and the command still ends."""
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headwater", "read", "s"],
            stdout=theirs,
            stderr=theirs,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "HEADWATER_SERVER": stage.broker.url},
            check=False,
        )
    finally:
        os.close(theirs)
    assert done.returncode == SIGPIPE_CODE


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_may_not_grow_is_an_error(
    stage: Stage, tmp_path: Path, unbuffered: str
) -> None:
    """With PYTHONUNBUFFERED, as containers set it, a short write ended in "exact" and exit 0."""
    target = tmp_path / "rows.jsonl"
    headwater = f"{shlex.quote(sys.executable)} -m headwater"
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 100; {headwater} read s > {target}"],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "HEADWATER_SERVER": stage.broker.url,
            "PYTHONUNBUFFERED": unbuffered,
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        check=False,
    )
    assert target.stat().st_size <= 100 * 1024
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "Exact" not in done.stderr
