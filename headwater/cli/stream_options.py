"""The settings of a stream as options, declared once for all commands that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer

from broker.model.stream import EVERY_BROKER, REPLICAS_MAX
from headwater.cli.options import checked, duration_option, size_option
from headwater.cli.parsing import (
    format_bytes,
    format_duration_ms,
    parse_duration_ms,
    parse_size,
)

_NO_LIMIT: Final = -(2**63)  # of an option, because None means that it was not given


def or_none(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return a parser that also accepts ``none``, which removes a limit."""
    return lambda text: _NO_LIMIT if text.strip().lower() == "none" else parse(text)


def _replication_factor(text: str) -> int:
    if text.strip().lower() == "all":
        return EVERY_BROKER
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= REPLICAS_MAX:
        raise ValueError(f"not 1 to {REPLICAS_MAX}, nor 'all': {text!r}")
    return int(text)


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
        "gets several answers, and has to look which stream each one names.",
        show_default=False,
    ),
]
PubackHeadersOnlyOption = Annotated[
    bool | None,
    typer.Option(
        "--puback-headers-only",
        help="Answer only messages with a header of JetStream publishers (Nats-Msg-Id, "
        "Nats-Expected-…), never requests that are meant for other services.",
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
        "--dedup-window",
        help="How long a Nats-Msg-Id is remembered, and so how long a message may be sent again "
        "(headwater publish: at most 1 min); 0s: off; default: 2m.",
    ),
]
DedupIdsOption = Annotated[
    int | None,
    typer.Option(min=1, help="How many ids a partition remembers at most; default: 1000000."),
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
EncryptionOption = Annotated[
    str | None,
    typer.Option(
        help="none, or xaes-256-gcm: record batches are encrypted on the brokers' disks; the "
        "brokers need a key provider; default: none."
    ),
]
TableEncryptionOption = Annotated[
    str | None,
    typer.Option(
        help="plaintext, or ciphertext: the table of an encrypted stream is encrypted, too, and "
        "its readers need the key provider; default: plaintext."
    ),
]
ReplicationFactorOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=checked(_replication_factor),
        help="Brokers that hold each partition, 1 to 7, or 'all': as many as the cluster has now; "
        "default: the cluster's, usually 3.",
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
CompactOption = Annotated[
    bool | None,
    typer.Option(
        "--compact/--no-compact",
        help="Key compaction: on local disk keep the last record of each key. A table stays whole "
        "(see --history); without a table readers get what is left.",
        show_default=False,
    ),
]
TombstoneDelayOption = Annotated[
    int | None,
    duration_option(
        "--tombstone-delay",
        help="How long a tombstone stays at least, for readers that are behind; default: 1d.",
    ),
]
CompactDirtyOption = Annotated[
    int | None,
    typer.Option(
        "--compact-dirty-percent",
        min=1,
        max=100,
        help="Compact once this percentage of the compactable bytes is new; default: 50.",
    ),
]
HistoryOption = Annotated[
    str | None,
    typer.Option(
        help="keep, or compact: key compaction of the stream's table, too. Records that a later "
        "record of their key supersedes leave it for good; default: keep."
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
LocalRetentionRecordsOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Keep at most so many shipped records of a partition on local disk; default: no "
        "limit.",
    ),
]
RemoteRetentionOption = Annotated[
    int | None,
    size_option(
        "--remote-retention",
        help="Let the oldest files of the table expire while a partition has more than this; "
        "default: keep everything.",
    ),
]
RemoteRetentionAgeOption = Annotated[
    int | None,
    duration_option(
        "--remote-retention-age",
        help="Let files of the table expire when all their records are older; default: keep "
        "everything.",
    ),
]
RemoteRetentionRecordsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Let the oldest files of the table expire while a partition has more records than "
        "this; default: keep everything.",
    ),
]
RemoteDeleteGraceOption = Annotated[
    int | None,
    duration_option(
        "--remote-delete-grace",
        help="How long the objects of expired files stay in the store; default: 7d.",
    ),
]
ProtectGroupsOption = Annotated[
    bool | None,
    typer.Option(
        "--protect-groups/--no-protect-groups",
        help="Let no record expire that a saved position (cursor, consumer group) waits for.",
        show_default=False,
    ),
]
UnshippedOption = Annotated[
    int | None,
    size_option(
        "--unshipped",
        help="Refuse writes while more history than this is unshipped; default: no limit.",
    ),
]
AutoPauseOption = Annotated[
    int | None,
    duration_option(
        "--auto-pause",
        help="Pause a partition that has got no record for so long, until somebody publishes by "
        "way of a broker; messages on NATS are not recorded meanwhile; default: never.",
    ),
]
AutoPauseUnlessSubscribedOption = Annotated[
    bool | None,
    typer.Option(
        "--auto-pause-unless-subscribed/--auto-pause-although-subscribed",
        help="Do not pause a partition while somebody follows it at its leader.",
        show_default=False,
    ),
]

# The same settings for `alter`, which can remove a limit and turn a switch off.
RemovableLocalRetentionAgeOption = Annotated[
    int | None,
    typer.Option(
        "--local-retention-age",
        metavar="DURATION|none",
        parser=checked(or_none(parse_duration_ms)),
        help="Keep shipped history on local disk at most this long.",
    ),
]
RemovableLocalRetentionRecordsOption = Annotated[
    int | None,
    typer.Option(
        "--local-retention-records",
        metavar="COUNT|none",
        parser=checked(or_none(int)),
        help="Keep at most so many shipped records of a partition on local disk.",
    ),
]
RemovableRemoteRetentionOption = Annotated[
    int | None,
    typer.Option(
        "--remote-retention",
        metavar="SIZE|none",
        parser=checked(or_none(parse_size)),
        help="Let the oldest files of the table expire while a partition has more than this.",
    ),
]
RemovableRemoteRetentionAgeOption = Annotated[
    int | None,
    typer.Option(
        "--remote-retention-age",
        metavar="DURATION|none",
        parser=checked(or_none(parse_duration_ms)),
        help="Let files of the table expire when all their records are older.",
    ),
]
RemovableRemoteRetentionRecordsOption = Annotated[
    int | None,
    typer.Option(
        "--remote-retention-records",
        metavar="COUNT|none",
        parser=checked(or_none(int)),
        help="Let the oldest files of the table expire while a partition has more records.",
    ),
]
RemovableUnshippedOption = Annotated[
    int | None,
    typer.Option(
        "--unshipped",
        metavar="SIZE|none",
        parser=checked(or_none(parse_size)),
        help="Refuse writes while more history than this is unshipped.",
    ),
]
RemovableAutoPauseOption = Annotated[
    int | None,
    typer.Option(
        "--auto-pause",
        metavar="DURATION|none",
        parser=checked(or_none(parse_duration_ms)),
        help="Pause a partition that has got no record for so long.",
    ),
]
SwitchedPubackOverlapOption = Annotated[
    bool | None,
    typer.Option(
        "--puback-overlap/--no-puback-overlap",
        help="Answer although another stream answers on some of these subjects.",
        show_default=False,
    ),
]
OptimisticConcurrencyOption = Annotated[
    bool | None,
    typer.Option(
        "--optimistic-concurrency/--no-optimistic-concurrency",
        help="Store a message of a Liftbridge client only at the offset that it expects.",
        show_default=False,
    ),
]
SwitchedPubackHeadersOnlyOption = Annotated[
    bool | None,
    typer.Option(
        "--puback-headers-only/--no-puback-headers-only",
        help="Answer only messages with a header of JetStream publishers.",
        show_default=False,
    ),
]

# Options whose setting has another name: a setting has its unit in the name.
SETTING_OF: Final = {
    "dedup_window": "dedup_window_ms",
    "dedup_ids": "dedup_ids_max",
    "record_bytes": "record_bytes_max",
    "segment_bytes": "segment_bytes_max",
    "segment_age": "segment_age_ms_max",
    "index_interval": "index_interval_bytes",
    "flush_interval": "flush_interval_ms",
    "tombstone_delay": "tombstone_delay_ms",
    "local_retention": "local_retention_bytes",
    "local_retention_age": "local_retention_ms",
    "unshipped": "unshipped_bytes_max",
    "remote_retention": "remote_retention_bytes",
    "remote_retention_age": "remote_retention_ms",
    "remote_delete_grace": "remote_delete_grace_ms",
    "auto_pause": "auto_pause_ms",
}


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the options of a command that were given, by their own names."""
    rest = {"name", "server", "json", "dry_run"}
    return {
        SETTING_OF.get(option, option): None if value == _NO_LIMIT else value
        for option, value in options.items()
        if option not in rest and value is not None
    }


def setting_text(name: str, value: Any) -> Any:
    """Return a setting of a stream for people: sizes and durations with their unit."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name in ("replication_factor", "min_isr"):
        return value or 1  # 0 is what a broker alone keeps
    if "_bytes" in name:
        return format_bytes(value)
    return format_duration_ms(value) if "_ms" in name else value
