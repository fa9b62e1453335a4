"""A scrape shows every sample once, under the names of the glossary."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import cast

from prometheus_client.parser import text_string_to_metric_families

from broker.process.metrics import (
    BrokerMetrics,
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
from broker.process.samples import BrokerSamples
from broker.runtime.broker import Broker
from broker.runtime.ingest.nats_ingest import NatsIngest
from broker.runtime.ingest.nats_partition import IngestStats


class Source:
    """A broker with two partitions, of which one is tiered."""

    def __init__(self) -> None:
        self.partitions = [_partition("orders", 0, 7), _partition("orders", 1, 9)]

    def partition_samples(self) -> list[PartitionSample]:
        """Return the partitions as they are now."""
        return self.partitions

    def quota_samples(self) -> list[QuotaSample]:
        """Return what one kind of callers waited for."""
        return [QuotaSample(via="jwt", flow="read", throttled_total=4, throttled_seconds_total=1.5)]

    def limits_samples(self) -> list[LimitsSample]:
        """Return a broker whose descriptors were used up once."""
        return [
            LimitsSample(
                descriptors_max=1024,
                log_files=7,
                log_files_max=400,
                log_files_reopened_total=3,
                no_descriptor_total=1,
                flight_connections_max=400,
                flight_connections_severed_total=2,
            )
        ]

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

    def ingest_error_samples(self) -> list[IngestErrorSample]:
        """Return two errors of one subscription."""
        return [
            IngestErrorSample(
                stream="orders", partition=0, error="RecordTooLargeError", errors_total=2
            ),
            IngestErrorSample(
                stream="orders", partition=0, error="InvalidAckInbox", errors_total=1
            ),
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
                expired_records_total=9,
                expired_bytes_total=90,
                deleted_objects_total=1,
                key_compactions_total=2,
                key_compaction_failures_total=0,
                superseded_records_total=40,
                superseded_bytes_total=400,
                last_shipped_seconds=1700000000.5,
                last_key_compaction_seconds=1700000001.5,
            )
        ]

    def replica_samples(self) -> list[ReplicaSample]:
        """Return one replica whose follower is behind."""
        return [
            ReplicaSample(
                stream="orders", partition=0, leads=True, leader_epoch=4, replicas=3, isr=2,
                under_replicated=True, below_min_isr=False, high_watermark_age_seconds=0.5,
            )
        ]  # fmt: skip

    def follower_samples(self) -> list[FollowerSample]:
        """Return that follower."""
        return [
            FollowerSample(
                stream="orders", partition=0, follower="c", lag_records=12, silent_seconds=0.25
            )
        ]

    def cluster_samples(self) -> list[ClusterSample]:
        """Return a controller's view."""
        return [
            ClusterSample(
                brokers_alive=2, brokers_fenced=1, partitions=9, offline_partitions=1,
                leaderless_partitions=2, under_replicated_partitions=3, led_partitions=4,
                in_office=True, controllers=3, controllers_alive=2, votes=True, elections_total=5,
                lease_remaining_seconds=0.75, raft_term=6,
                raft_role="leader", raft_commit_index=70, raft_applied_index=69,
                received_bytes_total=800, refused_connections_total=0,
            )
        ]  # fmt: skip

    def controller_samples(self) -> list[ControllerSample]:
        """Return one controller that is dead."""
        return [ControllerSample(controller="c", alive=False, in_office=False)]

    def peer_samples(self) -> list[PeerSample]:
        """Return one connection."""
        return [
            PeerSample(
                peer="c", connected=True, sent_messages_total=3, sent_bytes_total=400,
                connects_total=2, dropped_messages_total=1, impostors_total=0,
            )
        ]  # fmt: skip

    def certificate_samples(self) -> list[CertificateSample]:
        """Return a door whose certificate expired an hour ago."""
        return [CertificateSample(door="http", file="/tls.crt", remaining_seconds=-3600.0)]


def _partition(stream: str, partition: int, log_end: int) -> PartitionSample:
    return PartitionSample(
        stream=stream,
        partition=partition,
        log_start_offset=0,
        high_watermark=log_end,
        log_end_offset=log_end,
        cold_end=2,
        remote_start=1,
        unshipped_bytes=123,
        state="leading",
        failed=False,
        appended_records_total=log_end,
        appended_bytes_total=1000,
        duplicate_records_total=0,
        message_ids=11,
        message_ids_bytes=550,
        forgotten_ids_total=3,
        forgotten_producers_total=4,
        producers_unknown_below=5,
        refused_writes_total=0,
        overrun_messages_total=0,
        syncs_total=4,
        freed_segments_total=0,
        compacted_segments_total=2,
        compacted_records_total=30,
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
        ("ingest", IngestErrorSample),
        ("tier", TierSample),
        ("replica", ReplicaSample),
        ("follower", FollowerSample),
        ("cluster", ClusterSample),
        ("controller", ControllerSample),
        ("peer", PeerSample),
        ("certificate", CertificateSample),
    ):
        labels = ("stream", "partition", "error", "follower", "controller", "peer", "door", "file")
        for field in dataclasses.fields(kind):
            if field.name not in labels:
                assert re.search(rf"^headwater_{group}_{field.name}[{{ ]", text, re.MULTILINE)


def test_each_metric_has_a_help_of_its_own() -> None:
    """Fields of one name in two groups, such as dropped messages, are two things."""
    text = BrokerMetrics(Source(), broker_id="b", version="1").render().decode()
    helps = re.findall(r"^# HELP \w+ (.*)$", text, re.MULTILINE)
    assert sorted(helps) == sorted(set(helps))


def test_samples_carry_stream_and_partition() -> None:
    """Two partitions of one stream are two series with their own values."""
    found = _samples(BrokerMetrics(Source(), broker_id="b", version="1"))
    name = "headwater_partition_log_end_offset"
    assert found[name, (("partition", "0"), ("stream", "orders"))] == 7
    assert found[name, (("partition", "1"), ("stream", "orders"))] == 9


def test_a_cluster_has_labels_of_its_own() -> None:
    """Followers and peers are named; what a controller does is a label."""
    found = _samples(BrokerMetrics(Source(), broker_id="b", version="1"))
    at = (("follower", "c"), ("partition", "0"), ("stream", "orders"))
    assert found["headwater_follower_lag_records", at] == 12
    assert found["headwater_peer_connected", (("peer", "c"),)] == 1
    assert found["headwater_controller_alive", (("controller", "c"),)] == 0
    assert found["headwater_cluster_controllers_alive", ()] == 2
    assert found["headwater_cluster_raft_role", (("raft_role", "leader"),)] == 1
    assert found["headwater_cluster_under_replicated_partitions", ()] == 3


def test_each_error_of_the_ingest_is_told_by_its_class() -> None:
    """Answers that cannot be sent are no refused messages: they are told here only."""
    found = _samples(BrokerMetrics(Source(), broker_id="b", version="1"))
    at = (("partition", "0"), ("stream", "orders"))
    name = "headwater_ingest_errors_total"
    assert found[name, (("error", "RecordTooLargeError"), *at)] == 2
    assert found[name, (("error", "InvalidAckInbox"), *at)] == 1


def test_a_broker_s_ingest_gives_each_class_of_error() -> None:
    """What the subscriptions have counted is what a scrape shows."""
    stats = IngestStats(
        stream="orders",
        partition=3,
        received_messages_total=5,
        received_bytes_total=500,
        stored_messages_total=2,
        duplicate_messages_total=0,
        dropped_messages_total=1,
        refused_messages_total=2,
        pending_bytes=0,
        misplaced_keys_total=0,
        gaps_total=0,
        slow_consumer_total=0,
        errors_total={"RecordTooLargeError": 2, "InvalidAckInbox": 1},
    )
    samples = BrokerSamples(cast("Broker", None), None)
    assert samples.ingest_error_samples() == []
    samples.ingest = cast("NatsIngest", SimpleNamespace(stats=lambda: [stats]))
    assert samples.ingest_error_samples() == [
        IngestErrorSample(stream="orders", partition=3, error=error, errors_total=count)
        for error, count in (("InvalidAckInbox", 1), ("RecordTooLargeError", 2))
    ]


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
