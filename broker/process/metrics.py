"""Prometheus metrics of one broker; the only file that knows the Prometheus client.

Nothing is counted here. A scrape asks a :class:`MetricsSource` for snapshots, plain numbers that
their owners keep anyway, so a metric costs nothing between scrapes. What has to be timed when it
happens (commits, shipments) goes through :meth:`BrokerMetrics.observe_commit` and
:meth:`BrokerMetrics.observe_shipment`. Each broker has a registry of its own.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import psutil
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "headwater_"


@dataclass(frozen=True, slots=True)
class _Timing:
    """A histogram: what it measures and where its buckets end."""

    name: str
    help: str
    buckets: tuple[float, ...]


_COMMIT_SECONDS: Final = _Timing(
    "commit_seconds",
    "Time of one group commit, sync included.",
    (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0),
)
_COMMIT_RECORDS: Final = _Timing(
    "commit_records", "Records of one group commit.", (1, 10, 100, 1_000, 10_000, 100_000)
)
_SHIP_SECONDS: Final = _Timing(
    "shipment_seconds",
    "Time from reading a segment to its commit in the table.",
    (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """A partition's log at one moment. Names ending in ``_total`` only grow."""

    stream: str
    partition: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    cold_end: int
    remote_start: int
    unshipped_bytes: int
    state: str  # of ReplicaState
    failed: bool  # the log takes no writes
    appended_records_total: int
    appended_bytes_total: int
    duplicate_records_total: int
    refused_writes_total: int
    overrun_messages_total: int
    syncs_total: int
    freed_segments_total: int
    compacted_segments_total: int
    compacted_records_total: int
    message_ids: int
    message_ids_bytes: int
    forgotten_ids_total: int
    forgotten_producers_total: int
    producers_unknown_below: int  # offset; 0 if all producers are known


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSample:
    """A partition's NATS subscription at one moment."""

    stream: str
    partition: int
    received_messages_total: int
    received_bytes_total: int
    dropped_messages_total: int  # lost to an overrun, before they were records
    refused_messages_total: int  # answered, or counted, as not storable
    pending_bytes: int  # read from the socket, not yet durable
    misplaced_keys_total: int = 0  # records whose key belongs to another partition
    gaps_total: int = 0  # lost connections: messages published meanwhile may be missing
    slow_consumer_total: int = 0  # connections lost because this broker read too slowly


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestErrorSample:
    """Errors of one class at a partition's NATS subscription, at one moment."""

    stream: str
    partition: int
    error: str  # its class, or what is wrong with an answer's address or size
    errors_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSample:
    """A partition's tiering at one moment."""

    stream: str
    partition: int
    shipped_segments_total: int
    shipped_bytes_total: int
    failures_total: int
    expired_records_total: int
    expired_bytes_total: int
    deleted_objects_total: int
    key_compactions_total: int
    key_compaction_failures_total: int
    superseded_records_total: int
    superseded_bytes_total: int
    last_shipped_seconds: float  # UNIX time; 0 before the first
    last_key_compaction_seconds: float  # UNIX time; 0 before the first


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """A replica on this broker at one moment, as the metadata and its own log have it."""

    stream: str
    partition: int
    leads: bool
    leader_epoch: int
    replicas: int
    isr: int
    under_replicated: bool
    below_min_isr: bool
    high_watermark_age_seconds: float  # since it last moved, while records wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSample:
    """A follower of a partition that this broker leads, according to its last message."""

    stream: str
    partition: int
    follower: str
    lag_records: int
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """The cluster as this broker sees it, and this broker in it."""

    brokers_alive: int
    brokers_fenced: int
    partitions: int
    offline_partitions: int
    leaderless_partitions: int
    under_replicated_partitions: int
    led_partitions: int  # by this broker
    in_office: bool  # this broker is the active controller
    controllers: int  # as the metadata log of this broker has them
    controllers_alive: int
    votes: bool  # this broker is a controller, with the disk that it has
    elections_total: int
    lease_remaining_seconds: float
    raft_term: int
    raft_role: str
    raft_commit_index: int
    raft_applied_index: int
    received_bytes_total: int  # from other brokers
    refused_connections_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSample:
    """One of the brokers that vote on the metadata, as this broker sees it."""

    controller: str
    alive: bool  # registered, and its session holds
    in_office: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSample:
    """This broker's connection to another."""

    peer: str
    connected: bool
    sent_messages_total: int
    sent_bytes_total: int
    connects_total: int
    dropped_messages_total: int
    impostors_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSample:
    """How much of its bounded resources this broker uses."""

    descriptors_max: int
    log_files: int
    log_files_max: int
    log_files_reopened_total: int
    no_descriptor_total: int
    flight_connections_max: int
    flight_connections_severed_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSample:
    """A file of certificates that a door serves."""

    door: str
    file: str
    remaining_seconds: float  # of the first one to expire; below 0: it has expired


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSample:
    """How much the quotas of one kind of callers held back; callers of a kind are one series."""

    via: str  # how they proved who they are
    flow: str
    throttled_total: int
    throttled_seconds_total: float


class MetricsSource(Protocol):
    """Snapshots that a scrape asks for. Quick, any thread, no locks held while waiting."""

    def limits_samples(self) -> Sequence[LimitsSample]:
        """Return one sample, or none before the broker has started."""

    def quota_samples(self) -> Sequence[QuotaSample]:
        """Return one sample per kind of proof and flow that a quota has held back."""

    def partition_samples(self) -> Sequence[PartitionSample]:
        """Return one sample per partition."""

    def ingest_samples(self) -> Sequence[IngestSample]:
        """Return one sample per NATS subscription."""

    def ingest_error_samples(self) -> Sequence[IngestErrorSample]:
        """Return one sample per NATS subscription and class of error that it has met."""

    def tier_samples(self) -> Sequence[TierSample]:
        """Return one sample per partition that is tiered."""

    def replica_samples(self) -> Sequence[ReplicaSample]:
        """Return one sample per replica; none where this broker is alone."""

    def follower_samples(self) -> Sequence[FollowerSample]:
        """Return one sample per follower of the partitions that this broker leads."""

    def cluster_samples(self) -> Sequence[ClusterSample]:
        """Return one sample, or none where this broker is alone."""

    def controller_samples(self) -> Sequence[ControllerSample]:
        """Return one sample per controller; none where this broker is alone."""

    def peer_samples(self) -> Sequence[PeerSample]:
        """Return one sample per other broker."""

    def certificate_samples(self) -> Sequence[CertificateSample]:
        """Return one sample per file of certificates that a door serves."""


# The help of a field: by group and name where one name means two things, else by its name.
_HELP: Final = {
    "log_start_offset": "First offset on local disk.",
    "high_watermark": "First offset that is not committed.",
    "log_end_offset": "First offset that is not written.",
    "cold_end": "First offset that is not in the Delta table.",
    "remote_start": "First offset that remote retention has left, in every tier.",
    "unshipped_bytes": "Bytes on local disk that are not in the Delta table.",
    "state": "1 with the replica's present state as label.",
    "failed": "1 when the log takes no writes until it is reopened.",
    "appended_records_total": "Records written to the log.",
    "appended_bytes_total": "Bytes written to the log.",
    "duplicate_records_total": "Records recognised as sent before and not stored again.",
    "refused_writes_total": "Writes answered with an error.",
    "overrun_messages_total": "Messages of replicas dropped for lack of room; they are sent again.",
    "syncs_total": "fdatasync calls.",
    "freed_segments_total": "Segments freed from local disk, all of them in the table.",
    "compacted_segments_total": "Segments written anew by key compaction.",
    "compacted_records_total": "Records that key compaction removed from local disk.",
    "message_ids": "Message ids in the deduplication window.",
    "message_ids_bytes": "Memory of the message ids.",
    "forgotten_ids_total": "Message ids that left the window early: too many, or no room.",
    "forgotten_producers_total": "Producers that a full table forgot: a retry is stored again.",
    "producers_unknown_below": "Offset below which producers may be unknown; 0: none.",
    "received_messages_total": "NATS messages read.",
    "received_bytes_total": "Bytes of NATS messages read.",
    "cluster_received_bytes_total": "Bytes of messages read from other brokers.",
    "refused_messages_total": "NATS messages that could not be stored.",
    "errors_total": "NATS messages not stored, and answers not sent, by the class of the error.",
    "misplaced_keys_total": "Records whose key belongs to another partition of the stream.",
    "gaps_total": "Lost NATS connections; unacknowledged messages of that time may be missing.",
    "slow_consumer_total": "Connections that the NATS server closed: this broker read too slowly.",
    "pending_bytes": "Bytes read from NATS that are not durable yet.",
    "shipped_segments_total": "Segments committed to the Delta table.",
    "shipped_bytes_total": "Bytes of the objects committed to the Delta table.",
    "failures_total": "Failed attempts to ship a segment; each is repeated.",
    "expired_records_total": "Records that left the Delta table by remote retention.",
    "expired_bytes_total": "Bytes of the files that left the Delta table by remote retention.",
    "deleted_objects_total": "Objects of expired files that were deleted.",
    "key_compactions_total": "Key compactions of the Delta table.",
    "key_compaction_failures_total": "Key compactions of the table that failed; each is repeated.",
    "superseded_records_total": "Records that left the Delta table by key compaction.",
    "superseded_bytes_total": "Bytes by which key compaction made the table's files smaller.",
    "last_shipped_seconds": "UNIX time of the newest commit to the Delta table.",
    "last_key_compaction_seconds": "UNIX time of the newest key compaction of the Delta table.",
    "leads": "1 where this broker leads the partition.",
    "leader_epoch": "Leader epoch of the partition; each new leader raises it.",
    "replicas": "Brokers that hold the partition.",
    "isr": "Replicas in sync.",
    "under_replicated": "1 while a replica is not in sync.",
    "below_min_isr": "1 while too few replicas are in sync: nothing is committed.",
    "high_watermark_age_seconds": "How long records have waited for the high watermark to move.",
    "lag_records": "Records that the leader has and the follower has not synced.",
    "silent_seconds": "Time since the leader's last message from the follower.",
    "brokers_alive": "Registered brokers that are not fenced.",
    "brokers_fenced": "Registered brokers whose session is lost.",
    "partitions": "Partitions of all streams.",
    "offline_partitions": "Partitions without a leader and without a broker that may lead.",
    "leaderless_partitions": "Partitions without a leader now: offline, or in an election.",
    "under_replicated_partitions": "Partitions with a replica that is not in sync.",
    "led_partitions": "Partitions that this broker leads.",
    "cluster_in_office": "1 if this broker is the controller that decides elections now.",
    "in_office": "1 on the controller that decides elections now.",
    "controllers": "Brokers that vote on the metadata.",
    "controllers_alive": "Controllers whose session holds; a majority of them must be alive.",
    "votes": "1 on a broker that votes on the metadata, with the disk that it has.",
    "alive": "1 while the session of this controller holds.",
    "elections_total": "Changes of a partition's leader that this broker has seen.",
    "lease_remaining_seconds": "Time until this broker's session ends; 0: it leads no partition.",
    "raft_term": "Term of the metadata log.",
    "raft_role": "1 with the Raft role of this controller as label.",
    "raft_commit_index": "Newest entry of the metadata log known to be committed.",
    "raft_applied_index": "Newest entry of the metadata log applied here.",
    "refused_connections_total": "Incoming connections closed: a stranger, or malformed data.",
    "connected": "1 while messages can be sent to that broker.",
    "sent_messages_total": "Messages sent to that broker.",
    "sent_bytes_total": "Bytes sent to that broker.",
    "connects_total": "Connections made to that broker.",
    "peer_dropped_messages_total": "Messages to that broker dropped: queue full, or too late.",
    "ingest_dropped_messages_total": "NATS messages lost before they were records; none of them "
    "was acknowledged.",
    "descriptors_max": "File descriptors that this process may have.",
    "log_files": "Descriptors of the logs' files now.",
    "log_files_max": "Descriptors of the logs' files at most; those unused longest are closed.",
    "log_files_reopened_total": "Files of logs that were opened again after that.",
    "no_descriptor_total": "Calls of the log that found no free descriptor, and waited.",
    "flight_connections_max": "Connections of Flight at most.",
    "flight_connections_severed_total": "Idle connections of Flight broken beyond that.",
    "remaining_seconds": "Time until the first certificate of the file expires; below 0: since.",
    "throttled_total": "Batches, parts of reads and requests that had to wait for their quota.",
    "throttled_seconds_total": "How long they had to wait.",
    "impostors_total": "Connections to that broker's address with the certificate of another.",
}
_PARTITION: Final = ("stream", "partition")


class BrokerMetrics:
    """The registry of one broker and its text form."""

    def __init__(self, source: MetricsSource, *, broker_id: str, version: str) -> None:
        """Register everything; ``source`` is asked at every :meth:`render`."""
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(source, broker_id, version))
        self._histograms: dict[str, Histogram] = {}
        self._lock = threading.Lock()

    def observe_commit(self, *, seconds: float, records_count: int) -> None:
        """Count one group commit. Any thread."""
        self._observe(_COMMIT_SECONDS, seconds)
        self._observe(_COMMIT_RECORDS, records_count)

    def observe_shipment(self, *, seconds: float) -> None:
        """Count one segment that reached the table. Any thread."""
        self._observe(_SHIP_SECONDS, seconds)

    def _observe(self, kind: _Timing, value: float) -> None:
        """Add a value; a histogram exists from its first one on, so none shows a false zero."""
        with self._lock:
            found = self._histograms.get(kind.name)
            if found is None:
                found = self._histograms[kind.name] = Histogram(
                    _PREFIX + kind.name, kind.help, buckets=kind.buckets, registry=self._registry
                )
        found.observe(value)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format. Any thread."""
        return generate_latest(self._registry)


class _SnapshotCollector:
    """Turns samples into metric families at each scrape."""

    def __init__(self, source: MetricsSource, broker_id: str, version: str) -> None:
        self._source = source
        self._info = {"broker_id": broker_id, "version": version}
        self._process = psutil.Process()

    def collect(self) -> Iterator[Metric]:
        """Yield the families of this moment."""
        yield InfoMetricFamily(_PREFIX + "broker", "Id and version.", value=self._info)
        yield from self._process_families()
        source = self._source
        yield from _families("partition", PartitionSample, source.partition_samples(), _PARTITION)
        yield from _families("ingest", IngestSample, source.ingest_samples(), _PARTITION)
        of_error, errors = (*_PARTITION, "error"), source.ingest_error_samples()
        yield from _families("ingest", IngestErrorSample, errors, of_error)
        yield from _families("tier", TierSample, source.tier_samples(), _PARTITION)
        yield from _families("replica", ReplicaSample, source.replica_samples(), _PARTITION)
        of_follower = (*_PARTITION, "follower")
        yield from _families("follower", FollowerSample, source.follower_samples(), of_follower)
        yield from _families("cluster", ClusterSample, source.cluster_samples(), ())
        of_controller = ("controller",)
        yield from _families(
            "controller", ControllerSample, source.controller_samples(), of_controller
        )
        yield from _families("limits", LimitsSample, source.limits_samples(), ())
        of_quota = ("via", "flow")
        yield from _families("quota", QuotaSample, source.quota_samples(), of_quota)
        yield from _families("peer", PeerSample, source.peer_samples(), ("peer",))
        of_file = ("door", "file")
        found = source.certificate_samples()
        yield from _families("certificate", CertificateSample, found, of_file)

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not ask a source that is not ready yet."""
        return []

    def _process_families(self) -> Iterator[Metric]:
        with self._process.oneshot():
            resident = self._process.memory_info().rss
            times = self._process.cpu_times()
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory.", value=resident)
        yield CounterMetricFamily(
            "process_cpu_seconds_total", "CPU time.", value=times.user + times.system
        )
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "UNIX time of the start.",
            value=self._process.create_time(),
        )


def _families(
    group: str, kind: type[Any], samples: Sequence[Any], labels: Sequence[str]
) -> Iterator[Metric]:
    """Yield one family per field of ``kind`` that is not a label.

    A field with a text becomes a label of a metric whose value is 1.
    """
    for field in dataclasses.fields(kind):
        if field.name in labels:
            continue
        name, counts = f"{group}_{field.name}", field.name.endswith("_total")
        is_text = field.type == "str"
        named = [*labels, field.name] if is_text else labels
        family: Any = (CounterMetricFamily if counts else GaugeMetricFamily)(
            _PREFIX + name, _HELP.get(name) or _HELP[field.name], labels=named
        )
        for sample in samples:
            value = getattr(sample, field.name)
            texts = [str(getattr(sample, label)) for label in labels]
            if is_text:
                family.add_metric([*texts, value], 1.0)
            else:
                family.add_metric(texts, float(value))
        yield family
