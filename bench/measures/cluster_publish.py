"""Acknowledged publish into three replicas: ours synced on two disks, JetStream R3, Kafka RF3.

Like publish.py, but with ack ALL. Each side's cluster runs alone on the machine and is started
again for each turn. Ours also writes to one replica in the same turn, which shows the cost of
replication.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from bench.clusters import COUNT, HeadwaterCluster, headwater_cluster, wait_until
from bench.measures.publish import ROWS, SIZES, WINDOW
from bench.peers.jetstream_cluster import JetStreamCluster, jetstream_cluster
from bench.peers.kafka_cluster import kafka_cluster
from bench.processes import Load, run_loads, span_s
from bench.session import Session

PUBLISHERS: Final = (1, 4)
_OURS: Final = {"100B": 4_000_000, "1KiB": 400_000}
_JETSTREAM: Final = {"100B": 100_000, "1KiB": 100_000}
_KAFKA: Final = {"100B": 400_000, "1KiB": 100_000}


def run(session: Session) -> None:
    """Let the clusters take turns; each turn measures every size and number of publishers."""
    sides = {"ours": partial(_ours, session), "jetstream": partial(_jetstream, session)}
    if session.kafka is not None:
        sides["kafka"] = partial(_kafka, session)
    session.rounds(sides)


def _ours(session: Session, number: int) -> None:
    with headwater_cluster(session.work / f"ours-{number}") as cluster:
        for size in SIZES:
            for publishers in PUBLISHERS:
                case = f"cluster_publish/{size}/{publishers}p"
                rates = {
                    replicas: _flight(
                        session, cluster, case, size=size, publishers=publishers, replicas=replicas
                    )
                    for replicas in (1, COUNT)
                }
                session.recorder.add(f"{case}/share", rates[COUNT] / rates[1], "×")


def _flight(
    session: Session,
    cluster: HeadwaterCluster,
    case: str,
    *,
    size: str,
    publishers: int,
    replicas: int,
) -> float:
    stream = f"bench-{size}-{publishers}-rf{replicas}"
    records = session.count(_OURS[size], multiple=ROWS * publishers)
    cluster.create(stream, replicas=replicas)
    loads = [
        Load(
            "flight_publish",
            url=cluster.url,
            stream=stream,
            size=SIZES[size],
            rows=ROWS,
            batches=records // ROWS // publishers,
            window=WINDOW,
        )
        for _ in range(publishers)
    ]
    cpu_s = _cpu_s(cluster)
    results = run_loads(loads)
    took_s = span_s(results)
    brokers_cpu_s = _cpu_s(cluster) - cpu_s
    with cluster.client() as client:
        wait_until(
            f"{records} records in {stream}",
            lambda: client.describe(stream).records_count == records,
            timeout_s=20,
        )
        client.delete_stream(stream)
    session.recorder.add(
        f"{case}/{'flight' if replicas == COUNT else 'flight_rf1'}",
        records / took_s,
        "rec/s",
        records=records,
        seconds=took_s,
        mib_per_s=records * SIZES[size] / took_s / 2**20,
        brokers_cpu_s=brokers_cpu_s,
        clients_cpu_s=sum(one["cpu_s"] for one in results),
        window_batches=WINDOW,
        batch_records=ROWS,
    )
    return records / took_s


def _cpu_s(cluster: HeadwaterCluster) -> float:
    times = [cluster.process(node).cpu_times() for node in cluster.nodes]
    return float(sum(one.user + one.system for one in times))


def _jetstream(session: Session, number: int) -> None:
    with jetstream_cluster(session.work / f"js-{number}", session.tools) as cluster:
        for size in SIZES:
            for publishers in PUBLISHERS:
                _jetstream_case(session, cluster, size, publishers)


def _jetstream_case(
    session: Session, cluster: JetStreamCluster, size: str, publishers: int
) -> None:
    tools, case = session.tools, f"cluster_publish/{size}/{publishers}p"
    count = session.count(_JETSTREAM[size], multiple=publishers)
    stream, data_bytes = "a", SIZES[size]
    cluster.create(stream)
    rate, tool = tools.publish(
        cluster.url, stream, size=data_bytes, count=count, publishers=publishers
    )
    session.recorder.add(f"{case}/jetstream_async", rate, "rec/s", records=count, tool=tool)
    cluster.delete(stream)
    for mode in ("async", "batch") if tools.natscli is not None else ():
        cluster.create(stream)
        rate = tools.bench(
            cluster.url, mode, stream, size=data_bytes, count=count, publishers=publishers
        )
        session.recorder.add(
            f"{case}/jetstream_bench_{mode}",
            rate,
            "rec/s",
            records=count,
            tool=f"nats bench js pub {mode}, batches of 1000",
        )
        cluster.delete(stream)


def _kafka(session: Session, number: int) -> None:
    assert session.kafka is not None
    with kafka_cluster(session.kafka, session.work / f"kafka-{number}") as cluster:
        for size in SIZES:
            for publishers in PUBLISHERS:
                topic = f"p{size}-{publishers}"
                count = session.count(_KAFKA[size], multiple=publishers)
                cluster.create(topic)
                rate = cluster.tools.publish(
                    topic, size=SIZES[size], count=count, publishers=publishers
                )
                session.recorder.add(
                    f"cluster_publish/{size}/{publishers}p/kafka",
                    rate,
                    "rec/s",
                    records=count,
                    tool="ProducerPerformance, acks=all linger.ms=5 batch.size=65536",
                )
                cluster.tools.delete(topic)
