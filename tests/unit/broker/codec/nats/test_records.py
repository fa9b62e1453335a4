"""Messages to producer columns: what is stored, who gets an ack, what is refused alone."""

from __future__ import annotations

from typing import Any

import pytest

from broker.adapters.nats.liftbridge_messages import decode_publish
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.codec.nats.records import RecordRules, Records, RefusedMessage, to_records
from broker.codec.nats.stream import MessageBatch, NatsStream
from broker.codec.record_batch import prepare
from broker.codec.schema import HEADERS_TYPE
from broker.errors import MalformedMessageError, RecordTooLargeError
from broker.model.records import AckPolicy
from broker.model.stream import StreamConfig
from broker.wire.liftbridge import message_pb2 as wire
from simkit.servers.natsproc import pub

SID = 1


def rules(**config: Any) -> RecordRules:
    """Return the rules of a stream on subject ``foo``."""
    return RecordRules.of("stream", StreamConfig(**{"subject": "foo", **config}), 0)


def delivered(*published: bytes) -> MessageBatch:
    """Return the batch a subscriber of everything gets when these PUB and HPUB are sent."""
    stream = NatsStream()
    stream.add_hot(SID)
    sent = b""
    for one in published:
        line, rest = one.split(b"\r\n", 1)
        op, subject, *words = line.split(b" ")
        sent += b" ".join([op.replace(b"PUB", b"MSG"), subject, b"%d" % SID, *words])
        sent += b"\r\n" + rest
    parsed = stream.feed(sent)
    assert parsed.error is None
    assert len(parsed.batches) == 1
    return parsed.batches[0]


def convert(batch: MessageBatch, by: RecordRules) -> tuple[list[Records], list[RefusedMessage]]:
    """Convert, and check that the log's own codec takes every part."""
    records, refused = to_records(batch, by, decode_publish)
    for one in records:
        prepare(one.batch, now_us=1)
    return records, refused


def only(batch: MessageBatch, by: RecordRules) -> Records:
    """Convert a batch of which everything is stored together."""
    records, refused = convert(batch, by)
    assert refused == []
    assert len(records) == 1
    return records[0]


def liftbridge(**fields: Any) -> bytes:
    """Return a publish envelope."""
    return envelope.encode(EnvelopeKind.PUBLISH, wire.Message(**fields).SerializeToString())


@pytest.mark.parametrize("count", [1, 63, 64, 500])
def test_bare_messages_are_one_column(count: int) -> None:
    """Payloads on the partition's own subject need nothing but a value; empty is not null."""
    payloads = [b"", *(b"%d" % number for number in range(count - 1))]
    records = only(delivered(*(pub("foo", one) for one in payloads)), rules())
    assert records.batch.to_pydict() == {"value": payloads}
    assert records.message_ids is None
    assert (records.replies, records.opened) == ({}, {})


def test_headers_key_and_message_id_are_taken_from_the_block() -> None:
    """All headers are kept in order; the first key header and the first message id count."""
    headers = [
        ("A", "1"),
        ("Headwater-Key", "k1"),
        ("A", "2"),
        ("Nats-Msg-Id", "id-1"),
        ("Headwater-Key", "k2"),
        ("Nats-Msg-Id", "id-2"),
    ]
    records = only(delivered(pub("foo", b"x"), pub("foo", b"y", headers=headers)), rules())
    assert records.message_ids == [None, "id-1"]
    rows = records.batch.to_pylist()
    assert rows[0] == {"value": b"x", "key": None, "headers": None}
    assert rows[1]["key"] == b"k1"
    stored = [(one["key"], one["value"].decode()) for one in rows[1]["headers"]]
    assert stored == headers


def test_the_key_header_can_be_another() -> None:
    """A stream may name its own key header; the default one is then an ordinary header."""
    block = [("Headwater-Key", "no"), ("Tail-Number", "N123")]
    records = only(delivered(pub("foo", b"x", headers=block)), rules(key_header="Tail-Number"))
    assert records.batch.column("key").to_pylist() == [b"N123"]


def test_a_status_line_is_kept_as_headers() -> None:
    """A published status block shows as Status and Description, as in NATS clients."""
    block = b"NATS/1.0 503 No one\r\nA: 1\r\n\r\n"
    records = only(delivered(pub("foo", b"", headers=block)), rules())
    assert records.batch.column("headers").to_pylist()[0] == [
        {"key": "Status", "value": b"503"},
        {"key": "Description", "value": b"No one"},
        {"key": "A", "value": b"1"},
    ]


def test_a_subject_is_stored_only_where_it_differs() -> None:
    """Wildcard streams keep each message's subject."""
    batch = delivered(pub("foo.a", b"1"), pub("foo.b", b"2"), pub("foo.b", b"3"))
    records = only(batch, rules(subject="foo.*"))
    assert records.batch.column("subject").to_pylist() == ["foo.a", "foo.b", "foo.b"]
    assert "subject" not in only(delivered(pub("foo", b"1", reply="r")), rules()).batch.schema.names


def test_a_reply_subject_is_stored_unless_it_gets_the_ack() -> None:
    """With puback the reply subject is an address for the answer, without it is data."""
    batch = delivered(pub("foo", b"1"), pub("foo", b"2", reply="in.1"))
    stored = only(batch, rules())
    assert stored.batch.column("reply_subject").to_pylist() == [None, "in.1"]
    acked = only(batch, rules(puback=True))
    assert acked.batch.schema.names == ["value"]
    assert acked.replies == {1: b"in.1"}


def test_an_envelope_is_opened() -> None:
    """Value, key, headers and correlation id come out of a publish envelope."""
    frame = liftbridge(
        value=b"v",
        key=b"k",
        headers={"b": b"2", "a": b"1"},
        ackInbox="in.1",
        correlationId="c-1",
        ackPolicy=wire.ALL,
    )
    records = only(delivered(pub("foo", b"plain"), pub("foo", frame)), rules())
    plain, opened = records.batch.to_pylist()
    assert (plain["value"], plain["key"], plain["correlation_id"]) == (b"plain", None, None)
    assert (opened["value"], opened["key"], opened["correlation_id"]) == (b"v", b"k", "c-1")
    assert [one["key"] for one in opened["headers"]] == ["a", "b"]
    assert list(records.opened) == [1]
    assert records.opened[1].publish.ack_inbox == "in.1"
    assert records.opened[1].subject == b"foo"


def test_an_envelope_names_the_offset_that_its_record_expects() -> None:
    """Such a row is alone; -1 asks for nothing, and a stream without the setting does not look."""
    expected = [-1, 7, -1]
    sent = [pub("foo", liftbridge(value=b"x", offset=one)) for one in expected]
    checked, refused = convert(delivered(*sent), rules(optimistic_concurrency=True))
    assert refused == []
    assert [one.expected_end for one in checked] == [None, 7, None]
    assert only(delivered(*sent), rules()).expected_end is None


def test_rows_go_to_the_log_in_runs_of_one_ack_policy() -> None:
    """Order is kept; without a policy, or with PubAck, an ack waits for ALL. No row is lost."""

    def of(policy: wire.AckPolicy, value: bytes) -> bytes:
        return liftbridge(value=value, ackInbox=value.decode(), ackPolicy=policy)

    messages = (
        pub("foo", of(wire.LEADER, b"0")),
        pub("foo", of(wire.LEADER, b"1")),
        pub("foo", b"2"),
        pub("foo", of(wire.ALL, b"3"), reply="in.3"),
        pub("foo", of(wire.LEADER, b"4"), reply="in.4"),
        pub("foo", of(wire.NONE, b"5")),
        pub("foo", of(wire.LEADER, b"6")),
    )
    records, refused = convert(delivered(*messages), rules(puback=True))
    assert refused == []
    assert [(one.policy, [row["value"] for row in one.batch.to_pylist()]) for one in records] == [
        (AckPolicy.LEADER, [b"0", b"1"]),
        (AckPolicy.ALL, [b"2", b"3", b"4"]),
        (AckPolicy.NONE, [b"5"]),
        (AckPolicy.LEADER, [b"6"]),
    ]
    assert [sorted(one.opened) for one in records] == [[0, 1], [1, 2], [0], [0]]
    assert records[1].replies == {1: b"in.3", 2: b"in.4"}
    without = [one.policy for one in convert(delivered(*messages), rules())[0]]
    assert without[1:3] == [AckPolicy.ALL, AckPolicy.LEADER], "no PubAck raises the fifth row's"


@pytest.mark.parametrize(
    "payload",
    [
        envelope.MAGIC,
        envelope.MAGIC + b"\x00\xff\x00\x00",
        envelope.encode(EnvelopeKind.ACK, b""),
        envelope.encode(EnvelopeKind.PUBLISH, b"\xff\xff\xff"),
        liftbridge(value=b"v")[:-1],
    ],
    ids=lambda payload: payload.hex(),
)
@pytest.mark.parametrize("company", [0, 100])
def test_what_only_looks_like_an_envelope_is_stored_raw(payload: bytes, company: int) -> None:
    """A message is never dropped for being a malformed envelope: its bytes are the value."""
    published = [pub("foo", b"plain-text")] * company
    records = only(delivered(*published, pub("foo", payload)), rules())
    assert records.batch.column("value").to_pylist()[-1] == payload
    assert (records.replies, records.opened) == ({}, {})


@pytest.mark.parametrize("count", [3, 200])
def test_a_record_over_the_limit_is_refused_alone(count: int) -> None:
    """The limit is on value, key and headers; one byte less is stored, neighbours always are."""
    fits = pub("foo", b"x" * 100)
    too_large = pub("foo", b"y" * 101, reply="in.1")
    records, refused = convert(
        delivered(*[fits] * count, too_large, fits), rules(record_bytes_max=100, puback=True)
    )
    assert sum(one.batch.num_rows for one in records) == count + 1
    assert [type(one.error) for one in refused] == [RecordTooLargeError]
    assert refused[0].error.facts == {"size_bytes": 101, "limit_bytes": 100}
    assert refused[0].reply == b"in.1"


def test_headers_and_key_count_towards_the_limit() -> None:
    """A header is counted with its name, and the key once more as the key."""
    message = pub("foo", b"x" * 10, headers=[("Headwater-Key", "abc")])
    assert convert(delivered(message), rules(record_bytes_max=29))[1] == []
    assert len(convert(delivered(message), rules(record_bytes_max=28))[1]) == 1


@pytest.mark.parametrize(
    ("headers", "part"),
    [
        (b"NATS/1.0\r\nbroken\r\n\r\n", "headers"),
        (b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n", "message_id"),
        (b"NATS/1.0\r\nNats-Msg-Id: " + b"x" * 1025 + b"\r\n\r\n", "message_id"),
    ],
)
def test_a_bad_header_block_is_refused_alone(headers: bytes, part: str) -> None:
    """Nothing of such a message is stored; the error goes to its reply subject."""
    batch = delivered(
        pub("foo", b"1", reply="in.1"),
        pub("foo", b"2", reply="in.2", headers=headers),
        pub("foo", b"3", reply="in.3"),
    )
    records, refused = convert(batch, rules(puback=True))
    assert records[0].batch.column("value").to_pylist() == [b"1", b"3"]
    assert records[0].replies == {0: b"in.1", 1: b"in.3"}
    assert isinstance(refused[0].error, MalformedMessageError)
    assert refused[0].error.part == part
    assert refused[0].reply == b"in.2"


def test_subjects_that_are_not_text_are_refused() -> None:
    """A subject or stored reply that is not UTF-8 has no place in the table."""
    stream = NatsStream()
    stream.add_hot(SID)
    batch = stream.feed(
        b"MSG foo.\xff 1 1\r\na\r\nMSG foo.b 1 in.\xff 1\r\nb\r\nMSG foo.c 1 1\r\nc\r\n"
    ).batches[0]
    records, refused = convert(batch, rules(subject="foo.*"))
    assert [one.error.part for one in refused] == ["subject", "reply_subject"]
    assert records[0].batch.to_pydict() == {"value": [b"c"], "subject": ["foo.c"]}


def test_nothing_is_left_when_everything_is_refused() -> None:
    """A batch of refusals makes no empty append."""
    assert convert(delivered(pub("foo", b"12")), rules(record_bytes_max=1))[0] == []


def test_a_batch_larger_than_a_segment_is_split() -> None:
    """Parts fit the segment and keep rows, ids and waiters in order."""
    published = [
        pub("foo", b"%04d" % n * 100, reply=f"in.{n}", headers=[("Nats-Msg-Id", f"id-{n}")])
        for n in range(50)
    ]
    by = rules(segment_bytes_max=4096, puback=True)
    records, refused = convert(delivered(*published), by)
    assert refused == []
    assert len(records) > 5
    assert all(prepare(one.batch, now_us=1).size <= 4096 for one in records)
    values = [value for one in records for value in one.batch.column("value").to_pylist()]
    assert values == [b"%04d" % n * 100 for n in range(50)]
    ids = [text for one in records for text in one.message_ids or ()]
    assert ids == [f"id-{n}" for n in range(50)]
    for one in records:
        assert list(one.replies) == list(range(one.batch.num_rows))
    assert [reply for one in records for reply in one.replies.values()] == [
        b"in.%d" % n for n in range(50)
    ]


def test_columns_have_the_types_that_the_log_takes() -> None:
    """Every column at once, as the log's schema has it."""
    frame = liftbridge(value=b"v", key=b"k", headers={"h": b"1"}, correlationId="c")
    records = only(delivered(pub("foo.x", frame, reply="r")), rules(subject="foo.*"))
    assert {field.name: str(field.type) for field in records.batch.schema} == {
        "value": "binary",
        "key": "binary",
        "headers": str(HEADERS_TYPE),
        "subject": "string",
        "reply_subject": "string",
        "correlation_id": "string",
    }


def test_a_key_may_be_the_message_id() -> None:
    """The header is both: a stream that takes it as the key goes on to deduplicate."""
    message = pub("foo", b"x", headers=[("Nats-Msg-Id", "A")])
    records = only(delivered(message), rules(key_header="Nats-Msg-Id"))
    assert records.message_ids == ["A"]
    assert records.batch.column("key").to_pylist() == [b"A"]


def test_an_envelopes_header_is_no_message_id() -> None:
    """A restart takes a record's first id: one that counts is first, other records are apart."""
    inner = liftbridge(value=b"e", headers={"Nats-Msg-Id": b"inner"}, ackPolicy=wire.ALL)
    outer = [("Nats-Msg-Id", "outer")]
    messages = delivered(
        pub("foo", b"0", headers=[("Nats-Msg-Id", "A")]),
        pub("foo", inner),
        pub("foo", inner, headers=outer),
        pub("foo", b"3"),
    )
    records, refused = convert(messages, rules())
    assert refused == []
    assert [one.message_ids for one in records] == [["A"], [None], ["outer", None]]
    headers = records[2].batch.column("headers").to_pylist()[0]
    assert [one["value"] for one in headers] == [b"outer", b"inner"]
