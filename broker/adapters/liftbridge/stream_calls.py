"""The calls about streams: create, delete, and the metadata for publishers and subscribers.

They block, on threads of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from broker.adapters.liftbridge.messages import NS_PER_US
from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.errors import (
    HeadwaterError,
    InvalidStreamError,
    NotLeaderError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.access import Kind
from broker.model.activity import CURSORS_STREAM, RESERVED_STREAMS
from broker.model.ids import is_stream_name
from broker.model.stream import MIB, Stream, StreamConfig, not_a_subject
from broker.model.subjects import is_pattern
from broker.ports.api import BrokerApi, BrokerPlace, PartitionPlace
from broker.wire.liftbridge import api_pb2 as api

PROTOCOL: Final = "liftbridge"  # under this name a broker registers its address

_Request = TypeVar("_Request", bound=Message)
Unary = Callable[[bytes], bytes]
Shown = Callable[[Kind, Sequence[str]], Sequence[str]]
"""Returns those of the names of streams or groups that a caller may know of."""
Listing = Callable[[bytes, Shown], bytes]
"""A call whose answer has only what its caller may know of."""
_NAMES_MAX: Final = 1000  # in one FetchMetadata


def decode(kind: type[_Request], payload: bytes) -> _Request:
    """Read a request.

    Raises:
        StatusError: the bytes are not such a message.
    """
    request = kind()
    try:
        request.ParseFromString(payload)
    except DecodeError as cause:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"the request is not a {kind.__name__}: {cause}"
        ) from cause
    return request


class StreamCalls:
    """Serves the calls about streams. Any thread."""

    def __init__(self, api_: BrokerApi, *, advertised: Callable[[], str]) -> None:
        """``advertised`` is the host:port for clients if the cluster's metadata has none."""
        self._api = api_
        self._advertised = advertised

    def create(self, payload: bytes) -> bytes:
        """CreateStream."""
        request = decode(api.CreateStreamRequest, payload)
        if not request.name:
            raise StatusError(Code.INVALID_ARGUMENT, "Name cannot be empty")
        if request.name in RESERVED_STREAMS:
            raise StatusError(Code.INVALID_ARGUMENT, "Stream is reserved")
        if not is_stream_name(request.name):
            raise InvalidStreamError(
                f"stream name {request.name!r} must be 1 to 128 characters of A-Z a-z 0-9 _ -, "
                "and must not begin with -"
            )
        self._api.streams.create(request.name, self._config(request), exclusive=True)
        return api.CreateStreamResponse().SerializeToString()

    def _config(self, request: api.CreateStreamRequest) -> StreamConfig:
        """Return the stream's settings; an option that cannot be honoured is refused by name."""
        factor, servers = request.replicationFactor, len(self._api.partitions.brokers())
        if factor < -1 or factor > max(servers, 1):
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"invalid replicationFactor {factor}: there are {servers} servers",
            )
        settings: dict[str, Any] = {
            "partitions": request.partitions or 1,
            "queue_group": request.group or None,
            "replication_factor": factor or 1,
            "optimistic_concurrency": request.optimisticConcurrencyControl.value,
            "encryption": "xaes-256-gcm" if request.encryption.value else "none",
            "compact": request.compactEnabled.value,  # compactMaxGoroutines has no meaning here
            # As Liftbridge's replication.max.bytes. gRPC's clients take no message above 4 MiB
            # unless they are told to, so a larger one would end each of their subscriptions.
            "record_bytes_max": MIB,
        }
        for option, names in (
            # Liftbridge's clients mean that the oldest messages go, wherever they are.
            ("retentionMaxBytes", ("local_retention_bytes", "remote_retention_bytes")),
            ("retentionMaxAge", ("local_retention_ms", "remote_retention_ms")),
            ("retentionMaxMessages", ("local_retention_records", "remote_retention_records")),
            ("segmentMaxBytes", ("segment_bytes_max",)),
            ("segmentMaxAge", ("segment_age_ms_max",)),
            ("minIsr", ("min_isr",)),
            ("autoPauseTime", ("auto_pause_ms",)),
            ("autoPauseDisableIfSubscribers", ("auto_pause_unless_subscribed",)),
        ):
            # In Liftbridge zero switches a limit off; here the setting then has its default.
            if request.HasField(option) and getattr(request, option).value:
                settings.update(dict.fromkeys(names, getattr(request, option).value))
        if not is_pattern(request.subject):
            raise StatusError(
                Code.INVALID_ARGUMENT, f"Subject is invalid: {not_a_subject(request.subject)}"
            )
        return StreamConfig(subject=request.subject, **settings)

    def delete(self, payload: bytes) -> bytes:
        """DeleteStream. The stream's table stays."""
        request = decode(api.DeleteStreamRequest, payload)
        if request.name in RESERVED_STREAMS:
            raise StatusError(Code.INVALID_ARGUMENT, "Stream is reserved")
        self._api.streams.delete(request.name)
        return api.DeleteStreamResponse().SerializeToString()

    def pause(self, payload: bytes) -> bytes:
        """PauseStream: a publish, or a subscriber that asks for it, resumes what is paused."""
        request = decode(api.PauseStreamRequest, payload)
        self._api.pauses.pause(
            request.name, tuple(request.partitions), resume_all=request.resumeAll
        )
        return api.PauseStreamResponse().SerializeToString()

    def set_readonly(self, payload: bytes) -> bytes:
        """SetStreamReadonly."""
        request = decode(api.SetStreamReadonlyRequest, payload)
        self._api.pauses.set_readonly(
            request.name, tuple(request.partitions), readonly=request.readonly
        )
        return api.SetStreamReadonlyResponse().SerializeToString()

    def fetch_metadata(self, payload: bytes, shown: Shown) -> bytes:
        """FetchMetadata: of the named streams, or of all; how many partitions each broker has.

        What a caller may not know of is not looked for: the time of a call tells nothing, either.
        """
        request = decode(api.FetchMetadataRequest, payload)
        names, groups = dict.fromkeys(request.streams), dict.fromkeys(request.groups)
        if max(len(names), len(groups)) > _NAMES_MAX:
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"FetchMetadata takes up to {_NAMES_MAX} streams and groups: name fewer, or none "
                "for all streams",
            )
        wanted = shown("stream", [one for one in names if one != CURSORS_STREAM])
        streams = self._streams(wanted)
        seen = shown("stream", list(streams))
        places = {name: self._places(name) for name in seen}
        answer = api.FetchMetadataResponse()
        if CURSORS_STREAM in names or not names:
            self._describe_cursors(answer)
        for name in wanted if names else seen:
            if places.get(name):
                self._describe(answer, streams[name], places[name])
            else:
                answer.streamMetadata.add(name=name, error=api.StreamMetadata.UNKNOWN_STREAM)
        for group in shown("group", list(groups)):
            self._describe_group(answer, group)
        self._add_brokers(answer, places.values())
        return answer.SerializeToString()

    def _streams(self, names: Iterable[str]) -> dict[str, Stream]:
        """Return all streams by name; wait once for newer metadata if ``names`` has an unknown one.

        Raises:
            UnavailableError: there was no newer metadata in time.
        """
        known = {one.name: one for one in self._api.streams.all()}
        unknown = next((one for one in names if one not in known), None)
        if unknown is not None:
            with suppress(UnknownStreamError):
                self._api.streams.get(unknown)
            known = {one.name: one for one in self._api.streams.all()}
        return known

    def _places(self, name: str) -> list[PartitionPlace]:
        """Return where a stream's partitions are; none if it was deleted meanwhile."""
        try:
            return self._api.partitions.places(name)
        except UnknownStreamError:
            return []

    def _describe_group(self, answer: api.FetchMetadataResponse, group: str) -> None:
        place = self._api.groups.find(group)
        if place is None:
            answer.groupMetadata.add(groupId=group, error=api.ConsumerGroupMetadata.UNKNOWN_GROUP)
        else:
            answer.groupMetadata.add(
                groupId=group, coordinator=place.coordinator, epoch=place.epoch
            )

    def _describe_cursors(self, answer: api.FetchMetadataResponse) -> None:
        """Describe the stream whose leader clients ask for cursors: any broker that serves them."""
        brokers = self._api.partitions.brokers()
        alone = len(brokers) == 1
        serving = [
            str(one.broker) for one in brokers if self._address(one, alone=alone)[0] is not None
        ]
        if not serving:
            answer.streamMetadata.add(name=CURSORS_STREAM, error=api.StreamMetadata.UNKNOWN_STREAM)
            return
        found = answer.streamMetadata.add(name=CURSORS_STREAM, subject="cursors")
        found.partitions[0].CopyFrom(
            api.PartitionMetadata(
                leader=serving[0],
                replicas=serving,
                isr=serving,
                highWatermark=-1,
                newestOffset=-1,
                messagesReceivedTimestamps=api.PartitionEventTimestamps(),
                pauseTimestamps=api.PartitionEventTimestamps(),
                readonlyTimestamps=api.PartitionEventTimestamps(),
            )
        )

    def _describe(
        self, answer: api.FetchMetadataResponse, stream: Stream, places: list[PartitionPlace]
    ) -> None:
        found = answer.streamMetadata.add(
            name=stream.name,
            subject=stream.config.subject,
            creationTimestamp=stream.created_us * NS_PER_US,
        )
        for place in places:
            found.partitions[place.partition].CopyFrom(self._partition(stream, place))

    def _partition(self, stream: Stream, place: PartitionPlace) -> api.PartitionMetadata:
        """Describe a partition; only a broker with a replica knows its newest offsets."""
        committed, newest, received = self._newest_offsets(stream.name, place.partition)
        return api.PartitionMetadata(
            id=place.partition,
            leader=str(place.leader or ""),
            replicas=map(str, place.replicas),
            isr=map(str, place.isr),
            highWatermark=committed,
            newestOffset=newest,
            paused=place.paused,
            readonly=place.readonly,
            messagesReceivedTimestamps=_event_times(received),
            pauseTimestamps=_event_times(place.pause_us),
            readonlyTimestamps=_event_times(place.readonly_us),
        )

    def _newest_offsets(self, name: str, partition: int) -> tuple[int, int, tuple[int, int]]:
        """Return the newest committed and the newest offset, and when records were received.

        As in Liftbridge, -1 and 0 mean that it is not known.
        """
        try:
            handle = self._api.partitions.handle(name, partition)
        except HeadwaterError:
            return -1, -1, (0, 0)
        reads = handle.reads
        return int(reads.high_watermark) - 1, int(reads.log_end) - 1, handle.received_us

    def _add_brokers(
        self, answer: api.FetchMetadataResponse, places: Iterable[Sequence[PartitionPlace]]
    ) -> None:
        everywhere = [place for of_one_stream in places for place in of_one_stream]
        brokers = self._api.partitions.brokers()
        for broker in brokers:
            host, port = self._address(broker, alone=len(brokers) == 1)
            if host is None:
                continue  # it cannot be reached, or serves no Liftbridge
            answer.brokers.add(
                id=str(broker.broker),
                host=host,
                port=port,
                partitionCount=sum(broker.broker in place.replicas for place in everywhere),
                leaderCount=sum(broker.broker == place.leader for place in everywhere),
            )

    def _address(self, broker: BrokerPlace, *, alone: bool) -> tuple[str | None, int]:
        text = broker.addresses.get(PROTOCOL) or (self._advertised() if alone else None)
        if text is None or not broker.alive:
            return None, 0
        host, _, port = text.rpartition(":")
        return host.strip("[]"), int(port)

    def fetch_partition_metadata(self, payload: bytes) -> bytes:
        """FetchPartitionMetadata: from the partition's leader only."""
        request = decode(api.FetchPartitionMetadataRequest, payload)
        try:
            stream = self._api.streams.get(request.stream)
        except UnknownStreamError as error:
            raise StatusError(Code.NOT_FOUND, f"partition not found: {error.message}") from error
        if not 0 <= request.partition < stream.config.partitions:
            raise UnknownPartitionError("partition not found", partition=request.partition)
        place = self._api.partitions.places(stream.name)[request.partition]
        try:
            leads = self._api.partitions.handle(stream.name, request.partition).leads
        except NotLeaderError:
            leads = False
        if not leads:
            raise StatusError(Code.FAILED_PRECONDITION, "Server not partition leader")
        answer = api.FetchPartitionMetadataResponse(metadata=self._partition(stream, place))
        return answer.SerializeToString()


def _event_times(times_us: tuple[int, int]) -> api.PartitionEventTimestamps:
    first_us, latest_us = times_us
    return api.PartitionEventTimestamps(
        firstTimestamp=first_us * NS_PER_US, latestTimestamp=latest_us * NS_PER_US
    )
