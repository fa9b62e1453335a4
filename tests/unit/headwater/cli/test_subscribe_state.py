"""``headwater subscribe --state``: the newest record of each key, then what comes after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def run_orders(run: Run) -> Run:
    """Run commands beside stream ``orders`` with four records of keys a, b, a, c."""
    assert run("stream", "create", "orders").exit_code == 0
    lines = [json.dumps({"id": key, "n": n}) for n, key in enumerate("abac")]
    sent = run(
        "publish", "orders", "--via", "flight", "--key-field", "id", stdin="\n".join(lines) + "\n"
    )
    assert sent.exit_code == 0, sent.output
    return run


def test_the_state_is_of_offsets_that_are_named(run_orders: Run) -> None:
    """One record for each key, in offset order; a key may be asked for; who follows waits."""
    shown = run_orders("subscribe", "orders", "--state")
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["0:1", "0:2", "0:3"]
    assert '{"0": 4}' in shown.stderr
    one = run_orders("subscribe", "orders", "--state", "--key", "a", "--follow", "--count", "1")
    assert one.stdout.split()[0] == "0:2"


@pytest.mark.parametrize("wrong", [("--from", "2"), ("--to", "2"), ("-p", "0"), ("--group", "g")])
def test_what_the_state_is_not_of_is_refused(run_orders: Run, wrong: tuple[str, str]) -> None:
    """It is of now and of the whole stream; the refusal says what has the rest."""
    refused = run_orders("subscribe", "orders", "--state", *wrong)
    assert refused.exit_code == 2
    assert "--state" in refused.stderr
