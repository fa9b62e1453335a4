"""Ingest against a real nats-server: stored records, and answers to publishers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.adapters.nats.hooks import connect_options
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.config import NatsConfig
from broker.errors import (
    DiskFullError,
    InvalidConfigError,
    InvalidStreamError,
    LogFailedError,
    UnavailableError,
)
from broker.model.secret import Secret
from broker.wire.liftbridge import message_pb2 as wire
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.certificates import Authority
from simkit.servers.natsproc import NatsProcess, RawNats, pub

pytestmark = pytest.mark.integration


@pytest.fixture
def client(server: NatsProcess) -> Iterator[RawNats]:
    """A publisher that listens on ``in.>``."""
    with RawNats(server.port) as raw:
        raw.subscribe("in.>")
        yield raw


def liftbridge(**fields: Any) -> bytes:
    """Return a publish envelope."""
    return envelope.encode(EnvelopeKind.PUBLISH, wire.Message(**fields).SerializeToString())


def ack_of(payload: bytes) -> wire.Ack:
    """Parse an ack envelope."""
    ack = wire.Ack()
    ack.ParseFromString(envelope.decode(payload, EnvelopeKind.ACK))
    return ack


def test_a_publisher_hears_where_its_record_is(rig: IngestRig, client: RawNats) -> None:
    """With puback each reply subject gets the offset, after the record is in the log."""
    stream = rig.add_stream("foo", puback=True)
    for number in range(3):
        client.publish("foo", b"%d" % number, reply=f"in.{number}")
        subject, body = client.next_message()
        assert subject == f"in.{number}"
        assert json.loads(body) == {
            "stream": "foo",
            "seq": number + 1,
            "offset": number,
            "partition": 0,
            "leader_epoch": 1,
            "stream_uuid": stream.uuid,
        }
        assert rig.values("foo") == [b"%d" % one for one in range(number + 1)]


def test_without_puback_the_reply_subject_is_data(rig: IngestRig, client: RawNats) -> None:
    """A stream that only records requests does not answer them."""
    rig.add_stream("foo")
    client.publish("foo", b"question", reply="in.1")
    rig.wait(lambda: len(rig.rows("foo")) == 1, "the record")
    assert rig.rows("foo")[0]["reply_subject"] == "in.1"
    client.flush()
    assert client.messages == []


def test_several_values_of_a_header_stay_several(rig: IngestRig, client: RawNats) -> None:
    """Headers keep order, repetition and the key; a UTF-8 value stays as it is."""
    rig.add_stream("foo", puback=True, key_header="Tail")
    headers = [("Via", "a"), ("Tail", "N14228"), ("Via", "b"), ("Note", "grüße")]
    client.publish("foo", b"{}", reply="in.1", headers=headers)
    client.next_message()
    row = rig.rows("foo")[0]
    assert row["key"] == b"N14228"
    assert [(one["key"], one["value"].decode()) for one in row["headers"]] == headers


def test_a_wildcard_stream_keeps_subjects(rig: IngestRig, client: RawNats) -> None:
    """``flights.*.*`` stores each message with the subject it came on."""
    rig.add_stream("flights", subject="flights.*.*", puback=True)
    subjects = ["flights.EWR.UA", "flights.LGA.AA", "flights.EWR.UA"]
    for subject in subjects:
        client.publish(subject, b"x", reply="in.1")
    client.publish("flights.EWR", b"not mine")
    for _ in subjects:
        client.next_message()
    assert [row["subject"] for row in rig.rows("flights")] == subjects


def test_partitions_listen_on_their_own_subjects(rig: IngestRig, client: RawNats) -> None:
    """``foo``, ``foo.1`` and ``foo.2`` are partitions 0, 1 and 2, each with its own offsets."""
    rig.add_stream("foo", partitions=3, puback=True)
    for subject, partition in (("foo", 0), ("foo.1", 1), ("foo.2", 2), ("foo.1", 1)):
        client.publish(subject, subject.encode(), reply="in.1")
        assert client.next_json()["partition"] == partition
    assert rig.values("foo", 0) == [b"foo"]
    assert rig.values("foo", 1) == [b"foo.1"] * 2
    assert rig.values("foo", 2) == [b"foo.2"]


def test_a_removed_stream_hears_nothing_more(rig: IngestRig, client: RawNats) -> None:
    """Once its last partition is removed, its messages are ignored; another stream goes on."""
    stream = rig.add_stream("foo")
    rig.add_stream("bar", puback=True)
    rig.run(rig.ingest.serve(stream, {}))
    client.publish("foo", b"late")
    client.publish("bar", b"still", reply="in.1")
    client.next_message()
    assert rig.values("foo") == []
    assert [one.stream for one in rig.ingest.stats()] == ["bar"]


def test_two_streams_on_one_subject_both_store(rig: IngestRig, client: RawNats) -> None:
    """Every stream has its own subscription."""
    rig.add_stream("one", subject="foo")
    rig.add_stream("two", subject="foo.>")
    rig.add_stream("three", subject="foo", puback=True)
    client.publish("foo", b"x", reply="in.1")
    client.next_message()
    rig.wait(lambda: rig.values("one") == [b"x"], "the first stream's record")
    assert rig.values("three") == [b"x"]
    assert rig.values("two") == []


def test_a_queue_group_shares_the_messages(rig: IngestRig, client: RawNats) -> None:
    """Two streams in one queue group store each message once between them."""
    rig.add_stream("one", subject="foo", queue_group="g", puback=True)
    rig.add_stream("two", subject="foo", queue_group="g", puback=True)
    for number in range(50):
        client.publish("foo", b"%d" % number, reply="in.1")
    for _ in range(50):
        client.next_message()
    both = rig.values("one") + rig.values("two")
    assert sorted(both, key=int) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("policy", [wire.LEADER, wire.ALL])
def test_an_envelope_is_acked_on_its_inbox(
    rig: IngestRig, client: RawNats, policy: wire.AckPolicy
) -> None:
    """Liftbridge's publishers get offset and correlation id once the record is durable."""
    rig.add_stream("foo", subject="foo.>")
    client.publish(
        "foo.a",
        liftbridge(value=b"v", key=b"k", ackInbox="in.x", correlationId="c", ackPolicy=policy),
    )
    subject, payload = client.next_message()
    ack = ack_of(payload)
    assert subject == "in.x"
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("foo", "foo.>", "foo.a")
    assert (ack.offset, ack.correlationId, ack.ackInbox) == (0, "c", "in.x")
    assert (ack.ackPolicy, ack.ackError) == (policy, wire.Ack.OK)
    assert 0 < ack.receptionTimestamp <= ack.commitTimestamp
    assert rig.rows("foo")[0]["correlation_id"] == "c"


def test_ack_policy_none_and_hostile_inboxes_are_not_answered(
    rig: IngestRig, client: RawNats
) -> None:
    """NONE gets no answer; an inbox with a protocol command in it is not written to the socket."""
    rig.add_stream("foo", puback=True)
    client.publish("foo", liftbridge(value=b"1", ackInbox="in.x", ackPolicy=wire.NONE))
    client.publish("foo", liftbridge(value=b"2", ackInbox="in.x 0\r\n\r\nPUB in.evil"))
    client.publish("foo", liftbridge(value=b"3"))
    client.publish("foo", b"4", reply="in.last")
    assert client.next_message()[0] == "in.last"
    assert rig.values("foo") == [b"1", b"2", b"3", b"4"]


def test_what_does_not_parse_is_stored_as_it_is(rig: IngestRig, client: RawNats) -> None:
    """A malformed envelope, also one with a header length of 255, is a plain message."""
    rig.add_stream("foo", puback=True)
    frames = [
        envelope.MAGIC + b"\x00\xff\x00\x00",
        envelope.MAGIC,
        liftbridge(value=b"v")[:-1],
        b"plain",
    ]
    for frame in frames:
        client.publish("foo", frame, reply="in.1")
        client.next_message()
    assert rig.values("foo") == frames


def test_a_bad_header_block_is_answered_and_counted(rig: IngestRig, client: RawNats) -> None:
    """The publisher gets a typed error; the record is not stored, its neighbours are."""
    rig.add_stream("foo", puback=True)
    client.send(
        pub("foo", b"1", reply="in.1")
        + pub("foo", b"2", reply="in.2", headers=b"NATS/1.0\r\nbroken\r\n\r\n")
        + pub("foo", b"3", headers=b"nonsense")
        + pub("foo", b"4", reply="in.4")
    )
    answers = {
        subject: json.loads(body) for subject, body in (client.next_message() for _ in "123")
    }
    assert answers["in.2"]["error"]["err_code"] == 10003
    assert answers["in.2"]["headwater"]["type"] == "MalformedMessageError"
    assert answers["in.4"]["seq"] == 2
    assert rig.values("foo") == [b"1", b"4"]
    assert rig.stats("foo").refused_messages_total == 2
    assert rig.stats("foo").errors_total == {"MalformedMessageError": 2}


def test_a_record_one_byte_too_large_is_refused_alone(rig: IngestRig, client: RawNats) -> None:
    """At the limit it is stored; one byte above it the publisher's error has both sizes."""
    rig.add_stream("foo", puback=True, record_bytes_max=1000)
    client.send(
        pub("foo", b"a" * 1000, reply="in.1")
        + pub("foo", b"b" * 1001, reply="in.2")
        + pub("foo", liftbridge(value=b"c" * 1001, ackInbox="in.3"))
        + pub("foo", b"d" * 1000, reply="in.4")
    )
    answers = dict(client.next_message() for _ in range(4))
    error = json.loads(answers["in.2"])
    assert (error["error"]["code"], error["error"]["err_code"]) == (400, 10054)
    assert error["headwater"]["facts"] == {"size_bytes": 1001, "limit_bytes": 1000}
    assert ack_of(answers["in.3"]).ackError == wire.Ack.TOO_LARGE
    assert json.loads(answers["in.4"])["seq"] == 2
    assert rig.values("foo") == [b"a" * 1000, b"d" * 1000]


def test_an_envelope_is_stored_only_at_the_offset_that_it_expects(
    rig: IngestRig, client: RawNats
) -> None:
    """With optimistic concurrency a publisher that expects another offset gets an error."""
    rig.add_stream("foo", optimistic_concurrency=True)
    for inbox, offset in (("in.1", 0), ("in.2", 0), ("in.3", 1), ("in.4", -1)):
        client.publish("foo", liftbridge(value=inbox.encode(), offset=offset, ackInbox=inbox))
    acks = {inbox: ack_of(body) for inbox, body in (client.next_message() for _ in range(4))}
    assert {inbox for inbox, ack in acks.items() if ack.ackError == wire.Ack.OK} == {
        "in.1",
        "in.3",
        "in.4",
    }
    assert acks["in.2"].ackError == wire.Ack.INCORRECT_OFFSET
    assert rig.values("foo") == [b"in.1", b"in.3", b"in.4"]


def test_a_message_of_the_servers_largest_size_arrives(rig: IngestRig, client: RawNats) -> None:
    """max_payload bytes pass whole, through many reads."""
    rig.add_stream("foo", puback=True)
    payload = bytes(range(256)) * 4096
    assert len(payload) == rig.transport.max_payload_bytes
    client.publish("foo", payload, reply="in.1")
    assert client.next_json()["seq"] == 1
    assert rig.values("foo") == [payload]


@pytest.mark.parametrize("error", [DiskFullError("no room"), LogFailedError("fsync failed")])
def test_a_log_that_refuses_is_heard_of(
    rig: IngestRig, client: RawNats, error: DiskFullError
) -> None:
    """A failed append answers both kinds of publishers; the next one is stored."""
    rig.add_stream("foo", puback=True)
    opened = liftbridge(value=b"2", ackInbox="in.2", ackPolicy=wire.ALL)  # as with PubAck
    answers = {}
    for message in (pub("foo", b"1", reply="in.1"), pub("foo", opened)):
        rig.broker.partitions.handle("foo", 0).fail_next(error)
        client.send(message)
        inbox, answers[inbox] = client.next_message()
    assert json.loads(answers["in.1"])["headwater"]["type"] == type(error).__name__
    assert ack_of(answers["in.2"]).ackError == wire.Ack.UNKNOWN
    client.publish("foo", b"3", reply="in.3")
    assert client.next_json()["seq"] == 1


def test_jetstream_clients_work_unchanged(rig: IngestRig, server: NatsProcess) -> None:
    """nats-py's JetStream publish gets its ack, its duplicate flag, and its error."""
    rig.add_stream("foo", puback=True, record_bytes_max=1000)

    async def publish() -> None:
        connection = await nats.connect(server.url)
        stream = connection.jetstream()
        first = await stream.publish("foo", b"1", headers={"Nats-Msg-Id": "a"})
        again = await stream.publish("foo", b"1", headers={"Nats-Msg-Id": "a"})
        other = await stream.publish("foo", b"2", headers={"Nats-Msg-Id": "b"})
        assert (first.stream, first.seq, first.duplicate) == ("foo", 1, None)
        assert (again.seq, again.duplicate) == (1, True)
        assert (other.seq, other.duplicate) == (2, None)
        with pytest.raises(nats.js.errors.APIError) as caught:
            await stream.publish("foo", b"x" * 1001)
        assert caught.value.err_code == 10054
        await connection.close()

    asyncio.run(publish())
    assert rig.values("foo") == [b"1", b"2"]


def test_stopping_stores_and_answers_what_has_arrived(server: NatsProcess) -> None:
    """With drain every message delivered before the stop is durable and answered."""
    with IngestRig(NatsConfig(url=server.url)) as rig, RawNats(server.port) as client:
        client.subscribe("in.>")
        rig.add_stream("foo", puback=True)
        client.send(b"".join(pub("foo", b"%d" % n, reply=f"in.{n}") for n in range(5000)))
        client.flush()
        rig.stop()
        stored = rig.values("foo")
        assert stored == [b"%d" % n for n in range(5000)]
        for _ in range(5000):
            client.next_message()


@pytest.mark.parametrize(
    ("settings", "good", "bad"),
    [
        (
            'authorization { user: "u", password: "p" }',
            {"user": "u", "password": Secret("p")},
            {"user": "u", "password": Secret("wrong")},
        ),
        ('authorization { token: "t" }', {"token": Secret("t")}, {}),
    ],
    ids=["user", "token"],
)
def test_credentials_are_used(
    tmp_path: Path, settings: str, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    """The right ones connect; the wrong ones fail at start with the server's own message."""
    with NatsProcess(tmp_path, settings=settings) as server:
        with IngestRig(NatsConfig(url=server.url, **good)) as rig:
            assert rig.transport.connected
        config = NatsConfig(url=server.url, connect_timeout_ms=1_000, **bad)
        deadline_s = time.monotonic() + 60
        while "authorization" not in (told := _refusal(config)).lower():
            # A busy machine may not have heard the server's answer within the second.
            assert time.monotonic() < deadline_s, told


def _refusal(config: NatsConfig) -> str:
    """Return why ingest does not start."""
    with pytest.raises(UnavailableError) as refused, IngestRig(config):
        pass
    return refused.value.message


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual"])
def test_tls_and_mutual_tls_connect(tmp_path: Path, mutual: bool) -> None:
    """With the authority's certificate records arrive encrypted; without it start fails."""
    authority = Authority()
    files = {"ca": authority.cert}
    for name in ("server", "broker"):
        pair = authority.issue(name)
        files |= {f"{name}-cert": pair.cert, f"{name}-key": pair.key}
    for name, pem in files.items():
        (tmp_path / name).write_bytes(pem)
    settings = (
        f'tls {{ cert_file: "{tmp_path}/server-cert", key_file: "{tmp_path}/server-key", '
        f'ca_file: "{tmp_path}/ca", verify: {str(mutual).lower()} }}'
    )
    with NatsProcess(tmp_path, settings=settings) as server:
        config = NatsConfig(
            url=server.url,
            tls_ca_file=f"{tmp_path}/ca",
            tls_cert_file=f"{tmp_path}/broker-cert" if mutual else None,
            tls_key_file=f"{tmp_path}/broker-key" if mutual else None,
        )
        with IngestRig(config) as rig:
            rig.add_stream("foo")

            async def publish() -> None:
                connection = await nats.connect(
                    server.url, tls=connect_options(config, "publisher")["tls"]
                )
                for number in range(100):
                    await connection.publish("foo", b"%d" % number * 5000)
                await connection.close()

            asyncio.run(publish())
            rig.wait(lambda: len(rig.values("foo")) == 100, "the records")
        lost = NatsConfig(
            url=server.url,
            connect_timeout_ms=700,
            tls_ca_file=f"{tmp_path}/ca" if mutual else None,
        )
        with pytest.raises(UnavailableError), IngestRig(lost):
            pass


def test_a_subject_that_the_server_denies_is_a_typed_error(tmp_path: Path) -> None:
    """A stream whose subject this user may not read is refused when it is added."""
    settings = (
        'authorization { users: [ { user: "u", password: "p", '
        'permissions: { subscribe: { deny: ["secret.>"] } } } ] }'
    )
    with (
        NatsProcess(tmp_path, settings=settings) as server,
        IngestRig(NatsConfig(url=server.url, user="u", password=Secret("p"))) as rig,
    ):
        with pytest.raises(InvalidStreamError, match="secret"):
            rig.add_stream("secret", subject="secret.x")
        rig.add_stream("open")
        assert [one.stream for one in rig.ingest.stats()] == ["open"]


def test_no_server_is_a_typed_error_in_time() -> None:
    """Starting without a reachable server fails after the configured time, with the reason."""
    config = NatsConfig(url="nats://127.0.0.1:1", connect_timeout_ms=500)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"), IngestRig(config):
        pass


@pytest.mark.parametrize(
    "url", ["http://x", "ws://x:1", "nats://", "nats://h:99999999", "nats://h:x"]
)
def test_an_address_that_cannot_work_is_refused(url: str) -> None:
    """Only nats and tls addresses are taken."""
    with pytest.raises(InvalidConfigError):
        IngestRig(NatsConfig(url=url))
