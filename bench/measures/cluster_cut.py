"""A one-way cut from the leader to the other brokers: time to the next acknowledged publish.

Brokers talk through proxies on the loopback (tests/lib/chaoskit/proxy.py). The leader still
receives from the other brokers and from the publisher, but the brokers receive nothing from it. So
another leader has to be elected, and the publisher has to find that leader. Only ours is measured;
the peers have no such proxies here.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from bench.clusters import HeadwaterCluster, headwater_cluster, wait_until
from bench.measures.cluster_failover import record_percentiles, sure_leader
from bench.probe import Probe
from bench.session import Session
from headwater.local.embedded_cluster import EmbeddedCluster

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "lib"))
from chaoskit.proxy import ProxyMesh

_CUTS_MAX: Final = 10
_BACK_TIMEOUT_S: Final = 120.0
_STREAM: Final = "cut"


def run(session: Session) -> None:
    """Cut off the leader several times; after each cut heal it and wait until it is in sync."""
    with ProxyMesh() as mesh:

        def through_proxies(plan: EmbeddedCluster) -> None:
            plan.dialled = {
                (one, two): mesh.connect(one, two, plan.ports[two].peer)
                for one in plan.brokers
                for two in plan.brokers
                if one != two
            }

        folder = session.work / "ours"
        with headwater_cluster(folder, before_start=through_proxies) as cluster:
            _cuts(session, cluster, mesh)


def _cuts(session: Session, cluster: HeadwaterCluster, mesh: ProxyMesh) -> None:
    cluster.create(_STREAM)
    found: list[float] = []
    with Probe(cluster.probe(_STREAM), session.work / "cut-probe.log") as probe:
        for _ in range(min(_CUTS_MAX, session.kills)):
            probe.warm_up()
            leader = sure_leader(cluster, _STREAM)
            cut_ns = time.monotonic_ns()
            for other in cluster.nodes:
                if other != leader:
                    mesh.cut(leader, other)
            found.append(probe.seconds_after(cut_ns))
            mesh.heal_all()
            start = time.monotonic()
            wait_until(
                f"{leader} back in sync",
                lambda: cluster.in_sync(_STREAM),
                timeout_s=_BACK_TIMEOUT_S,
            )
            back_s = time.monotonic() - start
            session.recorder.add(
                "cluster_cut/ours", found[-1], "s", cut=leader, back_in_sync_s=back_s
            )
    record_percentiles(session, "cluster_cut/ours", found)
