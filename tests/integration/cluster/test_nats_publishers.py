"""Publishing through NATS while a partition changes its leader."""

from __future__ import annotations

import pytest

from clusterkit.running import Cluster
from headwater.nats_publisher import NatsMessage, NatsPublisher

pytestmark = pytest.mark.integration


def test_every_message_is_stored_once(cluster: Cluster) -> None:
    """The leader dies with messages on their way: each is acknowledged, and is there once."""
    client = cluster.client()
    client.create_stream("notes", puback=True)
    values = [b"%06d" % number for number in range(2_000)]
    with NatsPublisher(
        cluster.nats_url,
        stream=client.stream("notes"),
        window=64,
        ack_timeout_s=1.0,
        patience_s=90,  # its leader subscribes after the stream is made
    ) as out:
        for first in range(0, len(values), 50):
            if first == 1_000:
                cluster.kill(cluster.leader("notes"))
            part = values[first : first + 50]
            out.publish([NatsMessage("notes", value) for value in part])
        counts = out.finish()
    assert counts.acked == len(values)
    stored = [value for part in client.fetch("notes") for value in part.batch["value"].to_pylist()]
    assert sorted(stored) == values
