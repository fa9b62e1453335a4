"""``headwater stream delete --purge-table`` and ``stream purge-table``: a table goes for good."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import HeldByLeaseError, InvalidRequestError, UnavailableError
from headwater.cli import console
from headwater.cli.discovery import Server, connect, find_server, use_lake_of
from headwater.cli.options import JsonOption, ServerOption
from headwater.cli.parsing import counted, format_bytes, format_time_us

if TYPE_CHECKING:
    from broker.model.stream import Stream
    from broker.model.tiering import HeldLease
    from headwater.client import Client
    from tiering.purge.owner import TableOwner
    from tiering.purge.purger import TablePurged, TablePurger, TableSize

ConfirmOption = Annotated[
    str | None,
    typer.Option(
        "--confirm", metavar="NAME", help="The stream's name: answers the question about the table."
    ),
]
DespiteLeasesOption = Annotated[
    bool,
    typer.Option("--despite-leases", help="Purge the table although readers hold it by leases."),
]


def purge_table(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The table: <lake>/<namespace>/<table>.")
    ],
    *,
    confirm: ConfirmOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the table of a deleted stream for good, or go on with that.

    The stream must have been deleted by the cluster that is asked: every broker is asked whether it
    still writes to the table. Run it again as often as you like. Objects are deleted with the
    credentials of this process; the broker's own are not used.

    [bold]Examples[/bold]

      headwater stream purge-table s3://my-bucket/headwater/default/orders
      headwater stream purge-table ./lake/default/orders --confirm orders
    """
    found = find_server(server)
    with connect(found) as client:
        purger = _purger(found, address)
        owner = purger.owner()
        if owner is None:
            raise InvalidRequestError(
                f"nothing at {purger.uri} says whose table it is: there is none, it was purged "
                "already, or this process sees another place than the brokers"
            )
        doomed = DoomedTable(purger, owner, owner.stream or address.rstrip("/").split("/")[-1])
        doomed.ask_brokers(client).require_deleted(owner.stream_uuid)
        doomed.confirm(confirm)
        done = doomed.purge(client)
    if json:
        console.json_line({"stream": doomed.name, "table": done.facts})
    else:
        console.say(done.said)
    done.raise_unless_sure()


@dataclass
class DoomedTable:
    """The table that is going to be purged, and its stream's name."""

    purger: TablePurger
    owner: TableOwner
    name: str

    @classmethod
    def of_stream(
        cls, client: Client, server: Server, stream: Stream, *, despite_leases: bool
    ) -> DoomedTable | None:
        """Find the table of a stream that is to be deleted; None if it has none.

        Raises:
            HeldByLeaseError: readers hold it.
            InvalidRequestError: this process does not see the table that the broker names.
            TableMismatchError: the table's folder has objects that are not the table's.
        """
        from tiering.purge.owner import TableOwner

        if not stream.config.tiering:
            return None
        if not despite_leases:
            refuse_held(stream.name, client.leases(stream.name))
        cut = client.cut(stream.name)
        client.drop_lease(cut.lease.lease_id)
        purger = _purger(server, cut.table_uri)
        found = purger.owner()
        if found is None and cut.table_version is not None:
            raise InvalidRequestError(
                f"this process sees no table at {cut.table_uri}, and the broker does: run the "
                "command where the lake is. Nothing was deleted"
            )
        if found is not None and found.stream_uuid != stream.uuid:
            raise InvalidRequestError(
                f"{cut.table_uri} is the table of stream {found.stream_uuid}, not of {stream.name} "
                f"({stream.uuid}). Nothing was deleted"
            )
        owner = TableOwner(stream_uuid=stream.uuid, stream=stream.name)
        purger.require_own(owner)
        purger.require_delete()
        return cls(purger, owner, stream.name)

    def ask_brokers(self, client: Client) -> Any:
        """Ask every broker what it knows of the stream."""
        from headwater.client.remains import ask_brokers

        return ask_brokers(client, self.name, self.owner.stream_uuid)

    def confirm(self, given: str | None, *, records: int | None = None) -> None:
        """Ask for the stream's name, unless it was given.

        Raises:
            InvalidRequestError: another name was given, or nobody can be asked.
        """
        if given is None and not sys.stdin.isatty():
            raise InvalidRequestError(
                "the table is deleted for good, so this asks for the stream's name, and there is "
                f"no terminal to ask at: give --confirm {shlex.quote(self.name)}. Nothing was "
                "deleted"
            )
        if given is None:
            console.asking()
            console.note(console.plain(self._warning(records)))
            given = typer.prompt("Type the stream's name to go on", err=True)
        if given != self.name:
            raise InvalidRequestError(
                f"{given!r} is not the name of the stream, {self.name!r}: nothing was deleted"
            )

    def purge(self, client: Client) -> DonePurge:
        """Delete the table; the stream is deleted."""
        console.note(
            f"[dim]If this is interrupted, go on with: {console.plain(self._command)}[/dim]"
        )
        with console.counting("deleting objects", total=self._size.objects_count) as report:
            purged = self.purger.run(
                self.owner,
                ask=lambda: self.ask_brokers(client).waiting_for,
                pause=threading.Event().wait,
                told=report,
            )
        return DonePurge(self.purger.uri, purged, self._command)

    @cached_property
    def _size(self) -> TableSize:
        """What there was to delete when it was first asked: a listing of the whole table."""
        return self.purger.size(self.owner)

    @property
    def _command(self) -> str:
        words = ("headwater", "stream", "purge-table", self.purger.uri, "--confirm", self.name)
        return shlex.join(words)

    def _warning(self, records: int | None) -> str:
        size = self._size
        what = "" if records is None else f"{counted(records, 'record')} in "
        return (
            f"This deletes {what}{counted(size.data_files_count, 'data file')}, "
            f"{counted(size.objects_count, 'object')} with {format_bytes(size.size_bytes)} in all, "
            f"at {self.purger.uri}, for good. Saved cuts of the stream, reads as of an earlier "
            "moment, cursors and positions of groups on it end."
        )


@dataclass(frozen=True, slots=True)
class DonePurge:
    """What became of a table, as the command tells it."""

    uri: str
    purged: TablePurged
    command: str  # by which it goes on

    @property
    def facts(self) -> dict[str, Any]:
        """The outcome for scripts."""
        return {
            "address": self.uri,
            "objects": self.purged.objects_count,
            "finished": self.purged.sure,
            "waiting_for": list(self.purged.waiting_for),
        }

    @property
    def said(self) -> str:
        """The outcome for people."""
        deleted = counted(self.purged.objects_count, "object")
        return f"Purged its table {console.plain(self.uri)}: {deleted} deleted."

    def raise_unless_sure(self) -> None:
        """Fail, after the outcome is written, if an object may come back, or a hidden file stays.

        Raises:
            UnavailableError: run it again.
        """
        if self.purged.sure:
            return
        reason = ", ".join(self.purged.waiting_for) or "objects came back again and again"
        raise UnavailableError(
            "all objects of the table that a listing shows were deleted, but the purge is not "
            f"over: {reason}. Run it again later: {self.command}"
        )


def records_in_table(client: Client, name: str) -> int:
    """Return how many records a stream's table has."""
    return sum(len(one.cold) - (one.gone_count or 0) for one in client.tier_status(name))


def _purger(server: Server, address: str) -> TablePurger:
    from tiering.purge.purger import TablePurger
    from tiering.store.location import StoreConfig
    from tiering.store.opening import refuse_without_credentials

    use_lake_of(server)
    location = StoreConfig.from_env(address)
    refuse_without_credentials(location)
    return TablePurger(location)


def refuse_held(name: str, leases: Sequence[HeldLease]) -> None:
    """Raise HeldByLeaseError if readers hold records of the stream."""
    if not leases:
        return
    last = max(one.expires_us for one in leases)
    owners = sorted({one.owner for one in leases})
    raise HeldByLeaseError(
        f"{counted(len(leases), 'lease')} of {', '.join(owners)} hold records of {name}, until "
        f"{format_time_us(last)} unless renewed: wait, end them with `headwater lease drop`, or "
        "give --despite-leases, and their reads fail. Nothing was deleted",
        owners=owners,
        lease_ids=[one.lease_id for one in leases],
        floor=0,
    )
