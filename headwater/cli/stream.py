"""``headwater stream``: create, list, describe and delete streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.errors import HeadwaterError
from broker.model.stream import Stream
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import (
    JsonOption,
    ServerOption,
    StreamArgument,
    duration_option,
    size_option,
)
from headwater.cli.parsing import format_bytes, format_time_us

if TYPE_CHECKING:
    from headwater.client import Client

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list, describe and delete streams.",
    rich_markup_mode="rich",
)


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A-Z a-z 0-9 _ -, up to 128.")]
SubjectOption = Annotated[
    str | None,
    typer.Option(
        help="NATS subject to record, wildcards allowed; partition n > 0 listens to "
        "SUBJECT.n. Default: the stream's name.",
        show_default=False,
    ),
]
PartitionsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of partitions; 1 with a wildcard.")
]
PubackOption = Annotated[
    bool | None,
    typer.Option(
        "--puback/--no-puback",
        help="Answer publishers on their reply subject once the record is on disk, "
        "as JetStream does.",
        show_default=False,
    ),
]
PubackOverlapOption = Annotated[
    bool | None,
    typer.Option(
        "--puback-overlap",
        help="Answer although another stream answers on some of these subjects: a publisher then "
        "gets several answers, and has to look whose each one is.",
        show_default=False,
    ),
]
PubackHeadersOnlyOption = Annotated[
    bool | None,
    typer.Option(
        "--puback-headers-only",
        help="Answer only messages with a header of JetStream publishers (Nats-Msg-Id, "
        "Nats-Expected-…), never other people's requests.",
        show_default=False,
    ),
]
PartitionerOption = Annotated[
    str | None,
    typer.Option(
        help="crc32: every producer puts equal keys into one partition, and records without a key "
        "into one after the other; each_client: producers choose for themselves; default: crc32."
    ),
]
KeyHeaderOption = Annotated[
    str | None, typer.Option(help="NATS header that carries the key; default: Headwater-Key.")
]
QueueGroupOption = Annotated[
    str | None, typer.Option(help="NATS queue group, for load-balanced ingest.")
]
DedupWindowOption = Annotated[
    int | None,
    duration_option(
        "--dedup-window", help="How long a Nats-Msg-Id is remembered; 0s: off; default: 2m."
    ),
]
DedupIdsOption = Annotated[
    int | None,
    typer.Option(min=1, help="How many ids are remembered at most; default: 1000000."),
]
RecordBytesOption = Annotated[
    int | None, size_option("--record-bytes", help="Largest record; default: 8MiB.")
]
SegmentBytesOption = Annotated[
    int | None,
    size_option(
        "--segment-bytes",
        help="Size at which a segment is sealed and shipped; default: 128MiB.",
    ),
]
SegmentAgeOption = Annotated[
    int | None,
    duration_option(
        "--segment-age", help="Age at which a smaller segment is sealed and shipped; default: 10m."
    ),
]
IndexIntervalOption = Annotated[
    int | None,
    size_option("--index-interval", help="Bytes between index entries; default: 64KiB."),
]
FlushOption = Annotated[
    str | None,
    typer.Option(
        help="'always' syncs before every acknowledgement; 'interval' syncs at intervals, so a "
        "power loss may lose the last interval; default: always."
    ),
]
FlushIntervalOption = Annotated[
    int | None,
    duration_option("--flush-interval", help="Interval of --flush interval; default: 200ms."),
]
CompressionOption = Annotated[
    str | None, typer.Option(help="none, lz4 or zstd, on disk and on the wire; default: none.")
]
ReplicationFactorOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=7, help="Brokers that hold each partition; default: the cluster's, usually 3."
    ),
]
MinIsrOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=7,
        help="Number of in-sync replicas that must have synced a record before it is acknowledged; "
        "default: the cluster's, usually 2.",
    ),
]
TieringOption = Annotated[
    bool | None,
    typer.Option(
        "--tiering/--no-tiering",
        help="Keep the history in a Delta table; default: yes.",
        show_default=False,
    ),
]
LocalRetentionOption = Annotated[
    int | None,
    size_option(
        "--local-retention", help="Keep this much shipped history on local disk; default: 1GiB."
    ),
]
LocalRetentionAgeOption = Annotated[
    int | None,
    duration_option(
        "--local-retention-age",
        help="Keep shipped history on local disk at most this long; default: no limit.",
    ),
]
UnshippedOption = Annotated[
    int | None,
    size_option(
        "--unshipped",
        help="Refuse writes while more history than this is unshipped; default: no limit.",
    ),
]


# Options of ``create`` whose setting has another name: a setting has its unit in the name.
_SETTING_OF: Final = {
    "dedup_window": "dedup_window_ms",
    "dedup_ids": "dedup_ids_max",
    "record_bytes": "record_bytes_max",
    "segment_bytes": "segment_bytes_max",
    "segment_age": "segment_age_ms_max",
    "index_interval": "index_interval_bytes",
    "flush_interval": "flush_interval_ms",
    "local_retention": "local_retention_bytes",
    "local_retention_age": "local_retention_ms",
    "unshipped": "unshipped_bytes_max",
}


@app.command()
def create(
    name: NameArgument,
    *,
    subject: SubjectOption = None,
    partitions: PartitionsOption = None,
    partitioner: PartitionerOption = None,
    puback: PubackOption = None,
    puback_overlap: PubackOverlapOption = None,
    puback_headers_only: PubackHeadersOnlyOption = None,
    key_header: KeyHeaderOption = None,
    queue_group: QueueGroupOption = None,
    dedup_window: DedupWindowOption = None,
    dedup_ids: DedupIdsOption = None,
    record_bytes: RecordBytesOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_age: SegmentAgeOption = None,
    index_interval: IndexIntervalOption = None,
    flush: FlushOption = None,
    flush_interval: FlushIntervalOption = None,
    compression: CompressionOption = None,
    replication_factor: ReplicationFactorOption = None,
    min_isr: MinIsrOption = None,
    tiering: TieringOption = None,
    local_retention: LocalRetentionOption = None,
    local_retention_age: LocalRetentionAgeOption = None,
    unshipped: UnshippedOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Create a stream; to create it again with the same settings changes nothing.

    [bold]Examples[/bold]

      headwater stream create orders --puback
      headwater stream create flights --subject 'flights.>' --segment-bytes 8MiB
      headwater stream create clicks --partitions 4 --dedup-window 10m
      headwater stream create payments --replication-factor 3 --min-isr 2
    """
    given = _settings(locals())
    given["subject"] = subject or name
    with connect(find_server(server)) as client:
        stream = client.create_stream(name, **given)
    if json:
        console.json_line(_as_dict(stream))
    else:
        _say_created(stream, partitioner)


@app.command("list")
def list_(*, server: ServerOption = None, json: JsonOption = False) -> None:
    """List the streams: records that can be read, rows and bytes in the table, bytes not yet there.

    [bold]Examples[/bold]

      headwater stream list
      headwater stream list --json | jq .name
    """
    with connect(find_server(server)) as client:
        streams = client.streams()
        sizes = [_size_of(client, stream) for stream in streams]
    if json:
        for stream, size in zip(streams, sizes, strict=True):
            console.json_line({**_as_dict(stream), **dataclasses.asdict(size)})
        return
    if not streams:
        console.note("No streams yet. Make one: headwater stream create NAME --subject SUBJECT")
        return
    console.columns(
        (
            "stream",
            "subject",
            "partitions",
            "records",
            "in table",
            "table size",
            "unshipped",
            "replicas",
            "min isr",
            "puback",
            "tiering",
            "created",
        ),
        (
            (
                stream.name,
                stream.config.subject,
                stream.config.partitions,
                None if size.records_count is None else f"{size.records_count:,}",
                None if size.table_rows_count is None else f"{size.table_rows_count:,}",
                None if size.table_bytes is None else format_bytes(size.table_bytes),
                None if size.unshipped_bytes is None else format_bytes(size.unshipped_bytes),
                stream.config.replication_factor or 1,
                stream.config.min_isr or 1,
                stream.config.puback,
                stream.config.tiering,
                format_time_us(stream.created_us),
            )
            for stream, size in zip(streams, sizes, strict=True)
        ),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Size:
    """How much a stream has; None where the broker cannot tell now, or there is no table."""

    records_count: int | None
    table_rows_count: int | None = None
    table_bytes: int | None = None
    unshipped_bytes: int | None = None


def _size_of(client: Client, stream: Stream) -> _Size:
    records = None
    with suppress(HeadwaterError):
        records = client.describe(stream.name).records_count
    if not stream.config.tiering:
        return _Size(records)
    try:
        parts = client.tier_status(stream.name)
    except HeadwaterError:
        return _Size(records)
    sizes = [part.table_bytes for part in parts if part.table_bytes is not None]
    seen = len(sizes) == len(parts)  # else a leader that has just begun has not seen the table yet
    return _Size(
        records,
        table_rows_count=sum(len(part.cold) for part in parts) if seen else None,
        table_bytes=sum(sizes) if seen else None,
        unshipped_bytes=sum(part.unshipped_bytes for part in parts),
    )


@app.command()
def describe(
    name: StreamArgument, *, server: ServerOption = None, json: JsonOption = False
) -> None:
    """Show a stream's settings and the offsets of each partition.

    [bold]Examples[/bold]

      headwater stream describe orders
      headwater stream describe orders --json | jq '.partitions[0].high_watermark'
    """
    with connect(find_server(server)) as client:
        description = client.describe(name)
        places = client.locate(name)
    parts = [
        {**values_of(part), "replicas": list(place.replicas), "isr": list(place.isr)}
        for part, place in zip(description.partitions, places, strict=True)
    ]
    if json:
        console.json_line({"stream": _as_dict(description.stream), "partitions": parts})
        return
    stream = description.stream
    console.facts(
        [
            ("uuid", stream.uuid),
            ("created", format_time_us(stream.created_us)),
            ("table", f"{stream.namespace}/{stream.table_name}"),
            *((key, _setting(key, value)) for key, value in stream.config.to_dict().items()),
        ],
        title=stream.name,
    )
    console.columns(
        tuple(name.replace("_", " ") for name in parts[0]),
        (tuple(map(_joined, part.values())) for part in parts),
    )


@app.command()
def delete(
    name: StreamArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a stream's log. Its Delta table stays in the lake.

    Records that are not yet in the table are lost. `headwater tier flush` ships them first.

    [bold]Examples[/bold]

      headwater tier flush orders && headwater stream delete orders
      headwater stream delete scratch --yes
    """
    with connect(find_server(server)) as client:
        stream = client.stream(name)
        if not yes:
            console.asking()
            typer.confirm(
                f"Delete stream {stream.name} and every record that is not in its table?",
                abort=True,
                err=True,
            )
        table = _table_of(client, stream)
        deleted = client.delete_stream(name)
    if json:
        console.json_line(_as_dict(deleted))
    else:
        console.say(f"Deleted [bold]{console.plain(name)}[/bold]. {console.plain(table)}")


def _table_of(client: Client, stream: Stream) -> str:
    """Say what becomes of a stream's table when the stream is deleted."""
    where = f"{stream.namespace}/{stream.table_name}"
    if not stream.config.tiering:
        return "It had no table."
    try:
        shipped = any(part.cold.end for part in client.tier_status(stream.name))
    except HeadwaterError:
        return f"Its table {where}, if it had one, stays."
    return f"Its table {where} stays." if shipped else "It had no table yet."


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the options of ``create`` that were given, by their own names."""
    rest = {"name", "server", "json"}
    return {
        _SETTING_OF.get(option, option): value
        for option, value in options.items()
        if option not in rest and value is not None
    }


def _say_created(stream: Any, partitioner: str | None) -> None:
    config = stream.config
    if partitioner not in (None, config.partitioner):
        console.note(
            f"The stream existed and keeps its partitioner, {config.partitioner}: another one "
            "would put new records of a key beside its old ones."
        )
    if stream.table_name != stream.name and config.tiering:
        console.note(
            f"Its table is {console.plain(stream.namespace)}/{console.plain(stream.table_name)}: "
            "a table of a former stream has the name of this one."
        )
    console.say(
        f"Stream [bold]{console.plain(stream.name)}[/bold] records subject "
        f"[bold]{console.plain(config.subject)}[/bold] in {config.partitions} partition(s)."
    )


def _as_dict(stream: Any) -> dict[str, Any]:
    values = values_of(stream)
    values["config"] = stream.config.to_dict()
    return values


def values_of(value: Any) -> dict[str, Any]:
    """Return a dataclass, or a mapping, as JSON-ready values."""
    return dict(value) if isinstance(value, dict) else dataclasses.asdict(value)


def _joined(value: Any) -> Any:
    return " ".join(value) if isinstance(value, list) else value


def _setting(name: str, value: Any) -> Any:
    """Return a setting for people: sizes and durations with their unit."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if "_bytes" in name:
        return format_bytes(value)
    return f"{value:,} ms" if "_ms" in name else value
