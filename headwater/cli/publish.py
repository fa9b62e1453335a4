"""``headwater publish``: publishes lines, JSON lines or a whole file as durable records."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from broker.errors import InvalidRequestError
from broker.model.records import AckPolicy
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, NatsOption, ServerOption, StreamArgument
from headwater.cli.parsing import counted, parse_header
from headwater.cli.publish_records import Converter, Router, values
from headwater.nats_login import NatsLogin

if TYPE_CHECKING:
    from headwater.cli.publish_way import Sink

_WINDOW_DEFAULT: Final = 8192
_STORED: Final = {AckPolicy.ALL: "on disk", AckPolicy.LEADER: "on the leader's disk"}
_NOT_ASKED: Final = "not acknowledged, because acks is none"
_DUPLICATES: Final = (
    "A duplicate is not stored: the stream had a record with its Nats-Msg-Id. Give each record an "
    "id of its own, or none."
)
_TYPE_MANY: Final = "[dim]Type records, each on a line of its own; Ctrl-D ends.[/dim]"
_TYPE_ONE: Final = "[dim]Type one record; Ctrl-D ends it.[/dim]"
_MANY_RECORDS: Final = 20_000
_LONG_S: Final = 2.0


def _nats_option(name: str, help: str, *, secret: bool = False) -> Any:  # noqa: A002  # typer's word
    return typer.Option(
        f"--nats-{name}",
        envvar=f"HEADWATER_NATS_{name.upper().replace('-', '_')}",
        help=help,
        show_default=False,
        metavar="SECRET" if secret else "TEXT" if name == "user" else "FILE",
    )


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
    str | None,
    typer.Option(
        help="nats: as any NATS client; flight: Arrow batches, the fastest. Default: nats if the "
        "stream answers NATS messages and NATS can be reached, else flight.",
        show_default=False,
    ),
]
StripCrOption = Annotated[
    bool, typer.Option("--strip-cr", help="Remove a carriage return at the end of each line.")
]
SkipBlankOption = Annotated[bool, typer.Option("--skip-blank", help="Leave empty lines out.")]
SkipBadOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write lines that cannot be records to this file, and go on; without it the first "
        "such line ends the command.",
        show_default=False,
    ),
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
NatsUserOption = Annotated[str | None, _nats_option("user", "User at the NATS server.")]
NatsPasswordOption = Annotated[
    str | None,
    _nats_option("password", "The user's password; better by the variable.", secret=True),
]
NatsTokenOption = Annotated[
    str | None,
    _nats_option("token", "Token of the NATS server; better by the variable.", secret=True),
]
NatsCredsOption = Annotated[str | None, _nats_option("creds-file", "Credentials made by nsc.")]
NatsSeedOption = Annotated[str | None, _nats_option("nkey-seed-file", "Seed of an nkey.")]
NatsCaOption = Annotated[
    str | None, _nats_option("tls-ca-file", "Authority of the NATS server's certificate.")
]
NatsCertOption = Annotated[
    str | None, _nats_option("tls-cert-file", "Certificate to show to the NATS server.")
]
NatsKeyOption = Annotated[str | None, _nats_option("tls-key-file", "The certificate's key.")]


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
    strip_cr: StripCrOption = False,
    skip_blank: SkipBlankOption = False,
    skip_bad: SkipBadOption = None,
    via: ViaOption = None,
    no_ack: NoAckOption = False,
    acks: AcksOption = None,
    window: WindowOption = _WINDOW_DEFAULT,
    server: ServerOption = None,
    nats: NatsOption = None,
    nats_user: NatsUserOption = None,
    nats_password: NatsPasswordOption = None,
    nats_token: NatsTokenOption = None,
    nats_creds_file: NatsCredsOption = None,
    nats_nkey_seed_file: NatsSeedOption = None,
    nats_tls_ca_file: NatsCaOption = None,
    nats_tls_cert_file: NatsCertOption = None,
    nats_tls_key_file: NatsKeyOption = None,
    json: JsonOption = False,
) -> None:
    """Publish each line of a file, or of stdin, as one record.

    A record is the line, byte for byte: an empty line is an empty record. The command ends when
    every record is acknowledged under --acks, and prints the number. By default a record is
    acknowledged when it is on the disks of all replicas in sync.

    [bold]Examples[/bold]

      echo 'hello' | headwater publish orders
      headwater publish orders orders.jsonl --key-field order_id --skip-bad bad.jsonl
      headwater publish flights flights.jsonl --key-field tailnum --subject 'flights.{origin}'
      headwater publish images photo.png --raw -k photo.png -H 'Type: image/png' --via flight
    """
    _publish(locals())


def _publish(given: Mapping[str, Any]) -> None:
    """Publish; ``given`` has the values of the command's options by name."""
    from headwater.cli.publish_way import Way, open_sink

    key, via, partition = given["key"], given["via"], given["partition"]
    if via not in (None, "nats", "flight"):
        raise typer.BadParameter("choose nats or flight", param_hint="--via")
    if key is not None and given["key_field"] is not None:
        raise typer.BadParameter("give --key or --key-field, not both", param_hint="--key")
    policy = _policy(given["acks"], no_ack=given["no_ack"], via=via)
    way = Way(
        via=via,
        headers=_headers(given["header"] or []),
        policy=policy,
        window=given["window"],
        nats_given=given["nats"] is not None,
        login=_login(given),
    )
    target = find_server(given["server"], nats=given["nats"])
    with ExitStack() as stack:
        client = stack.enter_context(connect(target))
        found = client.stream(given["stream"])
        router = Router(
            stream=found,
            subject=given["subject"],
            partition=partition,
            key=None if key is None else key.encode(),
            key_field=given["key_field"],
        )
        keyed = key is not None or given["key_field"] is not None
        if partition is not None and keyed and found.config.partitions > 1:
            console.note(
                f"All records go to partition {partition}, whatever their keys. Other producers "
                "choose the partition by the key's CRC-32, so records of one key may be in two "
                "partitions."
            )
        source = stack.enter_context(_opened(given["file"]))
        converter = Converter(
            router,
            strip_cr=given["strip_cr"],
            skip_blank=given["skip_blank"],
            skip_bad=stack.enter_context(_bad_file(given["skip_bad"], given["file"])),
        )
        way = dataclasses.replace(way, placed_by=router.placed_by)
        sink, via = open_sink(stack, client, target, found, way)
        typed = source.isatty()
        if typed:
            console.note(_TYPE_ONE if given["raw"] else _TYPE_MANY)
        sent, seconds = _run(converter, values(source, raw=given["raw"]), sink, typed=typed)
    report = {
        "sent": sent,
        "acked": sink.acked,
        "duplicates": sink.duplicates,
        "acks": policy.value,
        "skipped": converter.skipped,
    }
    if given["json"]:
        console.json_line({**report, "via": via, "seconds": round(seconds, 3)})
    else:
        _say(report, policy, seconds, skip_bad=given["skip_bad"])
        _hint_at_flight(sent, seconds, chosen=given["via"], via=via)


def _hint_at_flight(sent: int, seconds: float, *, chosen: str | None, via: str) -> None:
    if chosen is None and via == "nats" and sent >= _MANY_RECORDS and seconds > _LONG_S:
        console.note(
            "[dim]--via flight sends Arrow batches: for many small records it is about ten "
            "times as fast.[/dim]"
        )


def _say(
    report: Mapping[str, Any], policy: AckPolicy, seconds: float, *, skip_bad: Path | None
) -> None:
    sent = report["sent"]
    rate = sent / seconds if seconds > 0 else 0
    duplicates = report["duplicates"]
    stored = _acknowledged(report["acked"], duplicates, _STORED.get(policy, ""))
    told = _NOT_ASKED if policy is AckPolicy.NONE else stored
    console.note(f"{counted(sent, 'record')} sent, {told}, {seconds:.1f} s, {rate:,.0f}/s")
    if duplicates:
        console.note(_DUPLICATES)
    if report["skipped"]:
        where = console.plain(str(skip_bad))
        console.note(f"{report['skipped']:,} lines could not be records; they are in {where}")


def _acknowledged(acked: int, duplicates: int, stored: str) -> str:
    """Say how many records were acknowledged, and that they are stored if that is certain."""
    if duplicates:
        return f"{acked:,} acknowledged, {duplicates:,} of them as duplicates"
    return f"{acked:,} {stored}"


def _policy(acks: str | None, *, no_ack: bool, via: str | None) -> AckPolicy:
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


def _login(given: Mapping[str, Any]) -> NatsLogin:
    return NatsLogin(**{one.name: given[f"nats_{one.name}"] for one in fields(NatsLogin)})


def _bad_file(path: Path | None, source: str) -> Any:
    """Return the file of --skip-bad, opened for writing, as a context manager."""
    if path is None:
        return nullcontext()
    if source != "-" and path.exists() and path.samefile(source):
        raise typer.BadParameter("this is the file to publish", param_hint="--skip-bad")
    return path.open("wb")


def _headers(texts: list[str]) -> list[tuple[str, str]]:
    try:
        return [parse_header(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--header") from error


def _opened(file: str) -> BinaryIO:
    if file != "-":
        return Path(file).open("rb")
    if sys.stdin is None:  # as after `<&-`
        raise InvalidRequestError("standard input is closed: give a file, or records by a pipe")
    return sys.stdin.buffer


def _run(
    converter: Converter, groups: Iterable[list[bytes]], sink: Sink, *, typed: bool
) -> tuple[int, float]:
    """Send all records and show the progress; return the number of records and the seconds.

    While a person types the records, no progress is shown: it would be drawn over the lines.
    """
    started, sent = time.monotonic(), 0
    try:
        with nullcontext(_no_report) if typed else console.counting("publishing") as report:
            for group in groups:
                records = converter.convert(group)
                if not records:
                    continue
                sink.send(records)
                sent += len(records)
                known = _acknowledged(sink.acked, sink.duplicates, "on disk")
                report(sent, f"{sent / (time.monotonic() - started):,.0f}/s, {known}")
            sink.finish()
    except BaseException:
        known = _acknowledged(sink.acked, sink.duplicates, "known to be on disk")
        console.note(f"Stopped after {counted(sent, 'record')} sent; {known}.")
        raise
    return sent, time.monotonic() - started


def _no_report(_completed: int, _rate: str = "") -> None:
    """Show nothing."""
