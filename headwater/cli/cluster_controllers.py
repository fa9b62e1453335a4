"""``headwater cluster controllers``: show the brokers that vote on the metadata; change them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.errors import CommitTimeoutError, UnavailableError
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, duration_option

if TYPE_CHECKING:
    from broker.model.cluster_status import ControllersStatus
    from headwater.client.operations import Operations

app = typer.Typer(
    help="Show the brokers that vote on the metadata; add, remove or replace one of them.",
    rich_markup_mode="rich",
)

_POLL_S: Final = 0.2
COLUMNS: Final = ("broker", "votes", "leads", "behind", "silent ms")

BrokerArgument = Annotated[str, typer.Argument(metavar="BROKER", help="Id of the broker.")]
TimeoutOption = Annotated[
    int,
    duration_option(
        "--timeout", help="Stop trying after this long; repeat the command to continue."
    ),
]


@app.callback(invoke_without_command=True)
def show(context: typer.Context, server: ServerOption = None, json: JsonOption = False) -> None:
    """Show which brokers vote on the metadata, which one leads, and how far behind each is.

    One, three or five brokers should vote: a fourth or sixth vote survives no further failure.

    [bold]Examples[/bold]

      headwater cluster controllers
      headwater cluster controllers add broker-4
      headwater cluster controllers replace broker-2 broker-4
    """
    if context.invoked_subcommand is not None:
        return
    with _operations(server) as operations:
        found = operations.controllers()
    if json:
        for one in found.members:
            console.json_line(one.to_dict())
        return
    if found.leader is None:
        console.note(
            f"[yellow]No majority of the controllers answers: this is the last that "
            f"{console.plain(found.told_by)} knew, and nothing can be changed.[/yellow]"
        )
    elif not found.settled:
        console.note("[yellow]A change of the controllers is under way.[/yellow]")
    console.columns(COLUMNS, _rows(found))


@app.command()
def add(
    broker: BrokerArgument,
    *,
    timeout: TimeoutOption = "60s",  # type: ignore[assignment]  # typer parses defaults, too
    server: ServerOption = None,
) -> None:
    """Make a broker vote on the metadata. It follows already, and has to have caught up.

    [bold]Example[/bold]

      headwater cluster controllers add broker-4
    """
    with _operations(server) as operations:
        change(operations, broker, votes=True, timeout_ms=timeout)
        _say(operations.controllers())


@app.command()
def remove(
    broker: BrokerArgument,
    *,
    timeout: TimeoutOption = "60s",  # type: ignore[assignment]  # typer parses defaults, too
    server: ServerOption = None,
) -> None:
    """Let a broker follow the metadata without voting. It continues to hold and lead partitions.

    [bold]Example[/bold]

      headwater cluster controllers remove broker-4
    """
    with _operations(server) as operations:
        voted = broker in operations.controllers().voters
        change(operations, broker, votes=False, timeout_ms=timeout)
        _say(operations.controllers())
        if not voted:
            console.note(f"{console.plain(broker)} was not a controller: nothing was changed.")


@app.command()
def replace(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="Broker that stops voting; it may be dead.")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Broker that votes instead.")],
    *,
    timeout: TimeoutOption = "60s",  # type: ignore[assignment]  # typer parses defaults, too
    server: ServerOption = None,
) -> None:
    """Replace a voting broker, dead or alive, by another. Repeat the command after a timeout.

    With the same id twice, a broker whose disk was lost votes again with its new disk.

    [bold]Examples[/bold]

      headwater cluster controllers replace broker-2 broker-4
      headwater cluster controllers replace broker-2 broker-2
    """
    with _operations(server) as operations:
        if old == new:
            change(operations, old, votes=False, timeout_ms=timeout)
        change(operations, new, votes=True, timeout_ms=timeout)
        if old != new:
            change(operations, old, votes=False, timeout_ms=timeout)
        _say(operations.controllers())


@console.goes_on("a step that was taken stays; `headwater cluster controllers` shows it")
def change(
    operations: Operations,
    broker: str,
    *,
    votes: bool,
    timeout_ms: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Ask for a change of a broker's vote until it is done; show what the change waits for.

    Raises:
        UnavailableError: the time is over, or ``is_stopped`` returned True.
        HeadwaterError: the change is refused.
    """
    deadline_s = time.monotonic() + timeout_ms / 1000
    said = ""
    while True:
        try:
            found = operations.change_controller(broker, votes=votes)
            done, reason = found.done, found.reason
        except (UnavailableError, CommitTimeoutError) as error:
            done, reason = False, error.message
        if done:
            return
        if time.monotonic() >= deadline_s or is_stopped():
            raise UnavailableError(
                f"{broker} {'does not vote yet' if votes else 'still votes'}: {reason}. Nothing is "
                "lost; `headwater cluster controllers` shows the progress. Repeat the command to "
                "continue",
                broker=broker,
            )
        if reason != said:
            console.note(f"{console.plain(broker)}: {console.plain(reason)} …")
            said = reason
        time.sleep(_POLL_S)


def _say(found: ControllersStatus) -> None:
    voters = found.voters
    console.say(f"The controllers are [bold]{console.plain(', '.join(voters))}[/bold].")
    if len(voters) % 2 == 0:
        console.note(
            f"{len(voters)} controllers survive the loss of {(len(voters) - 1) // 2 or 'none'}, "
            f"no more than {len(voters) - 1} would: make them one, three or five."
        )


def _rows(found: ControllersStatus) -> Iterator[tuple[Any, ...]]:
    for one in found.members:
        yield (
            one.broker,
            "yes" if one.votes else "no",
            "yes" if one.leads else "no",
            one.behind,
            one.silent_ms,
        )


@contextmanager
def _operations(server: str | None) -> Iterator[Operations]:
    from headwater.client.operations import Operations

    with connect(find_server(server)) as client:
        yield Operations(client)
