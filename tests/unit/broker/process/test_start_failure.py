"""The log line of a start that failed tells an operator what to do next."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.adapters.disk.files import DiskFiles
from broker.errors import (
    ControllersLostError,
    HeadwaterError,
    InvalidConfigError,
    MetadataCorruptError,
    UnavailableError,
)
from broker.process.exit_codes import EXIT_CONFIG
from broker.process.start_failure import say_failed
from broker.runtime.cluster.identity import claim_directory


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (MetadataCorruptError("raft/meta is too short", path="raft/meta"), "docs/operations.md"),
        (InvalidConfigError("port 7410 is taken"), "headwater broker --check"),
        (ControllersLostError("two disks are lost"), "docs/cluster.md"),
        (UnavailableError("no broker answers"), None),
    ],
    ids=["metadata", "setting", "controllers", "unknown"],
)
def test_the_line_names_error_facts_and_next_step(error: HeadwaterError, step: str | None) -> None:
    """The step is that of the nearest class; an error without a step has none."""
    with capture_logs() as lines:
        say_failed(error)
    (line,) = lines
    assert line["event"] == "start_failed"
    assert line["error"] == type(error).__name__
    assert line["reason"] == error.message
    assert line.get("path") == error.facts.get("path")
    assert ("next_step" in line) is (step is not None)
    assert step is None or step in line["next_step"]


def test_a_start_that_failed_says_no_other_exit_code(tmp_path: Path) -> None:
    """Another broker's folder: each line that has an exit code has the one of the process."""
    claim_directory(DiskFiles(tmp_path / "data"), cluster="headwater", broker_id="other")
    config = tmp_path / "b.toml"
    config.write_text(
        f'[node]\ndata_dir = "{tmp_path / "data"}"\n[nats]\nurl = ""\n[lake]\nuri = ""\n'
        '[flight]\nport = 0\n[http]\nport = 0\n[log]\nformat = "json"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "broker", "--config", str(config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_CONFIG, done.stderr
    lines = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    assert lines[-1]["event"] == "start_failed"
    assert {line["exit_code"] for line in lines if "exit_code" in line} == {EXIT_CONFIG}
