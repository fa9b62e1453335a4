"""The answers that a NATS publisher gets: which stream sent each one, and what it means. Pure.

Several streams may record one subject, and each may answer. An answer counts only if the stream
and the partition that the publisher means have sent it: another stream's disk proves nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from broker.errors import HeadwaterError, InvalidRequestError, UnavailableError, from_wire
from broker.model.stream import Stream
from broker.model.subjects import matches


@dataclass(frozen=True, slots=True)
class Foreign:
    """The answer of another stream or partition, or of a server that is not Headwater."""

    sender: str


class AnswersOf:
    """Reads the answers to messages for one stream."""

    def __init__(self, stream: Stream) -> None:
        """Count the answers of this incarnation of the stream only."""
        self.stream = stream
        config = stream.config
        self._partitions = {config.partition_subject(n): n for n in range(config.partitions)}
        self._head = f'{{"stream":{json.dumps(stream.name)},"seq":'.encode()
        self._tails = [
            f',"partition":{number},"stream_uuid":"{stream.uuid}"}}'.encode()
            for number in range(config.partitions)
        ]

    def partition_of(self, subject: str) -> int:
        """Return the partition that records a subject.

        Raises:
            InvalidRequestError: the stream does not record the subject.
        """
        number = self._partitions.get(subject)
        if number is not None:
            return number
        if matches(self.stream.config.subject, subject):
            return 0
        raise InvalidRequestError(
            f"stream {self.stream.name!r} does not record subject {subject!r}; it records "
            f"{', '.join(list(self._partitions)[:4])}",
            subject=subject,
        )

    def parse(self, partition: int, data: bytes) -> bool | HeadwaterError | Foreign:
        """Return whether the record was a duplicate; or its error; or Foreign."""
        if data.startswith(self._head) and data.endswith(self._tails[partition]):
            return b'"duplicate":true' in data  # the common answer; parsing JSON would be slow
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or not ("error" in body or "stream" in body):
            return InvalidRequestError(f"the answer is not a PubAck: {data[:80]!r}")
        ours = body.get("headwater")  # class and facts; beside "error", as JetStream clients need
        told = {**body, **(ours if isinstance(ours, dict) else {})}
        error = body.get("error")
        if error is None:
            if self._is_sender(told, partition):
                return bool(body.get("duplicate", False))
            return Foreign(_sender(told))
        if not self._may_be_sender(told, partition):
            return Foreign(_sender(told))
        return _typed_error(
            (ours if isinstance(ours, dict) else {})
            | (error if isinstance(error, dict) else {"description": error})
        )

    def _is_sender(self, told: dict[str, Any], partition: int) -> bool:
        sender = (told.get("stream"), told.get("partition"), told.get("stream_uuid"))
        return sender == (self.stream.name, partition, self.stream.uuid)

    def _may_be_sender(self, told: dict[str, Any], partition: int) -> bool:
        """Tell whether an error names no other sender; brokers of older releases name none."""
        stream = self.stream
        assumed = {"stream": stream.name, "partition": partition, "stream_uuid": stream.uuid}
        return self._is_sender({**assumed, **told}, partition)


def _sender(told: dict[str, Any]) -> str:
    name, partition, uuid = (told.get(one) for one in ("stream", "partition", "stream_uuid"))
    if partition is None:
        return f"stream {name!r}, which is not Headwater's"
    return f"stream {name!r} (uuid {uuid}), partition {partition}"


def _typed_error(error: dict[str, Any]) -> HeadwaterError:
    """Return Headwater's own error if the answer names one, else the nearest for its code."""
    message = str(error.get("description", "no reason given"))
    named = from_wire(
        json.dumps(
            {"error": error.get("type"), "message": message, "facts": error.get("facts", {})}
        )
    )
    if named is not None:
        return named
    code = error.get("code")
    if isinstance(code, int) and code >= 500:
        return UnavailableError(f"the server answered: {message}")
    return InvalidRequestError(f"the server refused the record: {message}")
