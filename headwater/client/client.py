"""The client: all requests to a broker, as plain calls.

One Client holds one connection and may be used from any thread. Producers have connections of
their own. Calls block; errors are those of broker/errors.py, with their facts. The file is not
split: it is the list of all that a client can ask, with what each answer means.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from broker.codec.flight.protocol import (
    BATCH_BYTES_DEFAULT,
    AtTime,
    ReadRequest,
    StartAt,
    StreamPath,
    ack_policy,
)
from broker.errors import EnvelopeError, InvalidRequestError, UnknownPartitionError
from broker.model.cut import Cut, Lease
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, ProducerId, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.purge import Purged
from broker.model.secret import Secret
from broker.model.stream import AlteredStream, Stream
from broker.model.tiering import HeldLease, TierStatus
from headwater.client.address import Addresses, resolve_addresses
from headwater.client.brokers import Brokers, ToldPlace
from headwater.client.descriptions import StreamDescription, StreamHighWatermarks, position_of
from headwater.client.fetch import Fetch
from headwater.client.group.requests import GroupClient
from headwater.client.leader_route import LeaderRoute
from headwater.client.owner import default_owner
from headwater.client.pausing import PausingCalls
from headwater.client.purging import purge
from headwater.client.read_route import ReadRoute
from headwater.client.settings import StreamSettings

if TYPE_CHECKING:  # loaded when they are used: most commands need none of them
    from headwater.client.consumer import Consumer
    from headwater.client.partitioned_producer import PartitionedProducer
    from headwater.client.producer import Producer

_LEASE_TTL_MS = _CUT_TIMEOUT_MS = 60_000


class Client(GroupClient, PausingCalls):
    """A broker, by its address: ``grpc://host:port``, ``grpc+tls://host:port`` or ``host:port``.

    For a cluster, give the addresses of some of its brokers, with commas: the client asks any that
    answers for the addresses of the others. The default of ``url`` is HEADWATER_SERVER, then
    grpc://127.0.0.1:7410. The first call connects. For TLS with a private authority give its
    ``tls_ca_file``; for mutual TLS also a certificate and its key (PEM files). Brokers that ask who
    calls take a ``token``; its default is HEADWATER_TOKEN, or the file HEADWATER_TOKEN_FILE.

    Raises:
        InvalidConfigError: the address or a file is not usable, or the token needs TLS.

    The class is not split: it is the page on which users find every call; each call is one request,
    and the work is done in the modules beside it.
    """

    def __init__(
        self,
        url: str | Addresses | None = None,
        *,
        tls_ca_file: str | os.PathLike[str] | None = None,
        tls_cert_file: str | os.PathLike[str] | None = None,
        tls_key_file: str | os.PathLike[str] | None = None,
        token: Secret | str | None = None,
    ) -> None:
        self._brokers = Brokers(
            resolve_addresses(
                url,
                tls_ca_file=tls_ca_file,
                tls_cert_file=tls_cert_file,
                tls_key_file=tls_key_file,
                token=token,
            )
        )
        self._knows_placed_by: bool | None = None  # whether the brokers do; None: not asked yet

    @property
    def address(self) -> Addresses:
        """The addresses that were given, as resolved."""
        return self._brokers.addresses

    def close(self) -> None:
        """Close the connections; a read that goes on has to be closed by itself."""
        self._brokers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ streams

    def create_stream(
        self, name: str, *, subject: str | None = None, **config: Unpack[StreamSettings]
    ) -> Stream:
        """Create a stream on ``subject`` (its own name by default); see StreamConfig for the rest.

        If a stream with this name and configuration exists, return that stream.

        Raises:
            InvalidStreamError, StreamExistsError.
        """
        settings: dict[str, object] = {"subject": name if subject is None else subject, **config}
        return _stream(self._one("create_stream", {"name": name, "config": settings}))

    def stream(self, name: str) -> Stream:
        """Return a stream; raises UnknownStreamError. Works while the object store is away."""
        values = self._one("describe_stream", {"name": name, "positions": False})
        self._knows_placed_by = bool(values.get("placed_by"))
        return _stream(values["stream"])

    def streams(self) -> list[Stream]:
        """Return all streams by name."""
        return [_stream(values) for values in self._brokers.action("list_streams", {})]

    def describe(self, name: str) -> StreamDescription:
        """Return a stream with the positions of its partitions; raises UnknownStreamError."""
        values = self._one("describe_stream", {"name": name})
        return StreamDescription(
            cluster=values["cluster"],
            stream=_stream(values["stream"]),
            partitions=tuple(map(position_of, values["partitions"])),
        )

    def locate(self, name: str) -> list[ToldPlace]:
        """Return leader and replicas of each partition, by number; raises UnknownStreamError."""
        return self._brokers.locate(name)

    def alter_stream(
        self,
        name: str,
        *,
        stream_uuid: StreamUuid | None = None,
        dry_run: bool = False,
        **changes: Unpack[StreamSettings],
    ) -> AlteredStream:
        """Change settings of a stream, on all its brokers, while it is in use.

        Records that were stored before stay as they are. The broker that is asked applies the
        change at once, the other brokers as soon as they hear of it, usually within milliseconds. A
        setting that is left out stays. With ``dry_run`` nothing is changed.

        Returns:
            The stream before and after; equal if it had these settings already.

        Raises:
            FixedSettingError: a setting cannot change; the message says why, and what to do.
            InvalidStreamError: a value is out of bounds, or contradicts another setting.
            FeatureLevelError: a broker of the cluster runs a release that knows no such change.
            UnknownStreamError, StreamRecreatedError.
        """
        # With the uuid, a repeated request does not change a stream that was created again.
        uuid = stream_uuid or self.stream(name).uuid
        body = {"name": name, "stream_uuid": uuid, "changes": changes, "dry_run": dry_run}
        values = self._one("alter_stream", body)
        return AlteredStream(_stream(values["before"]), _stream(values["after"]))

    def purge_stream(
        self,
        name: str,
        partition: int | None = None,
        *,
        before: int | None = None,
        before_us: int | None = None,
        ends: Mapping[int, int] | None = None,
        stream_uuid: StreamUuid | None = None,
    ) -> list[Purged]:
        """Delete records of a stream on purpose: those below an offset, or before a time.

        Without ``before`` and ``before_us`` everything that is committed now is deleted. The
        records are gone for every reader when the call returns, and the offsets are not given out
        again. The table of a tiered stream keeps its rows: there only the brokers' disks are freed.

        Args:
            name: The stream's name.
            partition: One partition; None: all of them, one after the other, also those after one
                that is refused.
            before: The first offset that stays; of one partition.
            before_us: Microseconds since 1970, UTC. Every record at or after this time stays, and
                so does a batch that has one.
            ends: By partition, the first offset that stays; other partitions keep everything.
            stream_uuid: Refuse to purge another incarnation of the stream.

        Raises:
            OffsetOutOfRangeError: ``before`` is above the high watermark.
            HeldByLeaseError: readers hold some of these records.
            NotShippedError: some of these records are not in the stream's table yet.
            PurgeRefusedError: some or all of several partitions were refused; ``purged`` and
                ``refused`` have the outcome of each.
            FeatureLevelError: a broker of the cluster runs a release that knows no purge.
            InvalidRequestError, UnknownStreamError, UnknownPartitionError, StreamRecreatedError.
        """
        found = self.describe(name)
        count = len(found.partitions)
        if partition is not None and not 0 <= partition < count:
            raise UnknownPartitionError.of(name, partition, count)
        if before is not None and (before_us is not None or (partition is None and count > 1)):
            raise InvalidRequestError(
                "before is an offset of one partition: give partition with it, and no before_us",
                field="before",
            )
        if ends is not None and (before is not None or before_us is not None):
            raise InvalidRequestError("give ends without before and before_us", field="ends")
        values = {
            "stream_uuid": stream_uuid or found.stream.uuid,
            "before": before,
            "before_us": before_us,
            "operator": default_owner(),
        }
        return purge(self._brokers, found, partition, values, ends)

    def rotate_key(self, name: str) -> Stream:
        """Give an encrypted stream a new data key, for what is written from now on.

        Records that are stored stay as they are, and stay readable. All data keys are wrapped anew
        by the present key of the brokers' key provider, so an earlier one is not needed any more.

        Raises:
            InvalidRequestError: the stream is not encrypted.
            EncryptionKeyError, KeyProviderUnavailableError: a key cannot be used; nothing changed.
        """
        values = {"name": name, "version": len(self.stream(name).data_keys)}
        return _stream(self._one("rotate_key", values))

    def delete_stream(self, name: str, *, stream_uuid: StreamUuid | None = None) -> Stream:
        """Delete a stream's log and metadata; its table stays.

        Raises:
            UnknownStreamError: there is no such stream. The client also gets this error if a
                broker deleted the stream and failed before it could answer: the client then asks
                another broker.
        """
        # With the uuid, a repeated request does not delete a stream that was created again.
        uuid = stream_uuid or self.stream(name).uuid
        return _stream(self._one("delete_stream", {"name": name, "stream_uuid": uuid}))

    # ------------------------------------------------------------------ records

    def producer(
        self,
        stream: str,
        partition: int | None = None,
        *,
        window_batches: int = 64,
        retry_ms_max: int = 30_000,
        stream_uuid: StreamUuid | None = None,
        producer_id: ProducerId | None = None,
        sequence: int = 0,
        acks: Literal["all", "leader", "none"] = "all",
        placed_by: int | None = None,
    ) -> Producer:
        """Return a producer for one partition; it connects with its first batch.

        Args:
            stream: The stream's name.
            partition: The partition's number; may be left out if the stream has one partition.
            window_batches: How many batches may be unacknowledged, 1 to 64.
            retry_ms_max: After so long without success, unacknowledged batches fail with
                CommitTimeoutError.
            stream_uuid: Refuse to write to another incarnation of the stream; the default is the
                incarnation that the name means now.
            producer_id: 63 random bits by default. Give the id of an earlier producer, with the
                next ``sequence``, to continue its sequence numbers.
            sequence: The sequence number of the first record that is sent.
            acks: What an acknowledgement waits for: ``all`` replicas in sync, the ``leader``'s
                disk, or ``none``. Below ``all`` records can be lost or doubled by a failover.
            placed_by: The number of partitions with which the caller placed its keys. Once the
                stream has more, its leaders refuse the batches with PartitionsAddedError. A broker
                of an older release does not check this.

        Raises:
            InvalidRequestError: an argument is out of its bounds; or the stream has several
                partitions, its keys choose among them, and none was given.
            UnknownStreamError, UnknownPartitionError (with the first batch).
        """
        from headwater.client.partitioned_producer import only_partition  # noqa: PLC0415
        from headwater.client.producer import Producer  # noqa: PLC0415

        policy, uuid = ack_policy(acks), stream_uuid
        if partition is None or uuid is None:
            found = self.stream(stream)
            uuid = uuid or found.uuid
            partition = only_partition(found) if partition is None else partition
        self._brokers.discover()
        if placed_by is not None and self._knows_placed_by is None:
            self.stream(stream)
        path = StreamPath(
            stream=stream,
            partition=partition,
            stream_uuid=uuid,
            acks=policy,
            placed_by=placed_by if self._knows_placed_by else None,
        )
        return Producer(
            LeaderRoute(self._brokers, path),
            path,
            window_batches=window_batches,
            retry_ms_max=retry_ms_max,
            producer_id=producer_id,
            sequence=sequence,
        )

    def partitioned_producer(
        self,
        stream: str,
        *,
        window_batches: int = 64,
        retry_ms_max: int = 30_000,
        acks: Literal["all", "leader", "none"] = "all",
    ) -> PartitionedProducer:
        """Return a producer for all partitions of a stream: each record's key chooses.

        Records without a key go to one partition after the other, by batch. The arguments are
        those of :meth:`producer`, for each partition.

        Raises:
            InvalidRequestError: the stream's partitioner is each_client.
            UnknownStreamError.
        """
        from headwater.client.partitioned_producer import PartitionedProducer  # noqa: PLC0415

        found = self.stream(stream)

        def opened(partition: int, partitions_count: int) -> Producer:
            return self.producer(
                stream,
                partition,
                window_batches=window_batches,
                retry_ms_max=retry_ms_max,
                stream_uuid=found.uuid,
                acks=acks,
                placed_by=partitions_count,
            )

        return PartitionedProducer(found, opened)

    def fetch(
        self,
        stream: str,
        partition: int = 0,
        start: int | Literal["earliest", "latest"] | AtTime = "earliest",
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        stream_uuid: str | None = None,
        batch_bytes_max: int = BATCH_BYTES_DEFAULT,
        leader_epoch: int | None = None,
        isolation: Literal["committed", "uncommitted"] = "committed",
    ) -> Fetch:
        """Read the committed rows of ``[start, end)`` of one partition, in offset order.

        ``end`` None means the current high watermark; with ``follow``, no end. ``columns`` are
        names of ROW_SCHEMA in the order of the result; None means all. Old rows come from the
        table, new rows from the log; the result checks that no offset is missing or doubled. With
        several brokers, the read continues at another broker if one fails; with one, a read that
        follows continues after the broker's restart, if that takes less than 30 seconds.

        ``leader_epoch`` is the leader epoch of the record before ``start``, from
        ``Fetch.leader_epoch`` of an earlier read: the read begins only if the log still has that
        record. ``isolation="uncommitted"`` reads up to the end of the leader's log; the tail of
        that log may be truncated later.

        Raises:
            InvalidRequestError: ``isolation`` is another word.

        Raises (with the first batch):
            UnknownStreamError, UnknownPartitionError, StreamRecreatedError.
            OffsetOutOfRangeError: with the facts offset, start, end.
            SchemaMismatchError: a column that rows do not have.
            TruncatedError: the log has lost records that were read; never skipped over.
        """
        if isolation not in ("committed", "uncommitted"):
            raise InvalidRequestError(
                f"isolation must be committed or uncommitted, not {isolation!r}", field="isolation"
            )
        epoch = None if leader_epoch is None else LeaderEpoch(leader_epoch)
        start_at: StartAt = start
        request = ReadRequest(
            stream=stream,
            partition=partition,
            start=start_at,
            end=None if end is None else Offset(end),
            follow=follow,
            columns=None if columns is None else tuple(columns),
            stream_uuid=None if stream_uuid is None else StreamUuid(stream_uuid),
            batch_bytes_max=batch_bytes_max,
            uncommitted=isolation == "uncommitted",
        )
        self._brokers.discover()
        if follow and start == "latest":
            # Resolve "latest" now: a broker that takes over, or is restarted, would resolve it to a
            # later offset.
            position = self.describe(stream).partitions[partition].high_watermark
            request = replace(request, start=int(position))
        return Fetch(ReadRoute(self._brokers, request), request, leader_epoch=epoch)

    def consume(
        self,
        stream: str,
        start: Literal["earliest", "latest"] | AtTime | Mapping[int, int] = "earliest",
        *,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        stream_uuid: str | None = None,
    ) -> Consumer:
        """Read all partitions of a stream side by side; each one's rows come in offset order.

        ``start`` may be the :attr:`Consumer.positions` of an earlier consumer; a partition that is
        not among them begins at its first record. With ``follow``, so do partitions that are added
        to the stream meanwhile. Where keys move, a partition that was added, also before, begins
        once the lower ones have returned what they had, so that the records of a key stay in their
        order; from "latest" or a time on, one that was added before begins at once. The rest is as
        in :meth:`fetch`.

        Raises:
            UnknownStreamError.
            StreamRecreatedError: the name now means another stream than ``stream_uuid``.
            UnknownPartitionError: ``start`` names a partition that the stream does not have.
        """
        from headwater.client.consumer import consumer_of  # noqa: PLC0415

        return consumer_of(
            self, stream, start, columns=columns, follow=follow, stream_uuid=stream_uuid
        )

    def _high_watermark(self, stream: str, partition: int) -> Offset:
        return self.describe(stream).partitions[partition].high_watermark

    # ------------------------------------------------------------------ leases and cuts

    def take_lease(
        self, name: str, *, ttl_ms: int = _LEASE_TTL_MS, owner: str | None = None
    ) -> Lease:
        """Keep every record and file of a stream, in both tiers, until the lease ends."""
        values = {"name": name, "owner": owner or default_owner(), "ttl_ms": ttl_ms}
        return _lease(self._one("take_lease", values))

    def renew_lease(self, lease_id: LeaseId, *, ttl_ms: int = _LEASE_TTL_MS) -> Lease:
        """Extend a lease; raises UnknownLeaseError once it has ended."""
        return _lease(self._one("renew_lease", {"lease_id": lease_id, "ttl_ms": ttl_ms}))

    def drop_lease(self, lease_id: LeaseId) -> None:
        """End a lease; does nothing if the lease has ended."""
        self._brokers.action("drop_lease", {"lease_id": lease_id})

    def leases(self, name: str) -> list[HeldLease]:
        """Return the leases on a stream that have not ended, the oldest first."""
        return [
            HeldLease(**{**values, "lease_id": LeaseId(values["lease_id"])})
            for values in self._brokers.action("list_leases", {"name": name})
        ]

    def cut(self, name: str, ttl_ms: int = _LEASE_TTL_MS, owner: str | None = None) -> Cut:
        """Take a cut of a stream, under a lease of its own that lasts ``ttl_ms``."""
        values = {"name": name, "owner": owner or default_owner(), "ttl_ms": ttl_ms}
        return Cut.from_dict(self._one("cut", values, timeout_ms=_CUT_TIMEOUT_MS))

    def check_cut(self, cut: Cut) -> None:
        """Check that a saved cut belongs to the stream's current history.

        Raises:
            ForeignHistoryError: the stream was restored from an older copy after the cut, or the
                cut belongs to another copy of the stream; other records may be at its offsets.
            InvalidCutError: the cut does not name every partition, or has no lineage ids.
            UnknownStreamError, StreamRecreatedError: the stream is gone.
        """
        values = {
            "name": cut.stream,
            "stream_uuid": cut.stream_uuid,
            "positions": [[one.lineage_id, int(one.hot_end)] for one in cut.positions],
        }
        self._brokers.action("check_cut", values)

    def check_history(
        self, name: str, stream_uuid: str, positions: Sequence[tuple[str, int]]
    ) -> None:
        """Check that records copied from a stream belong to the stream's current history.

        ``positions`` has for each partition a lineage id from :meth:`high_watermarks`, and an end
        at or below the high watermark that came with it. A lineage id that the stream no longer
        remembers, because it is too old, passes the check.

        Raises:
            ForeignHistoryError: the stream was restored from an older copy after that, or the
                positions belong to another copy; other records may be below these ends.
            StreamRecreatedError, UnknownStreamError: the stream is gone.
        """
        values = {"name": name, "stream_uuid": stream_uuid, "positions": [*map(list, positions)]}
        self._brokers.action("check_cut", {**values, "believe_forgotten": True})

    def high_watermarks(self, names: Sequence[str]) -> dict[str, StreamHighWatermarks]:
        """Return the high watermarks of some streams, all as they were at one moment.

        Raises:
            UnknownStreamError: a name is not the name of a stream.
            OverloadedError: the high watermarks changed during every attempt; try again.
        """
        if not names:
            return {}
        results = self._brokers.action("high_watermarks", {"names": list(names)})
        return {
            one["name"]: StreamHighWatermarks(
                stream_uuid=StreamUuid(one["stream_uuid"]),
                offsets=tuple(Offset(offset) for offset in one["high_watermarks"]),
                lineage_ids=tuple(one["lineage_ids"]),
            )
            for one in results
        }

    # ------------------------------------------------------------------ tiering

    def tier_status(self, name: str) -> list[TierStatus]:
        """Return how far each partition's tiering is."""
        return self._tier("tier_status", name, {"name": name}, timeout_ms=30_000)

    def tier_flush(self, name: str, *, timeout_ms: int = 300_000) -> list[TierStatus]:
        """Ship every committed record into the table now; return when all are there."""
        values = {"name": name, "timeout_ms": timeout_ms}
        return self._tier("tier_flush", name, values, timeout_ms=timeout_ms + 10_000)

    def _tier(
        self, action: str, name: str, values: dict[str, Any], *, timeout_ms: int
    ) -> list[TierStatus]:
        """Ask the leaders, because a partition is shipped by its leader."""
        self._brokers.discover()
        if self._brokers.several:
            rows = self._brokers.at_leaders(action, name, values, timeout_ms=timeout_ms)
        else:
            rows = self._brokers.action(action, values, timeout_ms=timeout_ms)
        return [_status(row) for row in rows]

    def call(
        self, action: str, values: Mapping[str, object], *, timeout_ms: int = 30_000
    ) -> list[dict[str, object]]:
        """Run a Flight action and return its results; ``operations.py`` uses this."""
        return self._brokers.action(action, values, timeout_ms=timeout_ms)

    def _one(self, action: str, values: dict[str, Any], *, timeout_ms: int = 30_000) -> Any:
        results = self._brokers.action(action, values, timeout_ms=timeout_ms)
        if len(results) != 1:
            raise EnvelopeError(f"the broker answered {action} with {len(results)} results, not 1")
        return results[0]


def _stream(values: dict[str, Any]) -> Stream:
    return Stream.from_dict(values)


def _lease(values: dict[str, Any]) -> Lease:
    return Lease(lease_id=LeaseId(values["lease_id"]), expires_us=values["expires_us"])


def _status(values: dict[str, Any]) -> TierStatus:
    start, end = values["cold"]
    return TierStatus(**{**values, "cold": OffsetRange(Offset(start), Offset(end))})
