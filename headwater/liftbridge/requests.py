"""Converts values to messages of Liftbridge's API, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.errors import (
    AccessDeniedError,
    CommitTimeoutError,
    ConditionFailedError,
    EncryptionKeyError,
    HeadwaterError,
    InvalidRequestError,
    UnavailableError,
    UnknownPartitionError,
)
from broker.model.records import AckPolicy
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from headwater.liftbridge.values import (
    Message,
    Metadata,
    PartitionDescription,
    PublishAck,
    Since,
    StreamInfo,
    StreamOptions,
    Until,
)

_POLICIES: Final = {
    AckPolicy.LEADER: wire.LEADER,
    AckPolicy.ALL: wire.ALL,
    AckPolicy.NONE: wire.NONE,
}
_OWN: Final = {number: policy for policy, number in _POLICIES.items()}
_STARTS: Final = {
    "earliest": api.EARLIEST,
    "latest": api.LATEST,
    "new": api.NEW_ONLY,
    "offset": api.OFFSET,
    "time": api.TIMESTAMP,
}
_STOPS: Final = {
    "never": api.STOP_ON_CANCEL,
    "latest": api.STOP_LATEST,
    "offset": api.STOP_OFFSET,
    "time": api.STOP_TIMESTAMP,
}
_OPTIONS: Final = {  # of StreamOptions: the field of CreateStreamRequest and its wrapper
    "retention_max_bytes": ("retentionMaxBytes", api.NullableInt64),
    "retention_max_messages": ("retentionMaxMessages", api.NullableInt64),
    "retention_max_age_ms": ("retentionMaxAge", api.NullableInt64),
    "cleaner_interval_ms": ("cleanerInterval", api.NullableInt64),
    "segment_max_bytes": ("segmentMaxBytes", api.NullableInt64),
    "segment_max_age_ms": ("segmentMaxAge", api.NullableInt64),
    "compact": ("compactEnabled", api.NullableBool),
    "compact_max_goroutines": ("compactMaxGoroutines", api.NullableInt32),
    "auto_pause_time_ms": ("autoPauseTime", api.NullableInt64),
    "auto_pause_disable_if_subscribers": ("autoPauseDisableIfSubscribers", api.NullableBool),
    "min_isr": ("minIsr", api.NullableInt32),
    "optimistic_concurrency": ("optimisticConcurrencyControl", api.NullableBool),
    "encryption": ("encryption", api.NullableBool),
}


def create_request(name: str, subject: str, options: StreamOptions) -> api.CreateStreamRequest:
    """Return the request for a new stream."""
    wrapped: dict[str, Any] = {}
    for option, (field, wrapper) in _OPTIONS.items():
        value = getattr(options, option)
        if value is not None:
            wrapped[field] = wrapper(value=value)
    return api.CreateStreamRequest(
        name=name,
        subject=subject,
        group=options.group,
        partitions=options.partitions,
        replicationFactor=options.replication_factor,
        **wrapped,
    )


def publish_request(
    stream: str,
    partition: int,
    value: bytes,
    *,
    key: bytes | None,
    headers: Mapping[str, bytes] | None,
    policy: AckPolicy,
    expected_offset: int | None,
    correlation_id: str,
) -> api.PublishRequest:
    """Return the request for one message; an expected offset of None: any."""
    return api.PublishRequest(
        stream=stream,
        partition=partition,
        value=value,
        key=key or b"",
        headers=dict(headers or {}),
        ackPolicy=_POLICIES[policy],
        expectedOffset=-1 if expected_offset is None else expected_offset,
        correlationId=correlation_id,
    )


def subject_request(
    subject: str, value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None,
    policy: AckPolicy,
) -> api.PublishToSubjectRequest:  # fmt: skip
    """Return the request for a message to a NATS subject."""
    return api.PublishToSubjectRequest(
        subject=subject,
        value=value,
        key=key or b"",
        headers=dict(headers or {}),
        ackPolicy=_POLICIES[policy],
    )


def subscribe_request(
    stream: str, partition: int, start: Since, stop: Until, **fields: Any
) -> api.SubscribeRequest:
    """Return the request for a subscription."""
    return api.SubscribeRequest(
        stream=stream,
        partition=partition,
        startPosition=_STARTS[start.kind],
        startOffset=start.value if start.kind == "offset" else 0,
        startTimestamp=start.value if start.kind == "time" else 0,
        stopPosition=_STOPS[stop.kind],
        stopOffset=stop.value if stop.kind == "offset" else 0,
        stopTimestamp=stop.value if stop.kind == "time" else 0,
        **fields,
    )


def message_of(told: wire.Message) -> Message:
    """Read a message. protobuf cannot tell an empty key from none."""
    return Message(
        told.stream,
        told.partition,
        told.offset,
        told.timestamp,
        told.value,
        told.key or None,
        dict(told.headers),
        told.subject,
        told.replySubject,
    )


def ack_of(told: wire.Ack) -> PublishAck:
    """Read an acknowledgement."""
    return PublishAck(
        told.stream,
        told.offset,
        _OWN.get(told.ackPolicy, AckPolicy.LEADER),
        told.correlationId,
        told.msgSubject,
        told.receptionTimestamp,
        told.commitTimestamp,
    )


def refusal_of(told: api.PublishAsyncError) -> HeadwaterError:
    """Return the error of a message that was not stored, or perhaps not (CommitTimeoutError)."""
    codes = api.PublishAsyncError
    kinds: dict[int, type[HeadwaterError]] = {
        codes.UNKNOWN: CommitTimeoutError,
        codes.NOT_FOUND: UnknownPartitionError,
        codes.BAD_REQUEST: InvalidRequestError,
        codes.READONLY: InvalidRequestError,
        codes.PERMISSION_DENIED: AccessDeniedError,
        codes.ENCRYPTION_FAILED: EncryptionKeyError,
        codes.INCORRECT_OFFSET: ConditionFailedError,
    }
    kind = kinds.get(told.code, UnavailableError)
    return kind(told.message or f"not stored: {codes.Code.Name(told.code)}")


def partition_of(told: api.PartitionMetadata) -> PartitionDescription:
    """Read a partition."""
    return PartitionDescription(
        told.id,
        told.leader,
        tuple(told.replicas),
        tuple(told.isr),
        told.highWatermark,
        told.newestOffset,
        told.paused,
        told.readonly,
    )


def metadata_of(told: api.FetchMetadataResponse) -> Metadata:
    """Read metadata; streams that are not known are left out."""
    return Metadata(
        {one.id: f"{one.host}:{one.port}" for one in told.brokers},
        {
            one.name: StreamInfo(
                one.name,
                one.subject,
                {number: partition_of(place) for number, place in one.partitions.items()},
                one.creationTimestamp,
            )
            for one in told.streamMetadata
            if one.error == api.StreamMetadata.OK
        },
    )
