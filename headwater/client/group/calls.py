"""Performs the requests of a group member, and returns their answers as events. Blocking.

Heartbeats go to the coordinator, everything else to any broker that answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from broker.errors import HeadwaterError
from broker.model.groups import MemberView
from headwater.client.address import Address
from headwater.client.brokers import Brokers
from headwater.client.group.events import (
    Beaten,
    BeatRequest,
    CommitRequest,
    Event,
    Joined,
    JoinRequest,
    LeaveRequest,
    Left,
    PositionsStored,
    Reported,
    ReportRequest,
    Request,
    RequestFailed,
)

_CALL_MS: Final = 10_000


def monotonic_ms() -> int:
    """Return a time that never goes back, and goes on while the machine is suspended.

    A member must not believe, after its machine was suspended, that its session has just begun.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000


class MemberCalls:
    """The requests of one member. Any thread."""

    def __init__(
        self,
        brokers: Brokers,
        *,
        group: str,
        member: str,
        instance: str,
        streams: Sequence[str],
        session_ms: int,
        static: bool,
        owner: str,
    ) -> None:
        self._brokers = brokers
        self._who = {"group": group, "member": member, "instance": instance}
        self._terms = {
            "streams": list(streams),
            "session_ms": session_ms,
            "static": static,
            "owner": owner,
        }
        self._beat_ms_max = max(500, session_ms // 4)

    def perform(self, request: Request) -> Event:
        """Perform a request; a failure is an event, too."""
        try:
            return self._perform(request)
        except HeadwaterError as error:
            return RequestFailed(request, error)

    def _perform(self, request: Request) -> Event:
        match request:
            case JoinRequest(membership):
                self._brokers.discover()
                told = self._any("join_group", {**self._terms, **_counted(membership)})
                return Joined(told["coordinator"], told["epoch"])
            case BeatRequest(coordinator, epoch):
                return self._beat(coordinator, epoch)
            case ReportRequest(coordinator):
                silent = self._address(coordinator)
                if silent is not None:
                    self._brokers.avoid(silent)
                told = self._any("report_coordinator", {"coordinator": coordinator})
                return Reported(told["coordinator"])
            case CommitRequest(writes):
                self._any("commit_positions", {"positions": [asdict(one) for one in writes]})
                return PositionsStored()
            case LeaveRequest(membership):
                self._any("leave_group", _counted(membership))
                return Left()

    def _beat(self, coordinator: str, epoch: int) -> Event:
        sent_ms = monotonic_ms()
        at = self._address(coordinator) or self._brokers.known()[0]
        values = {**self._who, "epoch": epoch}
        connection = self._brokers.connection(at)
        (told,) = connection.action("group_heartbeat", values, timeout_ms=self._beat_ms_max)
        return Beaten(MemberView.from_dict(told), sent_ms)

    def _address(self, broker: str) -> Address | None:
        found = self._brokers.address_of(broker)
        if found is None:
            self._brokers.discover(again=True)
            found = self._brokers.address_of(broker)
        return found

    def _any(self, action: str, values: dict[str, Any]) -> dict[str, Any]:
        (told,) = self._brokers.action(action, {**self._who, **values}, timeout_ms=_CALL_MS)
        return told


def _counted(membership: int) -> dict[str, int]:
    """Return the field of a membership, which older brokers do not know; the first has none."""
    return {"membership": membership} if membership else {}
