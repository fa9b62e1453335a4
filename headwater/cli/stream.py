"""``headwater stream``: create, list, describe, alter, pause, compact, purge and delete streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import HeadwaterError
from broker.model.stream import Stream
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, StreamArgument
from headwater.cli.parsing import counted, format_bytes, format_time_us
from headwater.cli.stream_alter import alter
from headwater.cli.stream_compact import compact as compact_now
from headwater.cli.stream_options import (
    AutoPauseOption,
    AutoPauseUnlessSubscribedOption,
    CompactDirtyOption,
    CompactOption,
    CompressionOption,
    DedupIdsOption,
    DedupWindowOption,
    EncryptionOption,
    FlushIntervalOption,
    FlushOption,
    HistoryOption,
    IndexIntervalOption,
    KeyHeaderOption,
    LocalRetentionAgeOption,
    LocalRetentionOption,
    LocalRetentionRecordsOption,
    MinIsrOption,
    NameArgument,
    OptimisticConcurrencyOption,
    PartitionerOption,
    PartitionsOption,
    ProtectGroupsOption,
    PubackHeadersOnlyOption,
    PubackOption,
    PubackOverlapOption,
    QueueGroupOption,
    RecordBytesOption,
    RemoteDeleteGraceOption,
    RemoteRetentionAgeOption,
    RemoteRetentionOption,
    RemoteRetentionRecordsOption,
    ReplicationFactorOption,
    SegmentAgeOption,
    SegmentBytesOption,
    SubjectOption,
    TableEncryptionOption,
    TieringOption,
    TombstoneDelayOption,
    UnshippedOption,
    setting_text,
    settings_of,
)
from headwater.cli.stream_pause import pause, readonly, resume
from headwater.cli.stream_purge import purge
from headwater.cli.stream_purge_table import (
    ConfirmOption,
    DespiteLeasesOption,
    DoomedTable,
    purge_table,
    records_in_table,
    refuse_held,
)
from headwater.cli.stream_rotate_key import data_key_facts, rotate_key

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.client.descriptions import PartitionPosition

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list, describe, alter, pause, compact, purge, delete streams; rotate their keys.",
    rich_markup_mode="rich",
)
app.command()(alter)
app.command()(pause)
app.command()(resume)
app.command()(readonly)
app.command("compact")(compact_now)
app.command()(purge)
app.command("purge-table")(purge_table)
app.command()(rotate_key)


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
    optimistic_concurrency: OptimisticConcurrencyOption = None,
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
    encryption: EncryptionOption = None,
    table_encryption: TableEncryptionOption = None,
    replication_factor: ReplicationFactorOption = None,
    min_isr: MinIsrOption = None,
    compact: CompactOption = None,
    tombstone_delay: TombstoneDelayOption = None,
    compact_dirty_percent: CompactDirtyOption = None,
    history: HistoryOption = None,
    tiering: TieringOption = None,
    local_retention: LocalRetentionOption = None,
    local_retention_age: LocalRetentionAgeOption = None,
    local_retention_records: LocalRetentionRecordsOption = None,
    remote_retention: RemoteRetentionOption = None,
    remote_retention_age: RemoteRetentionAgeOption = None,
    remote_retention_records: RemoteRetentionRecordsOption = None,
    remote_delete_grace: RemoteDeleteGraceOption = None,
    protect_groups: ProtectGroupsOption = None,
    unshipped: UnshippedOption = None,
    auto_pause: AutoPauseOption = None,
    auto_pause_unless_subscribed: AutoPauseUnlessSubscribedOption = None,
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
    given = settings_of(locals())
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
            "state",
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
                size.state,
                _records_text(size),
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
    offsets_count: int | None  # more than records, where key compaction has removed some
    expired_count: int | None = None  # records below these, which remote retention has removed
    state: str | None = None  # paused, read-only; with the number of partitions, if not all are
    table_rows_count: int | None = None
    table_bytes: int | None = None
    unshipped_bytes: int | None = None


def _size_of(client: Client, stream: Stream) -> _Size:
    records = offsets = expired = state = None
    with suppress(HeadwaterError):
        described = client.describe(stream.name)
        records = described.records_count if described.knows_records else None
        offsets, expired = described.offsets_count, described.expired_count
        state = _state_of(described.partitions)
    if not stream.config.tiering:
        return _Size(records, offsets, expired, state)
    try:
        parts = client.tier_status(stream.name)
    except HeadwaterError:
        return _Size(records, offsets, expired, state)
    sizes = [part.table_bytes for part in parts if part.table_bytes is not None]
    gones = [part.gone_count for part in parts if part.gone_count is not None]
    seen = len(sizes) == len(gones) == len(parts)  # else a leader has not read the table yet
    return _Size(
        offsets - sum(gones) if seen and offsets is not None else records,
        offsets,
        expired,
        state,
        table_rows_count=sum(len(part.cold) for part in parts) - sum(gones) if seen else None,
        table_bytes=sum(sizes) if seen else None,
        unshipped_bytes=sum(part.unshipped_bytes for part in parts),
    )


def _records_text(size: _Size) -> str | None:
    """Return a number of records; where some were removed, also of the offsets, or of those."""
    if size.offsets_count is None:
        return None
    text = f"{size.offsets_count:,}"
    if size.records_count is None:
        text = f"at most {text}"
    elif size.records_count != size.offsets_count:
        text = f"{size.records_count:,} of {text} offsets"
    return f"{text}, {size.expired_count:,} expired" if size.expired_count else text


def _state_of(partitions: Sequence[PartitionPosition]) -> str | None:
    """Return in few words why a stream takes no records; None if every partition takes them."""
    counts = {
        "paused": sum(one.paused for one in partitions),
        "read-only": sum(one.readonly for one in partitions),
    }
    told = [
        word if count == len(partitions) else f"{word} {count}/{len(partitions)}"
        for word, count in counts.items()
        if count
    ]
    return ", ".join(told) or None


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
        {
            **values_of(part),
            "offsets_count": part.offsets_count,
            "replicas": list(place.replicas),
            "isr": list(place.isr),
        }
        for part, place in zip(description.partitions, places, strict=False)  # some just added
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
            *((key, setting_text(key, value)) for key, value in stream.config.to_dict().items()),
            *data_key_facts(stream),
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
    with_table: Annotated[
        bool,
        typer.Option(
            "--purge-table", help="Delete its Delta table, too; asks once more, --yes or not."
        ),
    ] = False,
    confirm: ConfirmOption = None,
    despite_leases: DespiteLeasesOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a stream's log. Its Delta table stays in the lake, unless --purge-table is given.

    Records that are not yet in the table are lost. `headwater tier flush` ships them first.
    --purge-table deletes the history itself, with the credentials of this process: the table, its
    ledger, its key snapshot. It asks for the stream's name, or takes it from --confirm.

    [bold]Examples[/bold]

      headwater tier flush orders && headwater stream delete orders
      headwater stream delete scratch --yes
      headwater stream delete scratch --purge-table
      headwater stream delete scratch --yes --purge-table --confirm scratch
    """
    found = find_server(server)
    with connect(found) as client:
        stream, doomed = client.stream(name), None
        if with_table:
            doomed = DoomedTable.of_stream(client, found, stream, despite_leases=despite_leases)
        if not yes:
            console.asking()
            records = "" if with_table else " that is not in its table"
            question = f"Delete stream {stream.name} and every record{records}?"
            typer.confirm(question, abort=True, err=True)
        if doomed is not None:
            doomed.ask_brokers(client)  # before the deletion: may it be asked after it?
            doomed.confirm(confirm, records=records_in_table(client, name))
            if not despite_leases:
                refuse_held(name, client.leases(name))  # a reader may have come meanwhile
        table = "It had no table." if with_table else _table_of(client, stream)
        deleted = client.delete_stream(name, stream_uuid=stream.uuid)
        done = None if doomed is None else doomed.purge(client)
    if json:
        told = {} if done is None else {"purged": done.facts}
        console.json_line({**_as_dict(deleted), **told})
    else:
        table = console.plain(table) if done is None else done.said
        console.say(f"Deleted [bold]{console.plain(name)}[/bold]. {table}")
    if done is not None:
        done.raise_unless_sure()


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
    if config.encryption != "none" and config.tiering and config.table_encryption == "plaintext":
        console.note(
            "What brokers store is encrypted. Its table has plain text, unless it is created with "
            "--table-encryption ciphertext."
        )
    console.say(
        f"Stream [bold]{console.plain(stream.name)}[/bold] records subject [bold]"
        f"{console.plain(config.subject)}[/bold] in {counted(config.partitions, 'partition')}."
    )


def _as_dict(stream: Any) -> dict[str, Any]:
    values = dict(stream.to_dict())
    values["config"] = stream.config.to_dict()
    return values


def values_of(value: Any) -> dict[str, Any]:
    """Return a dataclass, or a mapping, as JSON-ready values."""
    return dict(value) if isinstance(value, dict) else dataclasses.asdict(value)


def _joined(value: Any) -> Any:
    return " ".join(value) if isinstance(value, list) else value
