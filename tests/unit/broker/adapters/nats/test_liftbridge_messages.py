"""Liftbridge's protobuf at the edge: units, defaults and damage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.adapters.nats.liftbridge_messages import decode_publish, encode_ack
from broker.codec.nats import envelope
from broker.codec.nats.envelope import Ack, AckError, EnvelopeKind
from broker.errors import EnvelopeError
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.wire.liftbridge import message_pb2 as wire


def test_a_publish_is_read_whole() -> None:
    """Every field a publisher may set arrives; the headers are in the order of their names."""
    message = wire.Message(
        offset=4,
        key=b"k",
        value=b"v",
        headers={"z": b"1", "a": b"2"},
        ackInbox="in",
        correlationId="c",
        ackPolicy=wire.NONE,
    )
    publish = decode_publish(
        envelope.encode(EnvelopeKind.PUBLISH, message.SerializeToString(), checksum=True)
    )
    assert (publish.key, publish.value, publish.expected_offset) == (b"k", b"v", 4)
    assert publish.headers == (("a", b"2"), ("z", b"1"))
    assert (publish.ack_inbox, publish.correlation_id) == ("in", "c")
    assert publish.ack_policy is AckPolicy.NONE


def test_an_empty_message_has_no_key_and_wants_the_leaders_ack() -> None:
    """What protobuf leaves out has Liftbridge's defaults."""
    publish = decode_publish(envelope.encode(EnvelopeKind.PUBLISH, b""))
    assert (publish.key, publish.value, publish.headers) == (None, b"", ())
    assert publish.ack_policy is AckPolicy.LEADER


@given(st.binary(max_size=60))
def test_any_payload_is_a_publish_or_an_envelope_error(payload: bytes) -> None:
    """Damaged protobuf never raises anything else."""
    try:
        decode_publish(envelope.encode(EnvelopeKind.PUBLISH, payload))
    except EnvelopeError:
        return


def test_an_unknown_ack_policy_promises_nothing() -> None:
    """A later client's number is legal protobuf: its message is stored, and not acknowledged."""
    payload = wire.Message(value=b"v").SerializeToString() + b"\x60\x09"
    found = decode_publish(envelope.encode(EnvelopeKind.PUBLISH, payload))
    assert (found.value, found.ack_policy) == (b"v", AckPolicy.NONE)


def test_an_ack_is_in_nanoseconds_on_the_wire() -> None:
    """Our microseconds become Liftbridge's nanoseconds, our enums its numbers."""
    frame = encode_ack(
        Ack(
            stream="s",
            partition_subject="foo.*",
            message_subject="foo.a",
            offset=Offset(9),
            ack_inbox="in",
            correlation_id="c",
            ack_policy=AckPolicy.ALL,
            received_us=1_000_001,
            committed_us=1_000_002,
            error=AckError.TOO_LARGE,
        )
    )
    ack = wire.Ack()
    ack.ParseFromString(envelope.decode(frame, EnvelopeKind.ACK))
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("s", "foo.*", "foo.a")
    assert (ack.offset, ack.ackInbox, ack.correlationId) == (9, "in", "c")
    assert (ack.receptionTimestamp, ack.commitTimestamp) == (1_000_001_000, 1_000_002_000)
    assert (ack.ackPolicy, ack.ackError) == (wire.ALL, wire.Ack.TOO_LARGE)
