"""A subscription over several calls: where the next call begins, and when the subscription ends.

A server that goes away ends a call, not the subscription: the next call asks for the offset behind
the last message. A subscription to new messages is one from an offset as soon as the leader has
told its newest one, so that a broken connection skips nothing.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    NotLeaderError,
    UnavailableError,
    UnknownStreamError,
)
from broker.wire.liftbridge import api_pb2 as api
from headwater.liftbridge.requests import subscribe_request
from headwater.liftbridge.values import Message, Since, Until

Next = Literal["again", "done"]
_AGAIN: Final = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN"}
_BEHIND: Final = "Stop offset is before start offset"  # as Liftbridge and Headwater say it


class FollowedPartition:
    """The state of one subscription. Owner: the task that makes its calls."""

    def __init__(
        self,
        stream: str,
        partition: int,
        start: Since,
        stop: Until,
        *,
        read_replica: bool = False,
        resume: bool = False,
        reverse: bool = False,
        patience_s: float = 30.0,
    ) -> None:
        """``patience_s`` is how long servers may refuse before the subscription gives up."""
        self.stream = stream
        self.partition = partition
        self.read_replica = read_replica
        self._start = start
        self._stop = stop
        self._resume = resume
        self._reverse = reverse
        self._patience_s = patience_s
        self._until_s: float | None = None  # when it gives up, while no call succeeds
        self._offset_min = -1  # lower messages are dropped: a server may begin lower than asked
        self.accepted = False  # the call that runs was accepted

    @property
    def needs_newest(self) -> bool:
        """Whether the leader's newest offset is to be asked for before the first call."""
        return self._start.kind == "new" and not self._reverse

    def newest(self, offset: int) -> None:
        """Begin behind the newest offset; -1: of an empty log."""
        self._start = Since.offset(offset + 1)
        self._offset_min = offset + 1

    def request(self, consumer: api.Consumer | None = None) -> api.SubscribeRequest:
        """Return the request of the next call."""
        self.accepted = False
        fields: dict[str, Any] = {"consumer": consumer} if consumer is not None else {}
        return subscribe_request(
            self.stream,
            self.partition,
            self._start,
            self._stop,
            readISRReplica=self.read_replica,
            resume=self._resume,
            reverse=self._reverse,
            **fields,
        )

    def handshaken(self) -> None:
        """Note that the server has accepted the call."""
        self.accepted = True
        self._until_s = None

    def wants(self, message: Message) -> bool:
        """Note a message; tell whether the subscriber gets it."""
        if not self._reverse:
            if message.offset < self._offset_min:
                return False
            self._offset_min = message.offset + 1
            self._start = Since.offset(message.offset + 1)
        else:
            self._start = Since.offset(message.offset - 1)
        return True

    def ended(self, code: str, text: str, now_s: float) -> Next:
        """Return whether another call is made, or the subscription is over.

        ``code`` is the name of gRPC's status.

        Raises:
            UnknownStreamError: there is no such stream, or it was deleted.
            InvalidRequestError: the request cannot be served.
            NotLeaderError: the partition is paused, or no server took the call in time.
            UnavailableError: no server was there in time.
        """
        if code == "OK":
            return "done"
        if code == "RESOURCE_EXHAUSTED":  # the stop, or the end of a partition that is read-only
            return "done"
        if code == "INVALID_ARGUMENT" and self._stop.kind != "offset" and text.startswith(_BEHIND):
            return "done"  # of a stop that the server chooses: nothing has come since the last call
        if code == "NOT_FOUND":
            raise UnknownStreamError(text, stream=self.stream)
        if code == "FAILED_PRECONDITION" and self.accepted:
            raise NotLeaderError(text)
        if code not in _AGAIN and code != "FAILED_PRECONDITION":
            raise InvalidRequestError(f"{self.stream}/{self.partition}: {code}: {text}")
        if self._over(now_s):
            kind: type[HeadwaterError] = (
                NotLeaderError if code == "FAILED_PRECONDITION" else UnavailableError
            )
            raise kind(
                f"no server serves {self.stream}/{self.partition}: the last one said {code}: {text}"
            )
        return "again"

    def finished(self) -> bool:
        """Whether a next call could only be refused, because the stop is behind."""
        if self._reverse:
            return self._start.value < 0
        return self._stop.kind == "offset" and self._offset_min > self._stop.value

    def _over(self, now_s: float) -> bool:
        if self._until_s is None:
            self._until_s = now_s + self._patience_s
        return now_s >= self._until_s
