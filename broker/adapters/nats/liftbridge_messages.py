"""Converts Liftbridge's protobuf messages inside envelopes to our values and back.

For messages over NATS, nanoseconds are converted to microseconds only here. As in Liftbridge, the
stored timestamp of a record is the broker's own; the timestamp in a publisher's message is ignored.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from broker.codec.nats import envelope
from broker.codec.nats.envelope import Ack, AckError, EnvelopeKind, Publish
from broker.errors import EnvelopeError
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.wire.liftbridge import message_pb2 as wire

_NS_PER_US: Final = 1000
_POLICIES: Final = {
    wire.LEADER: AckPolicy.LEADER,
    wire.ALL: AckPolicy.ALL,
    wire.NONE: AckPolicy.NONE,
}
_WIRE_POLICIES: Final = {ours: theirs for theirs, ours in _POLICIES.items()}
_WIRE_ERRORS: Final = {
    AckError.OK: wire.Ack.OK,
    AckError.UNKNOWN: wire.Ack.UNKNOWN,
    AckError.INCORRECT_OFFSET: wire.Ack.INCORRECT_OFFSET,
    AckError.TOO_LARGE: wire.Ack.TOO_LARGE,
    AckError.ENCRYPTION: wire.Ack.ENCRYPTION,
}


def decode_publish(frame: bytes) -> Publish:
    """Read a publish envelope. Raises EnvelopeError for every other input, nothing else."""
    payload = envelope.decode(frame, EnvelopeKind.PUBLISH)
    message = wire.Message()
    try:
        message.ParseFromString(payload)
    except DecodeError as cause:
        raise EnvelopeError(f"the envelope's payload is not a message: {cause}") from cause
    return Publish(
        key=message.key or None,
        value=message.value,
        headers=tuple(sorted(message.headers.items())),  # a protobuf map has no order
        ack_inbox=message.ackInbox,
        correlation_id=message.correlationId,
        # Of a policy that a later client has: the message is stored, and nothing is promised.
        ack_policy=_POLICIES.get(message.ackPolicy, AckPolicy.NONE),
        expected_offset=Offset(message.offset),
    )


def encode_ack(ack: Ack) -> bytes:
    """Return the ack as an envelope, to publish on its AckInbox."""
    message = wire.Ack(
        stream=ack.stream,
        partitionSubject=ack.partition_subject,
        msgSubject=ack.message_subject,
        offset=ack.offset,
        ackInbox=ack.ack_inbox,
        correlationId=ack.correlation_id,
        ackPolicy=_WIRE_POLICIES[ack.ack_policy],
        receptionTimestamp=ack.received_us * _NS_PER_US,
        commitTimestamp=ack.committed_us * _NS_PER_US,
        ackError=_WIRE_ERRORS[ack.error],
    )
    return envelope.encode(EnvelopeKind.ACK, message.SerializeToString())
