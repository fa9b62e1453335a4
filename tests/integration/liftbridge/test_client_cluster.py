"""headwater.liftbridge on three brokers, of which the leader is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from clusterkit.lift_brokers import LiftCluster, lift_cluster
from clusterkit.lift_calls import until
from headwater.liftbridge import AckPolicy, Liftbridge, Since, StreamOptions, Until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftCluster]:
    """Run three brokers."""
    with lift_cluster(tmp_path_factory.mktemp("client")) as running:
        yield running


def test_a_killed_leader_is_not_noticed(cluster: LiftCluster) -> None:
    """A publisher, a subscriber, a group and a cursor go on; nothing acknowledged is lost."""
    count, half = 200, 100
    with Liftbridge(cluster.addresses, timeout_s=60, resend=True) as client:
        options = StreamOptions(replication_factor=3, min_isr=2)
        client.create_stream("s", options=options)

        def led_by(*, isr: int = 1) -> str:
            """Return who leads, as the broker that is asked knows; "": nobody, or a small ISR."""
            told = client.metadata("s").streams.get("s")
            place = None if told is None else told.partitions.get(0)
            return place.leader if place is not None and len(place.isr) >= isr else ""

        until(lambda: bool(led_by(isr=3)), "in sync")
        messages = client.subscribe("s", start=Since.earliest())
        member = client.consumer("g", ["s"], poll_s=0.5, checkpoint_s=None)
        acked: dict[int, bytes] = {}

        def publish(first: int, end: int) -> None:
            for number in range(first, end):
                value = b"%d" % number
                ack = client.publish("s", value, policy=AckPolicy.ALL)
                assert ack is not None
                acked[ack.offset] = value

        publish(0, half)
        assert [next(messages).offset for _ in range(half)] == list(range(half))
        assert [next(member).offset for _ in range(half)] == list(range(half))
        member.processed()
        assert member.checkpoint() == {("s", 0): half - 1}
        before = client.metadata("s").streams["s"].partitions[0].leader
        rest = threading.Thread(target=publish, args=(half, count))
        rest.start()
        cluster.do("kill", before)
        rest.join(120)
        assert len(acked) == count
        until(lambda: led_by() not in {before, ""}, "another leader is known")
        newest = max(acked)
        offsets = [next(messages).offset for _ in range(newest + 1 - half)]
        assert offsets == list(range(half, newest + 1)), "no gap, nothing twice"
        ends = [next(member).offset for _ in range(newest + 1 - half)]
        assert sorted(set(ends)) == list(range(half, newest + 1))
        stored = {
            one.offset: one.value
            for one in client.subscribe("s", start=Since.earliest(), stop=Until.latest())
        }
        assert {offset: stored.get(offset) for offset in acked} == acked
        assert client.cursor("__group:g", "s", 0) == half - 1
        member.close()
        messages.close()
        cluster.do("start", before)
