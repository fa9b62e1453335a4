"""``headwater job``: lists the jobs, hands everything else over to a job's own parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headwater.cli.job import JOBS
from spark_jobs.jobs import ingest

Run = Callable[..., Any]


def test_the_help_lists_every_job(run: Run) -> None:
    """Each job has a line; the page with the rest is named."""
    shown = run("job", "--help").stdout
    for name, line in JOBS.items():
        assert name in shown
        assert line in shown
    assert "docs/jobs.md" in shown


def test_a_jobs_help_is_its_own(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """`headwater job ingest --help` is the parser's text, and asks no server."""
    result = run("job", "ingest", "--help")
    assert result.exit_code == 0
    assert "--available-now" in result.stdout


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ((), []),
        (("--server", "127.0.0.1:1"), []),
        (("--server=grpc://127.0.0.1:1", "--evolve", "add"), ["--evolve", "add"]),
        (("--from", '{"0": 5}', "--json"), ["--from", '{"0": 5}', "--json"]),
    ],
)
def test_arguments_are_passed_on(
    run: Run,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    passed: list[str],
) -> None:
    """The job sees its arguments in order, and the server that every command would use."""
    seen: list[list[str]] = []

    def main(argv: list[str]) -> int:
        seen.append(argv)
        return 3

    monkeypatch.setattr(ingest, "main", main)
    assert run("job", "ingest", *words).exit_code == 3
    server = "127.0.0.1:1" if "--server" in " ".join(words) else address
    assert seen == [["--server", f"grpc://{server}", *passed]]


def test_an_unknown_job_is_refused(run: Run) -> None:
    """Names are those of the list."""
    assert run("job", "polish").exit_code == 2
    assert run("job", "submit-args", "polish").exit_code == 2
