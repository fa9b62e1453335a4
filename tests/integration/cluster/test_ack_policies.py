"""Ack policies in a real cluster: each publisher gets its ack at the time of its policy.

Streams here have two replicas on three brokers. Pausing the follower leaves the metadata its
majority, so the leader keeps its lease; with both others paused it would lose it within seconds
and, rightly, acknowledge nothing under any policy. Nor does it acknowledge LEADER for as long as
its follower is paused once its lease has lapsed: so a lease outlives a stall of a busy machine.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import pytest

from broker.codec.flight.protocol import StreamPath, decode_ack, encode_put_mark
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.errors import HeadwaterError, InvalidRequestError, NotLeaderError
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE, ProducerId
from broker.model.records import AckPolicy
from broker.wire.liftbridge import message_pb2 as wire
from clusterkit.load import stored
from clusterkit.running import Cluster, controller_of
from headwater.client.address import resolve_addresses
from headwater.client.client import Client
from headwater.client.flight_connection import Connection
from headwater.client.operations import Operations
from headwater.client.records import to_batch
from headwater.nats_publisher import NatsMessage, NatsPublisher
from simkit.servers.natsproc import RawNats, pub

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CLUSTER: Final = {"session_ms": 8_000}  # a lease is renewed within 1.3 s, and lasts for 5.3 s
WAIT_S: Final = 90.0
UNNUMBERED = encode_put_mark(NO_PRODUCER, NO_SEQUENCE)


def _pair(cluster: Cluster, name: str, **config: Any) -> int:
    """Create a stream of two replicas, both needed; return its follower.

    It is not the controller's broker: with that one paused no lease is renewed for a moment, and
    LEADER rightly waits for a commit, which cannot come.
    """
    client = cluster.client()
    client.create_stream(name, replication_factor=2, min_isr=2, **config)
    operations = Operations(client)
    controller = controller_of(cluster)
    replicas = client.locate(name)[0].replicas
    if controller in replicas and cluster.name(cluster.leader(name)) != controller:
        operations.transfer_leader(name, 0, controller)
        cluster.wait_for(lambda: client.locate(name)[0].leader == controller, "it leads")
    leader = cluster.leader(name)
    (follower,) = [n for n in (0, 1, 2) if cluster.name(n) in replicas and n != leader]
    return follower


def _client_without(cluster: Cluster, number: int) -> Client:
    """Return a client that asks the other brokers first: a paused one does not answer."""
    return cluster.client(",".join(cluster.url_of(n) for n in (0, 1, 2) if n != number))


def test_leader_acks_without_its_follower_and_all_does_not(cluster: Cluster) -> None:
    """Once the follower has left the ISR, that is too small, and ALL is refused."""
    follower = _pair(cluster, "policies")
    client = _client_without(cluster, follower)
    with client.producer("policies") as all_, client.producer("policies", acks="leader") as leader:
        all_.send([b"0"]).result(WAIT_S)
        at_leader = cluster.client(cluster.url_of(cluster.leader("policies")))
        cluster.pause(follower)
        waiting = all_.send([b"1"])
        cluster.wait_for(lambda: _log_end(at_leader, "policies") == 2, "the leader has it")
        first = leader.send([b"2"]).result(WAIT_S)
        assert (first.acks, first.duplicate) == (AckPolicy.LEADER, False)
        assert not waiting.done()
        cluster.wait_for(lambda: len(client.locate("policies")[0].isr) == 1, "the ISR shrinks")
        second = leader.send([b"3"]).result(WAIT_S)
        assert second.base_offset == first.base_offset + 1
        assert not waiting.done()
        assert stored(client, "policies") == [b"0"], "nothing is committed meanwhile"
        cluster.resume(follower)
        answer = waiting.result(WAIT_S)
        assert answer.acks is AckPolicy.ALL
        values = stored(client, "policies")
        assert sorted(values) == [b"0", b"1", b"2", b"3"]
        for offset, value in ((answer.base_offset, b"1"), (first.base_offset, b"2")):
            assert values[offset] == value


def test_a_leader_that_was_paused_and_replaced_acks_nothing(cluster: Cluster) -> None:
    """Writes in its sockets, and writes right after it wakes up, are refused."""
    client = cluster.client()
    stream = client.create_stream("woken")
    _begin(client, "woken")
    old = cluster.leader("woken")
    path = StreamPath(stream="woken", partition=0, stream_uuid=stream.uuid, acks=AckPolicy.LEADER)
    connection = Connection(resolve_addresses(cluster.url_of(old)).brokers[0])
    batch = to_batch([b"x"])
    call = connection.put(path, batch.schema)
    try:
        call.write(batch, UNNUMBERED)
        assert not isinstance(_answer(call.read()), HeadwaterError), (
            "the broker leads and acknowledges"
        )
        cluster.pause(old)
        for _ in range(10):
            call.write(batch, UNNUMBERED)
        others = _client_without(cluster, old)
        cluster.wait_for(
            lambda: others.locate("woken")[0].leader not in (None, cluster.name(old)), "a successor"
        )
        cluster.resume(old)
        for _ in range(100):
            call.write(batch, UNNUMBERED)
            assert isinstance(_answer(call.read()), NotLeaderError)
        call.finish()
    finally:
        connection.close()
    with client.producer("woken", acks="leader") as producer:
        producer.send([b"y"]).result(WAIT_S)
        producer.flush()
    cluster.wait_for(lambda: b"y" in stored(client, "woken"), "the new leader's record")
    assert stored(client, "woken").count(b"x") <= 1


def test_none_returns_at_once_and_its_records_arrive(cluster: Cluster) -> None:
    """The publish waits for no broker; the records are there once the follower is back."""
    follower = _pair(cluster, "unasked")
    client = _client_without(cluster, follower)
    _begin(client, "unasked")
    cluster.pause(follower)
    with client.producer("unasked", acks="none") as producer:
        sent = [producer.send([b"%d" % number]) for number in range(20)]
        last = sent[-1].result(WAIT_S)
        assert all(one.done() for one in sent)
        assert (last.base_offset, last.acks) == (-1, AckPolicy.NONE)
        producer.flush()
        assert stored(client, "unasked") == [b"first"]
        cluster.resume(follower)
        cluster.wait_for(lambda: len(stored(client, "unasked")) == 21, "all of them")
    assert stored(client, "unasked")[1:] == [b"%d" % number for number in range(20)]


def test_none_goes_on_at_the_next_leader(cluster: Cluster) -> None:
    """A killed leader loses records on their way, and ``flush`` says so; later records arrive."""
    client = cluster.client()
    client.create_stream("restless")
    _begin(client, "restless")
    producer = client.producer("restless", acks="none")
    producer.send([b"before"])
    producer.flush()
    cluster.wait_for(lambda: stored(client, "restless") == [b"first", b"before"], "it is committed")
    cluster.kill(cluster.leader("restless"))

    def arrives() -> bool:
        producer.send([b"after"])
        return b"after" in stored(client, "restless")

    cluster.wait_for(arrives, "a record at the new leader")
    with suppress(HeadwaterError):  # flush raises, because records may be lost
        producer.close()
    assert stored(client, "restless")[:2] == [b"first", b"before"]


def test_policies_of_one_burst_are_answered_each_at_its_time(cluster: Cluster) -> None:
    """Envelopes and a plain message in one write: LEADER at once, ALL and PubAck once committed."""
    follower = _pair(cluster, "burst", puback=True)
    client = _client_without(cluster, follower)
    with NatsPublisher(
        cluster.nats_url, stream=client.stream("burst"), ack_timeout_s=1.0, patience_s=WAIT_S
    ) as out:
        out.publish([NatsMessage("burst", b"0")])  # answered once the leader has subscribed
        out.finish()
    burst = [
        pub("burst", _envelope(b"1", "in.leader", wire.LEADER)),
        pub("burst", _envelope(b"2", "in.all", wire.ALL)),
        pub("burst", b"3", reply="in.puback"),
        pub("burst", _envelope(b"4", "in.none", wire.NONE)),
        pub("burst", _envelope(b"5", "in.leader", wire.LEADER)),
        pub("burst", _envelope(b"6", "in.both", wire.LEADER), reply="in.both"),
    ]
    with RawNats(int(cluster.nats_url.rpartition(":")[2])) as nats:
        nats.subscribe("in.>")
        cluster.pause(follower)
        nats.send(b"".join(burst))
        early = [nats.next_message() for _ in range(2)]
        assert [subject for subject, _ in early] == ["in.leader"] * 2
        assert [_ack(payload).offset for _, payload in early] == [1, 5]
        nats.publish("burst", _envelope(b"7", "in.leader", wire.LEADER))
        assert nats.next_message()[0] == "in.leader", "a later one is quicker than those before"
        assert stored(client, "burst") == [b"0"]
        cluster.resume(follower)
        late = [nats.next_message()[0] for _ in range(4)]
        assert sorted(late) == ["in.all", "in.both", "in.both", "in.puback"]
        nats.publish("burst", b"8", reply="in.end")
        assert nats.next_message()[0] == "in.end", "NONE gets no answer, and no publish gets two"
    assert stored(client, "burst") == [b"%d" % number for number in range(9)]


def test_what_is_not_a_policy_is_refused(cluster: Cluster) -> None:
    """The client refuses it, and so does a broker; a numbered batch needs ALL."""
    client = cluster.client()
    stream = client.create_stream("picky")
    _begin(client, "picky")
    with pytest.raises(InvalidRequestError, match="acks"):
        client.producer("picky", acks="some")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="producer id"):
        client.producer("picky", acks="leader", producer_id=ProducerId(1))
    address = resolve_addresses(cluster.url_of(cluster.leader("picky"))).brokers[0]
    connection = Connection(address)
    batch = to_batch([b"x"])
    path = StreamPath(stream="picky", partition=0, stream_uuid=stream.uuid, acks=AckPolicy.LEADER)
    call = connection.put(path, batch.schema)
    call.write(batch, encode_put_mark(ProducerId(1), 0))
    assert isinstance(_answer(call.read()), InvalidRequestError)
    call.finish()
    connection.close()
    assert stored(client, "picky") == [b"first"]


def _log_end(at_leader: Client, stream: str) -> int:
    (end,) = [one.log_end for one in Operations(at_leader).replicas() if one.stream == stream]
    return end


def _begin(client: Client, stream: str) -> None:
    """Store a record, so that the leader knows that it leads."""
    with client.producer(stream) as producer:
        producer.send([b"first"]).result(WAIT_S)


def _answer(frame: bytes | None) -> object:
    assert frame is not None, "the broker ended the call"
    return decode_ack(frame)


def _envelope(value: bytes, inbox: str, policy: wire.AckPolicy) -> bytes:
    message = wire.Message(value=value, ackInbox=inbox, ackPolicy=policy)
    return envelope.encode(EnvelopeKind.PUBLISH, message.SerializeToString())


def _ack(payload: bytes) -> wire.Ack:
    ack = wire.Ack()
    ack.ParseFromString(envelope.decode(payload, EnvelopeKind.ACK))
    return ack
