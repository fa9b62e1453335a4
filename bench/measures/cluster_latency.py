"""Three replicas: latency of one outstanding record of 100 B, and of a new stream's first ack.

The time of the first ack begins with the call that creates the stream or topic; the connections are
open before that. The stream is deleted afterwards. Each side's cluster runs alone, and is started
again for each turn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from bench import payloads
from bench.clusters import COUNT, MIN_ISR, HeadwaterCluster, headwater_cluster
from bench.peers.jetstream_cluster import jetstream_cluster
from bench.peers.kafka_cluster import kafka_cluster
from bench.processes import Load
from bench.session import Session
from bench.stats import percentile
from broker.errors import UnknownStreamError
from headwater.client import Client
from headwater.client.producer import Producer

_SIZE: Final = 100
_MESSAGES: Final = 3_000
_STREAMS: Final = 12


def run(session: Session) -> None:
    """Let the clusters take turns."""
    sides = {"ours": partial(_ours, session), "jetstream": partial(_jetstream, session)}
    if session.kafka is not None:
        sides["kafka"] = partial(_kafka, session)
    session.rounds(sides)


def _ours(session: Session, number: int) -> None:
    with headwater_cluster(session.work / f"ours-{number}") as cluster:
        cluster.create("one")
        count = session.count(_MESSAGES)
        load = Load("flight_latency", url=cluster.url, stream="one", size=_SIZE, count=count)
        load.go()
        _record(session, "flight", {**load.result(), "tool": "headwater.client"})
        _record_first(session, "flight", _first_acks_ms(cluster))


def _first_acks_ms(cluster: HeadwaterCluster) -> list[float]:
    """Return the times of several new streams, after one stream that only opens connections."""
    one = payloads.batch_of(_SIZE, 1)
    times = []
    with cluster.client() as client:
        for number in range(_STREAMS + 1):
            name = f"first-{number}"
            start = time.perf_counter()
            client.create_stream(name, replication_factor=COUNT, min_isr=MIN_ISR, tiering=False)
            with _producer(client, name) as producer:
                producer.send(one).result(30)
                times.append((time.perf_counter() - start) * 1e3)
            with contextlib.suppress(
                UnknownStreamError
            ):  # a repeated call finds it deleted already
                client.delete_stream(name)
    return times[1:]


def _producer(client: Client, name: str) -> Producer:
    """Return a producer; try again while a broker does not know the stream yet."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return client.producer(name)
        except UnknownStreamError:
            if time.monotonic() > deadline:
                raise


def _jetstream(session: Session, number: int) -> None:
    with jetstream_cluster(session.work / f"js-{number}", session.tools) as cluster:
        cluster.create("one")
        count = session.count(_MESSAGES)
        found = session.tools.latency(cluster.url, "one", size=_SIZE, count=count)
        _record(session, "jetstream", found)
        if session.tools.client is not None:
            found_ms = session.tools.first_acks_ms(cluster.url, replicas=COUNT, count=_STREAMS)
            _record_first(session, "jetstream", found_ms)


def _kafka(session: Session, number: int) -> None:
    assert session.kafka is not None
    with kafka_cluster(session.kafka, session.work / f"kafka-{number}") as cluster:
        cluster.create("one")
        count = session.count(_MESSAGES)
        found = cluster.client.latency(cluster.address, "one", size=_SIZE, count=count)
        _record(session, "kafka", {**found, "tool": "Kafka's Java client, linger.ms=0"})
        found_ms = cluster.client.first_acks_ms(cluster.address, replicas=COUNT, count=_STREAMS)
        _record_first(session, "kafka", found_ms)


def _record(session: Session, side: str, found: Mapping[str, Any]) -> None:
    for name in ("p50", "p99"):
        session.recorder.add(
            f"cluster_latency/{side}_{name}",
            found[f"{name}_us"] / 1000,
            "ms",
            max_ms=found["max_us"] / 1000,
            levels_us=found["levels_us"],
            tool=found["tool"],
        )


def _record_first(session: Session, side: str, times_ms: Sequence[float]) -> None:
    for name, share in (("p50", 0.5), ("max", 1.0)):
        session.recorder.add(
            f"cluster_first_ack/{side}_{name}",
            percentile(times_ms, share),
            "ms",
            streams=len(times_ms),
        )
