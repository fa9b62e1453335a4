"""Answers to NATS publishers: JetStream's JSON, and subjects that may be published to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.nats.puback import (
    PubAckEncoder,
    encode_publishes,
    is_publish_subject,
)
from broker.errors import (
    DiskFullError,
    EnvelopeError,
    LogFailedError,
    MalformedMessageError,
    NotLeaderError,
    OverloadedError,
    RecordTooLargeError,
    leaves,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig

STREAM = Stream(
    name="foo",
    uuid=StreamUuid("00000000-0000-4000-8000-000000000001"),
    config=StreamConfig(subject="foo"),
    created_us=1,
    table_name="foo",
)


def test_an_ack_is_jetstreams_and_says_where_the_record_is() -> None:
    """``seq`` counts from one; offset, partition, epoch and incarnation are ours."""
    body = PubAckEncoder(STREAM, 3).encode(Offset(41), LeaderEpoch(7), duplicate=False)
    assert json.loads(body) == {
        "stream": "foo",
        "seq": 42,
        "offset": 41,
        "partition": 3,
        "leader_epoch": 7,
        "stream_uuid": STREAM.uuid,
    }


def test_a_duplicate_says_so() -> None:
    """A retry gets the first offset and ``duplicate``, which is absent otherwise."""
    body = PubAckEncoder(STREAM, 0).encode(Offset(0), LeaderEpoch(1), duplicate=True)
    assert json.loads(body)["duplicate"] is True


@pytest.mark.parametrize(
    ("error", "code", "number"),
    [
        (RecordTooLargeError("large", size_bytes=2, limit_bytes=1), 400, 10054),
        (MalformedMessageError("bad", part="headers"), 400, 10003),
        (OverloadedError("full"), 503, 10023),
        (DiskFullError("full"), 500, 10047),
        (LogFailedError("broken"), 503, 10077),
        (NotLeaderError("no"), 503, 10008),
        (EnvelopeError("?"), 500, 10077),
    ],
)
def test_errors_have_jetstreams_codes_and_our_facts(
    error: RecordTooLargeError, code: int, number: int
) -> None:
    """A JetStream client reads code and number; the class and the facts travel along."""
    body = json.loads(PubAckEncoder(STREAM, 3).encode_error(error))
    assert body["error"] == {"code": code, "err_code": number, "description": error.message}
    assert body["headwater"]["type"] == type(error).__name__
    assert body["headwater"]["facts"] == error.facts


def test_a_refusal_names_its_sender() -> None:
    """Several streams may answer one message: stream and ``seq`` as in JetStream, the rest ours."""
    body = json.loads(PubAckEncoder(STREAM, 3).encode_error(OverloadedError("full")))
    assert (body["stream"], body["seq"]) == (STREAM.name, 0)
    assert body["headwater"]["partition"] == 3
    assert body["headwater"]["stream_uuid"] == STREAM.uuid


def test_every_error_class_can_be_told() -> None:
    """No error of ours is without a code."""
    encoder = PubAckEncoder(STREAM, 3)
    for kind in leaves().values():
        assert json.loads(encoder.encode_error(kind("x")))["headwater"]["type"] == kind.__name__


def test_publishes_are_joined_for_one_write() -> None:
    """Each message becomes a PUB with its length."""
    assert encode_publishes([(b"a", b"hi"), (b"b.c", b"")]) == b"PUB a 2\r\nhi\r\nPUB b.c 0\r\n\r\n"


@pytest.mark.parametrize("subject", [b"a", b"_INBOX.x.1", b"$JS.ACK.1", b"a" * 1024])
def test_ordinary_subjects_may_be_answered(subject: bytes) -> None:
    """Inboxes as clients make them pass."""
    assert is_publish_subject(subject)


@pytest.mark.parametrize(
    "subject",
    [b"", b"a b", b"a\r\nPUB x 0\r\n", b"a\n", b"a\x00", b"a.*", b">", b"a..b", b".a", b"\xc3\xa4",
     b"a" * 1025, b"a\x7f"],
)  # fmt: skip
def test_hostile_subjects_are_not_answered(subject: bytes) -> None:
    """An AckInbox comes from outside: nothing in it may become a protocol command."""
    assert not is_publish_subject(subject)


@given(st.binary(max_size=30))
def test_no_accepted_subject_breaks_a_command(subject: bytes) -> None:
    """Whatever passes is one word of one line."""
    if is_publish_subject(subject):
        line = encode_publishes([(subject, b"")]).split(b"\r\n")[0]
        assert line.split() == [b"PUB", subject, b"0"]
