"""The gate of one door: identifies callers, checks their grants, and writes the audit records.

The table of ``broker/core/access/doors.py`` says which actions on which resources a call needs;
``AccessApi`` decides. A door identifies the caller by a header or a certificate, then runs each
call inside :meth:`Gate.call`. A call that stays open repeats the check that
:meth:`Gate.admit_watched` returns, which is cheap while no grant has changed. Without access
control the gate lets every call pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from broker.adapters.access.pace import Pace
from broker.core.access.doors import DOORS, Ask, CallRow
from broker.errors import AccessDeniedError, AccessError, QuotaExceededError
from broker.model.access import CLUSTER, NOBODY, Caller, Kind, Resource, told
from broker.model.quota import Flow
from broker.ports.access import AccessApi, AuditSink

_RESOURCES_MAX: Final = 1024  # of one kind in a call
_RESOURCES_TOLD_MAX: Final = 16
_BEARER: Final = "bearer "
_ANY_STREAM: Final = Resource("stream", "*")  # only who may use all streams may use one so named


@dataclass(frozen=True, slots=True)
class _NeededRight:
    """One right on one resource that a call needs."""

    ask: Ask
    resource: Resource
    by: str = ""  # how the request names the stream, if not by its name
    found: bool = True


class Gate:
    """Asks for one door. Any thread."""

    def __init__(self, door: str, access: AccessApi | None, audit: AuditSink | None = None) -> None:
        """Without ``access``, or if it is not enabled, everybody may do everything."""
        self._door = door
        self._rows = DOORS[door]
        self._access = access if access is not None and access.enabled else None
        self._audit = audit

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything."""
        return self._access is None

    def caller(
        self, *, authorization: str | None, certificate: str | None = None, peer: str = ""
    ) -> Caller:
        """Return who calls, by the value of a header ``authorization`` or by a certificate.

        Raises:
            UnauthenticatedError: a token was given, and it is not valid.
        """
        if self._access is None:
            return NOBODY
        bearer = None
        if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
            bearer = authorization[len(_BEARER) :].strip()
        try:
            return self._access.identify(bearer=bearer, certificate=certificate, peer=peer)
        except AccessError as refused:
            self._note(Caller(peer=peer), "identify", (), type(refused).__name__)
            raise

    def count_request(self, caller: Caller) -> None:
        """Count a call against the caller's quota.

        Raises:
            QuotaExceededError: the caller has to wait; the error says how long.
        """
        if self._access is not None:
            with self._noted(caller):
                self._access.usage.request(caller)

    def enter(self, caller: Caller) -> None:
        """Count a call that stays open, until :meth:`exit`.

        Raises:
            QuotaExceededError: the caller has as many open calls as it may.
        """
        if self._access is not None:
            with self._noted(caller):
                self._access.usage.enter(caller)

    def exit(self, caller: Caller) -> None:
        """Count an open call no more."""
        if self._access is not None:
            self._access.usage.exit(caller)

    @contextmanager
    def _noted(self, caller: Caller) -> Iterator[None]:
        """Note a refusal by a quota, once in a minute: a caller may ask thousands of times."""
        assert self._access is not None, "the gate is not open"
        try:
            yield
        except QuotaExceededError as refused:
            limit = str(refused.facts.get("limit", ""))
            left_out = self._access.usage.is_to_note(caller, limit)
            if self._audit is not None and left_out is not None:
                named = [f"limit:{limit}", *([f"left_out:{left_out}"] if left_out else [])]
                result = type(refused).__name__
                self._audit.note(
                    caller=caller, door=self._door, call="quota", resources=named, result=result
                )
            raise

    @contextmanager
    def opened(self, caller: Caller) -> Iterator[None]:
        """Count a call as open during the block. Raises as :meth:`enter`."""
        self.enter(caller)
        try:
            yield
        finally:
            self.exit(caller)

    def pace(self, caller: Caller, flow: Flow) -> Pace:
        """Return the pace at which the pieces of an open call may pass."""
        return Pace(None if self._access is None else self._access.usage, caller, flow)

    def admit_known(self, caller: Caller, call: str) -> None:
        """Check that a caller has an identity, before the request of a call is received or copied.

        A call that is open to everybody passes. The rights are asked later, once it is known what
        the request names.

        Raises:
            UnauthenticatedError: the caller has no identity, or its proof is not valid any more.
        """
        row = self._rows.get(call)
        if self._access is None or (row is not None and row.way == "open"):
            return
        try:
            self._access.require_known(caller)
        except AccessError as refused:
            self._note(caller, told(call), (), type(refused).__name__)
            raise

    @contextmanager
    def call(self, caller: Caller, call: str, values: Mapping[str, Any]) -> Iterator[None]:
        """Run a call if the caller may make it; record its result in the audit.

        Raises:
            AccessError: the caller may not.
        """
        if self._access is None:
            yield
            return
        row = self._rows.get(call)
        resources = () if row is None else self._asked(row, values)
        try:
            self._require(caller, call, row, resources)
            yield
        except Exception as error:
            if row is None or row.audited or isinstance(error, AccessError):
                self._note(caller, call, resources, type(error).__name__)
            raise
        if row is not None and row.audited:
            self._note(caller, call, resources, "ok")

    def admit(self, caller: Caller, call: str, values: Mapping[str, Any]) -> None:
        """Check a call; the audit records the call now, not at its end.

        Raises:
            AccessError: the caller may not.
        """
        with self.call(caller, call, values):
            pass

    def admit_watched(
        self, caller: Caller, call: str, values: Mapping[str, Any]
    ) -> Callable[[], None]:
        """Admit a call that stays open; return its check: AccessError once the caller may not.

        The check knows what was in force before the call was admitted. So what changes while the
        call is decided, or while the audit records it, is seen by the first check.

        Raises:
            AccessError: the caller may not begin the call.
        """
        check = self._watch(caller, call, values)
        self.admit(caller, call, values)
        return check

    def _watch(self, caller: Caller, call: str, values: Mapping[str, Any]) -> Callable[[], None]:
        access = self._access
        if access is None:
            return _pass
        row = self._rows.get(call)
        resources = () if row is None else self._asked(row, values)
        seen = access.version

        def check() -> None:
            nonlocal seen
            now = access.version
            if now is seen and not caller.expires_us:
                return
            try:
                self._require(caller, call, row, resources)
            except AccessError as refused:
                self._note(caller, call, resources, type(refused).__name__)
                raise
            seen = now

        return check

    def shown(self, caller: Caller, kind: Kind, names: Sequence[str]) -> list[str]:
        """Return the names that the caller may describe, of an answer that is filtered."""
        if self._access is None:
            return list(names)
        return [
            one for one in names if self._access.allows(caller, "describe", self._of(kind, one))
        ]

    # ------------------------------------------------------------------

    def _require(
        self,
        caller: Caller,
        call: str,
        row: CallRow | None,
        resources: Sequence[_NeededRight],
    ) -> None:
        assert self._access is not None, "the gate is not open"
        if row is None:  # a call that was added without a row: nobody may make it
            raise AccessDeniedError(
                f"the access rules of this broker do not name the call {call}, so nobody may make "
                "it: this is a bug of Headwater, please report it",
                principal=caller.principal,
            )
        if row.way == "open":
            return
        self._access.require_known(caller)
        if any(n > _RESOURCES_MAX for n in Counter(one.ask.kind for one in resources).values()):
            raise AccessDeniedError(
                f"a {call} that names more than {_RESOURCES_MAX} resources of one kind is "
                "nobody's to make",
                principal=caller.principal,
            )
        for one in resources:
            if one.by:
                self._require_unnamed(caller, call, one)
            else:
                self._access.require(caller, one.ask.action, one.resource, call)

    def _require_unnamed(self, caller: Caller, call: str, one: _NeededRight) -> None:
        """Ask for a right on a stream that the request does not name.

        The refusal is the same whether the stream is not there or may not be used. An unknown lease
        may be one that has ended, or that this broker has not heard of yet: every reader may ask.
        """
        assert self._access is not None, "the gate is not open"
        if one.ask.by == "lease" and not one.found and self._access.consumes_some(caller):
            return
        try:
            self._access.require(caller, one.ask.action, one.resource, call)
        except AccessDeniedError:
            raise AccessDeniedError(
                f"{caller.principal!r} may not {one.ask.action} the stream of {one.by}, if there "
                "is one",
                principal=caller.principal,
                action=one.ask.action,
            ) from None

    def _asked(self, row: CallRow, values: Mapping[str, Any]) -> tuple[_NeededRight, ...]:
        return tuple(
            self._named(ask, name)
            for ask in row.asks
            for name in islice(ask.names(values), _RESOURCES_MAX + 1)
        )

    def _named(self, ask: Ask, name: str) -> _NeededRight:
        assert self._access is not None, "the gate is not open"
        if ask.by == "name":
            return _NeededRight(ask, self._of(ask.kind, name))
        by_lease = ask.by == "lease"
        find = self._access.stream_of_lease if by_lease else self._access.stream_of_uuid
        found = find(name)
        resource = _ANY_STREAM if found is None else self._of("stream", found)
        return _NeededRight(ask, resource, by=f"{ask.by} {told(name)}", found=found is not None)

    def _of(self, kind: Kind, name: str) -> Resource:
        assert self._access is not None, "the gate is not open"
        if kind == "stream":
            return self._access.stream(name)
        return Resource(kind, CLUSTER if kind == "cluster" else name)

    def _note(
        self, caller: Caller, call: str, resources: Sequence[_NeededRight], result: str
    ) -> None:
        if self._audit is None:
            return
        named = [
            f"{one.ask.kind}:{told(one.resource.name)}" if one.found else one.by
            for one in resources[:_RESOURCES_TOLD_MAX]
        ]
        if len(resources) > _RESOURCES_TOLD_MAX:
            named.append(f"and {len(resources) - _RESOURCES_TOLD_MAX} more")
        self._audit.note(caller=caller, door=self._door, call=call, resources=named, result=result)


def _pass() -> None:
    """Check nothing."""
