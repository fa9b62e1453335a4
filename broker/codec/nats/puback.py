"""The answer to a plain NATS publisher on its reply subject: JetStream's JSON, and our own fields.

A JetStream client reads ``stream``, ``seq`` (from 1) and ``duplicate``, or ``error`` with its code
and number. The other fields are ours; in an error they are under ``headwater``. Source: JetStream's
PubAck and its error table (errors.json).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from broker.errors import (
    ConditionFailedError,
    CorruptDataError,
    DiskFullError,
    FencedError,
    HeadwaterError,
    InvalidRequestError,
    LogFailedError,
    PartitionReadonlyError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.model.stream import Stream

# The most specific error class first: (HTTP-like code, JetStream's error number).
_CODES: Final[tuple[tuple[type[HeadwaterError], int, int], ...]] = (
    (RecordTooLargeError, 400, 10054),  # message size exceeds maximum allowed
    (DiskFullError, 500, 10047),  # insufficient storage resources available
    (LogFailedError, 503, 10077),  # stream store failed
    (PartitionReadonlyError, 400, 10109),  # invalid operation on sealed stream
    (InvalidRequestError, 400, 10003),  # bad request
    (FencedError, 503, 10008),  # system temporarily unavailable
    (UnavailableError, 503, 10023),  # insufficient resources
    (CorruptDataError, 500, 10077),
    (HeadwaterError, 500, 10077),
)


class PubAckEncoder:
    """Encodes acks of one partition; the parts that do not change are encoded once per epoch."""

    __slots__ = ("_head", "_refusal", "_sender", "_tail", "_tails")

    def __init__(self, stream: Stream, partition: int) -> None:
        """Encode the parts that never change."""
        self._head = f'{{"stream":{json.dumps(stream.name)},"seq":'.encode()
        self._tail = f',"partition":{partition},"stream_uuid":"{stream.uuid}"}}'.encode()
        self._tails: dict[LeaderEpoch, bytes] = {}
        self._refusal = {"stream": stream.name, "seq": 0}  # both are in JetStream's errors, too
        self._sender = {"partition": partition, "stream_uuid": stream.uuid}

    def encode(self, offset: Offset, leader_epoch: LeaderEpoch, *, duplicate: bool) -> bytes:
        """Return the ack of one record."""
        tail = self._tails.get(leader_epoch)
        if tail is None:
            tail = b',"leader_epoch":%d%b' % (leader_epoch, self._tail)
            self._tails = {leader_epoch: tail}
        if duplicate:
            tail = b',"duplicate":true' + tail
        return b'%b%d,"offset":%d%b' % (self._head, offset + 1, offset, tail)

    def encode_error(self, error: HeadwaterError) -> bytes:
        """Return the refusal of one record: JetStream's fields, our error class and its facts."""
        code, number = _codes(error)
        body: dict[str, Any] = {
            "error": {
                "code": code,
                "err_code": number,
                "description": error.message,
            },
            **self._refusal,
            # Not inside "error": JetStream clients refuse an error with unknown fields.
            "headwater": {
                "type": type(error).__name__,
                "retriable": error.retriable,
                "facts": error.facts,
                **self._sender,
            },
        }
        return json.dumps(body, sort_keys=True, default=str).encode()


def _codes(error: HeadwaterError) -> tuple[int, int]:
    if isinstance(error, ConditionFailedError) and "err_code" in error.facts:
        return error.facts["code"], error.facts["err_code"]
    return next((code, number) for kind, code, number in _CODES if isinstance(error, kind))


def encode_publishes(messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the NATS protocol bytes that publish each (subject, payload), for one write.

    Each subject must have passed :func:`is_publish_subject`: it is not checked again here.
    """
    return b"".join(
        [b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload) for subject, payload in messages]
    )


def is_publish_subject(subject: bytes) -> bool:
    """Tell whether the bytes may follow ``PUB``: one to 1024 visible bytes, no wildcard token.

    An AckInbox comes from a publisher's payload. If it had a line end, the NATS server would read
    the rest of it as another command.
    """
    if not 0 < len(subject) <= 1024 or not subject.isascii():
        return False
    if min(subject) <= 0x20 or max(subject) >= 0x7F:
        return False
    return not any(token in {b"", b"*", b">"} for token in subject.split(b"."))
