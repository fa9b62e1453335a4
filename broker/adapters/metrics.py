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
    unshipped_bytes: int
    failed: bool  # the log takes no writes
    appended_records_total: int
    appended_bytes_total: int
    duplicate_records_total: int
    refused_writes_total: int
    syncs_total: int
    freed_segments_total: int


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
    gaps_total: int = 0  # connections lost: what was published meanwhile is not known
    slow_consumer_total: int = 0  # those of them that a slow broker brought about


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSample:
    """A partition's tiering at one moment."""

    stream: str
    partition: int
    shipped_segments_total: int
    shipped_bytes_total: int
    failures_total: int
    last_shipped_seconds: float  # UNIX time; 0 before the first


class MetricsSource(Protocol):
    """Snapshots that a scrape asks for. Quick, any thread, no locks held while waiting."""

    def partition_samples(self) -> Sequence[PartitionSample]:
        """Return one sample per partition."""

    def ingest_samples(self) -> Sequence[IngestSample]:
        """Return one sample per NATS subscription."""

    def tier_samples(self) -> Sequence[TierSample]:
        """Return one sample per partition that is tiered."""


_HELP: Final = {
    "log_start_offset": "First offset on local disk.",
    "high_watermark": "First offset that is not committed.",
    "log_end_offset": "First offset that is not written.",
    "cold_end": "First offset that is not in the Delta table.",
    "unshipped_bytes": "Bytes on local disk that are not in the Delta table.",
    "failed": "1 when the log takes no writes until it is reopened.",
    "appended_records_total": "Records written to the log.",
    "appended_bytes_total": "Bytes written to the log.",
    "duplicate_records_total": "Records recognised as sent before and not stored again.",
    "refused_writes_total": "Writes answered with an error.",
    "syncs_total": "fdatasync calls.",
    "freed_segments_total": "Segments freed from local disk, all of them in the table.",
    "received_messages_total": "NATS messages read.",
    "received_bytes_total": "Bytes of those messages.",
    "dropped_messages_total": "NATS messages lost to an overrun.",
    "refused_messages_total": "NATS messages that could not be stored.",
    "gaps_total": "Connections lost; unacknowledged messages of that time may be missing.",
    "slow_consumer_total": "Connections that the NATS server cut because we read too slowly.",
    "pending_bytes": "Bytes read from NATS that are not durable yet.",
    "shipped_segments_total": "Segments committed to the Delta table.",
    "shipped_bytes_total": "Bytes of the objects that hold them.",
    "failures_total": "Attempts to ship that failed; they are repeated.",
    "last_shipped_seconds": "UNIX time of the newest commit to the Delta table.",
}


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
        yield InfoMetricFamily(_PREFIX + "broker", "Who this is.", value=self._info)
        yield from self._process_families()
        yield from _families("partition", PartitionSample, self._source.partition_samples())
        yield from _families("ingest", IngestSample, self._source.ingest_samples())
        yield from _families("tier", TierSample, self._source.tier_samples())

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


def _families(group: str, kind: type[Any], samples: Sequence[Any]) -> Iterator[Metric]:
    """Yield one family per field of ``kind``; the labels are stream and partition."""
    labels = ("stream", "partition")
    for field in dataclasses.fields(kind):
        if field.name in labels:
            continue
        name, counts = f"{_PREFIX}{group}_{field.name}", field.name.endswith("_total")
        family: Any = (CounterMetricFamily if counts else GaugeMetricFamily)(
            name, _HELP[field.name], labels=labels
        )
        for sample in samples:
            family.add_metric(
                [sample.stream, str(sample.partition)], float(getattr(sample, field.name))
            )
        yield family
