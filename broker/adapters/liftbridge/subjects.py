"""PublishToSubject: a message for every stream that listens to a NATS subject.

The message goes over NATS, as from a client that speaks NATS itself: every stream on the subject
stores it, and the first acknowledgement is the answer. A call without a deadline is answered at
once, without an acknowledgement, as in Liftbridge: its oldest Python client sends no deadline and
ignores the acknowledgement.

A call that waits is acknowledged on an inbox of the broker's own, because two calls may name one
``ackInbox``: there, one call's acknowledgement would answer the other. What comes to the own inbox
is copied to the ``ackInbox``, under this name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from google.protobuf.message import DecodeError

from broker.adapters.liftbridge.publish_requests import POLICIES
from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.adapters.liftbridge.stream_calls import decode
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.errors import EnvelopeError, HeadwaterError, InvalidRequestError, UnavailableError
from broker.model.access import RESOURCE_CHARS_MAX, told
from broker.model.subjects import is_literal
from broker.ports.subjects import SubjectPublisher
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire

_REFUSALS = {
    wire.Ack.INCORRECT_OFFSET: (Code.FAILED_PRECONDITION, "incorrect expected offset"),
    wire.Ack.TOO_LARGE: (Code.INVALID_ARGUMENT, "the message exceeds the stream's limit"),
    wire.Ack.ENCRYPTION: (Code.INTERNAL, "the message could not be encrypted"),
}


def publish_to_subject(
    publisher: SubjectPublisher | None,
    payload: bytes,
    replied: Callable[[object], None],
    *,
    waits: bool,
) -> Callable[[], None]:
    """Publish; ``replied`` gets the answer's bytes or an exception.

    ``waits``: the call has a deadline, so it waits for an acknowledgement. Returns a function that
    ends the wait.

    Raises:
        StatusError, HeadwaterError: nothing was published.
    """
    request = decode(api.PublishToSubjectRequest, payload)
    if publisher is None:
        raise UnavailableError("this broker is not connected to NATS: nats.url is empty")
    if request.ackPolicy not in POLICIES:
        raise InvalidRequestError("ackPolicy is not one of LEADER, ALL and NONE")
    named = request.ackInbox
    if named:
        check_inbox(named)

    def made(inbox: str) -> bytes:
        message = wire.Message(
            offset=-1,  # no condition
            key=request.key,
            value=request.value,
            headers=dict(request.headers),
            subject=request.subject,
            ackInbox=inbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
        )
        return envelope.encode(EnvelopeKind.PUBLISH, message.SerializeToString())

    if not waits or request.ackPolicy == wire.NONE:
        publisher.publish(request.subject, made(named))
        replied(api.PublishToSubjectResponse().SerializeToString())
        return lambda: None

    def answered(answer: bytes | HeadwaterError) -> None:
        replied(_reply(answer, named))

    def copied(answer: bytes) -> None:
        with suppress(EnvelopeError, DecodeError):  # no acknowledgement: it is not passed on
            _send_ack(publisher, _ack_of(answer, named))

    return publisher.ask(request.subject, made, answered, copied if named else None)


def check_inbox(inbox: str) -> None:
    """Raise StatusError if no acknowledgement can be sent to an inbox that a request names."""
    if len(inbox) > RESOURCE_CHARS_MAX or not is_literal(inbox):
        text = f"ackInbox {told(inbox)!r} is no subject that can be published to"
        raise StatusError(Code.INVALID_ARGUMENT, text)


def send_to_inbox(publisher: SubjectPublisher | None, answer: bytes) -> None:
    """Send the acknowledgement of a Publish to the inbox that its caller named, if any.

    ``answer`` is a PublishResponse. The caller has it, too, so what NATS loses is not sent again.
    """
    ack = api.PublishResponse.FromString(answer).ack
    if publisher is not None and ack.ackInbox:
        _send_ack(publisher, ack)


def _send_ack(publisher: SubjectPublisher, ack: wire.Ack) -> None:
    with suppress(HeadwaterError):  # there is no connection
        publisher.publish(ack.ackInbox, envelope.encode(EnvelopeKind.ACK, ack.SerializeToString()))


def _ack_of(answer: bytes, named: str) -> wire.Ack:
    """Return an acknowledgement with the inbox that the caller named, if any, as its inbox.

    Raises:
        EnvelopeError, DecodeError: the answer is no acknowledgement.
    """
    ack = wire.Ack.FromString(envelope.decode(answer, EnvelopeKind.ACK))
    if named:
        ack.ackInbox = named
    return ack


def _reply(answer: bytes | HeadwaterError, named: str) -> object:
    if isinstance(answer, HeadwaterError):
        return answer
    try:
        ack = _ack_of(answer, named)
    except (EnvelopeError, DecodeError):
        return StatusError(Code.INTERNAL, "the acknowledgement is not readable")
    if ack.ackError == wire.Ack.OK:
        return api.PublishToSubjectResponse(ack=ack).SerializeToString()
    return StatusError(*_REFUSALS.get(ack.ackError, (Code.INTERNAL, "the message was not stored")))
