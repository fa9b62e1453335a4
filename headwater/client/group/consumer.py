"""Reads streams as a member of a consumer group; made by :meth:`Client.consumer`.

The application's thread is given records and runs the call-backs. Two threads of the consumer's own
talk to the brokers: one keeps the session, one commits positions. ``member.py`` decides.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from broker.errors import (
    CommitTimeoutError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    StaleClaimError,
)
from broker.model.groups import (
    ToldClaim,
    ToldPosition,
)
from broker.model.offsets import Offset
from headwater.client.fetch import Fetch
from headwater.client.group.calls import MemberCalls, monotonic_ms
from headwater.client.group.events import (
    Began,
    BeginReading,
    ClaimsLost,
    CloseAsked,
    CommitRequest,
    CommitWanted,
    Effect,
    Event,
    GivenUp,
    MembershipEnded,
    Polled,
    Request,
    Sought,
    StopReading,
    Ticked,
)
from headwater.client.group.held import MemberTerms
from headwater.client.group.member import MemberCore
from headwater.client.group.opening import Opening
from headwater.client.group.reads import Arrived, GroupReads, InHand
from headwater.client.group.records import AssignedPartition, GroupBatch, GroupRecord

_WAIT_S: Final = 0.5
_LAPSED_S: Final = 0.02
_COMMIT_S: Final = 30.0
_CLOSE_S: Final = 5.0


CallBack = Callable[[Sequence[AssignedPartition]], object]


class GroupConsumer:
    """An iterator over the records of the partitions that this member of the group has.

    Use it in a ``with`` statement, from one thread (except :meth:`close`). Records of a partition
    come in offset order, each at least once in the group. A record counts as processed when the
    application asks for the next one. With ``commit_ms`` processed records are committed at that
    interval, and when a partition goes to another member or the consumer is closed; without it only
    :meth:`commit` commits.

    The iteration does not end by itself. It raises:
        NoPositionError, OffsetOutOfRangeError, TruncatedError: of one partition, which then rests
            until :meth:`seek`; the iteration may go on with the others.
        StaleMemberError: another process has taken the place of this static member.
        GroupChangedError, UnknownStreamError, FeatureLevelError: it could not join.

    The class is not split: it is what an application may do with a membership; ``member.py``
    decides, ``reads.py`` reads, ``calls.py`` talks to the brokers.
    """

    def __init__(
        self,
        calls: MemberCalls,
        opening: Opening,
        terms: MemberTerms,
        *,
        member_id: str,
        static: bool,
        on_assigned: CallBack | None = None,
        on_revoked: CallBack | None = None,
        on_lost: CallBack | None = None,
    ) -> None:
        self.member_id = member_id
        self._calls = calls
        self._opening = opening
        self._static = static
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._on_lost = on_lost or on_revoked
        self._core = MemberCore(terms)
        self._changed = threading.Condition()
        self._sessions: deque[Request] = deque()
        self._commits: deque[Request] = deque()
        self._for_app: deque[BeginReading | StopReading | ClaimsLost] = deque()
        self._ended: MembershipEnded | None = None
        self._reads = GroupReads(self._opened)
        self._paused: set[AssignedPartition] = set()
        self._in_hand: InHand | None = None  # a batch of which not all was given
        self._threads = [
            threading.Thread(target=self._work, args=(todo,), name=name, daemon=True)
            for todo, name in (
                (self._sessions, "headwater-group-session"),
                (self._commits, "headwater-group-commits"),
            )
        ]
        self._step(Ticked())
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------ records

    def __iter__(self) -> Iterator[GroupRecord]:
        """Iterate over records; blocks between them. The next iteration goes on behind the last."""
        while (record := self._next_record()) is not None:
            yield record

    def _next_record(self) -> GroupRecord | None:
        """Return the next record of any partition; None: the consumer was closed."""
        while True:
            if self._in_hand is not None and self._in_hand.is_begun:
                self._run_call_backs()
            elif self._next_batch(None) is None:
                return None
            one = self._in_hand
            if one is None or not self._reads.is_current(one.arrived):
                self._in_hand = None
                continue
            record, leader_epoch = one.first
            if record is None:
                self._in_hand = None  # key compaction removed all of its records
            elif self._give(one.arrived, Offset(record.offset + 1), leader_epoch):
                self._in_hand = one if one.go_on() else None
                return record

    def batches(self) -> Iterator[GroupBatch]:
        """Iterate over batches of rows; blocks between them."""
        while (batch := self.poll(None)) is not None:
            yield batch

    def poll(self, timeout_s: float | None) -> GroupBatch | None:
        """Return the next rows of any partition; None: none came in time, or it was closed."""
        one = self._next_batch(timeout_s)
        if one is None:
            return None
        claim, fetched = one.arrived.claim, one.rest
        if not self._give(one.arrived, fetched.end_offset, int(fetched.leader_epoch)):
            return self.poll(timeout_s)
        self._in_hand = None
        return GroupBatch(
            claim.stream,
            claim.partition,
            self._opening.asked(fetched.batch),
            fetched.base_offset,
            fetched.end_offset,
            fetched.high_watermark,
        )

    def _next_batch(self, timeout_s: float | None) -> InHand | None:
        """Return the batch that may be given next, and run the call-backs that are due.

        It stays in hand until all of it was given, whatever ends an iteration.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._step(Polled())
            self._run_call_backs()
            if self._ended is not None:
                if self._ended.error is not None:
                    raise self._ended.error
                return None
            left_s = _WAIT_S if deadline_s is None else deadline_s - time.monotonic()
            one = self._in_hand
            if one is None or not self._reads.is_current(one.arrived):
                arrived = self._reads.take(max(0.0, min(_WAIT_S, left_s)))
                self._in_hand = one = None if arrived is None else InHand(arrived)
            if one is not None and self._reads.is_current(one.arrived):
                if one.arrived.error is not None:
                    self._in_hand = None
                    self._read_failed(one.arrived)
                elif self._may_give(one.arrived):
                    return one
                elif not self._may_read(one.arrived.claim):
                    self._reads.stop(one.arrived.claim.key)  # nothing of it is given any more
                else:
                    time.sleep(_LAPSED_S)  # the session has lapsed
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return None

    def _may_give(self, one: Arrived) -> bool:
        with self._changed:
            return self._core.may_give(one.claim.key, one.claim.epoch, monotonic_ms())

    def _give(self, one: Arrived, end: Offset, leader_epoch: int) -> bool:
        """Note that rows are given; False: they may not be, and are read again if need be."""
        claim = one.claim
        with self._changed:
            if self._core.give(claim.key, claim.epoch, end, leader_epoch, monotonic_ms()):
                return True
            held = self._core.held.get(claim.key)
            if held is not None and held.claim.epoch == claim.epoch:
                claim = self._from_given(claim.key)
        self._read(claim)
        return False

    def _may_read(self, claim: ToldClaim) -> bool:
        """Tell whether the member has a claim still, and no other member waits for it."""
        with self._changed:
            return self._core.may_read(claim.key, claim.epoch)

    def _read(self, claim: ToldClaim) -> None:
        """Read a claim from its position, in place of the read that runs, if it may be read.

        Else that read ends. A partition that stays this member's after all is begun again.
        """
        if self._may_read(claim):
            self._reads.start(claim)
        else:
            self._reads.stop(claim.key)

    def _from_given(self, key: str) -> ToldClaim:
        """Return a claim that begins behind what the application was given; under the lock."""
        held = self._core.held[key]
        if held.given is None:
            return held.claim
        position = ToldPosition(offset=held.given, leader_epoch=held.given_epoch)
        return replace(held.claim, position=position)

    # ------------------------------------------------------------------ positions

    def commit(self, timeout_s: float = _COMMIT_S) -> None:
        """Commit everything that the application was given, the newest record included; blocks.

        Raises:
            StaleClaimError: some partitions are not this member's any more; the rest is committed.
            StaleMemberError: the member was expelled or replaced; nothing was committed.
            CommitTimeoutError: no broker has confirmed it in time; it is tried again.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            refusals = self._core.refusals_count
            self._step(CommitWanted())
            while not self._core.is_clean and self._core.refusals_count == refusals:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._ended is not None:
                    raise CommitTimeoutError(
                        "the positions are not confirmed; the consumer tries again with its next "
                        "commit, until another member reads these partitions"
                    )
                self._changed.wait(left_s)
            if self._core.refusals_count != refusals and self._core.last_refusal is not None:
                raise self._core.last_refusal
            lost = self._core.take_lost()
        if lost:
            raise StaleClaimError(
                f"{len(lost)} partitions went to other members before their newest records were "
                "committed; they are given to those members again",
                member=self.member_id,
                partitions=lost,
            )

    @property
    def assignment(self) -> list[AssignedPartition]:
        """The partitions that this member has now."""
        with self._changed:
            return sorted(_place(one.claim) for one in self._core.held.values())

    @property
    def is_member(self) -> bool:
        """Whether the group has taken this member in, and told it its partitions."""
        with self._changed:
            return self._core.phase == "member" and self._core.epoch > 0

    @property
    def positions(self) -> dict[AssignedPartition, Offset]:
        """The next offset of each partition; one that has returned no record yet may be missing."""
        with self._changed:
            held = self._core.held.values()
            return {_place(one.claim): one.given for one in held if one.given is not None}

    def lag(self) -> dict[AssignedPartition, int]:
        """Return how many committed records each partition has that were not given yet."""
        behind: dict[AssignedPartition, int] = {}
        for place in self.assignment:
            end = self._opening.high_watermark(place.stream, place.partition)
            behind[place] = max(0, end - self.positions.get(place, Offset(0)))
        return behind

    def seek(self, stream: str, partition: int, offset: int) -> None:
        """Go on at another offset of a partition that this member has.

        The next commit moves the group's position there, also back.

        Raises:
            InvalidRequestError: the partition is not this member's, or the offset is negative.
        """
        claim = self._claim(stream, partition)
        if offset < 0:
            raise InvalidRequestError(f"{offset} is not an offset", field="offset")
        self._step(Sought(claim.key, Offset(offset)))
        if AssignedPartition(stream, partition) not in self._paused:
            position = ToldPosition(offset=Offset(offset))
            self._read(replace(claim, position=position))

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Give no more records of these partitions until :meth:`resume`; they stay this member's.

        Raises InvalidRequestError: a partition is not this member's.
        """
        for stream, partition in partitions:
            claim = self._claim(stream, partition)
            self._paused.add(AssignedPartition(stream, partition))
            self._reads.stop(claim.key)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with partitions that were paused."""
        for stream, partition in partitions:
            place = AssignedPartition(stream, partition)
            if place not in self._paused:
                continue
            self._paused.discard(place)
            with self._changed:
                claim = self._from_given(self._claim(stream, partition).key)
            self._read(claim)

    def _claim(self, stream: str, partition: int) -> ToldClaim:
        with self._changed:
            for one in self._core.held.values():
                if (one.claim.stream, one.claim.partition) == (stream, partition):
                    return one.claim
        raise InvalidRequestError(
            f"partition {stream}/{partition} is not assigned to member {self.member_id}",
            partition=partition,
        )

    # ------------------------------------------------------------------ life

    def close(self, *, leave: bool | None = None, processed: bool = True) -> None:
        """End the membership; blocks for up to 5 s.

        Args:
            leave: Whether the partitions go to other members at once. The default is not to leave
                if the member has a name of its own (``member_id``): it may come back within its
                session, and have its partitions again.
            processed: Whether the records that were given last were processed.
        """
        with self._changed:
            if self._ended is not None:
                self._reads.close()
                return
            if processed:
                self._step(Polled())
        if self._on_revoked is not None and self.assignment:
            self._on_revoked(self.assignment)
        self._step(CloseAsked(not self._static if leave is None else leave))
        deadline_s = time.monotonic() + _CLOSE_S
        with self._changed:
            while self._ended is None and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if self._ended is None:
                self._ended = MembershipEnded(None)  # the session runs out by itself
                self._changed.notify_all()
        self._reads.close()
        self._reads.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(processed=kind is None)

    # ------------------------------------------------------------------ shell

    def _step(self, event: Event) -> None:
        with self._changed:
            self._dispatch(self._core.step(event, monotonic_ms()))
            self._changed.notify_all()

    def _dispatch(self, effects: Sequence[Effect]) -> None:
        for one in effects:
            match one:
                case BeginReading() | StopReading() | ClaimsLost():
                    self._for_app.append(one)
                    self._reads.wake()
                case MembershipEnded():
                    self._ended = one
                    self._reads.wake()
                case CommitRequest():
                    self._commits.append(one)
                case _:
                    self._sessions.append(one)

    def _work(self, todo: deque[Request]) -> None:
        """Perform requests of one kind, and tell the core the time; on a thread of its own."""
        while True:
            with self._changed:
                if self._ended is not None and not todo:
                    return
                self._dispatch(self._core.step(Ticked(), monotonic_ms()))
                if not todo:
                    wait_ms = min(1_000, self._core.due_ms - monotonic_ms())
                    self._changed.wait(max(1, wait_ms) / 1000)
                if not todo:
                    continue
                request = todo.popleft()
            self._step(self._calls.perform(request))

    def _run_call_backs(self) -> None:
        """Tell the application what has changed; on its own thread."""
        while True:
            with self._changed:
                if not self._for_app:
                    return
                one = self._for_app.popleft()
            places = [_place(claim) for claim in one.claims]
            match one:
                case BeginReading(claims):
                    for claim in claims:
                        if _place(claim) not in self._paused:
                            self._read(claim)
                    _call(self._on_assigned, places)
                case StopReading(claims):
                    self._stop_reading(claims)
                    try:
                        _call(self._on_revoked, places)
                    finally:
                        self._step(GivenUp(tuple(claim.key for claim in claims)))
                case ClaimsLost(claims):
                    self._stop_reading(claims)
                    with self._changed:
                        self._core.forget_lost({claim.key for claim in claims})
                    _call(self._on_lost, places)

    def _stop_reading(self, claims: Sequence[ToldClaim]) -> None:
        for claim in claims:
            self._reads.stop(claim.key)
            self._paused.discard(_place(claim))

    def _opened(self, claim: ToldClaim) -> Fetch:
        """Open a read; on the read's thread."""
        if claim.position is None and self._opening.reset == "latest":
            end = self._opening.high_watermark(claim.stream, claim.partition)
            with self._changed:
                self._step(Began(claim.key, claim.epoch, end))
                held = self._core.held.get(claim.key)
                if held is not None and held.claim.epoch == claim.epoch:
                    claim = self._from_given(claim.key)  # the application may have sought
                else:
                    claim = replace(claim, position=ToldPosition(offset=end))
        return self._opening.open(claim)

    def _read_failed(self, one: Arrived) -> None:
        """Choose another position where the log does not have it any more, or raise the error."""
        claim, error = one.claim, one.error
        assert error is not None, "a failed read"
        self._reads.stop(claim.key)
        if isinstance(error, OffsetOutOfRangeError) and self._opening.reset != "error":
            offset, start = error.facts.get("offset"), error.facts.get("start")
            if isinstance(offset, int) and isinstance(start, int) and offset < start:
                if self._opening.reset == "latest":
                    start = self._opening.high_watermark(claim.stream, claim.partition)
                self._step(Began(claim.key, claim.epoch, Offset(start), anew=True))
                position = ToldPosition(offset=Offset(start))
                self._reads.start(replace(claim, position=position))
                return
        raise error


def _place(claim: ToldClaim) -> AssignedPartition:
    return AssignedPartition(claim.stream, claim.partition)


def _call(call_back: CallBack | None, places: Sequence[AssignedPartition]) -> None:
    if call_back is not None and places:
        call_back(places)
