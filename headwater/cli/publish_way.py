"""The way of ``headwater publish`` to the broker: NATS messages, or Arrow batches by Flight."""

from __future__ import annotations

import ipaddress
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from broker.errors import InvalidRequestError, UnavailableError
from broker.model.records import AckPolicy
from broker.model.stream import Stream
from headwater.cli import console
from headwater.cli.discovery import DEFAULT_NATS, Server
from headwater.cli.publish_records import OutgoingRecord
from headwater.nats_login import NatsLogin

if TYPE_CHECKING:
    from headwater.client import Client

_UNKNOWN: Final = object()


class Sink(Protocol):
    """A way to the broker."""

    def send(self, records: list[OutgoingRecord]) -> None:
        """Send in order; blocks while too many records are unacknowledged."""

    def finish(self) -> None:
        """Block until every record is acknowledged."""

    @property
    def acked(self) -> int:
        """Records that were acknowledged under the ack policy."""

    @property
    def duplicates(self) -> int:
        """Of the acknowledged: not stored, since another record may have their message id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The options about the way. ``via`` None means NATS if possible, else Flight."""

    via: str | None
    headers: list[tuple[str, str]]
    policy: AckPolicy
    window: int
    nats_given: bool  # --nats names the server, so Flight must not be used instead
    login: NatsLogin
    placed_by: int | None = None  # by Flight: the number of partitions that placed the keys


def open_sink(
    stack: ExitStack, client: Client, server: Server, stream: Stream, way: Way
) -> tuple[Sink, str]:
    """Open the sink in ``stack`` and return it with the name of its way, nats or flight.

    Raises:
        InvalidRequestError: NATS is asked for, and the stream does not answer NATS messages.
        UnavailableError: NATS is asked for, and cannot be reached.
    """
    from headwater.cli.publish_sinks import FlightSink, NatsSink

    wanted = "nats" if way.via is None and way.nats_given else way.via
    if wanted == "nats" or (wanted is None and _may_go_by_nats(stream, way)):
        _require_answers(stream, way)
        url = server.nats or nats_of(client, server, stream)
        if url is None and wanted == "nats":
            raise UnavailableError(
                "the broker uses no NATS server, or one that only its own machine can reach: use "
                "--via flight, or give --nats URL"
            )
        if url is not None:
            acks = way.policy is not AckPolicy.NONE
            sink = NatsSink(url, stream, way.headers, window=way.window, acks=acks, login=way.login)
            try:
                return stack.enter_context(sink), "nats"
            except UnavailableError as error:
                if wanted == "nats":
                    raise
                console.note(f"[dim]{console.plain(error.message)}; publishing by Flight.[/dim]")
    opened = FlightSink(client, stream, way.headers, way.policy, placed_by=way.placed_by)
    return stack.enter_context(opened), "flight"


def nats_of(client: Client, server: Server, stream: Stream) -> str | None:
    """Ask the broker for its NATS server; None if it has none that this machine can reach."""
    values = {"name": stream.name, "positions": False}
    found: Any = client.call("describe_stream", values)[0].get("nats", _UNKNOWN)
    local = _is_local(server.flight)
    if found is _UNKNOWN:  # a broker of release 0.1
        return DEFAULT_NATS if local else None
    if found is None or (_is_local(str(found)) and not local):
        return None  # the loopback of the broker's machine is not ours
    return str(found)


def _may_go_by_nats(stream: Stream, way: Way) -> bool:
    """Tell whether NATS could carry and acknowledge the records."""
    names = [name for name, _ in way.headers]
    answers = stream.config.puback or way.policy is AckPolicy.NONE
    return answers and way.policy is not AckPolicy.LEADER and len(set(names)) == len(names)


def _require_answers(stream: Stream, way: Way) -> None:
    if way.policy is not AckPolicy.NONE and not stream.config.puback:
        raise InvalidRequestError(
            f"stream {stream.name!r} does not acknowledge NATS messages (puback is off), so this "
            "command could not know whether records are stored: use --via flight, or --no-ack"
        )


def _is_local(urls: str) -> bool:
    """Tell whether an address, or one of several with commas, is on the loopback."""
    for url in urls.split(","):
        host = urlsplit(url if "://" in url else f"nats://{url}").hostname or ""
        try:
            if host == "localhost" or ipaddress.ip_address(host).is_loopback:
                return True
        except ValueError:
            continue
    return False
