"""kill -9 of a stream's leader: time until the next publish is acknowledged.

A probe publishes one record at a time (see probe.py), on each side with the product's own client,
all addresses and its own retries. The killed node is started again and is back in sync before the
next kill. ``--kills`` is the number of kills for ours; the peers take much longer and are killed at
most five times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from bench.clusters import Replicated, headwater_cluster, wait_until
from bench.peers.jetstream_cluster import jetstream_cluster
from bench.peers.kafka_cluster import kafka_cluster
from bench.probe import SLOT_S, Probe
from bench.session import Session
from bench.stats import percentile

_PEER_KILLS_MAX: Final = 5
_BACK_TIMEOUT_S: Final = 120.0
_STREAM: Final = "fail"
_FIGURE: Final = "cluster_failover"
_BEFORE_S: Final = 1.0  # of the timeline that is kept with each kill
_AFTER_S: Final = 1.0  # once publishing works again


def run(session: Session) -> None:
    """Kill our leaders, then the peers'; each cluster runs alone."""
    with headwater_cluster(session.work / "ours") as cluster:
        kills(session, "ours", cluster, session.kills)
    peer_kills = min(_PEER_KILLS_MAX, session.kills)
    if session.tools.client is not None:
        with jetstream_cluster(session.work / "js", session.tools) as jetstream:
            kills(session, "jetstream", jetstream, peer_kills)
    if session.kafka is not None:
        with kafka_cluster(session.kafka, session.work / "kafka") as kafka:
            kills(session, "kafka", kafka, peer_kills)


def kills(session: Session, side: str, cluster: Replicated, count: int) -> None:
    """Kill the leader ``count`` times; record each time without publishing, and percentiles."""
    cluster.create(_STREAM)
    found: list[float] = []
    with Probe(cluster.probe(_STREAM), session.work / f"{side}-probe.log") as probe:
        for _ in range(count):
            probe.warm_up()
            probe.go_on_until(time.monotonic_ns() + round(_BEFORE_S * 1e9))
            leader = sure_leader(cluster, _STREAM)
            cluster.kill(leader)
            killed_ns = time.monotonic_ns()
            found.append(probe.seconds_after(killed_ns))
            start = time.monotonic()
            cluster.start(leader)
            wait_until(
                f"{side}: {leader} back in sync",
                lambda: cluster.in_sync(_STREAM),
                timeout_s=_BACK_TIMEOUT_S,
            )
            back_s = time.monotonic() - start
            after_s = found[-1] + _AFTER_S
            probe.go_on_until(killed_ns + round((after_s + SLOT_S) * 1e9))  # slots are whole
            session.recorder.add(
                f"{_FIGURE}/{side}",
                found[-1],
                "s",
                killed=leader,
                back_in_sync_s=back_s,
                slot_s=SLOT_S,
                acks_from_s=-_BEFORE_S,
                acks_by_slot=probe.acks_by_slot(killed_ns, before_s=_BEFORE_S, after_s=after_s),
            )
    record_percentiles(session, f"{_FIGURE}/{side}", found)


def sure_leader(cluster: Replicated, stream: str) -> str:
    """Return the leader; wait until there is one."""
    found: list[str] = []

    def led() -> bool:
        leader = cluster.leader(stream)
        found[:] = [] if leader is None else [leader]
        return bool(found)

    wait_until(f"a leader of {stream}", led)
    return found[0]


def record_percentiles(session: Session, figure: str, seconds: Sequence[float]) -> None:
    """Record the median, the 99th percentile and the maximum of these times."""
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        value = percentile(seconds, share)
        session.recorder.add(f"{figure}_{name}", value, "s", faults=len(seconds))
