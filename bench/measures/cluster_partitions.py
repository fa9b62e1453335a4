"""1,000 partitions of three replicas on three brokers: created, idle, and with one broker killed.

Idle means that there are no publishers and no readers: the CPU time of each broker is measured over
ten seconds, some seconds after every partition is in sync. Then one broker is killed, and each
partition that it led needs another leader. One of the other brokers is asked for the status.
"""

from __future__ import annotations

import time
from typing import Any, Final

from bench.clusters import COUNT, HeadwaterCluster, headwater_cluster, wait_until
from bench.session import Session
from broker.errors import CommitTimeoutError, NoAnswerError

_PARTITIONS: Final = 1_000
_PARTITIONS_MIN: Final = 30
_STREAM: Final = "wide"
_SETTLE_S: Final = 5.0
_IDLE_S: Final = 10.0
_MADE_TIMEOUT_S: Final = 300.0
_ELECTED_TIMEOUT_S: Final = 120.0


def run(session: Session) -> None:
    """Measure once; there is no peer to compare with."""
    count = max(_PARTITIONS_MIN, min(_PARTITIONS, int(_PARTITIONS * session.scale)))
    with headwater_cluster(session.work / "ours") as cluster:
        _idle(session, cluster, "empty", 0)
        start = time.monotonic()
        tries = _create(cluster, count)
        created_s = time.monotonic() - start
        wait_until(
            f"{count} partitions in sync",
            lambda: cluster.in_sync(_STREAM),
            timeout_s=_MADE_TIMEOUT_S,
        )
        add = session.recorder.add
        add("cluster_partitions/created_s", created_s, "s", partitions=count, tries=tries)
        add("cluster_partitions/in_sync_s", time.monotonic() - start, "s", partitions=count)
        _idle(session, cluster, "", count)
        _without_one(session, cluster, count)


def _create(cluster: HeadwaterCluster, count: int) -> int:
    """Create the stream; return the number of calls until a broker confirmed it.

    The client gives up on a broker after ten seconds, so any caller would call again.
    """
    deadline = time.monotonic() + _MADE_TIMEOUT_S
    tries = 1
    while True:
        try:
            cluster.create(_STREAM, partitions=count)
        except (NoAnswerError, CommitTimeoutError):
            if time.monotonic() > deadline:
                raise
            tries += 1
        else:
            return tries


def _idle(session: Session, cluster: HeadwaterCluster, which: str, partitions: int) -> None:
    """Record memory and CPU of the idle brokers."""
    time.sleep(_SETTLE_S)
    before, start = _cpu_s(cluster), time.monotonic()
    time.sleep(_IDLE_S)
    took_s = time.monotonic() - start
    after = _cpu_s(cluster)
    percents = {node: (after[node] - before[node]) / took_s * 100 for node in cluster.nodes}
    rss = {node: cluster.process(node).memory_info().rss / 2**20 for node in cluster.nodes}
    figure, facts = f"cluster_partitions/{which and f'{which}_'}", {"partitions": partitions}
    add = session.recorder.add
    add(f"{figure}idle_cpu_low", min(percents.values()), "%", brokers=percents, **facts)
    add(f"{figure}idle_cpu_high", max(percents.values()), "%", brokers=percents, **facts)
    add(f"{figure}rss_mib", max(rss.values()), "MiB", brokers=rss, **facts)


def _cpu_s(cluster: HeadwaterCluster) -> dict[str, float]:
    times = {node: cluster.process(node).cpu_times() for node in cluster.nodes}
    return {node: float(one.user + one.system) for node, one in times.items()}


def _without_one(session: Session, cluster: HeadwaterCluster, count: int) -> None:
    victim, teller = cluster.nodes[0], cluster.nodes[-1]
    led = sum(one.leader == victim for one in _partitions(cluster, teller))
    cluster.kill(victim)
    start = time.monotonic()

    def all_led() -> bool:
        found = _partitions(cluster, teller)
        return len(found) == count and all(
            one.status == "online" and one.leader not in (None, victim) for one in found
        )

    wait_until(f"{count} leaders among {COUNT - 1}", all_led, timeout_s=_ELECTED_TIMEOUT_S)
    session.recorder.add(
        "cluster_partitions/elected_s",
        time.monotonic() - start,
        "s",
        partitions=count,
        led_by_killed=led,
    )


def _partitions(cluster: HeadwaterCluster, teller: str) -> list[Any]:
    status = cluster.status_at(teller)
    return [one for one in status.partitions if one.stream == _STREAM] if status else []
