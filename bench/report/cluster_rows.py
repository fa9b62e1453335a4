"""The rows of the table for clusters and their bars, as data.

Like rows.py, but for three brokers of ours compared with JetStream R3 and Kafka RF3.
"""

from __future__ import annotations

from typing import Final

from bench.report.table import AtMost, Row, Times

_SIZES: Final = {"100B": ("100 B", 8), "1KiB": ("1 KiB", 3)}


def _publish(size: str, publishers: int) -> Row:
    case = f"cluster_publish/{size}/{publishers}p"
    text, factor = _SIZES[size]
    who = "one publisher" if publishers == 1 else f"{publishers} publishers"
    peers = (f"{case}/jetstream", f"{case}/kafka")
    return Row(
        path=f"publish, ack ALL, {text}, {who}; ours synced",
        unit="rec/s",
        ours=(f"{case}/flight",),
        default=peers[:1],
        kafka=peers[1:],
        bar=f"≥ {factor}× the best peer",
        bars=((Times(factor, peers),),),
    )


def _share(size: str, publishers: int) -> tuple[Row, Row]:
    case = f"cluster_publish/{size}/{publishers}p"
    return (
        Row(path="… one replica, the same brokers", unit="rec/s", ours=(f"{case}/flight_rf1",)),
        Row(path="… replication's share: three replicas ÷ one", unit="×", ours=(f"{case}/share",)),
    )


def _pair(figure: str, side: str) -> tuple[str, str]:
    return f"{figure}/{side}_p50", f"{figure}/{side}_p99"


CLUSTER_ROWS: Final[tuple[Row, ...]] = (
    *(
        row
        for size in _SIZES
        for publishers in (1, 4)
        for row in (_publish(size, publishers), *_share(size, publishers))
    ),
    Row(
        path="one outstanding record, 100 B: p50 / p99 to the ack; ours synced",
        unit="ms",
        ours=_pair("cluster_latency", "flight"),
        default=_pair("cluster_latency", "jetstream"),
        kafka=_pair("cluster_latency", "kafka"),
        bar="≤ 0.9 / 2.5 ms",
        bars=((AtMost(0.9),), (AtMost(2.5),)),
    ),
    Row(
        path="from the call to create a stream to its first ack, p50 / worst",
        unit="ms",
        ours=("cluster_first_ack/flight_p50", "cluster_first_ack/flight_max"),
        default=("cluster_first_ack/jetstream_p50", "cluster_first_ack/jetstream_max"),
        kafka=("cluster_first_ack/kafka_p50", "cluster_first_ack/kafka_max"),
        bar="≤ 500 ms",
        bars=((AtMost(500.0),), (AtMost(500.0),)),
    ),
    Row(
        path="leader kill −9 → next acked publish, p50 / p99",
        unit="s",
        ours=_pair("cluster_failover", "ours"),
        default=_pair("cluster_failover", "jetstream"),
        kafka=_pair("cluster_failover", "kafka"),
        bar="p99 < 3 s",
        bars=((), (AtMost(3.0),)),
    ),
    Row(
        path="… worst",
        unit="s",
        ours=("cluster_failover/ours_max",),
        default=("cluster_failover/jetstream_max",),
        kafka=("cluster_failover/kafka_max",),
    ),
    Row(
        path="what the leader sends to brokers is lost, one way → next acked publish, p50 / worst",
        unit="s",
        ours=("cluster_cut/ours_p50", "cluster_cut/ours_max"),
        bar="< 5 s",
        bars=((AtMost(5.0),), (AtMost(5.0),)),
    ),
    Row(
        path="1,000 partitions × 3: created / all with a leader and in sync",
        unit="s",
        ours=("cluster_partitions/created_s", "cluster_partitions/in_sync_s"),
    ),
    Row(
        path="… idle CPU of a broker, the least / the most busy, share of a core",
        unit="%",
        ours=("cluster_partitions/idle_cpu_low", "cluster_partitions/idle_cpu_high"),
    ),
    Row(
        path="… resident memory of the largest broker",
        unit="MiB",
        ours=("cluster_partitions/rss_mib",),
    ),
    Row(
        path="… kill −9 of a broker → every partition has a leader among the others",
        unit="s",
        ours=("cluster_partitions/elected_s",),
    ),
)
