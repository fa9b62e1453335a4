"""The arguments and results of the client's calls: plain values, without gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self

from broker.model.records import AckPolicy

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)

StartKind = Literal["earliest", "latest", "new", "offset", "time"]
StopKind = Literal["never", "latest", "offset", "time"]
AutoOffset = Literal["earliest", "latest", "new", "none"]


@dataclass(frozen=True, slots=True)
class Message:
    """A record of a stream. A key of None: the message has none."""

    stream: str
    partition: int
    offset: int
    timestamp_ns: int  # since 1970, UTC: when the leader stored it
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    subject: str = ""
    reply_subject: str = ""


@dataclass(frozen=True, slots=True)
class PublishAck:
    """The acknowledgement of a published message."""

    stream: str
    offset: int
    policy: AckPolicy
    correlation_id: str
    subject: str
    received_ns: int  # since 1970, UTC
    committed_ns: int


@dataclass(frozen=True, slots=True)
class Since:
    """Where a subscription begins."""

    kind: StartKind
    value: int = 0  # an offset, or ns since 1970

    @classmethod
    def earliest(cls) -> Self:
        """Begin with the oldest message that there is."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> Self:
        """Begin with the newest message that there is."""
        return cls("latest")

    @classmethod
    def new(cls) -> Self:
        """Begin with the first message that comes after the call."""
        return cls("new")

    @classmethod
    def offset(cls, offset: int) -> Self:
        """Begin with an offset."""
        return cls("offset", offset)

    @classmethod
    def time(cls, moment: datetime | int) -> Self:
        """Begin with the first message of this time or later; an integer is ns since 1970."""
        return cls("time", _ns(moment))


@dataclass(frozen=True, slots=True)
class Until:
    """Where a subscription ends; the message of the stop is delivered."""

    kind: StopKind
    value: int = 0

    @classmethod
    def never(cls) -> Self:
        """Wait for new messages for ever."""
        return cls("never")

    @classmethod
    def latest(cls) -> Self:
        """End with the message that is the newest when the subscription begins."""
        return cls("latest")

    @classmethod
    def offset(cls, offset: int) -> Self:
        """End with an offset."""
        return cls("offset", offset)

    @classmethod
    def time(cls, moment: datetime | int) -> Self:
        """End with the last message that is not later; an integer is ns since 1970."""
        return cls("time", _ns(moment))


def _ns(moment: datetime | int) -> int:
    """Return ns since 1970.

    Raises:
        ValueError: the time has no time zone.
    """
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: give it one, as datetime.now(UTC) has")
    return (moment - _EPOCH) // _US * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of a new stream. None: what the server has as its default."""

    partitions: int = 1
    replication_factor: int = 1  # -1: every server
    group: str = ""  # a load-balance group
    retention_max_bytes: int | None = None
    retention_max_messages: int | None = None
    retention_max_age_ms: int | None = None
    cleaner_interval_ms: int | None = None
    segment_max_bytes: int | None = None
    segment_max_age_ms: int | None = None
    compact: bool | None = None
    compact_max_goroutines: int | None = None
    auto_pause_time_ms: int | None = None
    auto_pause_disable_if_subscribers: bool | None = None
    min_isr: int | None = None
    optimistic_concurrency: bool | None = None
    encryption: bool | None = None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition, as a server described it; an offset of -1: unknown there, or no message yet."""

    number: int
    leader: str  # a broker's id; "" if none leads
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    high_watermark: int
    newest_offset: int
    paused: bool
    readonly: bool


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream, as a server described it."""

    name: str
    subject: str
    partitions: Mapping[int, PartitionDescription]
    created_ns: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The brokers of a cluster, and streams."""

    brokers: Mapping[str, str]  # id: host:port
    streams: Mapping[str, StreamInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files of certificates in PEM: the authority of the servers, and the client's own if asked."""

    ca_file: str
    cert_file: str | None = None
    key_file: str | None = None
