"""Partitions are added to a stream of three brokers while it is written and a leader is killed."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from broker.model.partitioner import partition_of_key
from clusterkit.running import Cluster
from headwater.nats_publisher import NatsMessage, NatsPublisher
from headwater.reads.history import History
from headwater.reads.latest import newest_of_each_key

pytestmark = pytest.mark.integration

KEYS = [b"key-%d" % number for number in range(16)]


def test_a_stream_grows_under_load_while_a_leader_is_killed(cluster: Cluster) -> None:
    """Each key's records are there once, in their sender's order; NATS feeds the new partitions."""
    client = cluster.client()
    made = client.create_stream("growing", replication_factor=-1, puback=True)
    assert made.config.replication_factor == 3
    begun = threading.Event()
    sent: dict[bytes, list[int]] = defaultdict(list)

    def send() -> None:
        for number in range(600):
            key = KEYS[number % len(KEYS)]
            producer.send([{"key": key, "value": b"%d" % number}])
            sent[key].append(number)
            if number == 100:
                begun.set()

    with client.partitioned_producer("growing", retry_ms_max=90_000) as producer:
        thread = threading.Thread(target=send)
        thread.start()
        assert begun.wait(90)
        killed = cluster.leader("growing")
        altered = client.alter_stream("growing", partitions=4)
        cluster.kill(killed)
        thread.join(120)
        assert not thread.is_alive()
        producer.flush()
    assert altered.after.grown_from == 1
    assert [len(one.replicas) for one in client.locate("growing")] == [3] * 4
    rows: list[dict[str, Any]] = [
        row
        for batch in History(client, client.cut("growing")).batches()
        for row in batch.to_pylist()
    ]
    found: dict[bytes, list[int]] = defaultdict(list)
    for row in rows:  # by partition and offset
        found[row["key"]].append(int(row["value"]))
        assert row["partition"] in {partition_of_key(row["key"], count) for count in (1, 4)}
    assert found == sent
    newest = newest_of_each_key(History(client, client.cut("growing")))
    values = {row["key"]: int(row["value"]) for batch in newest for row in batch.to_pylist()}
    assert values == {key: numbers[-1] for key, numbers in sent.items()}
    before = [one.high_watermark for one in client.describe("growing").partitions]
    with NatsPublisher(cluster.nats_url, stream=client.stream("growing"), patience_s=90) as out:
        out.publish([NatsMessage(one, b"x") for one in altered.after.config.subjects])
        assert out.finish().acked == 4
    after = [one.high_watermark for one in client.describe("growing").partitions]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1] * 4
    assert [one.partition for one in client.tier_flush("growing", timeout_ms=90_000)] == [
        0,
        1,
        2,
        3,
    ]
    history = History(client, client.cut("growing"))
    assert sum(batch.num_rows for batch in history.batches()) == 604
    assert [one.hot_count for one in history.certificate().partitions] == [0] * 4
