"""``headwater stream alter``: change settings of a stream while it is in use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.model.stream import AlteredStream
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, StreamArgument
from headwater.cli.stream_options import (
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
    LocalRetentionOption,
    MinIsrOption,
    OptimisticConcurrencyOption,
    PartitionerOption,
    PartitionsOption,
    ProtectGroupsOption,
    PubackOption,
    QueueGroupOption,
    RecordBytesOption,
    RemoteDeleteGraceOption,
    RemovableAutoPauseOption,
    RemovableLocalRetentionAgeOption,
    RemovableLocalRetentionRecordsOption,
    RemovableRemoteRetentionAgeOption,
    RemovableRemoteRetentionOption,
    RemovableRemoteRetentionRecordsOption,
    RemovableUnshippedOption,
    ReplicationFactorOption,
    SegmentAgeOption,
    SegmentBytesOption,
    SubjectOption,
    SwitchedPubackHeadersOnlyOption,
    SwitchedPubackOverlapOption,
    TableEncryptionOption,
    TieringOption,
    TombstoneDelayOption,
    setting_text,
    settings_of,
)


def alter(
    name: StreamArgument,
    *,
    local_retention: LocalRetentionOption = None,
    local_retention_age: RemovableLocalRetentionAgeOption = None,
    local_retention_records: RemovableLocalRetentionRecordsOption = None,
    remote_retention: RemovableRemoteRetentionOption = None,
    remote_retention_age: RemovableRemoteRetentionAgeOption = None,
    remote_retention_records: RemovableRemoteRetentionRecordsOption = None,
    remote_delete_grace: RemoteDeleteGraceOption = None,
    protect_groups: ProtectGroupsOption = None,
    unshipped: RemovableUnshippedOption = None,
    auto_pause: RemovableAutoPauseOption = None,
    auto_pause_unless_subscribed: AutoPauseUnlessSubscribedOption = None,
    record_bytes: RecordBytesOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_age: SegmentAgeOption = None,
    dedup_window: DedupWindowOption = None,
    dedup_ids: DedupIdsOption = None,
    puback: PubackOption = None,
    puback_overlap: SwitchedPubackOverlapOption = None,
    puback_headers_only: SwitchedPubackHeadersOnlyOption = None,
    optimistic_concurrency: OptimisticConcurrencyOption = None,
    key_header: KeyHeaderOption = None,
    compression: CompressionOption = None,
    flush_interval: FlushIntervalOption = None,
    min_isr: MinIsrOption = None,
    compact: CompactOption = None,
    tombstone_delay: TombstoneDelayOption = None,
    compact_dirty_percent: CompactDirtyOption = None,
    history: HistoryOption = None,
    tiering: TieringOption = None,
    partitions: PartitionsOption = None,
    subject: SubjectOption = None,
    partitioner: PartitionerOption = None,
    queue_group: QueueGroupOption = None,
    index_interval: IndexIntervalOption = None,
    encryption: EncryptionOption = None,
    table_encryption: TableEncryptionOption = None,
    flush: FlushOption = None,
    replication_factor: ReplicationFactorOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would change, and change nothing.")
    ] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Change settings of a stream, on all its brokers, without a restart.

    A setting that is not named stays (a `default` below is the one of `create`). Records that were
    stored before stay as they are. The settings from `--subject` on cannot change: the command says
    why, and what to do instead.

    [bold]Examples[/bold]

      headwater stream alter orders --local-retention 256MiB
      headwater stream alter orders --record-bytes 16MiB --dedup-window 10m --dry-run
      headwater stream alter orders --unshipped none
      headwater stream alter orders --partitions 8
    """
    given = settings_of(locals())
    if not given:
        raise typer.BadParameter("name a setting to change, for example --local-retention 256MiB")
    with connect(find_server(server)) as client:
        altered = client.alter_stream(name, dry_run=dry_run, **given)
    if json:
        console.json_line(_as_dict(altered, dry_run=dry_run))
    else:
        _say_altered(altered, dry_run=dry_run)


def _as_dict(altered: AlteredStream, *, dry_run: bool) -> dict[str, Any]:
    changes = {
        name: {"before": before, "after": after}
        for name, (before, after) in altered.changes.items()
    }
    return {"stream": altered.after.to_dict(), "changes": changes, "dry_run": dry_run}


def _say_altered(altered: AlteredStream, *, dry_run: bool) -> None:
    after = altered.after
    if not altered.changes:
        console.note(f"{console.plain(after.name)} has these settings already.")
        return
    console.columns(
        ("setting", "before", "after"),
        ((name, *_texts(name, *values)) for name, values in altered.changes.items()),
    )
    if dry_run:
        console.note("Nothing was changed: --dry-run.")
        return
    if "partitions" in altered.changes:
        _say_grown(altered)
    if "tiering" in altered.changes:
        console.note(
            f"Its history goes into the table {console.plain(after.namespace)}/"
            f"{console.plain(after.table_name)}, from the first record on; "
            f"`headwater tier status {console.plain(after.name)}` shows how far."
        )


def _say_grown(altered: AlteredStream) -> None:
    before, after = altered.before.config, altered.after.config
    first, last = (
        console.plain(after.partition_subject(number))
        for number in (before.partitions, after.partitions - 1)
    )
    console.note(
        f"The new partitions listen to {first}" + (f" to {last}." if last != first else ".")
    )
    if altered.after.keys_from is not None:
        console.note(
            "A key may have older records in a lower partition: its newest one is in the highest "
            "partition that has one (docs/streams.md)."
        )


def _texts(name: str, before: Any, after: Any) -> tuple[Any, Any]:
    """Return two values for people; exact numbers where they would look alike."""
    shown = [("no limit" if one is None else setting_text(name, one)) for one in (before, after)]
    return (before, after) if shown[0] == shown[1] else (shown[0], shown[1])
