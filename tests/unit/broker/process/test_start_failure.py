"""The log line of a start that failed tells an operator what to do next."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.errors import (
    ControllersLostError,
    HeadwaterError,
    InvalidConfigError,
    MetadataCorruptError,
    UnavailableError,
)
from broker.process.start_failure import say_failed


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
