"""The numbers of a broker for a metrics scrape, and its readiness. Takes no lock for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker.adapters.flight.service import FlightService
from broker.process.cluster_samples import ClusterSamples
from broker.process.descriptors import DescriptorBudget
from broker.process.metrics import (
    CertificateSample,
    ClusterSample,
    ControllerSample,
    FollowerSample,
    IngestErrorSample,
    IngestSample,
    LimitsSample,
    PartitionSample,
    PeerSample,
    QuotaSample,
    ReplicaSample,
    TierSample,
)
from broker.runtime.api.usage import Usage
from broker.runtime.broker import Broker
from broker.runtime.ingest.nats_ingest import NatsIngest
from broker.runtime.partition.driver import PartitionDriver
from broker.storage.cached_files import CachedFiles


class TierCounts(Protocol):
    """The counts of tiering for one partition."""

    @property
    def stream(self) -> str:
        """Name of the stream."""

    @property
    def partition(self) -> int:
        """Number of the partition."""

    @property
    def shipped_segments_total(self) -> int:
        """Segments in the table."""

    @property
    def shipped_bytes_total(self) -> int:
        """Bytes of their objects."""

    @property
    def failures_total(self) -> int:
        """Failed attempts."""

    @property
    def expired_records_total(self) -> int:
        """Records that left the table by retention."""

    @property
    def expired_bytes_total(self) -> int:
        """Bytes of their files."""

    @property
    def deleted_objects_total(self) -> int:
        """Objects that were deleted."""

    @property
    def key_compactions_total(self) -> int:
        """Key compactions of the table."""

    @property
    def key_compaction_failures_total(self) -> int:
        """Key compactions of the table that failed."""

    @property
    def superseded_records_total(self) -> int:
        """Records that left the table by key compaction."""

    @property
    def superseded_bytes_total(self) -> int:
        """Bytes by which its files have become smaller."""

    @property
    def last_shipped_us(self) -> int:
        """When the newest was committed; 0 before the first."""

    @property
    def last_key_compaction_us(self) -> int:
        """When the newest key compaction was committed; 0 before the first."""


class TierCounters(Protocol):
    """The counts of tiering for all partitions."""

    def stats(self) -> Sequence[TierCounts]:
        """Return the counts of every tiered partition."""


class BrokerSamples:
    """Implements ``MetricsSource`` over the broker's own counters."""

    def __init__(self, broker: Broker, tiering: TierCounters | None) -> None:
        """Read from ``broker``; ingest and cluster are set when they have started."""
        self._broker = broker
        self._tiering = tiering
        self.ingest: NatsIngest | None = None
        self.cluster: ClusterSamples | None = None
        self.limits: Callable[[], LimitsSample] | None = None
        self.certificates: Callable[[], Sequence[CertificateSample]] = tuple
        self.usage: Usage | None = None

    def limits_samples(self) -> list[LimitsSample]:
        """Return one sample, or none before the broker has started."""
        return [] if self.limits is None else [self.limits()]

    def quota_samples(self) -> list[QuotaSample]:
        """Return one sample per kind of proof and flow that a quota has held back."""
        if self.usage is None:
            return []
        return [
            QuotaSample(
                via=via,
                flow=flow,
                throttled_total=one.pieces,
                throttled_seconds_total=one.waited_ms / 1000,
            )
            for (via, flow), one in sorted(self.usage.throttled().items())
        ]

    def failure(self) -> str | None:
        """Return why the broker is not ready; None if nothing here prevents it.

        The reason is the first log that takes no writes, or folders of logs that the metadata does
        not know. Anybody may ask for it, so it names no stream.
        """
        for driver in self._broker.replicas.all():
            if driver.refusal is not None:
                return (
                    f"a partition's log takes no writes ({type(driver.refusal).__name__}): "
                    "`headwater cluster partitions` and the broker's log say which and why"
                )
        return self._broker.replicas.complaint

    def partition_samples(self) -> list[PartitionSample]:
        """Return one sample per partition."""
        return [_partition_sample(driver) for driver in self._broker.replicas.all()]

    def ingest_samples(self) -> list[IngestSample]:
        """Return one sample per NATS subscription."""
        if self.ingest is None:
            return []
        return [
            IngestSample(
                stream=one.stream,
                partition=one.partition,
                received_messages_total=one.received_messages_total,
                received_bytes_total=one.received_bytes_total,
                dropped_messages_total=one.dropped_messages_total,
                refused_messages_total=one.refused_messages_total,
                pending_bytes=one.pending_bytes,
                misplaced_keys_total=one.misplaced_keys_total,
                gaps_total=one.gaps_total,
                slow_consumer_total=one.slow_consumer_total,
            )
            for one in self.ingest.stats()
        ]

    def ingest_error_samples(self) -> list[IngestErrorSample]:
        """Return one sample per NATS subscription and class of error."""
        if self.ingest is None:
            return []
        return [
            IngestErrorSample(
                stream=one.stream, partition=one.partition, error=error, errors_total=count
            )
            for one in self.ingest.stats()
            for error, count in sorted(one.errors_total.items())
        ]

    def tier_samples(self) -> list[TierSample]:
        """Return one sample per partition that is tiered."""
        if self._tiering is None:
            return []
        return [
            TierSample(
                stream=one.stream,
                partition=one.partition,
                shipped_segments_total=one.shipped_segments_total,
                shipped_bytes_total=one.shipped_bytes_total,
                failures_total=one.failures_total,
                expired_records_total=one.expired_records_total,
                expired_bytes_total=one.expired_bytes_total,
                deleted_objects_total=one.deleted_objects_total,
                key_compactions_total=one.key_compactions_total,
                key_compaction_failures_total=one.key_compaction_failures_total,
                superseded_records_total=one.superseded_records_total,
                superseded_bytes_total=one.superseded_bytes_total,
                last_shipped_seconds=one.last_shipped_us / 1e6,
                last_key_compaction_seconds=one.last_key_compaction_us / 1e6,
            )
            for one in self._tiering.stats()
        ]

    def replica_samples(self) -> list[ReplicaSample]:
        """Return one sample per replica; none where this broker is alone."""
        return [] if self.cluster is None else self.cluster.replica_samples()

    def follower_samples(self) -> list[FollowerSample]:
        """Return one sample per follower of the partitions that this broker leads."""
        return [] if self.cluster is None else self.cluster.follower_samples()

    def cluster_samples(self) -> list[ClusterSample]:
        """Return one sample, or none where this broker is alone."""
        return [] if self.cluster is None else self.cluster.cluster_samples()

    def controller_samples(self) -> list[ControllerSample]:
        """Return one sample per controller; none where this broker is alone."""
        return [] if self.cluster is None else self.cluster.controller_samples()

    def peer_samples(self) -> list[PeerSample]:
        """Return one sample per other broker."""
        return [] if self.cluster is None else self.cluster.peer_samples()

    def certificate_samples(self) -> Sequence[CertificateSample]:
        """Return one sample per file of certificates that a door serves."""
        return self.certificates()


def _partition_sample(driver: PartitionDriver) -> PartitionSample:
    ids = driver.message_ids
    return PartitionSample(
        stream=driver.stream.name,
        partition=driver.partition_id.number,
        log_start_offset=driver.reads.log_start,
        high_watermark=driver.reads.high_watermark,
        log_end_offset=driver.reads.log_end,
        cold_end=driver.tier.cold_end,
        remote_start=driver.reads.remote_start,
        unshipped_bytes=driver.tier.unshipped_bytes,
        state=driver.state.value,
        failed=driver.refusal is not None,
        appended_records_total=driver.counters.appended_records,
        appended_bytes_total=driver.counters.appended_bytes,
        duplicate_records_total=driver.counters.duplicate_records,
        refused_writes_total=driver.counters.refused_writes,
        overrun_messages_total=driver.counters.dropped_messages,
        syncs_total=driver.counters.syncs,
        freed_segments_total=driver.counters.freed_segments,
        compacted_segments_total=driver.counters.compacted_segments,
        compacted_records_total=driver.counters.compacted_records,
        message_ids=ids.ids,
        message_ids_bytes=ids.size_bytes,
        forgotten_ids_total=ids.forgotten,
        forgotten_producers_total=ids.forgotten_producers,
        producers_unknown_below=ids.unknown_below,
    )


def limits_sample(
    budget: DescriptorBudget, files: CachedFiles, flight: FlightService
) -> LimitsSample:
    """Return how much of its bounded resources a broker uses now. Any thread."""
    return LimitsSample(
        descriptors_max=budget.limit,
        log_files=files.open_count,
        log_files_max=budget.files,
        log_files_reopened_total=files.reopened_count,
        no_descriptor_total=files.shortages_count,
        flight_connections_max=budget.flight,
        flight_connections_severed_total=flight.severed_connections_count,
    )
