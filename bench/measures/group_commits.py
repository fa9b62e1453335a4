"""Consumer groups in the metadata: the time of a commit, beside 10,000 positions of 500 groups.

One broker. The positions are set first. Then a member of one more group is given one record after
the other and commits each; the time is that of the application's ``commit()``.
"""

from __future__ import annotations

import time
from typing import Final

from bench.servers import headwater
from bench.session import Session
from bench.stats import percentile
from broker.model.groups import PositionReset
from headwater.client import Client

_GROUPS: Final = 500
_PARTITIONS: Final = 20
_COMMITS: Final = 500


def run(session: Session) -> None:
    """Measure commits, and the size of the metadata's journal after them."""
    with headwater(session.work / "groups") as broker, broker.client() as client:
        client.create_stream("wide", partitions=_PARTITIONS, tiering=False)
        client.create_stream("one", tiering=False)
        uuid = client.stream("wide").uuid
        for number in range(session.count(_GROUPS)):
            client.reset_group(
                f"group-{number}",
                [
                    PositionReset(stream_uuid=uuid, partition=partition, offset=0)
                    for partition in range(_PARTITIONS)
                ],
            )
        took_ms = _commits(client, session.count(_COMMITS))
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            session.recorder.add(f"group_commits/{name}", percentile(took_ms, share), "ms")


def _commits(client: Client, count: int) -> list[float]:
    with client.producer("one") as producer:
        for number in range(count):
            producer.send([b"%d" % number])
        producer.flush(timeout_ms=60_000)
    took_ms: list[float] = []
    with client.consumer("one", group="measured", commit_ms=None) as consumer:
        for _ in consumer:
            start = time.perf_counter()
            consumer.commit()
            took_ms.append((time.perf_counter() - start) * 1000)
            if len(took_ms) == count:
                break
    return took_ms
