"""Checks the access of calls of Liftbridge's API: who calls, and which resources the call names.

A connection has one guard. The caller of each call is in its metadata (``authorization: Bearer …``)
or in the connection's client certificate. The guard parses a request to see what it names; the code
that serves the call parses it again. A caller without an identity is refused when the call opens,
before its message is received. The right to publish is checked before the partition is looked up,
so a refusal does not tell whether the stream exists. When grants have changed, the partition counts
as not looked up, so the right is checked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from broker.adapters.access.gate import Gate
from broker.adapters.access.pace import Pace
from broker.adapters.liftbridge.http2 import Messages
from broker.adapters.liftbridge.stream_calls import Listing, Unary, decode
from broker.adapters.liftbridge.subscribing import Subscriber
from broker.adapters.liftbridge.targets import PublishTarget, PublishTargets
from broker.core.access.certificates import principal_of
from broker.core.metadata.group_state import group_named_by
from broker.errors import AccessError, UnknownStreamError
from broker.model.access import ANONYMOUS, Caller, Kind
from broker.wire.liftbridge import api_pb2 as api

CHECKS_MAX: Final = 4096  # of one call: streams whose right is asked without a look-up
_Values = Mapping[str, Any]


def _stream(request: Any) -> _Values:
    return {"name": request.stream}


def _name(request: Any) -> _Values:
    return {"name": request.name}


def _inbox(subject: str) -> _Values:
    return {"ackInbox": subject} if subject else {}


def _group(request: Any) -> _Values:
    return {"group": request.groupId}


def _cursor(request: Any) -> _Values:
    group = group_named_by(request.cursorId)
    return _stream(request) if group is None else {**_stream(request), "group": group}


def _subscription(request: Any) -> _Values:
    group = request.consumer.groupId
    return {**_stream(request), "group": group} if group else _stream(request)


# The message type of each call with one request, and the resources that the request names.
_REQUESTS: Final[Mapping[str, tuple[Any, Callable[[Any], _Values]]]] = {
    "CreateStream": (
        api.CreateStreamRequest,
        lambda one: {"name": one.name, "subject": one.subject},
    ),
    "DeleteStream": (api.DeleteStreamRequest, _name),
    "PauseStream": (api.PauseStreamRequest, _name),
    "SetStreamReadonly": (api.SetStreamReadonlyRequest, _name),
    "FetchMetadata": (api.FetchMetadataRequest, lambda _: {}),
    "FetchPartitionMetadata": (api.FetchPartitionMetadataRequest, _stream),
    "PublishToSubject": (
        api.PublishToSubjectRequest,
        lambda one: {"subject": one.subject, **_inbox(one.ackInbox)},
    ),
    "Subscribe": (api.SubscribeRequest, _subscription),
    "SetCursor": (api.SetCursorRequest, _cursor),
    "FetchCursor": (api.FetchCursorRequest, _cursor),
    "JoinConsumerGroup": (
        api.JoinConsumerGroupRequest,
        # The names stay in the message: a stranger may send millions.
        lambda one: {"group": one.groupId, "streams": one.streams},
    ),
    "LeaveConsumerGroup": (api.LeaveConsumerGroupRequest, _group),
    "FetchConsumerGroupAssignments": (api.FetchConsumerGroupAssignmentsRequest, _group),
    "ReportConsumerGroupCoordinator": (api.ReportConsumerGroupCoordinatorRequest, _group),
}


def named_in(call: str, payload: bytes) -> _Values:
    """Return the resources that the request of a call names.

    Raises:
        StatusError: the bytes are not such a request.
    """
    found = _REQUESTS.get(call)
    if found is None:
        return {}
    kind, values = found
    return values(decode(kind, payload))


class Guard:
    """Guards the calls of one connection. Any thread, once :meth:`connected` was called."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._certificate: str | None = None
        self._peer = ""

    def connected(self, certificate: Mapping[str, Any] | None, address: object) -> bool:
        """Note the verified certificate of the client, as ``ssl`` gives it, and its address.

        Returns whether the certificate proves who calls; it need not where nobody is asked.
        """
        self._certificate = principal_of(certificate or {})
        if isinstance(address, tuple):
            self._peer = f"{address[0]}:{address[1]}"
        if self._certificate is None or self._gate.is_open:
            return False
        with suppress(AccessError):
            return self.knows(
                self._gate.caller(
                    authorization=None, certificate=self._certificate, peer=self._peer
                )
            )
        return False

    def caller(self, path: str, authorization: str | None) -> Caller:
        """Return who opens a call, and count the call.

        Raises:
            UnauthenticatedError: its token is not valid, or it has none and the call is not open to
                everybody.
            QuotaExceededError: the caller has made as many calls as its quota lets it, for now.
        """
        caller = self._gate.caller(
            authorization=authorization, certificate=self._certificate, peer=self._peer
        )
        self._gate.count_request(caller)
        self._gate.admit_known(caller, path.rpartition("/")[2])
        return caller

    def knows(self, caller: Caller) -> bool:
        """Tell whether a caller has proved who they are, or need not."""
        return self._gate.is_open or caller.principal != ANONYMOUS

    def enter(self, caller: Caller) -> None:
        """Count a call that stays open, until :meth:`exit`; raises QuotaExceededError."""
        self._gate.enter(caller)

    def exit(self, caller: Caller) -> None:
        """Count an open call no more."""
        self._gate.exit(caller)

    def publish_pace(self, caller: Caller) -> Pace:
        """Return the pace at which the messages of a call may be stored."""
        return self._gate.pace(caller, "publish")

    def unary(self, caller: Caller, path: str, work: Unary) -> Unary:
        """Return the work with a check before it."""
        if self._gate.is_open:
            return work
        call = path.rpartition("/")[2]

        def checked(payload: bytes) -> bytes:
            with self._gate.call(caller, call, named_in(call, payload)):
                return work(payload)

        return checked

    def listing(self, caller: Caller, path: str, work: Listing) -> Unary:
        """Do the same for a call whose answer has only what the caller may describe."""

        def shown(kind: Kind, names: Sequence[str]) -> Sequence[str]:
            return self._gate.shown(caller, kind, names)

        return self.unary(caller, path, lambda payload: work(payload, shown))

    def to_subject(self, caller: Caller, payload: bytes) -> None:
        """Raise AccessError if the caller may not publish on the subject of a request."""
        if not self._gate.is_open:
            values = named_in("PublishToSubject", payload)
            self._gate.admit(caller, "PublishToSubject", values)

    def inbox(self, caller: Caller, subject: str) -> None:
        """Raise AccessError if the caller may not let the broker publish on an inbox."""
        if not self._gate.is_open:
            self._gate.admit(caller, "PublishToSubject", _inbox(subject))

    def subscriber(
        self, caller: Caller, request: api.SubscribeRequest, sink: Subscriber
    ) -> Subscriber:
        """Return a subscriber whose right is checked again while it reads at its pace.

        Raises:
            AccessError: the caller may not read the stream, or not for the group that is named.
        """
        if self._gate.is_open:
            return sink
        check = self._gate.admit_watched(caller, "Subscribe", _subscription(request))
        return _Watched(sink, check, self._gate.pace(caller, "read"))

    def publisher(self, caller: Caller, path: str, targets: PublishTargets) -> PublishTargets:
        """Return the partitions that a caller may publish to, with a check before each."""
        if self._gate.is_open:
            return targets
        return _GuardedTargets(self._gate, caller, path.rpartition("/")[2], targets)


class _Watched:
    """A subscriber whose right is checked again and again, and who reads at its pace."""

    def __init__(self, sink: Subscriber, check: Callable[[], None], pace: Pace) -> None:
        self._sink = sink
        self._check = check
        self._pace = pace

    def stopped(self) -> bool:
        """See ``Subscriber.stopped``; raises AccessError once the caller may not read any more."""
        self._check()
        return self._sink.stopped()

    def send(self, messages: Messages) -> None:
        """See ``Subscriber.send``; raises AccessError as :meth:`stopped`."""
        if self._pace.wait(len(messages), self.stopped):
            self._sink.send(messages)


class _GuardedTargets:
    """The partitions that one caller may publish to; implements ``PublishTargets``."""

    def __init__(self, gate: Gate, caller: Caller, call: str, targets: PublishTargets) -> None:
        self._gate = gate
        self._caller = caller
        self._call = call
        self._targets = targets
        self._lock = threading.Lock()  # of changes of the checks
        self._checks: dict[str, Callable[[], None]] = {}  # of streams that are there; a 2 KB each

    def known(self, stream: str, partition: int) -> PublishTarget | None:
        """See ``PublishTargets.known``."""
        self._admit(stream)
        return self._targets.known(stream, partition)

    def find(self, stream: str, partition: int) -> PublishTarget:
        """See ``PublishTargets.find``. The right is asked again: the thread came later."""
        check = self._checks.get(stream)
        if check is None:
            self._admit(stream)
        else:
            check()  # `known` has admitted the caller, and the audit has heard of it
        try:
            return self._targets.find(stream, partition)
        except UnknownStreamError:  # a caller may name ever new ones
            with self._lock:
                self._checks.pop(stream, None)
            raise

    def rests(self, stream: str, partition: int) -> bool:
        """See ``PublishTargets.rests``."""
        check = self._checks.get(stream)
        if check is None:
            return True  # the right is asked when it is looked up
        try:
            check()
        except AccessError:
            return True  # it is looked up again, and refused there
        return self._targets.rests(stream, partition)

    def _admit(self, stream: str) -> None:
        values = {"name": stream}
        check = self._gate.admit_watched(self._caller, self._call, values)
        with self._lock:
            if stream not in self._checks and len(self._checks) >= CHECKS_MAX:
                del self._checks[next(iter(self._checks))]  # look-ups may be refused, too
            self._checks[stream] = check
