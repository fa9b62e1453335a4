"""`headwater verify` of several streams: one that is not there or away hides no other result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import CorruptDataError, ObjectCorruptError, UnavailableError
from broker.model.certificate import Certificate
from headwater.cli import verify as command

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("errors", "exit_code"),
    [
        ({}, 0),
        ({"b": UnavailableError("no leader")}, 3),
        ({"a": ObjectCorruptError("rot", key="k"), "b": UnavailableError("no leader")}, 1),
        ({"b": UnavailableError("no leader"), "c": ObjectCorruptError("rot", key="k")}, 1),
    ],
)
def test_every_stream_is_verified_and_told(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    errors: dict[str, UnavailableError | CorruptDataError],
    exit_code: int,
) -> None:
    """Damage is told by the exit code, whatever else could not be reached."""
    for name in "abc":
        made = run("stream", "create", name, "--no-tiering")
        assert made.exit_code == 0, made.output
    whole = command._verify_with_progress

    def verified(client: Any, cut: Any) -> Certificate:
        if cut.stream in errors:
            raise errors[cut.stream]
        return whole(client, cut)

    monkeypatch.setattr(command, "_verify_with_progress", verified)
    done = run("verify", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["stream"] for one in told] == ["a", "b", "c"]
    expected = [
        None if isinstance(errors.get(name), UnavailableError) else name not in errors
        for name in "abc"
    ]
    assert [one["ok"] for one in told] == expected
    assert done.exit_code == exit_code


def test_a_stream_that_is_not_there_hides_no_other(run: Run) -> None:
    """It was deleted since the list was made, or its name is wrong."""
    assert run("stream", "create", "s", "--no-tiering").exit_code == 0
    done = run("verify", "nope", "s", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["stream"], one["ok"]) for one in told] == [("nope", None), ("s", True)]
    assert told[0]["error"] == "UnknownStreamError"
    assert done.exit_code == 2
