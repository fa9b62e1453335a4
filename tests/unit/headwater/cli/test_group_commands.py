"""`headwater group` and `headwater subscribe --group`, for people and for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headwater.client import Client

Run = Callable[..., Any]


@pytest.fixture
def orders(run: Run) -> Run:
    """Give the command, and stream orders with five records."""
    assert run("stream", "create", "orders").exit_code == 0
    lines = "".join(f"{number}\n" for number in range(5))
    assert run("publish", "orders", "--via", "flight", stdin=lines).exit_code == 0
    return run


def described(run: Run, group: str) -> dict[str, Any]:
    """Return a group as a script sees it."""
    result = run("group", "describe", group, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_group_goes_on_behind_what_was_printed(orders: Run) -> None:
    """Also after a count in the middle of a batch; at the end nothing is left."""
    first = orders("subscribe", "orders", "--group", "g", "--format", "raw", "-n", "2")
    assert (first.exit_code, first.stdout) == (0, "0\n1\n")
    assert [one["lag"] for one in described(orders, "g")["partitions"]] == [3]
    rest = orders("subscribe", "orders", "-g", "g", "--member", "m", "--format", "raw")
    assert (rest.exit_code, rest.stdout) == (0, "2\n3\n4\n")
    again = orders("subscribe", "orders", "-g", "g", "--member", "m", "--format", "raw")
    assert (again.exit_code, again.stdout) == (0, "")


def test_groups_are_listed_and_described(orders: Run) -> None:
    """People see a table; a group without members has positions."""
    assert "No consumer groups" in orders("group", "list").output
    orders("subscribe", "orders", "--group", "g", "-n", "1")
    listed = orders("group", "list")
    assert "g" in listed.stdout
    assert "orders" in listed.stdout
    (row,) = map(json.loads, orders("group", "list", "--json").stdout.splitlines())
    assert (row["group"], row["members_count"], row["streams"]) == ("g", 0, ["orders"])
    shown = orders("group", "describe", "g")
    assert shown.exit_code == 0
    assert "records left" in shown.stdout
    assert orders("group", "describe", "no").exit_code == 2


@pytest.mark.parametrize(
    ("where", "after"), [("earliest", 0), ("latest", 5), ("3", 3), ("2020-01-01", 0), ("0s ago", 5)]
)
def test_positions_are_set(orders: Run, where: str, after: int) -> None:
    """To a bound, an offset or a time; a dry run changes nothing."""
    orders("subscribe", "orders", "--group", "g", "-n", "1")
    tried = orders("group", "reset", "g", "--to", where, "--dry-run", "--json")
    assert tried.exit_code == 0, tried.output
    row = json.loads(tried.stdout)
    assert (row["before"], row["after"], row["dry_run"]) == (1, after, True)
    assert described(orders, "g")["partitions"][0]["position"] == 1
    assert orders("group", "reset", "g", "--to", where).exit_code == 0
    assert described(orders, "g")["partitions"][0]["position"] == after


def test_a_new_group_begins_where_it_is_told(orders: Run) -> None:
    """With the stream's name; without it the group is not known."""
    assert orders("group", "reset", "new", "--to", "2").exit_code == 2
    assert orders("group", "reset", "new", "--to", "2", "--stream", "orders").exit_code == 0
    rest = orders("subscribe", "orders", "--group", "new", "--format", "raw")
    assert rest.stdout == "2\n3\n4\n"


def test_a_group_with_members_is_left_alone(orders: Run, address: str) -> None:
    """Try again later, says the exit code, and who is in it."""
    with Client(address) as client, client.consumer("orders", group="g", member_id="m") as member:
        assert member.poll(20) is not None
        for words in (("reset", "g", "--to", "latest"), ("delete", "g", "--yes")):
            result = orders("group", *words)
            assert result.exit_code == 3
            assert "group describe" in result.output
        shown = orders("group", "describe", "g")
        assert "keeps its partitions" in shown.output
        member.close(leave=True)
    assert orders("group", "delete", "g", "--yes").exit_code == 0
    assert orders("group", "describe", "g").exit_code == 2


@pytest.mark.parametrize(
    "options",
    [("--from", "7"), ("--to", "9"), ("--partition", "0")],
)
def test_what_a_member_cannot_choose_is_refused(orders: Run, options: tuple[str, ...]) -> None:
    """Its place is the group's, and its partitions are given to it."""
    assert orders("subscribe", "orders", "--group", "g", *options).exit_code == 2
    assert orders("subscribe", "orders", "--member", "m").exit_code == 2


def test_the_list_goes_on_past_a_group_that_cannot_be_described(
    orders: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remark names it; the others are listed, and the command has succeeded."""
    orders("subscribe", "orders", "--group", "g", "-n", "1")
    monkeypatch.setattr(Client, "groups", lambda _: ["", "a\x1b[2Jb", "g"])
    listed = orders("group", "list", "--json")
    assert listed.exit_code == 0, listed.output
    assert [json.loads(one)["group"] for one in listed.stdout.splitlines()] == ["g"]
    assert "a\\x1b[2Jb" in listed.stderr
    assert "\x1b[2J" not in listed.output
