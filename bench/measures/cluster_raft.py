"""The metadata's replicated log with each Raft: our own, and pysyncobj with our corrections.

Two times that a user waits for are measured. Streams of one replica are created one after the
other. Then the controller is killed (kill -9), and the time counts until the same client, which
retries, can create the next stream. Each implementation has its own three brokers; the two run one
after the other.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Final

from bench.clusters import HeadwaterCluster, headwater_cluster, wait_until
from bench.measures.cluster_failover import record_percentiles
from bench.session import Session
from bench.stats import percentile
from broker.errors import HeadwaterError, StreamExistsError
from headwater.client import Client
from headwater.client.operations import Operations
from headwater.local.embedded_cluster import EmbeddedCluster

_RAFTS: Final = ("own", "pysyncobj")
_CREATED: Final = 200
_KILLS_MAX: Final = 10
_PATIENCE_S: Final = 60.0


def run(session: Session) -> None:
    """Measure both implementations."""
    for raft in _RAFTS:
        folder = session.work / raft
        with headwater_cluster(folder, before_start=partial(_choose, raft)) as cluster:
            _measure(session, f"cluster_raft/{raft}", cluster)


def _choose(raft: str, plan: EmbeddedCluster) -> None:
    plan.settings = {**plan.settings, "cluster": {"raft": raft}}


def _measure(session: Session, figure: str, cluster: HeadwaterCluster) -> None:
    names = (f"s{number}" for number in itertools.count())
    client = cluster.client()
    try:
        client.create_stream(next(names), replication_factor=1, tiering=False)
        took_ms = [_create_ms(client, next(names)) for _ in range(session.count(_CREATED))]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            session.recorder.add(f"{figure}_create_{name}", percentile(took_ms, share), "ms")
        found: list[float] = []
        for _ in range(min(_KILLS_MAX, session.kills)):
            controller = _controller(client)
            cluster.kill(controller)
            start = time.monotonic()
            wait_until("a stream created", partial(_created, client, next(names)))
            found.append(time.monotonic() - start)
            cluster.start(controller)
        record_percentiles(session, f"{figure}_failover", found)
    finally:
        client.close()


def _create_ms(client: Client, name: str) -> float:
    start = time.perf_counter()
    client.create_stream(name, replication_factor=1, tiering=False)
    return (time.perf_counter() - start) * 1000


def _created(client: Client, name: str) -> bool:
    try:
        client.create_stream(name, replication_factor=1, tiering=False)
    except StreamExistsError:  # an earlier attempt succeeded, and its answer was lost
        return True
    except HeadwaterError:
        return False
    return True


def _controller(client: Client) -> str:
    found: list[str] = []

    def known() -> bool:
        controller = Operations(client).status().controller
        found[:] = [] if controller is None else [controller]
        return bool(found)

    wait_until("a controller", known, timeout_s=_PATIENCE_S)
    return found[0]
