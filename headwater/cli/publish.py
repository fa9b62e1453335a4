"""``headwater publish``: publishes lines, JSON lines or a whole file as durable records."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Protocol

import typer

from broker.codec.checksum import crc32c
from broker.errors import InvalidRequestError, RecordTooLargeError, UnknownPartitionError
from broker.model.partitioner import partition_of_key
from broker.model.records import AckPolicy
from broker.model.stream import Stream
from headwater.cli import console
from headwater.cli.discovery import Server, connect, find_server
from headwater.cli.options import JsonOption, NatsOption, ServerOption, StreamArgument
from headwater.cli.parsing import expand_subject, parse_header

if TYPE_CHECKING:
    from headwater.client import Client

_READ_BYTES: Final = 256 * 1024
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_WINDOW_DEFAULT: Final = 8192
_STORED: Final = {AckPolicy.ALL: "on disk", AckPolicy.LEADER: "on the leader's disk"}
_NOT_ASKED: Final = "not acknowledged, because acks is none"
_FIELD_PLACE: Final = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to send, with its destination."""

    partition: int
    subject: str
    key: bytes | None
    value: bytes


class Sink(Protocol):
    """A way to the broker."""

    def send(self, records: list[OutgoingRecord]) -> None:
        """Send in order; blocks while too many records are unacknowledged."""

    def finish(self) -> None:
        """Block until every record is acknowledged."""

    @property
    def acked(self) -> int:
        """Records that were acknowledged under the ack policy."""


FileArgument = Annotated[str, typer.Argument(metavar="[FILE|-]", help="File to read; - is stdin.")]
KeyOption = Annotated[
    str | None, typer.Option("--key", "-k", help="Key of every record.", show_default=False)
]
KeyFieldOption = Annotated[
    str | None,
    typer.Option(help="Lines are JSON objects; this field is the key.", show_default=False),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", help="'Name: value' for every record; may be repeated."),
]
SubjectOption = Annotated[
    str | None,
    typer.Option(
        help="Subject to publish on, for a stream with a wildcard. {field} is replaced by that "
        "field of each JSON line.",
        show_default=False,
    ),
]
PartitionOption = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        min=0,
        help="Partition; default: by the CRC-32 of the key, without a key one after the other by "
        "batch.",
    ),
]
RawOption = Annotated[bool, typer.Option("--raw", help="The whole input is one record.")]
ViaOption = Annotated[
    str, typer.Option(help="nats: as any NATS client; flight: Arrow batches, the fastest.")
]
NoAckOption = Annotated[
    bool,
    typer.Option("--no-ack", help="The same as --acks none."),
]
AcksOption = Annotated[
    str | None,
    typer.Option(
        help="What to wait for: all replicas in sync, the leader's disk (flight only), or none.",
        show_default="all",
    ),
]
WindowOption = Annotated[
    int, typer.Option(min=1, help="Records that may be unacknowledged at a time (NATS).")
]


def publish(
    stream: StreamArgument,
    file: FileArgument = "-",
    *,
    key: KeyOption = None,
    key_field: KeyFieldOption = None,
    header: HeaderOption = None,
    subject: SubjectOption = None,
    partition: PartitionOption = None,
    raw: RawOption = False,
    via: ViaOption = "nats",
    no_ack: NoAckOption = False,
    acks: AcksOption = None,
    window: WindowOption = _WINDOW_DEFAULT,
    server: ServerOption = None,
    nats: NatsOption = None,
    json: JsonOption = False,
) -> None:
    """Publish each line of a file, or of stdin, as one record.

    The command ends when every record is acknowledged under --acks, and prints the number. By
    default a record is acknowledged when it is on the disks of all replicas in sync.

    [bold]Examples[/bold]

      echo 'hello' | headwater publish orders
      headwater publish orders orders.jsonl --key-field order_id
      headwater publish flights flights.jsonl --key-field tailnum --subject 'flights.{origin}'
      headwater publish images photo.png --raw -k photo.png -H 'Type: image/png' --via flight
    """
    if via not in ("nats", "flight"):
        raise typer.BadParameter("choose nats or flight", param_hint="--via")
    if key is not None and key_field is not None:
        raise typer.BadParameter("give --key or --key-field, not both", param_hint="--key")
    policy = _policy(acks, no_ack=no_ack, via=via)
    headers = _headers(header or [])
    target = find_server(server, nats=nats)
    keyed = key is not None or key_field is not None
    with ExitStack() as stack:
        client = stack.enter_context(connect(target))
        found = client.stream(stream)
        router = Router(
            stream=found,
            subject=subject,
            partition=partition,
            key=None if key is None else key.encode(),
            key_field=key_field,
        )
        if partition is not None and keyed and found.config.partitions > 1:
            console.note(
                f"All records go to partition {partition}, whatever their keys: other producers of "
                "this stream put a key where its CRC-32 says, so it may be in two partitions."
            )
        source = stack.enter_context(_opened(file))
        sink = stack.enter_context(
            _nats_sink(target, found, headers, window, acks=policy is not AckPolicy.NONE)
            if via == "nats"
            else _flight_sink(client, found, headers, policy)
        )
        sent, seconds = _run(router, _values(source, raw), sink)
    acked = sink.acked
    if json:
        counts = {"sent": sent, "acked": acked, "acks": policy.value}
        console.json_line({**counts, "seconds": round(seconds, 3)})
    else:
        rate = sent / seconds if seconds > 0 else 0
        told = _NOT_ASKED if policy is AckPolicy.NONE else f"{acked:,} {_STORED[policy]}"
        console.note(f"{sent:,} records sent, {told}, {seconds:.1f} s, {rate:,.0f}/s")


def _policy(acks: str | None, *, no_ack: bool, via: str) -> AckPolicy:
    """Return the ack policy of the options --acks and --no-ack."""
    known = {policy.value: policy for policy in AckPolicy}
    if acks is None:
        return AckPolicy.NONE if no_ack else AckPolicy.ALL
    if acks not in known:
        raise typer.BadParameter(f"choose one of {', '.join(known)}", param_hint="--acks")
    if no_ack and acks != "none":
        raise typer.BadParameter("give --acks or --no-ack, not both", param_hint="--acks")
    if acks == "leader" and via == "nats":
        raise typer.BadParameter(
            "the broker answers a plain NATS message only once it is committed: use --via flight",
            param_hint="--acks",
        )
    return known[acks]


class Router:
    """Decides subject, partition and key of each value. Holds no connection."""

    def __init__(
        self,
        *,
        stream: Stream,
        subject: str | None,
        partition: int | None,
        key: bytes | None,
        key_field: str | None,
    ) -> None:
        """Check the choices against the stream.

        Raises:
            UnknownPartitionError: the stream does not have this partition.
            InvalidRequestError: a wildcard needs a subject, or subject and partition are given.
        """
        config = stream.config
        if partition is not None and partition >= config.partitions:
            raise UnknownPartitionError(
                f"stream {stream.name!r} has partitions 0 to {config.partitions - 1}",
                stream=stream.name,
                partition=partition,
            )
        wildcard = any(token in ("*", ">") for token in config.subject.split("."))
        if wildcard and subject is None:
            raise InvalidRequestError(
                f"stream {stream.name!r} records {config.subject!r}: give the subject to publish "
                "on with --subject"
            )
        self._config = config
        self._subject = subject
        self._partition = partition
        self._key = key
        self._key_field = key_field
        self._parse = key_field is not None or bool(_FIELD_PLACE.search(subject or ""))
        self._by_batch = config.partitioner == "crc32"  # else as this command did in release 0.1
        self._turn = -1 if self._by_batch else 0

    def begin_batch(self) -> None:
        """Begin the next batch: its records without a key go to the next partition."""
        self._turn += self._by_batch

    def route(self, value: bytes) -> OutgoingRecord:
        """Return the record for a value, with its partition, subject and key.

        Raises:
            InvalidRequestError: the value is not a JSON object, or lacks a needed field.
        """
        fields = _fields(value) if self._parse else {}
        key = self._key if self._key_field is None else _key(fields, self._key_field)
        partition = self._choose_partition(key)
        if self._subject is None:
            return OutgoingRecord(partition, self._config.partition_subject(partition), key, value)
        try:
            return OutgoingRecord(partition, expand_subject(self._subject, fields), key, value)
        except ValueError as cause:
            raise InvalidRequestError(str(cause)) from cause

    def _choose_partition(self, key: bytes | None) -> int:
        count = self._config.partitions
        if self._partition is not None:
            return self._partition
        if count == 1:
            return 0
        if key is not None:
            if self._by_batch:
                return partition_of_key(key, count)
            return crc32c(key) % count  # the rule of this command in release 0.1
        if self._by_batch:
            return self._turn % count
        turn, self._turn = self._turn, self._turn + 1
        return turn % count


def _fields(value: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except ValueError as cause:
        raise InvalidRequestError(f"this line is not JSON: {value[:80]!r}") from cause
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"this line is not a JSON object: {value[:80]!r}")
    return fields


def _key(fields: dict[str, Any], name: str) -> bytes | None:
    if name not in fields:
        raise InvalidRequestError(f"a record has no field {name!r} for its key", field=name)
    found = fields[name]
    if found is None:
        return None
    return (found if isinstance(found, str) else json.dumps(found)).encode()


def _headers(texts: list[str]) -> list[tuple[str, str]]:
    try:
        return [parse_header(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--header") from error


def _opened(file: str) -> BinaryIO:
    return sys.stdin.buffer if file == "-" else Path(file).open("rb")


def _values(source: BinaryIO, raw: bool) -> Iterator[list[bytes]]:
    """Yield values in groups as they arrive, so that a slow pipe is published without delay."""
    if raw:
        data = source.read(_RECORD_BYTES_MAX + 1)
        _refuse_too_large(len(data))
        yield [data]
        return
    rest = b""
    while chunk := _read_some(source):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        _refuse_too_large(len(rest))
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


def _read_some(source: BinaryIO) -> bytes:
    read1 = getattr(source, "read1", None)  # returns available bytes without waiting for more
    chunk: bytes = read1(_READ_BYTES) if read1 else source.read(_READ_BYTES)
    return chunk


def _refuse_too_large(size: int) -> None:
    if size > _RECORD_BYTES_MAX:
        raise RecordTooLargeError(
            f"a record has more than {_RECORD_BYTES_MAX} bytes",
            size_bytes=size,
            limit_bytes=_RECORD_BYTES_MAX,
        )


def _run(router: Router, groups: Iterable[list[bytes]], sink: Sink) -> tuple[int, float]:
    """Send all records and show the progress; return the number of records and the seconds."""
    started, sent = time.monotonic(), 0
    try:
        with console.progress(total=None, what="publishing") as shown:
            for group in groups:
                router.begin_batch()
                records = [router.route(value) for value in group if value]
                if not records:
                    continue
                sink.send(records)
                sent += len(records)
                rate = f"{sent / (time.monotonic() - started):,.0f}/s, {sink.acked:,} on disk"
                shown.update(shown.task_ids[0], completed=sent, rate=rate)
            sink.finish()
    except BaseException:
        console.note(
            f"Stopped after {sent:,} records sent; {sink.acked:,} are known to be on disk."
        )
        raise
    return sent, time.monotonic() - started


def _nats_sink(
    server: Server, stream: Stream, headers: list[tuple[str, str]], window: int, *, acks: bool
) -> Any:
    from headwater.cli.publish_sinks import NatsSink

    if acks and not stream.config.puback:
        raise InvalidRequestError(
            f"stream {stream.name!r} does not acknowledge NATS messages (puback is off), so this "
            "command could not know whether records are stored: use --via flight, or --no-ack"
        )
    return NatsSink(server.nats, stream, headers, window=window, acks=acks)


def _flight_sink(
    client: Client, stream: Stream, headers: list[tuple[str, str]], acks: AckPolicy
) -> Any:
    from headwater.cli.publish_sinks import FlightSink

    return FlightSink(client, stream, headers, acks)
