"""`headwater stream purge`: it asks, deletes, and reports the outcome of each partition."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from broker.errors import HeldByLeaseError, PurgeRefusedError
from headwater.client import Client
from simkit.brokers.memory_broker import MemoryBroker

Run = Callable[..., Any]


def _make(run: Run, *options: str) -> None:
    result = run("stream", "create", "orders", *options)
    assert result.exit_code == 0, result.output


def _publish(run: Run, text: str | bytes, *options: str) -> None:
    result = run("publish", "orders", "--via", "flight", *options, stdin=text)
    assert result.exit_code == 0, result.output


def test_purge_asks_and_deletes(run: Run) -> None:
    """The question shows the ranges; a later read below them is refused by name."""
    _make(run, "--no-tiering")
    _publish(run, "a\nb\nc\nd\n")
    refused = run("stream", "purge", "orders", stdin="n\n")
    assert refused.exit_code == 1
    assert "0: [0, 4)" in " ".join(refused.stderr.split())
    assert (
        json.loads(run("stream", "describe", "orders", "--json").stdout)["partitions"][0]["start"]
        == 0
    )
    done = run("stream", "purge", "orders", "--before", "2", "--yes", "--json")
    assert json.loads(done.stdout) == {
        "stream": "orders", "partition": 0, "start": 0, "end": 2, "in_table": False,
        "purged_end": 2,
    }  # fmt: skip
    below = run("subscribe", "orders", "--from", "1", "--count", "1")
    assert (below.exit_code, "PurgedError" in below.stderr) == (2, True)
    told = run("stream", "purge", "orders", "--yes")
    assert "0 [2, 4) 2" in " ".join(told.stdout.split())
    described = json.loads(run("stream", "describe", "orders", "--json").stdout)["partitions"][0]
    assert (described["start"], described["purged_end"], described["high_watermark"]) == (4, 4, 4)


def test_a_purge_that_is_repeated_says_what_is_purged_already(run: Run) -> None:
    """The first answer may have been lost: "0 records" would say that nothing is gone."""
    _make(run, "--no-tiering")
    assert "nothing to purge" in run("stream", "purge", "orders", "--yes").stdout
    _publish(run, "a\nb\nc\nd\n")
    for said in ("[0, 4) 4 purged", "- 0 already purged below offset 4"):
        told = run("stream", "purge", "orders", "--yes")
        assert said in " ".join(told.stdout.split()), told.output
    again = json.loads(run("stream", "purge", "orders", "--yes", "--before", "3", "--json").stdout)
    assert (again["start"], again["end"], again["purged_end"]) == (4, 4, 4)


def test_each_partition_is_purged_and_told_whatever_becomes_of_the_others(
    run: Run, broker: MemoryBroker, address: str
) -> None:
    """One refusal neither ends the work nor hides other outcomes; scripts get a line for each."""
    _make(run, "--no-tiering", "--partitions", "3")
    _publish(run, "a\nb\nc\n", "--partition", "0")
    _publish(run, "a\n", "--partition", "2")
    end = broker.handle("orders", 0).high_watermark
    broker.refuses_purges[1] = HeldByLeaseError("a lease holds records", owners=["report"])
    told = run("stream", "purge", "orders", "--yes")
    assert told.exit_code == 3, told.output
    lines = [" ".join(line.split()) for line in told.stdout.splitlines()]
    assert lines[1] == f"0 [0, {end}) {end} purged"
    assert lines[2] == "1 - - refused: HeldByLeaseError: a lease holds records"
    assert lines[3].startswith("2 [0, ")
    error = " ".join(told.stderr.split())
    assert "PurgeRefusedError" in error
    assert "refused in partition 1 of orders" in error
    assert "headwater lease list" in error
    rows = run("stream", "purge", "orders", "--yes", "--json").stdout.splitlines()
    assert [json.loads(row).get("error") for row in rows] == [None, "HeldByLeaseError", None]
    assert json.loads(rows[0])["purged_end"] == end
    with Client(address) as client, pytest.raises(PurgeRefusedError) as caught:
        client.purge_stream("orders")
    assert [one.partition for one in caught.value.purged] == [0, 2]
    assert caught.value.refused[1].owners == ["report"]
    assert f"partition 0: already purged below offset {end}" in caught.value.message


def test_a_purge_deletes_what_its_question_named(
    run: Run, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that come while a person reads the question stay; with --yes all go."""
    _make(run, "--no-tiering", "--partitions", "2")
    _publish(run, "a\nb\n", "--partition", "0")
    end = broker.handle("orders", 0).high_watermark

    def answered(question: str, **_: object) -> bool:
        assert f"0: [0, {end})" in question
        _publish(run, "c\nd\n", "--partition", "0")
        _publish(run, "e\n", "--partition", "1")
        return True

    with monkeypatch.context() as asked:
        asked.setattr("typer.confirm", answered)
        assert run("stream", "purge", "orders").exit_code == 0
    assert [broker.handle("orders", number).log_start for number in (0, 1)] == [end, 0]
    assert run("stream", "purge", "orders", "--yes").exit_code == 0
    assert broker.handle("orders", 0).log_start == broker.handle("orders", 0).high_watermark


def test_purge_wants_one_place(run: Run) -> None:
    """An offset is one partition's, a time is a time, and one of the two is enough."""
    _make(run, "--no-tiering", "--partitions", "2")
    for options in (
        ("--before", "1"),
        ("--before", "1", "--before-time", "5m ago"),
        ("--before-time", "earliest"),
        ("--before-time", "soon"),
    ):
        assert run("stream", "purge", "orders", "--yes", *options).exit_code == 2
    assert run("stream", "purge", "orders", "--yes", "--partition", "7").exit_code == 2
    above = run("stream", "purge", "orders", "--yes", "--partition", "0", "--before", "9")
    assert (above.exit_code, "To read, `--from" in " ".join(above.stderr.split())) == (2, True)
    old = run("stream", "purge", "orders", "--before-time", "5m ago", stdin="y\n")
    assert old.exit_code == 0, old.output
    assert "from before" in old.stderr


def test_a_tiered_stream_keeps_its_table_when_it_is_purged(run: Run) -> None:
    """Records that are not in the table yet stay, and the error says how to ship them."""
    _make(run)
    none = run("stream", "purge", "orders", "--yes")
    assert (none.exit_code, "Its table keeps" in none.stderr) == (0, False)
    _publish(run, "a\n")
    asked = run("stream", "purge", "orders", stdin="n\n")
    assert "The table keeps them" in " ".join(asked.stderr.split())
    refused = run("stream", "purge", "orders", "--yes")
    assert refused.exit_code == 3
    assert "tier flush" in refused.stderr
