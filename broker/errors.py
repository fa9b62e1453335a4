"""Every error Headwater raises on purpose, split by who must act.

    HeadwaterError
    ├─ InvalidRequestError   the caller must change the request
    │    InvalidStreamError · UnknownStreamError · StreamExistsError · UnknownPartitionError
    │    OffsetOutOfRangeError · RecordTooLargeError · SchemaMismatchError · SequenceGapError
    │    UnknownLeaseError · InvalidCutError · MalformedMessageError · UnknownBrokerError
    │    InvalidAssignmentError · FeatureLevelError · TruncatedError · MetadataFullError
    ├─ FencedError           the caller must refresh what it knows, then retry
    │    NotLeaderError · StaleLeaderEpochError · StaleColdEndError · StreamRecreatedError
    │    StalePartitionEpochError · StaleBrokerEpochError · IneligibleReplicaError
    │    FilesReplacedError · StaleWatermarkError · HistoryClaimedError
    ├─ UnavailableError      the caller may retry later
    │    OverloadedError · DiskFullError · LogFailedError · CommitTimeoutError
    │    RemoteTierUnavailableError · ShuttingDownError · NotEnoughReplicasError · NoAnswerError
    ├─ CorruptDataError      an operator must look; never retried, never repaired by deletion
    │    BatchCorruptError · SegmentCorruptError · IndexCorruptError · MetadataCorruptError
    │    EnvelopeError · ObjectMissingError · ObjectCorruptError · TableMismatchError
    │    TableRolledBackError · GapError · OverlapError · ForeignHistoryError
    └─ InvalidConfigError    raised at start only
         UnfencedStoreError

Policy stands on the class (``retriable``, ``refresh_metadata``), facts are attributes, the message
is built once. Nobody parses text: :func:`to_wire` and :func:`from_wire` carry class and facts.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar


class HeadwaterError(Exception):
    """The root. Keyword facts become attributes and travel with the error."""

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
    """The request can never succeed as it is."""


class InvalidStreamError(InvalidRequestError):
    """A stream's name or configuration is not acceptable."""


class UnknownStreamError(InvalidRequestError):
    """No stream has this name (or this uuid)."""


class StreamExistsError(InvalidRequestError):
    """The name is taken by a stream with another configuration."""


class UnknownPartitionError(InvalidRequestError):
    """The stream has no partition of this number."""


class OffsetOutOfRangeError(InvalidRequestError):
    """The offset is below the first retained one or above the end. Facts: offset, start, end."""


class RecordTooLargeError(InvalidRequestError):
    """A record or batch exceeds a limit. Facts: size_bytes, limit_bytes."""


class SchemaMismatchError(InvalidRequestError):
    """Arrow data does not have the columns and types that the log takes."""


class SequenceGapError(InvalidRequestError):
    """A producer skipped sequence numbers, so an earlier batch is missing. Facts: expected, got."""


class UnknownLeaseError(InvalidRequestError):
    """The lease has expired or was dropped; what it held may be gone. Facts: lease_id."""


class InvalidCutError(InvalidRequestError):
    """A saved cut does not parse, or its checksum does not match."""


class MalformedMessageError(InvalidRequestError):
    """A message's header block, subject or id cannot be read, so it was not stored. Facts: part."""


class UnknownBrokerError(InvalidRequestError):
    """No broker of this id has ever registered. Facts: broker."""


class InvalidAssignmentError(InvalidRequestError):
    """Replicas that cannot be: repeated, not registered, too few for min ISR. Facts: replicas."""


class FeatureLevelError(InvalidRequestError):
    """The cluster's feature level does not allow this, or this build does not know the level.

    Facts: level, and the range that was needed.
    """


class MetadataFullError(InvalidRequestError):
    """The cluster's metadata is as large as it may be: something has to go before more may come.

    Facts: weight_bytes that it would have, limit_bytes.
    """


class TruncatedError(InvalidRequestError):
    """Records that this reader was given are no longer in the log; it must choose where to go on.

    Only after an unclean election, or when it reads what is not committed. Facts: partition,
    offset and leader_epoch of the reader's position, end: how far the log now goes along with it.
    """


class FencedError(HeadwaterError):
    """The sender acts on an old epoch: it must refresh what it knows, then retry."""

    retriable = True
    refresh_metadata = True


class NotLeaderError(FencedError):
    """This broker does not lead the partition. Facts: leader and its Flight address, if known."""


class StaleLeaderEpochError(FencedError):
    """The leader epoch is not the current one. Facts: got, current."""


class StalePartitionEpochError(FencedError):
    """The partition's leader or ISR changed meanwhile. Facts: expected, current."""


class StaleBrokerEpochError(FencedError):
    """The broker has registered again since, or is fenced. Facts: broker, got, current."""


class IneligibleReplicaError(FencedError):
    """The replica may not join the ISR or lead now: fenced, stopping, or not up to date."""


class StaleColdEndError(FencedError):
    """The table's cold end is not where the committer believed. Facts: expected, found."""


class FilesReplacedError(FencedError):
    """A file that a commit would replace is not in the table any more. Facts: path."""


class StaleWatermarkError(FencedError):
    """Another appender moved a table's watermark first. Facts: partition, expected, found."""


class StreamRecreatedError(FencedError):
    """The name now belongs to another incarnation of the stream. Facts: expected, found."""


class HistoryClaimedError(FencedError):
    """Another process leads a copy of this stream's history; it was there first in the lake."""


class UnavailableError(HeadwaterError):
    """Nothing is wrong with the request; try again later."""

    retriable = True


class OverloadedError(UnavailableError):
    """A bounded queue is full."""


class DiskFullError(UnavailableError):
    """The disk has no room; writes are refused until it has. Nothing stored is affected."""


class LogFailedError(UnavailableError):
    """A write or fsync of the log failed; the log takes no more writes until it is reopened.

    The outcome of the write that met it is unknown: the records may be found in the log later.
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


class NoAnswerError(UnavailableError):
    """A broker cannot be reached, or stays mute; what it did is not known. Facts: address."""


class CorruptDataError(HeadwaterError):
    """Stored bytes are not what was written. Nothing is deleted; an operator must look."""


class BatchCorruptError(CorruptDataError):
    """A record batch's header or body fails its checksum or its bounds."""


class SegmentCorruptError(CorruptDataError):
    """A segment is damaged below its end. Facts: path, position, offset."""


class IndexCorruptError(CorruptDataError):
    """An index is damaged; it is a cache and is rebuilt from the log."""


class MetadataCorruptError(CorruptDataError):
    """A metadata, epoch or recovery file is damaged."""


class EnvelopeError(CorruptDataError):
    """Bytes are not an envelope of the expected kind."""


class ObjectMissingError(CorruptDataError):
    """An object that the table or the ledger names is not in the store. Facts: key."""


class ObjectCorruptError(CorruptDataError):
    """An object's size, checksum, rows or digest differ from what was recorded. Facts: key."""


class TableMismatchError(CorruptDataError):
    """A table does not belong to this stream, or holds rows the broker never committed."""


class ForeignHistoryError(TableMismatchError):
    """A table, or a saved cut, is of another history than the one that is here."""


class TableRolledBackError(CorruptDataError):
    """The table is older than what the broker has seen committed. Facts: expected, found."""


class GapError(CorruptDataError):
    """Offsets are missing from a range that should be complete. Facts: partition, start, end."""


class OverlapError(CorruptDataError):
    """Offsets occur more than once. Facts: partition, start, end."""


class InvalidConfigError(HeadwaterError):
    """The configuration cannot work; raised at start only."""


class ControllersLostError(InvalidConfigError):
    """Too many controllers start with empty disks beside one in use. Facts: lost (names)."""


class UnfencedStoreError(InvalidConfigError):
    """The object store ignores conditional writes, so two writers could lose each other's data."""


def leaves() -> dict[str, type[HeadwaterError]]:
    """Return every error class by name, the abstract ones included."""
    found: dict[str, type[HeadwaterError]] = {}
    todo: list[type[HeadwaterError]] = [HeadwaterError]
    while todo:
        kind = todo.pop()
        found[kind.__name__] = kind
        todo.extend(kind.__subclasses__())
    return found


def to_wire(error: HeadwaterError) -> str:
    """Encode an error as JSON ``{"error", "message", "facts"}`` for any text-carrying protocol."""
    body = {"error": type(error).__name__, "message": error.message, "facts": error.facts}
    return json.dumps(body, sort_keys=True, default=str)


def from_wire(text: str) -> HeadwaterError | None:
    """Decode :func:`to_wire`; None when the text is not one of ours. Trusts no class name."""
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
