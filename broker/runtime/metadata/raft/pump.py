"""The pump of one Raft member: it feeds events to the core and carries out its effects.

A turn takes the waiting events and writes at most one save. The core gets "the save is durable" in
the next turn, which is due at once. So the core's clock includes the time of the fdatasync, and
events that came meanwhile share the next fdatasync. No answer leaves before the save that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import Consensus
from broker.core.raft.events import (
    Apply,
    Barrier,
    BarrierFailed,
    BarrierPassed,
    Diverged,
    Effect,
    Event,
    FloorReached,
    MemberAsks,
    Propose,
    Received,
    Refusal,
    Refused,
    Restore,
    RoleChanged,
    Save,
    Saved,
    Send,
    SnapshotMade,
    StateHashed,
    Tick,
    TransferLeadership,
    VotersChanged,
    VotersKept,
)
from broker.core.raft.member import Role
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    LogFailedError,
    MetadataCorruptError,
    NoRoomError,
    OverloadedError,
    UnavailableError,
)
from broker.model.raft import U64_MAX, Entry, NodeId
from broker.model.raft_messages import Forward
from broker.runtime.inbox import Mailbox
from broker.runtime.metadata.metadata_log import Subscriber
from broker.runtime.metadata.raft.applying import Applying
from broker.runtime.metadata.raft.saving import Saving
from broker.runtime.metadata.raft.transport import RaftTransport
from broker.runtime.metadata.raft.voters import ChangeAsked, GroupAsked, VoterDesk
from broker.runtime.metadata.raft.waiting import (
    NEVER,
    Reader,
    Reading,
    StandingAsked,
    Waiter,
    Waiting,
)

_log = structlog.get_logger(__name__)

INBOX_MAX: Final = 20_000
_BATCH_MAX: Final = 512
_FORWARD_RETRY_MS: Final = 1000
_SOON_MS: Final = 50
_TERM_OVER: Final = "this broker is no longer the active controller"


@dataclass(frozen=True, slots=True)
class Subscribing:
    """A request to be called at every change."""

    subscriber: Subscriber


Asked = (
    Waiter
    | Reader
    | GroupAsked
    | ChangeAsked
    | StandingAsked
    | Subscribing
    | Received
    | TransferLeadership
)


class RaftPump:
    """Any thread puts into ``mailbox``; one thread at a time takes turns."""

    def __init__(
        self,
        core: Consensus,
        config: RaftConfig,
        me: NodeId,
        *,
        mailbox: Mailbox[Asked],
        applying: Applying,
        saving: Saving,
        transport: RaftTransport | None,
        random: Callable[[int, int], int],
    ) -> None:
        """Prepare; the first turn starts the core. ``random(low, high)`` includes both ends."""
        self._core = core
        self._tick_ms = config.heartbeat_ms // 2
        self._mailbox = mailbox
        self._applying = applying
        self._saving = saving
        self._transport = transport
        self._voters = VoterDesk(config, me, core)
        self._waiting = Waiting(lambda: random(1, U64_MAX))
        self._reading = Reading()
        self._now_ms = 0
        self._next_tick_ms: int | None = None
        self._saved: int | None = None  # the newest durable save, if the core has not been told yet
        self.office: int | None = None  # the term that this member leads, or None
        self.failure: HeadwaterError | None = None  # set when the pump has ended

    # ------------------------------------------------------------------ turns

    def turn(self, now_ms: int) -> int:
        """Do the due work; return the time of the next turn. Blocks for one fdatasync at most.

        An exception ends the pump: this process has no metadata any more.
        """
        try:
            return self._turn(now_ms)
        except BaseException as crash:
            self.failure = (
                crash if isinstance(crash, HeadwaterError) else LogFailedError(f"Raft: {crash!r}")
            )
            raise

    def end(self, failure: HeadwaterError) -> None:
        """Close the journal and answer all callers with an error; no further turn is taken."""
        if self._mailbox.is_closed:
            return
        self.failure = failure
        self._saving.close()
        for item in self._mailbox.close():
            if isinstance(item, Waiter | Reader | GroupAsked | ChangeAsked):
                item.answered(failure)
        self._voters.fail_all(failure)
        self._waiting.fail_all(failure)
        self._reading.fail_all(failure)

    def _turn(self, now_ms: int) -> int:
        self._now_ms = now_ms
        if self._next_tick_ms is None:
            self._next_tick_ms = now_ms
            self._perform(self._core.start(now_ms))
        if self._saved is not None:
            number, self._saved = self._saved, None
            self._step(Saved(number))
        for item in self._mailbox.take(_BATCH_MAX):
            self._take(item)
        if now_ms >= self._next_tick_ms:
            self._next_tick_ms = now_ms + self._tick_ms
            self._step(Tick())
            self._voters.look()
            self._saving.checkpoint(now_ms, self._core.member.applied)
        self._try_waiting()
        self._saved = self._saving.write_next(now_ms)
        is_more = self._saved is not None or len(self._mailbox) > 0
        return now_ms if is_more else self._next_tick_ms

    def _take(self, item: Asked) -> None:
        match item:
            case Waiter():
                self._waiting.add(item)
            case Reader():
                self._reading.add(item)
            case Received() | TransferLeadership():
                self._step(item)
            case GroupAsked():
                item.answered(self._core.group)
            case ChangeAsked():
                self._step(self._voters.event_of(item))
            case StandingAsked(asker, told):
                self._step(MemberAsks(asker))
                told(self._core.member.standing)
            case Subscribing(subscriber):
                self._applying.subscribe(subscriber)

    def _step(self, event: Event) -> None:
        self._perform(self._core.step(self._now_ms, event))

    # ------------------------------------------------------------------ who waits

    def _try_waiting(self) -> None:
        for waiter in list(self._waiting.due(self._now_ms)):
            proposal = waiter.proposal
            assert proposal is not None
            if waiter.office is not None and waiter.office != self.office:
                self._waiting.settle(waiter, UnavailableError(_TERM_OVER))
                continue
            if not waiter.taken and not self._has_room(waiter):
                continue
            waiter.retry_ms = NEVER
            self._step(Propose(proposal))
            if waiter.retry_ms == NEVER:  # not refused: this member leads, and has told the others
                waiter.taken = True
        for number in self._reading.due(self._now_ms):
            self._step(Barrier(number))
        self._waiting.expire(self._now_ms)

    def _has_room(self, waiter: Waiter) -> bool:
        try:
            self._saving.require_room(len(waiter.payload), self._now_ms)
        except NoRoomError as error:
            if waiter.deadline_ms == NEVER:  # opening the session waits for disk space
                waiter.retry_ms = self._now_ms + _SOON_MS
                waiter.refused = error.message
            else:
                self._waiting.settle(waiter, error)
            return False
        return True

    def _refused(self, waiter: Waiter, reason: Refusal) -> None:
        leader = self._core.member.leader
        waiter.refused = f"refused by this member: {reason.value}"
        waiter.retry_ms = self._now_ms + _SOON_MS
        if reason is Refusal.TOO_LARGE:
            self._waiting.settle(waiter, InvalidRequestError("a metadata command is too large"))
        elif reason is Refusal.OVERLOADED and not waiter.taken and waiter.deadline_ms != NEVER:
            self._waiting.settle(waiter, OverloadedError("too much metadata is not committed yet"))
        elif waiter.office is not None:
            self._waiting.settle(waiter, UnavailableError(_TERM_OVER))
        elif reason is Refusal.NOT_LEADER and leader is not None and self._transport is not None:
            assert waiter.proposal is not None
            waiter.taken = True
            waiter.refused = f"{leader} did not commit it in time"
            waiter.retry_ms = self._now_ms + _FORWARD_RETRY_MS
            self._transport.send(leader, Forward(0, waiter.proposal))

    # ------------------------------------------------------------------ effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(target, message):
                    assert self._transport is not None
                    self._transport.send(target, message)
                case Save():
                    self._saving.add(effect)
                case Apply(entries):
                    self._apply(entries)
                case Restore(snapshot):
                    self._applying.restore(snapshot)
                case Refused(proposal, reason):
                    waiter = self._waiting.find(proposal)
                    if waiter is not None:
                        self._refused(waiter, reason)
                case BarrierPassed(number, index):
                    self._reading.passed(number, index)
                case BarrierFailed(number):
                    self._reading.failed(number, self._now_ms + _SOON_MS)
                case VotersChanged() | VotersKept():
                    self._voters.answered(effect)
                case RoleChanged():
                    self._role_changed(effect)
                case FloorReached():
                    _log.info("raft_floor_reached", applied_index=self._applying.index)
                    self._saving.drop_floor()
                case Diverged(index, ours, theirs):
                    raise MetadataCorruptError(
                        f"the metadata of this controller differs from its leader at {index}",
                        ours=ours,
                        theirs=theirs,
                    )

    def _role_changed(self, changed: RoleChanged) -> None:
        _log.info("raft_role_changed", role=changed.role, term=changed.term, leader=changed.leader)
        self.office = changed.term if changed.role == Role.LEADER.value else None
        self._waiting.retry_soon(self._now_ms + _SOON_MS)
        self._reading.leader_changed(self._now_ms)

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        for outcome in self._applying.apply(entries):
            self._waiting.applied(outcome)
        index = self._applying.index
        if self._transport is not None:  # else no other member compares hashes
            state_hash = self._applying.hash_due()
            if state_hash is not None:
                self._step(StateHashed(index, state_hash))
        data = self._applying.snapshot_due(
            self._now_ms, self._saving.journal_bytes, free_bytes=self._saving.free_bytes
        )
        if data is not None:
            self._step(SnapshotMade(index, data))
