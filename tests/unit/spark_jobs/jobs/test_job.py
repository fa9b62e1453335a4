"""The frame of all jobs: statuses, results, help without Spark, and SIGTERM."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import (
    GapError,
    HeadwaterError,
    InvalidConfigError,
    InvalidRequestError,
    StaleWatermarkError,
    UnavailableError,
)
from headwater.cli.job import JOBS
from spark_jobs.jobs import ingest, job
from spark_jobs.jobs.ingest import _trigger

MADE = job.parser("test", "A job of this test.")


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start no Spark."""
    monkeypatch.setattr(job, "_session", lambda *_: None)


def run(work: Any, *words: str) -> int:
    """Run a job that does this work."""
    return job.run_job("test", MADE, lambda _spark, _args, report: work(report), list(words))


def test_a_result_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is one line of JSON, and a file that is whole or absent."""
    file = tmp_path / "result.json"
    words = ("--json", "--result", str(file))
    assert run(lambda _: {"records": 5}, *words) == job.EXIT_OK
    assert json.loads(capsys.readouterr().out) == {"ok": True, "records": 5}
    assert json.loads(file.read_text()) == {"ok": True, "records": 5}
    assert list(tmp_path.iterdir()) == [file]


def test_a_job_that_ended_before_its_work_did_has_to_be_run_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Work that remains is no success: a scheduler retries; damage is told before that."""
    assert run(lambda _: {"remaining": 0}) == job.EXIT_OK
    assert run(lambda _: {"remaining": 5, "stopped_by": "SIGTERM"}) == job.EXIT_TRY_LATER
    assert run(lambda _: {"remaining": 5, "ok": False}) == job.EXIT_FAILED
    capsys.readouterr()
    run(lambda _: {"remaining": 5}, "--json")
    assert json.loads(capsys.readouterr().out) == {"ok": False, "remaining": 5}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequestError("x"), 2),
        (InvalidConfigError("x"), 2),
        (UnavailableError("x"), 3),
        (StaleWatermarkError("x"), 3),
        (GapError("x"), 1),
    ],
)
def test_errors_are_one_line_and_a_status(
    error: HeadwaterError, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 3 means that a later run may succeed; the result file names the error."""

    def fails(_: job.Report) -> Any:
        raise error

    file = tmp_path / "result.json"
    assert run(fails, "--result", str(file)) == status
    assert capsys.readouterr().err == f"test: {type(error).__name__}: x\n"
    assert json.loads(file.read_text())["error"] == type(error).__name__


class Py4JNetworkError(Exception):
    """Stands for Py4J's error of this name."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionRefusedError("Connection refused"), 3),
        (Py4JNetworkError("Error while sending or receiving"), 3),
        (KeyError("x"), None),
    ],
)
def test_a_java_process_that_has_ended_is_no_bug(
    error: Exception, status: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service manager's SIGTERM goes to all processes, to Spark's Java process as well."""

    def fails(_: job.Report) -> Any:
        raise error

    if status is None:
        with pytest.raises(type(error)):
            run(fails)
    else:
        assert run(fails) == status
        assert "Java process has ended" in capsys.readouterr().err


def test_a_setting_without_a_value_is_refused() -> None:
    """--conf takes NAME=VALUE."""
    with pytest.raises(SystemExit) as ended:
        run(lambda _: {}, "--conf", "spark.x")
    assert ended.value.code == 2


def test_sigterm_asks_once() -> None:
    """The first SIGTERM only asks the job to stop; the second one ends the process."""
    before = signal.getsignal(signal.SIGTERM)

    def asked(report: job.Report) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        assert report.stop.event.wait(60)
        assert signal.getsignal(signal.SIGTERM) == before
        return {"stopped_by": report.stop.signal}

    assert run(asked, "--json") == job.EXIT_OK
    assert signal.getsignal(signal.SIGTERM) == before


def test_progress_is_a_line_with_facts() -> None:
    """A line has the finished step first, then names and values."""
    out = io.StringIO()
    job.Report("test", out).progress("appended", records=5, version=1)
    assert out.getvalue() == "test: appended records=5 version=1\n"


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        (None, {"availableNow": True}),
        ("500ms", {"processingTime": "500 milliseconds"}),
        ("1s", {"processingTime": "1 seconds"}),
        ("2 h", {"processingTime": "2 hours"}),
    ],
)
def test_triggers_are_intervals(text: str | None, trigger: dict[str, Any]) -> None:
    """Without one a run ends when it has caught up."""
    assert _trigger(text) == trigger


@pytest.mark.parametrize("text", ["", "fast", "-1s", "1", "1d", "99999999s"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    """A misspelt interval is an error, not another trigger."""
    with pytest.raises(InvalidRequestError, match="--trigger takes"):
        _trigger(text)


def test_now_and_for_ever_exclude_each_other() -> None:
    """The two options contradict each other: one run ends and the other does not."""
    words = ["--stream", "s", "--table", "t", "--available-now", "--trigger", "1s"]
    with pytest.raises(SystemExit):
        ingest.PARSER.parse_args(words)


def test_help_needs_no_pyspark() -> None:
    """Importing every job, as --help does, loads neither PySpark nor a JVM."""
    text = "import importlib, sys\n" + "".join(
        f"importlib.import_module('spark_jobs.jobs.{name}')\n" for name in JOBS
    )
    text += "assert 'pyspark' not in sys.modules, 'a job imports pyspark early'\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_facts_for_people_are_no_python(capsys: pytest.CaptureFixture[str]) -> None:
    """It said "ends  {'0': 5}", "stopped_by  None", "version  -1"; as JSON nothing changes."""
    facts = {
        "ends": {"0": 5, "1": 7}, "counts": {}, "stopped_by": None, "version": -1, "bytes": 0,
        "dry_run": False, "findings": [], "vacuumed": [{"table": "t", "first": ["a", "b"]}],
    }  # fmt: skip
    assert run(lambda _: facts) == job.EXIT_OK
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["ends", "0: 5, 1: 7"],
        ["counts", "none"],
        ["version", "no table"],
        ["bytes", "0"],
        ["dry_run", "no"],
        ["findings", "none"],
        ["vacuumed", "table: t, first: a; b"],
    ]
    assert run(lambda _: facts, "--json") == job.EXIT_OK
    assert json.loads(capsys.readouterr().out) == {"ok": True, **facts}


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("ingest", ["--trigger", "5x"], "--trigger takes"),
        ("ingest", ["--schema", "id bigit"], "bigit"),
        ("ingest", ["--schema-file", "absent.json"], "cannot read absent.json"),
        ("ingest", ["--schema-file", "ddl.json"], "ddl.json.*any other name"),
        ("ingest", ["--format", "avro", "--avro-schema", "absent.avsc"], "cannot read absent.avsc"),
        (
            "ingest",
            ["--format", "protobuf", "--descriptors", "absent.ds", "--message", "a.B"],
            "cannot read absent.ds",
        ),
        ("ingest", ["--from", "yesterday"], "--from"),
        ("backfill", ["--to-timestamp", "tomorrow"], "--to-timestamp"),
        ("backfill", ["--records-per-chunk", "0"], "--records-per-chunk"),
        ("backfill", ["--schema-file", "absent"], "cannot read absent"),
        ("compact", ["--retain-hours", "5"], "--retain-hours needs --vacuum"),
        ("compact", ["--target-mib", "0"], "--target-mib"),
        ("verify", ["--cut", "nonsense"], "cut"),
    ],
)
def test_wrong_arguments_are_told_before_spark_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: list[str],
    told: str,
) -> None:
    """Issue 11, second tour: a file that is not there was told half a minute later."""

    def starts(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(job, "_session", starts)
    monkeypatch.chdir(tmp_path)
    Path("ddl.json").write_text("id bigint, item string")
    module = importlib.import_module(f"spark_jobs.jobs.{name}")
    table = ["--table", "t"] if name in ("ingest", "backfill") else []
    assert module.main(["--stream", "s", *table, *words]) == job.EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(told, line), line


def test_records_before_the_first_offset_of_a_table_are_not_behind() -> None:
    """Issue 11, second tour: after ``--from latest`` the job said "behind=1" of what it skips."""
    parts = [
        SimpleNamespace(partition=number, start=2, high_watermark=10 * number) for number in (1, 2)
    ]
    described: Any = SimpleNamespace(partitions=parts)
    assert ingest._behind(described, {1: 10, 2: 18}, {}) == 2
    assert ingest._behind(described, {}, {1: 10, 2: 15}) == 5
    assert ingest._behind(described, {2: 18}, {1: 10, 2: 15}) == 2
    assert ingest._behind(described, {}, {}) == 8 + 18
