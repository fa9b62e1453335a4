"""Every error that Headwater raises on purpose, grouped by who must act.

    HeadwaterError
    ├─ InvalidRequestError   the caller must change the request
    │    InvalidStreamError · UnknownStreamError · StreamExistsError · UnknownPartitionError
    │    OffsetOutOfRangeError (PurgedError, ExpiredError) · RecordTooLargeError
    │    SchemaMismatchError · SequenceGapError · UnknownLeaseError · InvalidCutError
    │    MalformedMessageError · UnknownBrokerError · InvalidAssignmentError
    │    FeatureLevelError · TruncatedError · MetadataFullError · ConditionFailedError
    │    FixedSettingError · UnknownGroupError · NoPositionError
    │    PartitionsAddedError · PartitionReadonlyError · CompactedRangeError
    │    AccessError (UnauthenticatedError, AccessDeniedError)
    ├─ FencedError           the caller must refresh its metadata, then retry
    │    NotLeaderError · StaleLeaderEpochError · StaleColdEndError · StreamRecreatedError
    │    StalePartitionEpochError · StaleBrokerEpochError · IneligibleReplicaError
    │    FilesReplacedError · StaleWatermarkError · HistoryClaimedError · StreamChangedError
    │    GroupChangedError · PartitionPausedError · StaleRemoteStartError · StaleMemberError
    │    StaleClaimError · NotCoordinatorError
    ├─ UnavailableError      the caller may retry later
    │    OverloadedError (QuotaExceededError) · DiskFullError · DescriptorsExhaustedError
    │    LogFailedError · CommitTimeoutError
    │    RemoteTierUnavailableError · ShuttingDownError · NotEnoughReplicasError · NoAnswerError
    │    HeldByLeaseError · HeldByPositionError · NotShippedError · PurgeRefusedError
    │    GroupInUseError
    │    EncryptionKeyError (KeyProviderUnavailableError)
    ├─ CorruptDataError      an operator must look; never retried, never repaired by deletion
    │    BatchCorruptError · SegmentCorruptError · IndexCorruptError · MetadataCorruptError
    │    EnvelopeError · ObjectMissingError · ObjectCorruptError · TableMismatchError
    │    TableRolledBackError · GapError · OverlapError · ForeignHistoryError
    └─ InvalidConfigError    raised at start only
         ControllersLostError · UnfencedStoreError

The class says how to react (``retriable``, ``refresh_metadata``). The facts of an error are its
attributes. No code parses the message: :func:`to_wire` and :func:`from_wire` carry the name of the
class and the facts. The file is not split: a caller finds all that can be raised in one place.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final, Self

# gRPC refuses more than 8 KiB of trailing metadata: a text of this size, percent-encoded, fits in
# it beside what else an error carries.
ERROR_TEXT_BYTES_MAX: Final = 1024


class HeadwaterError(Exception):
    """The root class. Keyword facts become attributes, and are sent with the error."""

    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.facts))


def _rebuild(kind: type[HeadwaterError], message: str, facts: dict[str, Any]) -> HeadwaterError:
    return kind(message, **facts)


class InvalidRequestError(HeadwaterError):
    """The request cannot succeed; the caller must change it."""


class InvalidStreamError(InvalidRequestError):
    """A stream's name or configuration is not acceptable."""


class UnknownStreamError(InvalidRequestError):
    """No stream has this name (or this uuid)."""


class StreamExistsError(InvalidRequestError):
    """A stream with this name and another configuration exists."""


class UnknownPartitionError(InvalidRequestError):
    """The stream has no partition with this number. Facts: stream, partition, partitions_count."""

    @classmethod
    def of(cls, stream: str, partition: object, partitions_count: int) -> Self:
        """Return the error of a stream that has the partitions [0, partitions_count)."""
        return cls(
            f"stream {stream!r} has partitions 0 to {partitions_count - 1}, not {partition}",
            stream=stream,
            partition=partition,
            partitions_count=partitions_count,
        )


class OffsetOutOfRangeError(InvalidRequestError):
    """The offset is below the first retained offset or above the end. Facts: offset, start, end."""


class PurgedError(OffsetOutOfRangeError):
    """The records below ``start`` were deleted on purpose (`stream purge`); they are not lost.

    Facts: offset, start, end.
    """


class ExpiredError(OffsetOutOfRangeError):
    """The records below ``start`` went by remote retention, as the stream says; they are not lost.

    Facts: offset, start, end.
    """


class CompactedRangeError(InvalidRequestError):
    """A read needs each record of a range of which key compaction has removed some; none is lost.

    Or the range was compacted otherwise than when the read was planned. Facts: partition, start,
    end.
    """


class RecordTooLargeError(InvalidRequestError):
    """A record or batch exceeds a limit. Facts: size_bytes, limit_bytes."""


class SchemaMismatchError(InvalidRequestError):
    """Arrow data has a column or a type that the log does not accept."""


class PartitionsAddedError(InvalidRequestError):
    """The keys of this batch were placed by fewer partitions than there are; it was not stored.

    Facts: partitions_count, how many there are.
    """


class SequenceGapError(InvalidRequestError):
    """A producer skipped sequence numbers, so an earlier batch is missing. Facts: expected, got."""


class UnknownLeaseError(InvalidRequestError):
    """The lease has expired or was dropped; data that it held may be deleted. Facts: lease_id."""


class InvalidCutError(InvalidRequestError):
    """A saved cut does not parse, or its checksum does not match."""


class MalformedMessageError(InvalidRequestError):
    """A message's header block, subject or id cannot be read, so it was not stored. Facts: part."""


class UnknownBrokerError(InvalidRequestError):
    """No broker of this id has ever registered. Facts: broker."""


class InvalidAssignmentError(InvalidRequestError):
    """An invalid list of replicas: one is repeated or not registered, or they are fewer than the
    min ISR. Facts: replicas.
    """  # noqa: D205 - one thought


class FeatureLevelError(InvalidRequestError):
    """The cluster's feature level does not allow this, or this build does not know the level.

    Facts: level, and the range of levels that was needed.
    """


class MetadataFullError(InvalidRequestError):
    """The cluster's metadata would exceed its limit: delete streams or drop leases first.

    Facts: weight_bytes, the size after this command; limit_bytes.
    """


class TruncatedError(InvalidRequestError):
    """Records that this reader has read are no longer in the log; it must choose a new position.

    This happens only after an unclean election, or to a reader of uncommitted records. Facts:
    partition; offset and leader_epoch of the reader's position; end: the log differs from what the
    reader has read from this offset on, or from an earlier one.
    """


class ConditionFailedError(InvalidRequestError):
    """A condition in a JetStream header does not hold or is not supported; nothing was stored.

    Facts: header, its name; code and err_code, as JetStream has them.
    """


class FixedSettingError(InvalidRequestError):
    """This setting of a stream cannot change; the message says why, and what to do instead.

    Facts: stream; setting, its name; present and wanted, its values.
    """


class UnknownGroupError(InvalidRequestError):
    """No consumer group has this id, or it has no members any more. Facts: group."""


class UnknownTenantError(InvalidRequestError):
    """No tenant has this name. Facts: tenant."""


class TenantExistsError(InvalidRequestError):
    """A tenant of this name exists, and is another one. Facts: tenant."""


class NoPositionError(InvalidRequestError):
    """The group has no position in a partition, and the consumer may not choose one.

    Facts: group, stream, partition.
    """


class PartitionReadonlyError(InvalidRequestError):
    """The partition is read-only: an operator decided that it takes no records. Facts: stream,
    partition.
    """  # noqa: D205 - one thought


class AccessError(InvalidRequestError):
    """The caller may not do this. Raised as one of its two kinds."""


class UnauthenticatedError(AccessError):
    """The caller has not proved who they are, or the proof is wrong, has ended or was revoked.

    The message does not say which of these it is.
    """


class AccessDeniedError(AccessError):
    """The caller is known, and nothing lets them do this. Facts: principal, action, resource."""


class FencedError(HeadwaterError):
    """The sender uses an old epoch: it must refresh its metadata, then retry."""

    retriable = True
    refresh_metadata = True


class NotLeaderError(FencedError):
    """This broker does not lead the partition. Facts: leader and its Flight address, if known."""


class GroupChangedError(FencedError):
    """The consumer group is not as the sender expects: its members, epoch or coordinator.

    Facts: group; got and current, if it is the epoch.
    """


class StaleMemberError(FencedError):
    """This process is not the member of the group (any more). Facts: group, member, replaced.

    ``replaced`` tells that another process has taken the place of this static member. Otherwise the
    member was expelled because it was silent, or its group has ended: it may join again.
    """


class StaleClaimError(FencedError):
    """The member does not hold these partitions (any more), so its positions were not stored.

    The other positions of the commit were stored. Facts: group, member, partitions.
    """


class NotCoordinatorError(FencedError):
    """This broker does not coordinate the group. Facts: group, coordinator (a broker's id)."""


class PartitionPausedError(FencedError):
    """The partition is paused: it takes no records until it is resumed.

    Facts: stream, partition.
    """


class StaleLeaderEpochError(FencedError):
    """The request's leader epoch is not the current leader epoch. Facts: got, current."""


class StalePartitionEpochError(FencedError):
    """The partition's leader or ISR has changed since the request. Facts: expected, current."""


class StaleBrokerEpochError(FencedError):
    """The broker has registered again with a newer epoch, or is fenced.

    Facts: broker, got, current.
    """


class IneligibleReplicaError(FencedError):
    """The replica may not join the ISR or lead now: fenced, stopping, or not up to date."""


class StaleColdEndError(FencedError):
    """The table's cold end is not the one that the commit expects. Facts: expected, found."""


class FilesReplacedError(FencedError):
    """A file that a commit replaces is no longer in the table. Facts: path."""


class StaleWatermarkError(FencedError):
    """Another appender moved a table's watermark first. Facts: partition, expected, found."""


class StaleRemoteStartError(FencedError):
    """The first offset of a partition in its table is another one. Facts: expected, found."""


class StreamRecreatedError(FencedError):
    """The stream was deleted and created again under its name. Facts: expected, found (uuids)."""


class StreamChangedError(FencedError):
    """The stream's settings were changed since the sender looked at them. Facts: stream."""


class HistoryClaimedError(FencedError):
    """Another process leads a copy of this stream's history, and has claimed it in the lake."""


class UnavailableError(HeadwaterError):
    """The request is valid, but cannot be served now; try again later."""

    retriable = True


class OverloadedError(UnavailableError):
    """A bounded queue is full."""


class QuotaExceededError(OverloadedError):
    """A quota is used up, so the call was not begun.

    Facts: principal, the caller; tenant, if the quota is that of a tenant; limit, a field of
    ``Quota`` or ``Tenant``; of a rate also throttle_ms, how long to wait.
    """


class NoRoomError(UnavailableError):
    """A write found no room and changed nothing; it succeeds when there is room, without a restart.

    Raised as one of its two kinds.
    """


class DiskFullError(NoRoomError):
    """The disk is full; writes are refused until there is space. Stored records stay."""


class DescriptorsExhaustedError(NoRoomError, OverloadedError):
    """The process has no free file descriptor, because of its connections and files; try again."""


class LogFailedError(UnavailableError):
    """A write or fsync of the log failed; the log takes no more writes until it is reopened.

    The outcome of the failed write is unknown: its records may be in the log after a restart.
    """

    retriable = False


class CommitTimeoutError(UnavailableError):
    """The outcome of the write is unknown; retry with the same producer id and sequence."""


class RemoteTierUnavailableError(UnavailableError):
    """The object store or the table cannot be reached, or answered with a server error."""


class ShuttingDownError(UnavailableError):
    """The broker is closing."""


class NotEnoughReplicasError(UnavailableError):
    """Fewer replicas are in sync than a commit needs; nothing was stored. Facts: isr, min_isr."""


class HeldByLeaseError(UnavailableError):
    """Readers hold these records by leases: wait until they end, or drop them.

    Facts: owners; lease_ids; floor, the lowest offset that is held.
    """


class HeldByPositionError(UnavailableError):
    """A saved position waits for these records, and the stream protects such positions.

    Facts: partition; position, the lowest offset that is held.
    """


class NotShippedError(UnavailableError):
    """These records are not in the stream's table yet: ship them first. Facts: start, end."""


class EncryptionKeyError(UnavailableError):
    """Records are encrypted, and the key for them is missing, is another key, or may not be used.

    It is not retried: somebody must provide the key. Facts: those that are known of stream, the
    version of its data key, provider, and wrapping_key, the provider's name of its key.
    """

    retriable = False


class KeyProviderUnavailableError(EncryptionKeyError):
    """The key provider does not answer now, so its keys cannot be used. Facts: provider."""

    retriable = True


class PurgeRefusedError(UnavailableError):
    """Some partitions of a stream were not purged; the message has what became of each.

    Facts: purged, a list of ``Purged``; refused, the error of each other partition by its number.
    """


class GroupInUseError(UnavailableError):
    """The group has members that read this stream: stop them first. Facts: group, members."""


class TenantInUseError(UnavailableError):
    """The tenant has streams or consumer groups: delete them first. Facts: tenant."""


class NoAnswerError(UnavailableError):
    """A broker cannot be reached, or did not answer in time. Whether it performed the request is
    not known. Facts: address.
    """  # noqa: D205 - one thought


class JarsMissingError(UnavailableError):
    """The jars that Spark needs are not in the cache, and cannot be fetched."""


class CorruptDataError(HeadwaterError):
    """Stored bytes differ from the bytes that were written. Nothing is deleted; an operator must
    look into it.
    """  # noqa: D205 - one thought


class BatchCorruptError(CorruptDataError):
    """A record batch's header or body fails its checksum or its bounds."""


class SegmentCorruptError(CorruptDataError):
    """A segment is damaged below its end; no record of the damaged offsets is ever returned.

    Facts: path, and position within it; the damaged offsets of this file, [offset, end_offset).
    Of a read also: partition; readable_from, the first offset behind the damage that can be read,
    None if there is none.
    """


class IndexCorruptError(CorruptDataError):
    """An index is damaged; it is a cache and is rebuilt from the log."""


class MetadataCorruptError(CorruptDataError):
    """A metadata, epoch or recovery file is damaged."""


class EnvelopeError(CorruptDataError):
    """Bytes are not an envelope of the expected kind."""


class ObjectMissingError(CorruptDataError):
    """The object store lacks an object that the table or the ledger names. Facts: key."""


class ObjectCorruptError(CorruptDataError):
    """An object's size, checksum, rows or digest differ from what was recorded. Facts: key."""


class TableMismatchError(CorruptDataError):
    """A table does not belong to this stream, or holds rows that no broker committed."""


class ForeignHistoryError(TableMismatchError):
    """A table or a saved cut belongs to another history of the stream than this cluster's."""


class TableRolledBackError(CorruptDataError):
    """The table is older than a version that the broker has seen. Facts: expected, found."""


class GapError(CorruptDataError):
    """Offsets are missing from a range that should be complete. Facts: partition, start, end."""


class OverlapError(CorruptDataError):
    """Offsets occur more than once. Facts: partition, start, end."""


class InvalidConfigError(HeadwaterError):
    """The configuration cannot work; raised at start only."""


class ControllersLostError(InvalidConfigError):
    """More controllers start with empty disks than the group can lose. Facts: lost (names)."""


class UnfencedStoreError(InvalidConfigError):
    """The object store ignores conditional writes, so two writers could overwrite each other."""


def leaves() -> dict[str, type[HeadwaterError]]:
    """Return every error class by name, the abstract ones included."""
    found: dict[str, type[HeadwaterError]] = {}
    todo: list[type[HeadwaterError]] = [HeadwaterError]
    while todo:
        kind = todo.pop()
        found[kind.__name__] = kind
        todo.extend(kind.__subclasses__())
    return found


def of_unknown_outcome(error: HeadwaterError) -> HeadwaterError:
    """Return the error of a write whose records may be stored nevertheless.

    Who may store records twice must not repeat such a write; see :func:`may_be_stored`.
    """
    return _rebuild(type(error), error.message, {**error.facts, "outcome": "unknown"})


def may_be_stored(error: HeadwaterError) -> bool:
    """Tell whether records may be stored although their write ended with this error."""
    return isinstance(error, CommitTimeoutError) or error.facts.get("outcome") == "unknown"


def bounded_text(message: str) -> str:
    """Return a message that fits a status line: at most ERROR_TEXT_BYTES_MAX bytes.

    A message may quote what a stranger sent.
    """
    beginning = message[: ERROR_TEXT_BYTES_MAX + 1]
    text = beginning.encode(errors="replace")  # lone surrogates could not be sent
    if len(text) <= ERROR_TEXT_BYTES_MAX:
        return text.decode()
    return f"{text[: ERROR_TEXT_BYTES_MAX - 3].decode(errors='ignore')}..."


def to_wire(error: HeadwaterError) -> str:
    """Encode an error as JSON ``{"error", "message", "facts"}`` for any text-carrying protocol."""
    body = {"error": type(error).__name__, "message": error.message, "facts": error.facts}
    return json.dumps(body, sort_keys=True, default=str)


def from_wire(text: str) -> HeadwaterError | None:
    """Decode the text of :func:`to_wire`; None if the text is not an error of a known class."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("message"), str):
        return None
    kind = leaves().get(str(body.get("error")))
    facts = body.get("facts")
    if kind is None or not isinstance(facts, dict):
        return None
    return _rebuild(kind, body["message"], facts)
