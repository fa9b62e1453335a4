"""A member of a consumer group: joins, keeps its session, holds claims, commits positions. Pure.

    joining ──Joined──▶ member ──CloseAsked──▶ leaving ──▶ ended
       ▲                  │ expelled, or the application is too slow
       └──────────────────┘

A member believes in its claims for three quarters of its session after it *sent* a heartbeat that
was answered; its coordinator expels it only a whole session after it *received* one. A partition
that another member waits for is given up in the order: the application stops, the position is
committed and the claim released in one command, the next heartbeat shows that it is gone.

One request of each kind is under way at a time. A commit that was not answered is sent again with a
higher number, so a late one changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final, Literal

from broker.errors import (
    GroupChangedError,
    HeadwaterError,
    NotCoordinatorError,
    StaleClaimError,
    StaleMemberError,
    UnavailableError,
)
from broker.model.groups import (
    COMMIT_WRITES_MAX,
    NO_LEADER_EPOCH,
    MemberView,
    PositionCommit,
    ToldClaim,
)
from broker.model.offsets import Offset
from headwater.client.group.events import (
    Beaten,
    BeatRequest,
    Began,
    BeginReading,
    ClaimsLost,
    CloseAsked,
    CommitRequest,
    CommitWanted,
    Effect,
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
    RequestFailed,
    Sought,
    StopReading,
    Ticked,
)
from headwater.client.group.held import UNSETTLED_MS, Held, MemberTerms, newly_held, resumed

_RETRY_MS: Final = 250
_NEVER: Final = 1 << 62

Phase = Literal["joining", "member", "slow", "leaving", "ended"]


class MemberCore:
    """The core. ``step`` takes an event and its time, and returns the effects.

    The class is not split: each event has its method, and all of them share the claims.
    """

    def __init__(self, terms: MemberTerms) -> None:
        self.phase: Phase = "joining"
        self.held: dict[str, Held] = {}
        self.epoch = 0  # of the group, when the claims were told; 0: ask for them again
        self.coordinator = ""
        self.refusals_count = 0  # of commits
        self.last_refusal: HeadwaterError | None = None
        self._terms = terms
        self._membership = 0  # how many ended before this one
        self._epoch_min = 0  # a view of an older group epoch is ignored
        self._lease_until_ms = -1
        self._polled_ms: int | None = None
        self._lost: list[str] = []
        self._number = 0
        self._joining = self._beating = self._reporting = False
        self._committing: tuple[PositionCommit, ...] = ()
        self._commit_wanted = False
        self._leaving = False
        self._leave = False
        self._settled = True
        self._next_join_ms = self._next_beat_ms = self._next_commit_ms = 0

    def may_give(self, key: str, epoch: int, now_ms: int) -> bool:
        """Tell whether the application may be given records of a claim now."""
        is_settled = self.phase == "member" and now_ms < self._lease_until_ms
        return is_settled and self.may_read(key, epoch)

    def may_read(self, key: str, epoch: int) -> bool:
        """Tell whether a claim is held, and the application was not told to stop with it."""
        held = self.held.get(key)
        return (
            held is not None
            and held.claim.epoch == epoch
            and not held.stopping
            and not held.given_up
        )

    def give(self, key: str, epoch: int, end: Offset, leader_epoch: int, now_ms: int) -> bool:
        """Note that the application is given records up to ``end``, if it may be; else change none.

        ``leader_epoch`` is that of the last record. What it was given of this partition before is
        processed, unless only the application commits.
        """
        if not self.may_give(key, epoch, now_ms):
            return False
        held = self.held[key]
        if self._terms.commit_ms is not None and held.given is not None:
            held.done, held.done_epoch = held.given, held.given_epoch
        held.given, held.given_epoch = end, leader_epoch
        self._polled_ms = now_ms
        return True

    @property
    def is_clean(self) -> bool:
        """Whether everything that was processed is committed."""
        return not self._committing and not any(one.is_dirty for one in self.held.values())

    def take_lost(self) -> list[str]:
        """Return the partitions that were lost with records given and not committed; once."""
        lost, self._lost = self._lost, []
        return lost

    def forget_lost(self, keys: Collection[str]) -> None:
        """Note that the application is told of the loss of these partitions."""
        self._lost = [key for key in self._lost if key not in keys]

    @property
    def due_ms(self) -> int:
        """When the next :class:`Ticked` is due, at the latest."""
        times = [_NEVER]
        if self.phase == "joining" and not self._joining:
            times.append(self._next_join_ms)
        if self.phase == "member" and not self._beating:
            times.append(self._next_beat_ms)
        if not self._committing and any(one.is_dirty for one in self.held.values()):
            times.append(self._next_commit_ms)
        return min(times)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; return what is to be done, in order."""
        if self.phase == "ended":
            return []
        if self._polled_ms is None:
            self._polled_ms = now_ms
        effects = self._take(event, now_ms)
        return [*effects, *self._due(now_ms)]

    # ------------------------------------------------------------------ events

    def _take(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case Ticked():
                return self._check_pace(now_ms)
            case Polled():
                self._polled(now_ms)
            case Began():
                self._began(event, now_ms)
            case Sought(key, offset):
                self._sought(key, offset)
            case CommitWanted():
                self._processed(self.held)
                self._commit_wanted, self._next_commit_ms = True, now_ms
            case GivenUp(keys):
                return self._given_up(keys, now_ms)
            case CloseAsked(leave):
                self.phase, self._leave, self._next_commit_ms = "leaving", leave, now_ms
            case Joined(coordinator, epoch):
                self._joined(coordinator, epoch, now_ms)
            case Reported(coordinator):
                self._reporting = False
                self.coordinator, self._next_beat_ms = coordinator, now_ms
            case Beaten(view, sent_ms):
                return self._beaten(view, sent_ms, now_ms)
            case PositionsStored():
                self._committed(now_ms)
            case Left():
                return self._end(None)
            case RequestFailed(request, error):
                return self._failed(request, error, now_ms)
        return []

    def _check_pace(self, now_ms: int) -> list[Effect]:
        """Give everything up if the application has not asked for more for too long."""
        assert self._polled_ms is not None, "set by the first event"
        late = now_ms - self._polled_ms > self._terms.processing_ms_max
        if self.phase != "member" or not late:
            return []
        self.phase = "slow"
        return [*self._lose(self.held), LeaveRequest(self._membership)]

    def _polled(self, now_ms: int) -> None:
        self._polled_ms = now_ms
        if self.phase == "slow":
            self._begin_again(now_ms)
        if self._terms.commit_ms is not None:
            self._processed(self.held)

    def _processed(self, keys: Iterable[str]) -> None:
        for key in keys:
            held = self.held.get(key)
            if held is not None and held.given is not None:
                held.done, held.done_epoch = held.given, held.given_epoch

    def _began(self, event: Began, now_ms: int) -> None:
        held = self.held.get(event.key)
        if held is None or held.claim.epoch != event.epoch:
            return
        if held.given is not None and not event.anew:
            return  # the application has sought, or a former try has begun
        held.given = held.done = event.offset
        held.given_epoch = held.done_epoch = NO_LEADER_EPOCH
        held.back = held.is_back(event.offset)
        self._next_commit_ms = now_ms  # so that the next owner begins there, too

    def _sought(self, key: str, offset: Offset) -> None:
        held = self.held.get(key)
        if held is not None:
            held.given = offset
            held.given_epoch = NO_LEADER_EPOCH
            held.back = held.back or held.is_back(offset)
            if self._terms.commit_ms is not None:
                held.done, held.done_epoch = held.given, held.given_epoch

    def _given_up(self, keys: tuple[str, ...], now_ms: int) -> list[Effect]:
        if self._terms.commit_ms is not None:
            self._processed(keys)
        again: list[ToldClaim] = []
        for key in keys:
            held = self.held.get(key)
            if held is None:
                continue
            if held.stopping:
                held.stopping, held.given_up, held.released = False, True, False
                self._next_commit_ms = now_ms
            elif not held.given_up:  # nobody waits for it any more
                again.append(resumed(held))
        return [BeginReading(tuple(again))] if again else []

    def _joined(self, coordinator: str, epoch: int, now_ms: int) -> None:
        self._joining = False
        self.coordinator, self._epoch_min = coordinator, max(self._epoch_min, epoch)
        if self.phase == "joining":
            self.phase = "member"
        self._next_beat_ms = now_ms
        self._next_commit_ms = now_ms + (self._terms.commit_ms or 0)

    def _beaten(self, view: MemberView, sent_ms: int, now_ms: int) -> list[Effect]:
        self._beating = False
        if self.phase != "member":
            return []
        if view.epoch < self._epoch_min:  # of an earlier membership, or from a broker behind
            self._next_beat_ms = now_ms + UNSETTLED_MS
            return []
        self._epoch_min = view.epoch
        lease_ms = self._terms.session_ms * 3 // 4
        self._lease_until_ms = max(self._lease_until_ms, sent_ms + lease_ms)
        self.coordinator, self._settled = view.coordinator, view.settled
        self._next_beat_ms = now_ms + (self._terms.beat_ms if view.settled else UNSETTLED_MS)
        if view.claims is None:
            return []
        self.epoch = view.epoch
        return self._hold(view.claims, now_ms)

    def _hold(self, claims: tuple[ToldClaim, ...], now_ms: int) -> list[Effect]:
        """Compare the claims that the metadata gives with those that are held."""
        told = {one.key: one for one in claims}
        gone = [
            key
            for key, held in self.held.items()
            if key not in told or told[key].epoch != held.claim.epoch
        ]
        effects = self._lose(gone)
        begin: list[ToldClaim] = []
        stop: list[ToldClaim] = []
        for key, claim in told.items():
            held = self.held.get(key)
            if held is None:
                self.held[key] = held = newly_held(claim)
                if claim.wanted:  # it was never begun
                    held.given_up, self._next_commit_ms = True, now_ms
                else:
                    begin.append(claim)
                continue
            held.claim = replace(claim, position=held.claim.position)
            if claim.wanted and held.given_up:
                held.released, self._next_commit_ms = False, now_ms  # the last release came early
            elif claim.wanted and not held.stopping:
                held.stopping = True
                stop.append(claim)
            elif not claim.wanted:
                held.stopping = False
                if held.given_up:
                    held.given_up = held.released = False
                    begin.append(resumed(held))
        effects += [StopReading(tuple(stop))] if stop else []
        effects += [BeginReading(tuple(begin))] if begin else []
        return effects

    def _lose(self, keys: Iterable[str]) -> list[Effect]:
        dropped = [self.held.pop(key) for key in list(keys)]
        lost = tuple(one.claim for one in dropped if not one.given_up)
        self._lost += [
            one.claim.key for one in dropped if not one.given_up and one.given != one.committed
        ]
        return [ClaimsLost(lost)] if lost else []

    def _committed(self, now_ms: int) -> None:
        for write in self._committing:
            held = self.held.get(write.key)
            if held is None or held.claim.epoch != write.epoch:
                continue
            if write.offset is not None:
                held.stored(Offset(write.offset))
                held.back = held.back and not (write.back and held.done == write.offset)
            if write.release:
                held.released, self._next_beat_ms = True, now_ms
        self._finish_commit(now_ms)

    def _finish_commit(self, now_ms: int) -> None:
        self._committing = ()
        if self.phase != "leaving" and not self._commit_wanted:
            pause_ms = self._terms.commit_ms or 0
            urgent = any(one.given_up and not one.released for one in self.held.values())
            self._next_commit_ms = now_ms if urgent else now_ms + pause_ms

    # ------------------------------------------------------------------ failures

    def _failed(self, request: object, error: HeadwaterError, now_ms: int) -> list[Effect]:
        match request:
            case JoinRequest():
                self._joining, self._next_join_ms = False, now_ms + _RETRY_MS
                if not isinstance(error, UnavailableError):
                    return self._end(error)
            case BeatRequest():
                self._beating, self._next_beat_ms = False, now_ms + _RETRY_MS
                return self._beat_failed(error, now_ms)
            case ReportRequest():
                self._reporting = False
                if isinstance(error, StaleMemberError):
                    return self._expelled(error, now_ms)
            case CommitRequest():
                return self._commit_failed(error, now_ms)
            case LeaveRequest():
                return self._end(None) if self.phase == "leaving" else []
        return []

    def _beat_failed(self, error: HeadwaterError, now_ms: int) -> list[Effect]:
        if isinstance(error, StaleMemberError):
            return self._expelled(error, now_ms)
        if isinstance(error, NotCoordinatorError):
            if error.coordinator != self.coordinator:
                self.coordinator, self._next_beat_ms = error.coordinator, now_ms
            return []
        if isinstance(error, GroupChangedError):
            return []  # it is being expelled, and asks again until it is
        if self.phase != "member" or self._reporting:
            return []
        self._reporting = True
        return [ReportRequest(self.coordinator)]

    def _commit_failed(self, error: HeadwaterError, now_ms: int) -> list[Effect]:
        sent = self._committing
        if isinstance(error, StaleClaimError):
            refused = set(error.partitions)
            self._committing = tuple(one for one in sent if one.key not in refused)
            self._committed(now_ms)
            stale = [one.key for one in sent if one.key in refused and self._is_of_now(one)]
            for key in stale:
                held = self.held[key]
                # Another member commits it now.
                held.committed, held.reached, held.back = held.done, held.done, False
            if stale:  # else it was sent under earlier claims, which are reported as lost
                self.epoch, self._next_beat_ms = 0, now_ms  # ask for all claims
                self._refused(error)
            return []
        self._committing, self._next_commit_ms = (), now_ms + _RETRY_MS
        of_now = any(map(self._is_of_now, sent))
        if isinstance(error, StaleMemberError) and not of_now and not error.replaced:
            return []  # it was sent before the member joined again
        if isinstance(error, StaleMemberError):
            self._refused(error)
            return self._expelled(error, now_ms)
        if not isinstance(error, UnavailableError | GroupChangedError):
            self._refused(error)
        return []

    def _is_of_now(self, write: PositionCommit) -> bool:
        """Whether a write was made under a claim that the member holds still."""
        held = self.held.get(write.key)
        return held is not None and held.claim.epoch == write.epoch

    def _refused(self, error: HeadwaterError) -> None:
        self.refusals_count += 1
        self.last_refusal = error
        self._commit_wanted = False

    def _expelled(self, error: StaleMemberError, now_ms: int) -> list[Effect]:
        if self.phase == "leaving":
            return self._end(None)
        if error.replaced:
            return [*self._lose(self.held), *self._end(error)]
        if self.phase == "slow":
            return []  # it has left, and joins again when the application asks
        self._begin_again(now_ms)
        return self._lose(self.held)

    def _begin_again(self, now_ms: int) -> None:
        """Join under the next number, so that requests of this membership change nothing."""
        if self.phase != "joining":
            self._membership += 1
            self.phase, self._next_join_ms, self.epoch = "joining", now_ms, 0

    def _end(self, error: HeadwaterError | None) -> list[Effect]:
        self.phase = "ended"
        return [MembershipEnded(error)]

    # ------------------------------------------------------------------ what is due

    def _due(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.phase == "joining" and not self._joining and now_ms >= self._next_join_ms:
            self._joining = True
            effects.append(JoinRequest(self._membership))
        if self.phase == "member" and not self._beating and now_ms >= self._next_beat_ms:
            self._beating = True
            effects.append(BeatRequest(self.coordinator, self.epoch))
        if not self._committing and now_ms >= self._next_commit_ms:
            effects += self._commit()
        if self.phase == "leaving" and not self._leaving and self.is_clean:
            self._leaving = True
            effects += [LeaveRequest(self._membership)] if self._leave else self._end(None)
        return effects

    def _commit(self) -> list[Effect]:
        dirty = [one for one in self.held.values() if one.is_dirty]
        self._commit_wanted = len(dirty) > COMMIT_WRITES_MAX
        if not dirty:
            return []
        self._number += 1
        self._committing = tuple(
            PositionCommit(
                stream_uuid=one.claim.stream_uuid,
                partition=one.claim.partition,
                epoch=one.claim.epoch,
                number=self._number,
                offset=one.done,
                leader_epoch=one.done_epoch,
                back=one.is_behind,
                release=one.given_up and not one.released,
            )
            for one in dirty[:COMMIT_WRITES_MAX]
        )
        for one in dirty[:COMMIT_WRITES_MAX]:
            one.sent()
        return [CommitRequest(self._committing)]
