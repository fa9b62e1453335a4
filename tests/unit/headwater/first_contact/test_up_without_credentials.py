"""Issue 11, second tour: `headwater up --s3` that cannot work is told as every wrong option is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.local import embedded

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("s3://bucket/prefix", "no S3 credentials: set AWS_ACCESS_KEY_ID"),
        ("s3://", "'s3://' is not s3://bucket/prefix"),
    ],
)
def test_it_is_one_line_and_nothing_was_started(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, told: str
) -> None:
    """It started NATS, then said it as a line of the daemon's log, in JSON, with exit code 64."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("NATS was started")

    monkeypatch.setattr(embedded, "start_nats", started)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    result = run("up", "--data", "d", "--s3", address, "--nats-port", "0")
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[0].startswith(f"InvalidConfigError: {told}")
    assert not (tmp_path / "d").exists()
