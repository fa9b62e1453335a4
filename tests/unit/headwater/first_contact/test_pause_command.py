"""`headwater stream pause`, `resume` and `readonly`, and where people see the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


def _done(run: Run, *arguments: str, **more: Any) -> str:
    result = run(*arguments, **more)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def _listed(run: Run) -> str | None:
    state: str | None = json.loads(run("stream", "list", "--json").stdout)["state"]
    return state


def test_a_stream_is_paused_and_resumed(run: Run) -> None:
    """List and describe show it; a publish by Flight resumes what it publishes to."""
    _done(run, "stream", "create", "orders", "--partitions", "2")
    assert _listed(run) is None
    assert "Stream orders is paused." in _done(run, "stream", "pause", "orders")
    assert _listed(run) == "paused"
    told = _done(run, "stream", "resume", "orders", "--partition", "1", "--json")
    assert json.loads(told) == {"stream": "orders", "partitions": [1], "paused": False}
    assert _listed(run) == "paused 1/2"
    parts = json.loads(run("stream", "describe", "orders", "--json").stdout)["partitions"]
    assert [one["paused"] for one in parts] == [True, False]
    options = ("--partition", "0", "--via", "flight")
    _done(run, "publish", "orders", *options, stdin="a\n")
    assert _listed(run) is None
    _done(run, "stream", "pause", "orders", "--partition", "1", "--resume-all")
    _done(run, "publish", "orders", *options, stdin="b\n")
    assert _listed(run) is None


def test_a_read_only_stream_refuses_by_name(run: Run) -> None:
    """The error says which command allows writes again; what is stored is read."""
    _done(run, "stream", "create", "orders")
    _done(run, "publish", "orders", "--via", "flight", stdin="a\n")
    assert "Stream orders is read-only." in _done(run, "stream", "readonly", "orders")
    assert _listed(run) == "read-only"
    assert "read-only" in _done(run, "stream", "list")
    refused = run("publish", "orders", "--via", "flight", stdin="b\n")
    assert refused.exit_code == 2
    assert "headwater stream readonly STREAM --off" in " ".join(refused.stderr.split())
    assert "a" in _done(run, "subscribe", "orders", "--from", "earliest", "--count", "1")
    assert "takes records again" in _done(run, "stream", "readonly", "orders", "--off")
    _done(run, "publish", "orders", "--via", "flight", stdin="b\n")


def test_what_does_not_exist_is_named(run: Run) -> None:
    """A stream, and a partition."""
    _done(run, "stream", "create", "orders")
    for command in ("pause", "resume", "readonly"):
        assert "UnknownStreamError" in run("stream", command, "other").stderr
        wrong = run("stream", command, "orders", "--partition", "7")
        assert (wrong.exit_code, "UnknownPartitionError" in wrong.stderr) == (2, True)
