"""The cluster's streams: create, alter, purge, delete and look up."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    AddPartitions,
    AlterStream,
    CreateStream,
    DeleteStream,
    PurgeRecords,
    RotateDataKey,
)
from broker.core.metadata.group_positions import has_late_cursors
from broker.core.metadata.state import (
    FEATURE_LEVEL_ACCESS,
    FEATURE_LEVEL_ALTERED,
    FEATURE_LEVEL_RECREATED,
    FEATURE_LEVEL_STREAMS,
)
from broker.core.metadata.stream_alter import refused_lower_min_isr
from broker.core.replication.view import view_of
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    InvalidStreamError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StreamChangedError,
    StreamExistsError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.access import AUDIT_STREAM
from broker.model.activity import ACTIVITY_STREAM, RESERVED_STREAMS
from broker.model.data_key import DataKey
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.purge import Purged
from broker.model.stream import PARTITIONS_MAX, AlteredStream, Stream, StreamConfig
from broker.model.tenant import tenant_of
from broker.ports.system import Clock
from broker.runtime.api.feature_levels import raise_level, raise_level_if_known
from broker.runtime.cluster.membership import CONFIRM_MS, Membership
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.metadata.metadata_log import WaitingMetadata
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.replica_shell import not_leader
from broker.runtime.stream_keys import StreamKeys, no_keys, require_keys

_OPEN_S: Final = 10.0  # to wait for the local replicas of a new stream
_ALTER_ATTEMPTS: Final = 5  # of one change, if other changes come first
# A day: so that a leader that was away for long does not store an event twice.
ACTIVITY_CONFIG: Final = StreamConfig(
    subject=ACTIVITY_STREAM, tiering=False, dedup_window_ms=86_400_000
)
AUDIT_CONFIG: Final = StreamConfig(subject=AUDIT_STREAM)
_log = structlog.get_logger(__name__)

TableName = Callable[[Stream], str]  # of a new stream's table


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDefaults:
    """The defaults of a stream that is created at this broker."""

    leader: BrokerId  # the leader, on a single broker
    namespace: str
    table_name: TableName


class Streams:
    """Implements ``StreamsApi``. Any thread."""

    def __init__(
        self,
        metadata: WaitingMetadata,
        membership: Membership,
        clock: Clock,
        *,
        defaults: StreamDefaults,
        replicas: HostedPartitions,
        follow: Callable[[], None],
        keys: StreamKeys | None = None,
    ) -> None:
        """Call ``follow`` after each change: it opens or closes ``replicas``, and blocks.

        Without ``keys`` no stream can be encrypted.
        """
        self._keys = keys
        self._metadata = metadata
        self._membership = membership
        self._clock = clock
        self._defaults = defaults
        self._replicas = replicas
        self._follow = follow
        self._change = threading.RLock()  # one stream is created, altered or deleted at a time

    def create(self, name: str, config: StreamConfig, *, exclusive: bool = False) -> Stream:
        """See ``StreamsApi.create``. Replicas are placed by the newest metadata."""
        if name == AUDIT_STREAM:
            raise InvalidStreamError(
                f"stream {name!r} is made by the brokers themselves: access.audit_stream in their "
                "configuration",
                stream=name,
            )
        if name in RESERVED_STREAMS:
            raise InvalidStreamError(
                f"stream {name!r} is made by the cluster itself: node.activity_stream in the "
                "configuration of its brokers",
                stream=name,
            )
        return self._create(name, config, exclusive=exclusive)

    def create_activity(self) -> Stream:
        """Make the stream of the cluster's events, unless it is there. Blocks.

        Raises:
            FeatureLevelError: a broker of the cluster runs a build that knows no such stream.
            HeadwaterError: see ``StreamsApi.create``.
        """
        raise_level(self._metadata, FEATURE_LEVEL_STREAMS)
        present = self._metadata.state.streams.get(ACTIVITY_STREAM)
        return present or self._create(ACTIVITY_STREAM, ACTIVITY_CONFIG, exclusive=False)

    def create_audit(self) -> Stream:
        """Make the stream of the audit, unless it is there. Blocks; raises as ``create``."""
        present = self._metadata.state.streams.get(AUDIT_STREAM)
        return present or self._create(AUDIT_STREAM, AUDIT_CONFIG, exclusive=False)

    def _create(self, name: str, config: StreamConfig, *, exclusive: bool) -> Stream:
        self._metadata.barrier(timeout_ms=CONFIRM_MS)
        config = self._membership.resolve(config)
        self._raise_level_for(config)
        defaults = self._defaults
        with self._change:
            present = self._metadata.state.streams.get(name)
            stream_uuid = StreamUuid(present.uuid if present else str(uuid.uuid4()))
            stream = Stream(
                name=name,
                uuid=stream_uuid,
                config=config,
                created_us=self._clock.now_us(),
                table_name=present.table_name if present else name,
                namespace=defaults.namespace,
                data_keys=self._data_keys(name, stream_uuid, config, present),
            )
            if stream.is_encrypted:
                require_keys(self._keys, stream)
                raise_level(self._metadata, FEATURE_LEVEL_STREAMS)
            if has_late_cursors(self._metadata.state, name):
                raise_level_if_known(self._metadata, FEATURE_LEVEL_RECREATED)
            command = CreateStream(
                stream=stream,
                leader=defaults.leader,
                assignment=self._membership.place(config),
                min_isr=max(1, config.min_isr),
            )
            if config.tiering and present is None:
                self._refuse_in_vain(command)  # before a folder of the lake is reserved for it
                command = replace(command, stream=self._with_table(stream))
            reply = self._metadata.propose(command)
            if exclusive and not reply["created"]:
                raise StreamExistsError(f"stream {name!r} already exists", stream=name)
            self.obey(stream_uuid)
            if self._replicas.wait_for(stream_uuid, _OPEN_S):
                self.obey(stream_uuid)
            if reply["created"]:
                _log.info("stream_created", stream=name, stream_uuid=stream_uuid)
            return self.get(name)

    def _data_keys(
        self, name: str, uuid: StreamUuid, config: StreamConfig, present: Stream | None
    ) -> tuple[DataKey, ...]:
        """Return the data keys of a stream to create: a repeated call keeps those that it has."""
        if config.encryption == "none":
            return ()
        if present is not None and present.data_keys:
            return present.data_keys
        if self._keys is None:
            raise no_keys(name)
        return self._keys.first(uuid, by=self._wrapping_key(name))

    def _wrapping_key(self, name: str) -> str:
        """Return the name of the key that wraps a stream's data keys; '': the provider's own."""
        tenant = tenant_of(self._metadata.state.tenants, name)
        return "" if tenant is None else tenant.wrapping_key

    def rotate_key(self, name: str, version: int) -> Stream:
        """See ``StreamsApi.rotate_key``."""
        self._metadata.barrier(timeout_ms=CONFIRM_MS)
        with self._change:
            before = self.get(name)
            if not before.is_encrypted:
                raise InvalidRequestError(
                    f"stream {name!r} is not encrypted, so it has no key to rotate", stream=name
                )
            if version < before.data_keys[-1].version:
                return before
            if self._keys is None:
                raise no_keys(name)
            by = self._wrapping_key(name)
            keys = self._keys.rotated(before.uuid, before.data_keys, by=by)
            after = replace(before, data_keys=keys)
            require_keys(self._keys, after)  # before anything is written with the new key
            self._metadata.propose(RotateDataKey(expected=before, wanted=after))
            self.obey(before.uuid)
            newest = after.data_keys[-1]
            _log.info(
                "data_key_rotated",
                stream=name,
                stream_uuid=before.uuid,
                version=newest.version,
                provider=newest.provider,
                wrapped_by=newest.wrapping_key,
            )
            return self.get(name)

    def alter(
        self, name: str, changes: Mapping[str, Any], *, dry_run: bool = False
    ) -> AlteredStream:
        """See ``StreamsApi.alter``. If another change came first, it is tried on the new state."""
        self._metadata.barrier(timeout_ms=CONFIRM_MS)
        with self._change:
            for _ in range(_ALTER_ATTEMPTS - 1):
                with suppress(StreamChangedError):
                    return self._alter(name, changes, dry_run=dry_run)
            return self._alter(name, changes, dry_run=dry_run)

    def _alter(self, name: str, changes: Mapping[str, Any], *, dry_run: bool) -> AlteredStream:
        before = self.get(name)
        altered = AlteredStream(before, self._altered(before, changes, dry_run=dry_run))
        self._refuse_lower_min_isr(altered)
        command = self._command_of(altered)
        grows = isinstance(command, AddPartitions)
        if dry_run:
            self._refuse_in_vain(command)
            return altered
        raise_level(self._metadata, FEATURE_LEVEL_STREAMS if grows else FEATURE_LEVEL_ALTERED)
        self._raise_level_for(altered.after.config)
        reply = self._metadata.propose(command)
        self.obey(before.uuid)
        if grows and self._replicas.wait_for(before.uuid, _OPEN_S):
            self.obey(before.uuid)
        if reply["changed"]:
            told = {setting: after for setting, (_, after) in altered.changes.items()}
            _log.info("stream_altered", stream=name, stream_uuid=before.uuid, **told)
        return altered

    def _command_of(self, altered: AlteredStream) -> AlterStream | AddPartitions:
        """Return the command of a change. New partitions are placed by the newest metadata."""
        before, after = altered.before, altered.after
        added = after.config.partitions - before.config.partitions
        if added <= 0:
            return AlterStream(expected=before, wanted=after)
        return AddPartitions(
            expected=before,
            wanted=after,
            leader=self._defaults.leader,
            assignment=self._membership.place(replace(after.config, partitions=added)),
        )

    def _raise_level_for(self, config: StreamConfig) -> None:
        """Raise the feature level if a setting needs it: an older build would not obey it."""
        if config.history == "compact":
            raise_level(self._metadata, FEATURE_LEVEL_ACCESS)
        elif config.auto_pause_ms is not None or config.compact:
            raise_level(self._metadata, FEATURE_LEVEL_STREAMS)

    def _altered(self, stream: Stream, changes: Mapping[str, Any], *, dry_run: bool) -> Stream:
        config = StreamConfig.from_dict({**stream.config.to_dict(), **changes})
        stream = stream.grown(config.partitions)
        if config.tiering and not stream.config.tiering and not dry_run:
            stream = self._with_table(stream)
        return replace(stream, config=config)

    def _with_table(self, stream: Stream) -> Stream:
        """Return a stream with the folder of its table, which is reserved in the lake now."""
        return replace(stream, table_name=self._defaults.table_name(stream))

    def _refuse_lower_min_isr(self, altered: AlteredStream) -> None:
        rows = self._metadata.state.partitions.get(altered.before.uuid, ())
        refused = refused_lower_min_isr(altered.before, altered.after, rows)
        if refused is not None:
            raise refused

    def _refuse_in_vain(self, command: CreateStream | AlterStream | AddPartitions) -> None:
        """Raise the error that the metadata would answer, without a proposal."""
        state = self._metadata.state
        level = max(state.feature_level, FEATURE_LEVEL_ACCESS)
        _, reply = apply(replace(state, feature_level=level), command)
        if isinstance(reply, Rejected):
            raise reply.error

    def purge(
        self,
        name: str,
        partition: int,
        *,
        before: Offset | None = None,
        before_us: int | None = None,
        operator: str,
    ) -> Purged:
        """See ``StreamsApi.purge``.

        The leader epoch is read before the high watermark, and the metadata refuses the command if
        another epoch has begun. So only committed records are purged.
        """
        stream = self.with_partition(name, partition)
        partition_id = PartitionId(stream.uuid, PartitionNumber(partition))
        driver = self._replicas.find(partition_id)
        if driver is None or not driver.leads:
            view = view_of(self._metadata.state, partition_id)
            raise not_leader(f"{name}/{partition}", view)
        leader_epoch = driver.reads.leader_epoch
        end = _purge_end(driver, f"{name}/{partition}", before, before_us)
        driver.maintenance.sync_below(end)  # else its log could end below after a power loss
        raise_level(self._metadata, FEATURE_LEVEL_ALTERED)
        facts = {"stream": name, "stream_uuid": stream.uuid, "partition": partition}
        _log.info("purge_asked", **facts, before=end, operator=operator)  # if the answer is lost
        log_start = driver.reads.log_start
        command = PurgeRecords(
            stream_uuid=stream.uuid,
            partition=partition,
            before=end,
            leader_epoch=leader_epoch,
            now_us=self._clock.now_us(),
        )
        purged_from = Offset(self._metadata.propose(command)["purged_from"])
        self.obey(stream.uuid)
        start = max(purged_from, log_start)
        purged = Purged(
            partition=partition,
            start=start,
            end=max(start, end),
            in_table=stream.config.tiering,
            purged_end=max(purged_from, end),
        )
        _log.info("records_purged", **facts, start=start, end=purged.end, operator=operator)
        return purged

    def obey(self, uuid: StreamUuid) -> None:
        """Let the replicas here follow the metadata.

        On a full disk the log of another, new stream may have no room: it is tried again later, and
        is no reason to say that this change has failed.

        Raises:
            HeadwaterError: a replica of this stream could not follow.
        """
        try:
            self._follow()
        except HeadwaterError:
            others = {one.stream_uuid for one in self._replicas.unopened()}
            if not others or uuid in others:
                raise

    def delete(self, name: str) -> Stream:
        """See ``StreamsApi.delete``."""
        with self._change:
            stream = self.get(name)
            command = DeleteStream(name=name, expected_uuid=stream.uuid)
            self._metadata.propose(command)
            self.obey(stream.uuid)
            _log.info("stream_deleted", stream=name, stream_uuid=stream.uuid)
            return stream

    def knows(self, name: str, stream_uuid: StreamUuid) -> tuple[bool, bool] | None:
        """Tell whether this broker's metadata has a stream, and whether it has its deletion.

        None: another stream has this uuid. Of a deleted stream the metadata has no name any more.
        """
        state = self._metadata.state
        named = state.streams.get(name)
        present = named is not None and named.uuid == stream_uuid
        if stream_uuid in state.partitions and not present:
            return None
        return present, stream_uuid in state.deleted

    def get(self, name: str) -> Stream:
        """See ``StreamsApi.get``. Waits for newer metadata if the stream is not known here."""
        found = self._metadata.state.streams.get(name)
        if found is None:
            self._metadata.barrier(timeout_ms=CONFIRM_MS)
            found = self._metadata.state.streams.get(name)
        if found is None:
            # Not what there is instead: the caller may not be allowed to see it.
            raise UnknownStreamError(f"no stream is named {name!r}", stream=name)
        return found

    def with_partition(self, name: str, partition: int) -> Stream:
        """Return a stream that has this partition. Waits for newer metadata if it has not.

        Raises:
            UnknownStreamError, UnknownPartitionError, UnavailableError: see ``StreamsApi.get``.
        """
        stream = self.get(name)
        if stream.config.partitions <= partition < PARTITIONS_MAX:  # perhaps it was just added
            self._metadata.barrier(timeout_ms=CONFIRM_MS)
            stream = self.get(name)
        if not 0 <= partition < stream.config.partitions:
            raise UnknownPartitionError.of(name, partition, stream.config.partitions)
        return stream

    def all(self) -> list[Stream]:
        """Return all streams by name."""
        state = self._metadata.state
        return [state.streams[name] for name in sorted(state.streams)]

    def in_tables(self) -> list[Stream]:
        """Return the streams that have records in a table, as the metadata says, by name."""
        rows = self._metadata.state.partitions
        return [
            stream
            for stream in self.all()
            if any(row.cold_end > 0 for row in rows.get(stream.uuid, ()))
        ]


def _purge_end(
    driver: PartitionDriver, name: str, before: Offset | None, before_us: int | None
) -> Offset:
    """Return the first offset that a purge keeps; everything below it is committed."""
    refusal = driver.health.failure or driver.health.lost_end or driver.lost_leadership
    if refusal is not None:
        raise refusal
    end = driver.replication.newest_committed
    if end is None:
        raise NotLeaderError(
            f"the leader of {name} has just begun to lead and does not know the high watermark: "
            "try again in a moment"
        )
    if before_us is not None:
        return min(driver.reads.offset_at(before_us), end)
    if before is None:
        raise InvalidRequestError("a purge needs the offset or the time before which it deletes")
    if before > end:
        raise OffsetOutOfRangeError(
            f"offset {before} of {name} is above the high watermark {end}: only committed records "
            "are purged",
            offset=before,
            start=driver.reads.log_start,
            end=end,
        )
    return before
