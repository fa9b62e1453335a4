"""A scrape shows every sample once, under the names of the glossary."""

from __future__ import annotations

import dataclasses

from prometheus_client.parser import text_string_to_metric_families

from broker.adapters.metrics import BrokerMetrics, IngestSample, PartitionSample, TierSample


class Source:
    """A broker with two partitions, of which one is tiered."""

    def __init__(self) -> None:
        self.partitions = [_partition("orders", 0, 7), _partition("orders", 1, 9)]

    def partition_samples(self) -> list[PartitionSample]:
        """Return the partitions as they are now."""
        return self.partitions

    def ingest_samples(self) -> list[IngestSample]:
        """Return one subscription."""
        return [
            IngestSample(
                stream="orders",
                partition=0,
                received_messages_total=5,
                received_bytes_total=500,
                dropped_messages_total=1,
                refused_messages_total=2,
                pending_bytes=64,
            )
        ]

    def tier_samples(self) -> list[TierSample]:
        """Return one tiered partition."""
        return [
            TierSample(
                stream="orders",
                partition=0,
                shipped_segments_total=3,
                shipped_bytes_total=4096,
                failures_total=0,
                last_shipped_seconds=1700000000.5,
            )
        ]


def _partition(stream: str, partition: int, log_end: int) -> PartitionSample:
    return PartitionSample(
        stream=stream,
        partition=partition,
        log_start_offset=0,
        high_watermark=log_end,
        log_end_offset=log_end,
        cold_end=2,
        unshipped_bytes=123,
        failed=False,
        appended_records_total=log_end,
        appended_bytes_total=1000,
        duplicate_records_total=0,
        refused_writes_total=0,
        syncs_total=4,
        freed_segments_total=0,
    )


def _samples(metrics: BrokerMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_field_of_every_sample_is_a_metric() -> None:
    """No number that a source gives is left out of the text."""
    text = BrokerMetrics(Source(), broker_id="b", version="1").render().decode()
    for group, kind in (
        ("partition", PartitionSample),
        ("ingest", IngestSample),
        ("tier", TierSample),
    ):
        for field in dataclasses.fields(kind):
            if field.name not in ("stream", "partition"):
                assert f"headwater_{group}_{field.name}{{" in text


def test_samples_carry_stream_and_partition() -> None:
    """Two partitions of one stream are two series with their own values."""
    found = _samples(BrokerMetrics(Source(), broker_id="b", version="1"))
    name = "headwater_partition_log_end_offset"
    assert found[name, (("partition", "0"), ("stream", "orders"))] == 7
    assert found[name, (("partition", "1"), ("stream", "orders"))] == 9


def test_each_scrape_asks_again() -> None:
    """A scrape shows the present, not the state at registration."""
    source = Source()
    metrics = BrokerMetrics(source, broker_id="b", version="1")
    metrics.render()
    source.partitions = [_partition("orders", 0, 8)]
    key = ("headwater_partition_appended_records_total", (("partition", "0"), ("stream", "orders")))
    assert _samples(metrics)[key] == 8


def test_timed_events_fill_histograms() -> None:
    """Commits and shipments are observed when they happen; before that there is no false zero."""
    metrics = BrokerMetrics(Source(), broker_id="b", version="1")
    assert b"commit_seconds" not in metrics.render()
    metrics.observe_commit(seconds=0.003, records_count=50)
    metrics.observe_shipment(seconds=0.7)
    found = _samples(metrics)
    assert found["headwater_commit_seconds_bucket", (("le", "0.005"),)] == 1
    assert found["headwater_commit_seconds_bucket", (("le", "0.002"),)] == 0
    assert found["headwater_commit_records_sum", ()] == 50
    assert found["headwater_shipment_seconds_count", ()] == 1


def test_brokers_do_not_share_a_registry() -> None:
    """Two brokers in one process keep their numbers apart."""
    first = BrokerMetrics(Source(), broker_id="a", version="1")
    second = BrokerMetrics(Source(), broker_id="b", version="1")
    first.observe_shipment(seconds=1)
    assert ("headwater_shipment_seconds_count", ()) in _samples(first)
    assert ("headwater_shipment_seconds_count", ()) not in _samples(second)
    assert b'broker_id="b"' in second.render()
