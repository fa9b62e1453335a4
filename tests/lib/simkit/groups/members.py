"""A process that reads as a member: the product's core, a network that delays, an application."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from broker.errors import HeadwaterError, NoAnswerError
from broker.model.groups import ToldClaim
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from checkkit.check_groups import GroupHistory, SentCommit
from headwater.client.group.events import (
    Beaten,
    BeatRequest,
    BeginReading,
    ClaimsLost,
    CloseAsked,
    CommitRequest,
    Event,
    GivenUp,
    Joined,
    JoinRequest,
    LeaveRequest,
    Left,
    MembershipEnded,
    Polled,
    PositionsStored,
    Reported,
    ReportRequest,
    Request,
    RequestFailed,
    StopReading,
    Ticked,
)
from headwater.client.group.held import MemberTerms
from headwater.client.group.member import MemberCore
from simkit.groups.brokers import SimBroker, SimClock

TIMEOUT_MS = 1_000
PROCESSING_MS_MAX = 8_000


@dataclass(slots=True)
class Network:
    """How members reach brokers."""

    brokers: dict[BrokerId, SimBroker]
    at: Callable[[int, Callable[[], None]], None]  # does something later, at a time
    clock: SimClock
    chance: random.Random

    def delay_ms(self) -> int:
        """Return how long a message is under way."""
        return self.chance.choice((1, 2, 5, 20, 100)) if self.chance.random() < 0.9 else 700


class SimMember:
    """One process."""

    def __init__(
        self,
        name: str,
        instance: str,
        network: Network,
        history: GroupHistory,
        ends: list[int],
        *,
        static: bool,
        session_ms: int,
    ) -> None:
        self.name, self.instance, self.static = name, instance, static
        self.is_over = False
        self.is_cut = False
        self.paused_until_ms = 0
        self.session_ms = session_ms
        self._network, self._history, self._ends = network, history, ends
        self._chance, self._clock = network.chance, network.clock
        commit_ms = self._chance.choice((200, 1_000, 3_000))
        self.core = MemberCore(
            MemberTerms(
                session_ms=session_ms, commit_ms=commit_ms, processing_ms_max=PROCESSING_MS_MAX
            )
        )
        self._reads: dict[str, tuple[ToldClaim, int]] = {}
        self._for_app: list[BeginReading | StopReading | ClaimsLost] = []
        self._take(Ticked())

    # ------------------------------------------------------------------ process

    def kill(self) -> None:
        """End the process: nothing that it knew is left."""
        self.is_over = True

    def close(self) -> None:
        """Stop as an application does."""
        self._call_backs()
        self._take(Polled())
        self._reads.clear()
        self._take(CloseAsked(leave=not self.static or self._chance.random() < 0.3))

    @property
    def is_running(self) -> bool:
        """Whether the process does anything now."""
        return not self.is_over and self._clock.ms >= self.paused_until_ms

    def tick(self) -> None:
        """Let its threads look at the clock."""
        if self.is_running:
            self._take(Ticked())

    def app_turn(self) -> int:
        """Let the application ask for records once; return when it asks again."""
        if self.is_running and self.core.phase != "leaving":
            self._take(Polled())
            self._call_backs()
            self._read()
        return self._clock.ms + self._chance.choice((10, 50, 200, 400, 1_500))

    def _call_backs(self) -> None:
        while self._for_app:
            one = self._for_app.pop(0)
            if isinstance(one, BeginReading):
                for claim in one.claims:
                    at = 0 if claim.position is None else claim.position.offset
                    self._reads[claim.key] = (claim, int(at))
                continue
            for claim in one.claims:
                self._reads.pop(claim.key, None)
                if isinstance(one, ClaimsLost):
                    self._history.lost.append((claim.key, claim.epoch, self._clock.ms))
            if isinstance(one, StopReading):
                self._take(GivenUp(tuple(claim.key for claim in one.claims)))

    def _read(self) -> None:
        unread = [
            key
            for key, (claim, at) in sorted(self._reads.items())
            if at < self._ends[claim.partition]
        ]
        if not unread:
            return
        key = self._chance.choice(unread)
        claim, at = self._reads[key]
        end = min(self._ends[claim.partition], at + self._chance.randint(1, 40))
        if self.core.give(key, claim.epoch, Offset(end), 1, self._clock.ms):
            self._reads[key] = (claim, end)
            self._history.give(
                key, self.instance, epoch=claim.epoch, start=at, end=end, at=self._clock.ms
            )

    # ------------------------------------------------------------------ network

    def _take(self, event: Event) -> None:
        for effect in self.core.step(event, self._clock.ms):
            match effect:
                case BeginReading() | StopReading() | ClaimsLost():
                    self._for_app.append(effect)
                case MembershipEnded():
                    self.is_over = True
                case (
                    JoinRequest()
                    | BeatRequest()
                    | ReportRequest()
                    | CommitRequest()
                    | LeaveRequest()
                ):
                    self._send(effect)

    def _send(self, request: Request) -> None:
        commits = self._noted(request)
        sent_ms, network = self._clock.ms, self._network
        names = sorted(network.brokers)
        if isinstance(request, BeatRequest) and request.coordinator in network.brokers:
            names = [BrokerId(request.coordinator)]
        if isinstance(request, ReportRequest):
            names = [one for one in names if one != request.coordinator] or names
        broker = network.brokers[BrokerId(self._chance.choice(names))]
        answered = [False]

        def answer(event: Event) -> None:
            if answered[0] or self.is_over:
                return
            if self._clock.ms < self.paused_until_ms:
                network.at(self.paused_until_ms, lambda: answer(event))
                return
            answered[0] = True
            if isinstance(event, PositionsStored):
                for one in commits:
                    one.confirmed_at = self._clock.ms
            self._take(event)

        def perform() -> None:
            if not broker.is_up or self.is_cut:
                return
            if self._clock.ms < broker.paused_until_ms:
                network.at(broker.paused_until_ms, perform)
                return
            try:
                event = self._performed(request, broker, sent_ms)
            except HeadwaterError as error:
                event = RequestFailed(request, error)
            if isinstance(event, Beaten):
                beat = (sent_ms, self._clock.ms)
                self._history.heartbeats.setdefault(self.instance, []).append(beat)
            if not self.is_cut and self._chance.random() > 0.03:
                network.at(self._clock.ms + network.delay_ms(), lambda: answer(event))

        lost = RequestFailed(request, NoAnswerError("no answer"))
        network.at(sent_ms + TIMEOUT_MS, lambda: answer(lost))
        network.at(sent_ms + network.delay_ms(), perform)
        if self._chance.random() < 0.03:  # the client has asked two brokers, and one stood still
            network.at(sent_ms + self._chance.choice((1_000, 3_000, 9_000)), perform)

    def _noted(self, request: Request) -> list[SentCommit]:
        if not isinstance(request, CommitRequest):
            return []
        return [
            self._history.commit(
                one.key, self.instance, epoch=one.epoch, offset=one.offset, at=self._clock.ms
            )
            for one in request.writes
            if one.offset is not None
        ]

    def _performed(self, request: Request, broker: SimBroker, sent_ms: int) -> Event:
        members, who = broker.members, ("g", self.name, self.instance)
        match request:
            case JoinRequest(membership):
                place = members.join(
                    *who,
                    ["s"],
                    session_ms=self.session_ms,
                    static=self.static,
                    owner="",
                    membership=membership,
                )
                return Joined(place.coordinator, place.epoch)
            case BeatRequest(_, epoch):
                return Beaten(members.heartbeat(*who, epoch), sent_ms)
            case ReportRequest(coordinator):
                return Reported(members.report(*who, coordinator).coordinator)
            case CommitRequest(writes):
                members.commit(*who, writes)
                return PositionsStored()
            case LeaveRequest(membership):
                members.leave(*who, membership)
                return Left()
