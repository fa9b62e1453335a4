"""Change the settings of a stream: which may change, and why the others may not. Pure.

The model is JetStream's stream update: it refuses a change that contradicts the existing log, and
names the field ("stream configuration update can not change storage type"). Here a refusal also has
the reason and the alternative. Source: nats-server, stream.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from broker.core.metadata.answering import refused_answers
from broker.core.metadata.commands import AddPartitions, AlterStream
from broker.core.metadata.group_apply import with_new_partitions
from broker.core.metadata.new_partitions import new_partitions
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.partition_rules import with_min_isr
from broker.core.metadata.size import refused_growth, weight_of_stream
from broker.core.metadata.state import (
    FEATURE_LEVEL_ACCESS,
    FEATURE_LEVEL_ALTERED,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
    PartitionState,
)
from broker.core.metadata.tenant_apply import refused_beyond_tenant
from broker.errors import (
    FixedSettingError,
    HeadwaterError,
    InvalidRequestError,
    InvalidStreamError,
    StreamChangedError,
    StreamRecreatedError,
    UnknownStreamError,
)
from broker.model.stream import Stream

_COPY: Final = "create another stream with the value that you want, and copy what is needed"

# Why a setting cannot change after the stream's creation, and the alternative.
FIXED: Final[Mapping[str, str]] = {
    "subject": "a record on the partition's own subject is stored without it, so a change would "
    f"give the whole history another subject; {_COPY}",
    "partitioner": "old and new records of one key would be in two partitions, and the latest "
    f"record of a key would be found twice; {_COPY}",
    "queue_group": "messages would be lost or stored twice while the subscriptions are exchanged; "
    "create another stream with the wanted queue group, then delete this one",
    "index_interval_bytes": "the indexes on the disks have entries at the interval that they were "
    f"written with; {_COPY}",
    "flush": "the brokers would apply the change at different moments, and meanwhile an "
    f"acknowledgement would not say whether its record is on disk; {_COPY}",
    "encryption": "records that are stored already would not change, so the setting would not "
    f"say whether they are encrypted; {_COPY}",
    "table_encryption": "files that are in the table already would not change, so the setting "
    f"would not say whether they are encrypted; {_COPY}",
    "replication_factor": "each partition gets its replicas by name: use `headwater cluster move "
    "STREAM PARTITION --to BROKER,...`, with as many brokers as you want replicas",
}
_TIERING_STAYS_ON: Final = (
    "its table is part of the history: readers take old records from there, and an upload may be "
    "under way. Create another stream without tiering; to keep little on local disk, lower "
    "local_retention_bytes"
)
_COMPACTED: Final = (
    "key compaction has removed records for good, so a table of this stream could never be whole: "
    f"{_COPY}"
)
_PURGED: Final = (
    "records of partition {} were purged, and a table has every record of its stream from the "
    "first one on; " + _COPY
)
# A new partition has a subject of its own, which another stream may answer.
_ANSWERS: Final = ("puback", "puback_overlap", "puback_headers_only", "partitions")


def alter_stream(state: MetadataState, command: AlterStream | AddPartitions) -> Applied:
    """Return the state with the changed stream; the records stay as they are."""
    wanted, expected = command.wanted, command.expected
    present = state.streams.get(expected.name)
    refused = _refused_sender(state, command, present)
    if present is None or refused is not None:
        assert refused is not None, "an absent stream is refused"
        return state, Rejected(refused)
    if present == wanted:
        return state, {"uuid": present.uuid, "changed": False}
    rows = _rows(state, command, present)
    if isinstance(rows, HeadwaterError):
        return state, Rejected(rows)
    refused = (
        refused_compaction(state, wanted)
        or refused_change(present, wanted)
        or _refused_min_isr(present, wanted, rows)
        or _refused_table(present, wanted, rows)
    )
    if refused is None and _differ(present, wanted, _ANSWERS):
        others = (one for one in state.streams.values() if one.uuid != present.uuid)
        refused = refused_answers(wanted, others, state.tenants)
    before = weight_of_stream(present, len(state.partitions[present.uuid]))
    weight = state.weight + weight_of_stream(wanted, len(rows)) - before
    if refused is None and len(rows) > present.config.partitions:
        added = len(rows) - present.config.partitions
        refused = refused_beyond_tenant(state, present.name, streams=0, partitions=added)
    if refused is None and weight > state.weight:
        refused = refused_growth(weight, command.weight_max)
    if refused is not None:
        return state, Rejected(refused)
    min_isr = max(1, wanted.config.min_isr)
    if _differ(present, wanted, ("min_isr",)):
        rows = tuple(one if one.min_isr == min_isr else with_min_isr(one, min_isr) for one in rows)
    after = replace(
        state,
        streams={**state.streams, wanted.name: wanted},
        partitions={**state.partitions, wanted.uuid: rows},
        weight=weight,
    )
    if isinstance(command, AddPartitions):
        after = with_new_partitions(after, wanted.name)
    return after, {"uuid": wanted.uuid, "changed": True}


def _rows(
    state: MetadataState, command: AlterStream | AddPartitions, present: Stream
) -> tuple[PartitionState, ...] | HeadwaterError:
    """Return the partitions after the command: those that are there, and new ones behind them."""
    rows = state.partitions[present.uuid]
    if isinstance(command, AlterStream):
        return rows
    count = command.wanted.config.partitions
    added = new_partitions(
        state,
        present,
        range(len(rows), count),
        leader=command.leader,
        assignment=command.assignment,
        min_isr=command.wanted.config.min_isr or rows[0].min_isr,
    )
    return added if isinstance(added, HeadwaterError) else (*rows, *added)


def refused_compaction(state: MetadataState, wanted: Stream) -> HeadwaterError | None:
    """Return why a stream cannot have key compaction yet, or None.

    An older build does not read a batch without records, which key compaction may write; nor a
    table of which it has removed records.
    """
    config = wanted.config
    if config.history == "compact":
        if config.table_encryption == "ciphertext":
            return InvalidStreamError(
                f"the table of stream {wanted.name!r} is encrypted: key compaction cannot rewrite "
                "encrypted files yet, so history must be keep",
                stream=wanted.name,
            )
        low = refused_level(state, FEATURE_LEVEL_ACCESS, "key compaction of a table")
        if low is not None:
            return low
    if not config.compact:
        return None
    if wanted.is_encrypted:
        return InvalidStreamError(
            f"stream {wanted.name!r} is encrypted: key compaction does not read encrypted records "
            "yet, so compact must be false",
            stream=wanted.name,
        )
    return refused_level(state, FEATURE_LEVEL_STREAMS, "key compaction")


def refused_change(present: Stream, wanted: Stream) -> HeadwaterError | None:
    """Return why settings of a stream cannot change in this way, whatever its records are; or None.

    A table's name may change only while the stream gets its first table.
    """
    try:
        present = present.grown(wanted.config.partitions)
    except InvalidRequestError as error:  # fewer partitions, or a number that would move keys
        return error
    begins = wanted.config.tiering and not present.config.tiering
    named = replace(wanted, config=present.config, table_name=present.table_name)
    if named != present or (wanted.table_name != present.table_name and not begins):
        return InvalidRequestError(
            f"only the settings of stream {present.name!r} can change, not its name, uuid, "
            "namespace, table or time of creation: readers find its records by these",
            stream=present.name,
        )
    before, after = present.config.to_dict(), wanted.config.to_dict()
    for name, reason in FIXED.items():
        if before[name] != after[name]:
            return _fixed(present, name, before[name], after[name], reason)
    if present.config.tiering and not wanted.config.tiering:
        return _fixed(present, "tiering", True, False, _TIERING_STAYS_ON)
    if present.config.compact and not present.config.tiering:
        if wanted.config.tiering:
            return _fixed(present, "tiering", False, True, _COMPACTED)
        if not wanted.config.compact:
            return _fixed(present, "compact", True, False, _COMPACTED)
    return None


def _fixed(stream: Stream, name: str, present: Any, wanted: Any, reason: str) -> FixedSettingError:
    return FixedSettingError(
        f"{name} of stream {stream.name!r} is {present!r} and cannot become {wanted!r}: {reason}",
        stream=stream.name,
        setting=name,
        present=present,
        wanted=wanted,
    )


def _refused_sender(
    state: MetadataState, command: AlterStream | AddPartitions, present: Stream | None
) -> HeadwaterError | None:
    """Return the error if the cluster or the stream is not as the sender expects, or None."""
    name, expected = command.expected.name, command.expected
    adds = isinstance(command, AddPartitions)
    needed = FEATURE_LEVEL_STREAMS if adds else FEATURE_LEVEL_ALTERED
    purpose = "a stream with more partitions" if adds else "a change of a stream"
    low = refused_level(state, needed, purpose)
    if low is not None:
        return low
    if adds is (expected.config.partitions == command.wanted.config.partitions):
        return InvalidRequestError("only AddPartitions may change the number of partitions")
    if present is None:
        return UnknownStreamError(f"no stream is named {name!r}", stream=name)
    if present.uuid != expected.uuid:
        return StreamRecreatedError(
            f"stream {name!r} was deleted and created again meanwhile",
            expected=expected.uuid,
            found=present.uuid,
        )
    if present not in (expected, command.wanted):
        return StreamChangedError(
            f"the settings of stream {name!r} were changed meanwhile: read them again, then retry",
            stream=name,
        )
    return None


def _refused_min_isr(
    present: Stream, wanted: Stream, rows: tuple[PartitionState, ...]
) -> HeadwaterError | None:
    """Return the error if a partition has fewer replicas than the new minimum ISR, or None."""
    if not _differ(present, wanted, ("min_isr",)):
        return None
    fewest = min(len(one.target or one.replicas) for one in rows)
    if wanted.config.min_isr <= fewest:
        return None
    return InvalidStreamError(
        f"min_isr cannot become {wanted.config.min_isr}: a partition of stream {wanted.name!r} has "
        f"{fewest} replica(s), so nothing would ever be committed. Give its partitions more "
        "replicas first: `headwater cluster move`",
        stream=wanted.name,
        replicas_count=fewest,
    )


def refused_lower_min_isr(
    present: Stream, wanted: Stream, rows: tuple[PartitionState, ...]
) -> HeadwaterError | None:
    """Return why ``min_isr`` must not be lowered now, or None. For whoever proposes a change.

    A log that is not compared yet may lead after a comparison with min ISR logs, its own included:
    so many had each record that was acknowledged. A lower number, which later records have, would
    elect a log that lacks earlier ones. :func:`alter_stream` takes such a change all the same: the
    journals of earlier versions may have one.
    """
    if not _differ(present, wanted, ("min_isr",)):
        return None
    min_isr = max(1, wanted.config.min_isr)
    for number, one in enumerate(rows):
        lowered = with_min_isr(one, min_isr)
        if min_isr >= one.min_isr or (lowered.leader is not None and not lowered.restarted):
            continue
        why = "has no leader"
        if lowered.leader is not None:
            names = ", ".join(lowered.restarted)
            why = f"has in-sync replicas whose logs are not compared since a restart: {names}"
        return InvalidStreamError(
            f"min_isr cannot become {wanted.config.min_isr} now: {wanted.name}/{number} {why}. A "
            "replica that lacks acknowledged records could lead by the lower number. Bring the "
            "brokers of its replicas back, or see `headwater cluster unclean-elect`; then repeat",
            stream=wanted.name,
            partition=number,
        )
    return None


def _refused_table(
    present: Stream, wanted: Stream, rows: tuple[PartitionState, ...]
) -> HeadwaterError | None:
    """Return the error if tiering would begin without the first records of a partition, or None."""
    purged = [number for number, one in enumerate(rows) if one.purged_end]
    if present.config.tiering == wanted.config.tiering or not purged:
        return None
    return _fixed(present, "tiering", False, True, _PURGED.format(purged[0]))


def _differ(present: Stream, wanted: Stream, names: tuple[str, ...]) -> bool:
    return any(getattr(present.config, one) != getattr(wanted.config, one) for one in names)
