"""``headwater stream compact``: key compaction of a stream's logs now."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import UnavailableError
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, StreamArgument, duration_option
from headwater.cli.parsing import format_bytes

if TYPE_CHECKING:
    from broker.model.cluster_status import ReplicaCompaction


def compact(
    name: StreamArgument,
    *,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="One partition, may be repeated; without it: all."),
    ] = None,
    timeout: Annotated[
        int, duration_option("--timeout", help="Wait no longer; the brokers go on nevertheless.")
    ] = "10m",  # type: ignore[assignment]  # typer parses defaults as it parses arguments
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Compact the logs of a stream with --compact now, at every broker that has a replica.

    Brokers do it by themselves, too, once enough is new (--compact-dirty-percent). The segment that
    is written to is sealed first, if all of its records may be compacted: those that are committed,
    in the table (of a tiered stream) and not held by a lease. A line tells the outcome of each
    replica, and what kept a replica from going further.

    [bold]Examples[/bold]

      headwater stream compact prices
      headwater stream compact prices --partition 0 --partition 3 --json
      headwater tier flush orders && headwater stream compact orders
    """
    from headwater.client.operations import Operations

    with connect(find_server(server)) as client, console.counting("compacting") as report:

        def told(rows: Sequence[ReplicaCompaction]) -> None:
            removed = sum(one.removed_count for one in rows)
            done = sum(one.is_final for one in rows)
            report(done, rate=f"of {len(rows)} logs, {removed:,} records removed")

        rows = Operations(client).compact(name, partition or (), timeout_ms=timeout, told=told)
    if json:
        for one in rows:
            console.json_line(dataclasses.asdict(one))
    else:
        console.columns(
            ("partition", "broker", "removed", "freed", "compacted below", "outcome"),
            (_row(one) for one in rows),
        )
    _raise_if_any_is_left(name, rows)


def _row(one: ReplicaCompaction) -> tuple[Any, ...]:
    done = one.state == "compacted"
    return (
        one.partition,
        one.broker,
        f"{one.removed_count:,}",
        format_bytes(one.freed_bytes),
        one.end if done else None,
        _outcome(one),
    )


def _outcome(one: ReplicaCompaction) -> str:
    if one.reason is None:
        return one.state
    if one.state == "compacted":
        return f"compacted; not from {one.end} on: {one.reason}"
    return f"{one.state}: {one.reason}"


def _raise_if_any_is_left(name: str, rows: Sequence[ReplicaCompaction]) -> None:
    """Fail after the lines are written, so that a script sees what is not done."""
    failed = [one for one in rows if one.state == "failed"]
    if failed:
        raise UnavailableError(
            f"{len(failed)} of {len(rows)} logs of {name} were not compacted; the others were"
        )
    if not all(one.is_final for one in rows):
        raise UnavailableError(
            f"the compaction of {name} takes longer than --timeout; the brokers go on with it"
        )
