"""``headwater cluster``: show the status of a cluster, and change it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker.errors import (
    CommitTimeoutError,
    InvalidRequestError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cluster_status import STATUS_NAMES
from headwater.cli import cluster_view as view
from headwater.cli import console
from headwater.cli.cluster_certs import certs
from headwater.cli.cluster_controllers import app as controllers_app
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, StreamArgument, duration_option

if TYPE_CHECKING:
    from broker.model.cluster_status import ClusterStatus, PartitionInfo
    from headwater.client.operations import Operations

app = typer.Typer(
    no_args_is_help=True,
    help="Show the status of a cluster's brokers; move partitions and leaders.",
    rich_markup_mode="rich",
)
app.command()(certs)
app.add_typer(controllers_app, name="controllers")

_POLL_S: Final = 0.2

PartitionArgument = Annotated[
    int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition, from 0.")
]
OptionalStream = Annotated[
    str | None, typer.Argument(metavar="[STREAM]", help="One stream; without it, all of them.")
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the change is done, or return at once.")
]
TimeoutOption = Annotated[
    int, duration_option("--timeout", help="Wait at most this long; the change itself continues.")
]
ToBrokerOption = Annotated[str, typer.Option("--to", metavar="BROKER", help="The new leader.")]


@app.command()
def status(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """Show the brokers, the active controller, and every partition that has a problem.

    [bold]Examples[/bold]

      headwater cluster status
      headwater cluster status --json | jq .under_replicated_partitions
    """
    with _operations(server) as operations:
        found = operations.status()
        replicas = _replicas(operations, found)
    if json:
        console.json_line(view.status_json(found, replicas))
        return
    for warning in view.warnings(found):
        console.note(f"[yellow]{console.plain(warning)}[/yellow]")
    console.say(console.plain(view.headline(found)))
    if not found.alone:
        console.columns(view.BROKER_COLUMNS, view.broker_rows(found))
    console.say(console.plain(view.health(found, replicas)))
    troubled = [one for one in found.partitions if view.is_troubled(one, replicas)]
    if troubled:
        rows = (view.partition_row(one, replicas) for one in troubled)
        console.columns(view.PARTITION_COLUMNS, rows)


@app.command()
def brokers(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """List the brokers: state, vote, number of led and held partitions, addresses.

    [bold]Examples[/bold]

      headwater cluster brokers
      headwater cluster brokers --json | jq -r 'select(.fenced) | .broker'
    """
    with _operations(server) as operations:
        found = operations.status()
    if json:
        for one in view.brokers_json(found):
            console.json_line(one)
        return
    console.columns(view.BROKER_COLUMNS, view.broker_rows(found))


@app.command()
def partitions(
    stream: OptionalStream = None, *, server: ServerOption = None, json: JsonOption = False
) -> None:
    """List the partitions: status, leader and its epoch, replicas, ISR, lag of the followers.

    A status is Online, Election, CandidateFound or Offline.

    [bold]Examples[/bold]

      headwater cluster partitions
      headwater cluster partitions orders --json | jq '{partition, leader, isr}'
    """
    with _operations(server) as operations:
        found = operations.status()
        replicas = _replicas(operations, found)
    shown = [one for one in found.partitions if stream in (None, one.stream)]
    if stream is not None and not shown:
        raise UnknownStreamError(f"no stream is named {stream!r}", stream=stream)
    if json:
        for one in shown:
            console.json_line(view.partition_json(one, replicas))
        return
    if not shown:
        console.note("No streams yet. Make one: headwater stream create NAME")
        return
    console.columns(view.PARTITION_COLUMNS, (view.partition_row(one, replicas) for one in shown))


@app.command()
def move(
    stream: StreamArgument,
    partition: PartitionArgument,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="BROKER,…", help="The replicas, preferred leader first.")
    ],
    wait: WaitOption = True,
    timeout: TimeoutOption = "1h",  # type: ignore[assignment]  # typer parses defaults, too
    server: ServerOption = None,
) -> None:
    """Move a partition to other brokers, under load; old replicas stay until new ones have all.

    [bold]Examples[/bold]

      headwater cluster move orders 0 --to broker-1,broker-2,broker-4
      headwater cluster move orders 0 --to broker-1 --no-wait
    """
    target = tuple(filter(None, (name.strip() for name in to.split(","))))
    with _operations(server) as operations:
        done = operations.move(stream, partition, target)
        if not done.changed:
            console.note(
                f"{console.plain(stream)}/{partition} has these replicas already, or is moving."
            )
        if wait:
            _wait_moved(operations, stream, partition, target, timeout)
    if wait:
        console.say(console.plain(f"{stream}/{partition} is on {', '.join(target)}."))
    else:
        console.note("`headwater cluster partitions` shows the progress of the move.")


@app.command("transfer-leader")
def transfer_leader(
    stream: StreamArgument,
    partition: PartitionArgument,
    *,
    to: ToBrokerOption,
    wait: WaitOption = True,
    timeout: TimeoutOption = "30s",  # type: ignore[assignment]  # typer parses defaults, too
    server: ServerOption = None,
) -> None:
    """Let another in-sync replica of a partition lead. Publishers follow; no record is lost.

    [bold]Example[/bold]

      headwater cluster transfer-leader orders 0 --to broker-2
    """
    with _operations(server) as operations:
        operations.transfer_leader(stream, partition, to)
        if wait:
            _wait_led(operations, stream, partition, to, timeout)
    if wait:
        console.say(console.plain(f"{to} leads {stream}/{partition}."))


@app.command()
def balance(
    *,
    wait: WaitOption = True,
    timeout: TimeoutOption = "30s",  # type: ignore[assignment]  # typer parses defaults, too
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Give leadership back to each partition's preferred leader, the first of its replicas.

    After a failure, one broker may lead many partitions. A preferred leader that is not in sync
    does not lead yet: run the command again later.

    [bold]Example[/bold]

      headwater cluster balance
    """
    with _operations(server) as operations:
        done = operations.balance()
        for one in done if wait else ():
            if one.changed:
                _wait_led(operations, one.stream, one.partition, one.to, timeout)
    if json:
        for one in done:
            console.json_line(one.to_dict())
        return
    if not done:
        console.say("Nothing to do: every partition whose preferred leader can lead is led by it.")
        return
    console.columns(
        ("partition", "leader", "refused"),
        ((f"{one.stream}/{one.partition}", one.to, one.refused) for one in done),
    )


@app.command("unclean-elect")
def unclean_elect(
    stream: StreamArgument,
    partition: PartitionArgument,
    *,
    broker: Annotated[str, typer.Option("--broker", metavar="BROKER", help="The new leader.")],
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Accept the loss that the command shows.")
    ] = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = "30s",  # type: ignore[assignment]  # typer parses defaults, too
    server: ServerOption = None,
) -> None:
    """Let a replica lead that may lack acknowledged records: the last resort.

    Use this only if no broker that has all acknowledged records can come back. The command shows
    the records that would be lost. It changes the leader only with --accept-data-loss; then the
    cluster records the loss.

    [bold]Examples[/bold]

      headwater cluster unclean-elect orders 0 --broker broker-2
      headwater cluster unclean-elect orders 0 --broker broker-2 --accept-data-loss
    """
    from headwater.client.operations import known_broker
    from headwater.client.owner import default_owner

    with _operations(server) as operations:
        found = operations.status()
        one = _partition(found, stream, partition)
        chosen = known_broker(found, broker)
        if not found.confirmed:
            raise UnavailableError(next(view.warnings(found)))
        if broker not in one.replicas:
            raise InvalidRequestError(
                f"{broker} holds no replica of {one.name}; {', '.join(one.replicas)} do: only one "
                "of them can lead it"
            )
        if one.leader is not None:
            raise InvalidRequestError(
                f"{stream}/{partition} is Online: {one.leader} leads it, and nothing is lost. "
                "`headwater cluster transfer-leader` makes another broker lead"
            )
        replicas = _replicas(operations, found)
        for line in view.what_would_be_lost(one, chosen, replicas):
            console.note(console.plain(line))
        if not accept_data_loss:
            raise InvalidRequestError(
                "nothing was changed; to give these records up, add --accept-data-loss"
            )
        operations.elect_unclean(
            stream,
            partition,
            broker=chosen,
            partition_epoch=one.partition_epoch,
            known_end=replicas.known_end(one),
            operator=default_owner(),
            accept_data_loss=True,
        )
        if wait:
            _wait_led(operations, stream, partition, broker, timeout)
    console.say(
        console.plain(f"{broker} leads {stream}/{partition}; the loss is recorded.")
        if wait
        else "The election is under way; the loss is recorded."
    )


@app.command("remove-broker")
def remove_broker(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Id of the broker.")],
    *,
    server: ServerOption = None,
) -> None:
    """Remove a broker that is stopped for good, holds no replica and has no vote.

    [bold]Example[/bold]

      headwater cluster remove-broker broker-4
    """
    with _operations(server) as operations:
        operations.remove_broker(broker)
    console.say(f"[bold]{console.plain(broker)}[/bold] is removed from the cluster.")


@contextmanager
def _operations(server: str | None) -> Iterator[Operations]:
    from headwater.client.operations import Operations

    with connect(find_server(server)) as client:
        yield Operations(client)


def _replicas(operations: Operations, found: ClusterStatus) -> view.Replicas:
    alive = [one for one in found.brokers if not one.fenced or not found.confirmed]
    return view.Replicas(operations.replicas(alive))


def _partition(found: ClusterStatus, stream: str, partition: int) -> PartitionInfo:
    one = found.partition(stream, partition)
    if one is not None:
        return one
    count = sum(other.stream == stream for other in found.partitions)
    if not count:
        raise UnknownStreamError(f"no stream is named {stream!r}", stream=stream)
    raise UnknownPartitionError.of(stream, partition, count)


def _wait_led(
    operations: Operations, stream: str, partition: int, broker: str, timeout_ms: int
) -> None:
    def led(one: PartitionInfo) -> bool:
        return one.leader == broker

    with console.working(f"waiting until {broker} leads {stream}/{partition}"):
        _wait(operations, stream, partition, led, timeout_ms)


def _wait_moved(
    operations: Operations, stream: str, partition: int, target: tuple[str, ...], timeout_ms: int
) -> None:
    """Wait until ``target`` are the replicas; meanwhile show which of them are in sync."""
    said = ""
    with console.progress(total=len(target), what="replicas in sync") as progress:
        (task,) = progress.task_ids

        def moved(one: PartitionInfo) -> bool:
            nonlocal said
            ready = [name for name in target if name in one.isr]
            progress.update(task, completed=len(ready), rate="")
            text = f"in sync: {', '.join(ready) or 'none yet'}"
            if progress.disable and text != said:
                console.note(console.plain(text))
            said = text
            return one.replicas == target and not one.target and one.status == "online"

        _wait(operations, stream, partition, moved, timeout_ms)


@console.goes_on("the change goes on; `headwater cluster partitions` shows its progress")
def _wait(
    operations: Operations,
    stream: str,
    partition: int,
    done: Callable[[PartitionInfo], bool],
    timeout_ms: int,
) -> None:
    """Poll the partition until ``done`` is true; another broker may answer each time.

    Raises:
        CommitTimeoutError: the timeout was reached; the change itself continues.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            one = _partition(operations.status(), stream, partition)
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
        else:
            if done(one):
                return
            if time.monotonic() > deadline:
                shown = STATUS_NAMES.get(one.status, one.status)
                raise CommitTimeoutError(
                    f"{one.name} is {shown} with leader {one.leader}, "
                    f"ISR {' '.join(one.isr)} after {timeout_ms / 1000:.0f} s; the change "
                    "continues, `headwater cluster partitions` shows its progress"
                )
        time.sleep(_POLL_S)
