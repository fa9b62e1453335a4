"""Replication over NATS among strangers: every message is checked, counted, and harmless."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.adapters.nats.replica_messages import (
    encode_epoch_answer,
    encode_notice,
    encode_request,
)
from broker.adapters.nats.replicas import NatsReplicaTransport
from broker.codec.peer import replica_answer
from broker.config import NatsConfig
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, StreamUuid
from broker.model.offsets import Offset
from broker.model.replica_messages import EpochEndAnswer, NewDataNotice
from headwater.local.embedded import LOOPBACK
from simkit.brokers.replica_rigs import (
    BROKERS,
    CLUSTER,
    TIMEOUT_S,
    A,
    B,
    NatsRig,
    address,
    answer,
    fetch,
    stored,
)
from simkit.servers.certificates import Authority
from simkit.servers.natsproc import NatsProcess, RawNats

pytestmark = pytest.mark.integration

P = address().partition_id
REPLICATE = f"{CLUSTER}.s.0.replicate"
OFFSET = f"{CLUSTER}.s.0.offset"
NOTIFY = f"{CLUSTER}.notify.{A}"
INBOX = "_INBOX.stranger"
# What was published before the first one may be read with it, subject by subject. The second one
# is published after that, so when it comes, all that was before the first one is handled.
SENTINELS = (4_241, 4_242)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NatsRig]:
    """Return three brokers on NATS; `a` serves partition 0."""
    found = NatsRig(tmp_path)
    found.transports[A].serve(address())
    yield found
    found.close()


@pytest.fixture
def raw(rig: NatsRig) -> Iterator[RawNats]:
    """Return a client that may publish anything; `a` listens to everything by now."""
    with RawNats(rig.nats.port) as found:
        while rig.inboxes[A].empty():
            request = encode_request(P, fetch(1), to=A)
            found.publish(REPLICATE, request, reply=INBOX)
            found.publish(OFFSET, request, reply=INBOX)
            found.publish(NOTIFY, request, reply=INBOX)
            found.flush()
        for number in SENTINELS:
            last = fetch(number)
            found.publish(REPLICATE, encode_request(P, last, to=A), reply=INBOX)
            while rig.inboxes[A].get(timeout=TIMEOUT_S) != (B, P, last):
                pass  # an earlier one
        yield found


def _transport(rig: NatsRig, broker: BrokerId = A) -> NatsReplicaTransport:
    found = rig.transports[broker]
    assert isinstance(found, NatsReplicaTransport)
    return found


def _sound(rig: NatsRig, raw: RawNats) -> None:
    """Show that an honest request is still taken, and that nothing else was."""
    for number in SENTINELS:
        request = fetch(number)
        raw.publish(REPLICATE, encode_request(P, request, to=A), reply=INBOX)
        assert rig.inboxes[A].get(timeout=TIMEOUT_S) == (B, P, request)
    assert rig.crashes == []


def test_junk_on_every_subject_is_counted_and_harmless(rig: NatsRig, raw: RawNats) -> None:
    """Random bytes, pickles, envelopes with lies in their headers, honest messages damaged."""
    chance = random.Random(3)
    honest = [
        encode_request(P, fetch(1), to=A),
        encode_notice("s", P, NewDataNotice(leader_epoch=LeaderEpoch(1)), sender=B, to=A),
        *replica_answer.encode(P, answer(1), sender=B, payload_bytes_max=5000),
    ]
    junk = [
        b"",
        b"\x80\x04\x95N.",
        b"\xb9\x0e\x43\xb4\0\xff\0\x02",
        b"\xb9\x0e\x43\xb4\0\x08\0\x02",
    ]
    for _ in range(200):
        damaged = bytearray(chance.choice(honest))
        damaged[chance.choice((0, 1, 2, 3, 4, 7))] ^= 1 << chance.randrange(8)
        junk += [chance.randbytes(chance.randint(0, 300)), bytes(damaged)]
    for data in junk:
        for subject in (REPLICATE, OFFSET, NOTIFY):
            raw.publish(subject, data, reply=INBOX)
    _sound(rig, raw)
    assert _transport(rig).refused["malformed"] > len(junk)


def test_who_is_no_broker_is_not_heard(rig: NatsRig, raw: RawNats) -> None:
    """A name that the cluster does not know, or this broker's own, is refused."""
    for name in ("mallory", A):
        request = fetch(1, follower=BrokerId(name))
        raw.publish(REPLICATE, encode_request(P, request, to=A), reply=INBOX)
    notice = encode_notice(
        "s", P, NewDataNotice(leader_epoch=LeaderEpoch(9)), sender=BrokerId("mallory"), to=A
    )
    raw.publish(NOTIFY, notice)
    _sound(rig, raw)
    assert _transport(rig).refused["not a member"] == 3


def test_a_request_for_another_leader_or_stream_is_not_taken(rig: NatsRig, raw: RawNats) -> None:
    """A former leader still listens for a moment; a stream made anew has the old one's subject."""
    raw.publish(REPLICATE, encode_request(P, fetch(1), to=B), reply=INBOX)
    other = PartitionId(StreamUuid("00000000-0000-4000-8000-000000000000"), P.number)
    raw.publish(REPLICATE, encode_request(other, fetch(1), to=A), reply=INBOX)
    raw.publish(REPLICATE, encode_request(address(1).partition_id, fetch(1), to=A), reply=INBOX)
    _sound(rig, raw)
    assert _transport(rig).refused["malformed"] >= 2


def test_an_answer_goes_to_inboxes_only(rig: NatsRig, raw: RawNats) -> None:
    """Otherwise a stranger could make a broker publish batches as records of a stream."""
    before = _transport(rig).refused["no inbox"]
    for reply in ("", "orders", f"{CLUSTER}.notify.b", "_INBOX", "_INBOX.", "_INBOX." + "x" * 300):
        raw.publish(REPLICATE, encode_request(P, fetch(1), to=A), reply=reply)
    _sound(rig, raw)
    assert _transport(rig).refused["no inbox"] == before + 6


def test_an_answer_that_nobody_asked_for_is_not_taken(rig: NatsRig, raw: RawNats) -> None:
    """An inbox cannot be guessed; a stranger that sees it has to answer the exact question."""
    raw.subscribe(REPLICATE)
    rig.transports[A].stop_serving(address())
    rig.transports[B].send(A, address(), fetch(77))
    raw.next_message()
    inbox = _transport(rig, B)._inbox + ".1"
    told = EpochEndAnswer(
        leader_epoch=LeaderEpoch(7),
        request_id=78,
        epoch=LeaderEpoch(1),
        known_epoch=LeaderEpoch(1),
        end=Offset(5),
    )
    raw.publish(inbox, encode_epoch_answer(P, told, sender=A, to=B))
    for wrong in (answer(76), answer(78)):
        for part in replica_answer.encode(P, wrong, sender=A, payload_bytes_max=5000):
            raw.publish(inbox, part)
    damaged = answer(77, (stored(0, b"x" * 64, crc=3),))
    for part in replica_answer.encode(P, damaged, sender=A, payload_bytes_max=5000):
        raw.publish(inbox, part)
    raw.flush()
    while _transport(rig, B).refused["malformed"] < 1:
        raw.flush()
    assert _transport(rig, B).refused["unasked"] == 3
    assert rig.inboxes[B].empty()


def test_batches_are_taken_over_tls_and_after_the_server_restarts(tmp_path: Path) -> None:
    """The NATS connection uses TLS, and is made again after each loss."""
    authority = Authority()
    pair = authority.issue("nats")
    for name, data in (("ca", authority.cert), ("cert", pair.cert), ("key", pair.key)):
        (tmp_path / f"{name}.pem").write_bytes(data)
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    settings = (
        f'tls {{ cert_file: "{files["cert"]}", key_file: "{files["key"]}", '
        f'ca_file: "{files["ca"]}", verify: true }}'
    )
    inboxes: dict[BrokerId, queue.Queue[object]] = {A: queue.Queue(), B: queue.Queue()}
    crashes: list[BaseException] = []
    nats = NatsProcess(tmp_path, settings=settings)
    config = NatsConfig(
        url=f"tls://{LOOPBACK}:{nats.port}",
        tls_ca_file=str(files["ca"]),
        tls_cert_file=str(files["cert"]),
        tls_key_file=str(files["key"]),
        connect_timeout_ms=1_000,
    )
    transports = {
        name: NatsReplicaTransport(
            config, cluster=CLUSTER, me=name, brokers=BROKERS, on_crash=crashes.append
        )
        for name in (A, B)
    }
    for name, transport in transports.items():
        transport.start(lambda *heard, inbox=inboxes[name]: inbox.put(heard))
    transports[A].serve(address())  # before there is any server
    try:
        for _ in range(2):
            with nats:
                number = 0
                while inboxes[A].empty():
                    number += 1
                    transports[B].send(A, address(), fetch(number))
                    _wait(inboxes[A])
                transports[B].send(A, address(), fetch(9_999))
                while inboxes[A].get(timeout=TIMEOUT_S) != (B, P, fetch(9_999)):
                    pass  # an earlier message
                transports[A].send(B, address(), answer(9_999, (stored(0, bytes(5_000_000)),)))
                heard = inboxes[B].get(timeout=TIMEOUT_S)
                assert heard == (A, P, answer(9_999, (stored(0, bytes(5_000_000)),)))
    finally:
        for transport in transports.values():
            transport.close()
    assert crashes == []


def _wait(inbox: queue.Queue[object]) -> None:
    """Give a message a moment to come, without taking it."""
    with inbox.not_empty:
        inbox.not_empty.wait_for(lambda: len(inbox.queue) > 0, timeout=0.2)
