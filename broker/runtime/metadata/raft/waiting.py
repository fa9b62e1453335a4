"""Callers that wait until their proposal is applied here, and when a proposal is retried.

All proposals of a process belong to one session and carry a sequence number, so a retried proposal
takes effect once. The session remembers the newest sequences only. So a proposal does not start
before every proposal that it could push out of that window has been answered.

A caller is answered once, by a call of ``answered`` with the result or the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from broker.core.raft.applier import WINDOW, Outcome, Verdict
from broker.errors import CommitTimeoutError, HeadwaterError, OverloadedError, UnavailableError
from broker.model.raft import EntryKind, NodeId, Proposal, Standing

QUEUED_MAX: Final = 4096
NEVER: Final = 1 << 62


def _nobody(_: object) -> None:
    """Ignore the answer."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One proposal under way."""

    payload: bytes
    deadline_ms: int
    answered: Callable[[bytes | HeadwaterError], None] = _nobody
    proposal: Proposal | None = None
    retry_ms: int = 0
    taken: bool = False  # a node may have it in its log
    office: int | None = None  # propose only as leader of this term; not to another leader
    refused: str = "no leader was found"


@dataclass(slots=True, eq=False)
class Reader:
    """A caller that waits for a barrier; the answer is an applied index."""

    deadline_ms: int
    answered: Callable[[int | HeadwaterError], None]
    retry_ms: int = 0


@dataclass(frozen=True, slots=True)
class StandingAsked:
    """A starting member's question: how far is the group?"""

    asker: NodeId
    told: Callable[[Standing], None]


class Waiting:
    """The session of this process. Owner: the Raft pump."""

    def __init__(self, new_session: Callable[[], int]) -> None:
        self._new_session = new_session
        self._queued: deque[Waiter] = deque()
        self._begin()

    def _begin(self) -> None:
        """Open another session; every proposal of the last one is settled by now."""
        self._session = self._new_session()
        self._sequence = 0
        self._opening: Waiter | None = None
        self._is_open = False
        self._under_way: dict[int, Waiter] = {}

    def add(self, waiter: Waiter) -> None:
        """Queue a caller; it gets an error at once if too many wait."""
        if len(self._queued) >= QUEUED_MAX:
            waiter.answered(OverloadedError("too many metadata commands wait: try again later"))
        else:
            self._queued.append(waiter)

    def due(self, now_ms: int) -> Iterator[Waiter]:
        """Yield the proposals that are to be tried, or retried, now."""
        if not self._is_open:
            if self._queued and self._opening is None:
                self._opening = Waiter(b"", NEVER)
                self._opening.proposal = Proposal(EntryKind.OPEN_SESSION, self._session, 0, b"")
            if self._opening is not None and now_ms >= self._opening.retry_ms:
                yield self._opening
            return
        while self._queued and self._has_room():
            waiter = self._queued.popleft()
            self._sequence += 1
            waiter.proposal = Proposal(
                EntryKind.COMMAND, self._session, self._sequence, waiter.payload
            )
            self._under_way[self._sequence] = waiter
            waiter.retry_ms = now_ms
        for waiter in list(self._under_way.values()):
            if now_ms >= waiter.retry_ms:
                yield waiter

    def find(self, proposal: Proposal) -> Waiter | None:
        """Return the caller that waits for a proposal."""
        if proposal.session != self._session:
            return None
        if proposal.kind is EntryKind.OPEN_SESSION:
            return self._opening
        return self._under_way.get(proposal.sequence)

    def applied(self, outcome: Outcome) -> None:
        """Answer the caller that waits for this outcome."""
        if outcome.session != self._session:
            return
        if self._opening is not None and outcome.sequence == 0:
            self._opening = None
            self._is_open = True
            return
        waiter = self._under_way.pop(outcome.sequence, None)
        if outcome.verdict is Verdict.APPLIED:
            if waiter is not None:
                waiter.answered(outcome.reply)
            return
        if waiter is not None:
            waiter.answered(_unknown("its session was forgotten"))
        if outcome.verdict is Verdict.UNKNOWN_SESSION and self._is_open:
            self.fail_all(_unknown("its session was forgotten"), queued=False)
            self._begin()

    def settle(self, waiter: Waiter, error: HeadwaterError) -> None:
        """Answer a caller whose proposal is in no log with ``error``."""
        if waiter.proposal is not None:
            self._under_way.pop(waiter.proposal.sequence, None)
        waiter.answered(error)

    def expire(self, now_ms: int) -> None:
        """Answer callers whose time is up: the outcome is unknown, or nothing was tried."""
        for sequence, waiter in list(self._under_way.items()):
            if now_ms >= waiter.deadline_ms:
                del self._under_way[sequence]
                waiter.answered(_unknown(waiter.refused))
        while self._queued and now_ms >= self._queued[0].deadline_ms:
            reason = self._opening.refused if self._opening is not None else "too many are waiting"
            self._queued.popleft().answered(
                OverloadedError(f"a metadata command was not tried in time: {reason}")
            )

    def retry_soon(self, at_ms: int) -> None:
        """Retry every unanswered proposal: the leader changed."""
        for waiter in (*self._under_way.values(), *([self._opening] if self._opening else [])):
            waiter.retry_ms = min(waiter.retry_ms, at_ms)

    def fail_all(self, error: HeadwaterError, *, queued: bool = True) -> None:
        """Answer all callers with an error."""
        waiters = [*self._under_way.values(), *(self._queued if queued else ())]
        self._under_way.clear()
        if queued:
            self._queued.clear()
        for waiter in waiters:
            waiter.answered(error)

    def _has_room(self) -> bool:
        oldest = next(iter(self._under_way), self._sequence + 1)
        return self._sequence + 1 - oldest < WINDOW // 2


class Reading:
    """Barriers under way. Owner: the Raft pump."""

    def __init__(self) -> None:
        self._readers: dict[int, Reader] = {}
        self._number = 0

    def add(self, reader: Reader) -> None:
        """Add a caller; its barrier is due at once."""
        self._number += 1
        self._readers[self._number] = reader

    def due(self, now_ms: int) -> Iterator[int]:
        """Yield the numbers of the barriers to begin or retry; answer callers whose time is up."""
        for number, reader in list(self._readers.items()):
            if now_ms >= reader.deadline_ms:
                del self._readers[number]
                reader.answered(
                    UnavailableError(
                        "no leader of the controllers confirmed in time what the newest metadata "
                        "is: check that a majority of the controllers runs"
                    )
                )
            elif now_ms >= reader.retry_ms:
                reader.retry_ms = NEVER
                yield number

    def passed(self, number: int, index: int) -> None:
        """Answer a caller: every entry up to ``index`` is applied here."""
        reader = self._readers.pop(number, None)
        if reader is not None:
            reader.answered(index)

    def failed(self, number: int, retry_ms: int) -> None:
        """Retry a barrier at ``retry_ms``: no leader could confirm it."""
        if number in self._readers:
            self._readers[number].retry_ms = retry_ms

    def leader_changed(self, now_ms: int) -> None:
        """Retry the failed barriers: a new leader may confirm them."""
        for reader in self._readers.values():
            if reader.retry_ms != NEVER:
                reader.retry_ms = now_ms

    def fail_all(self, error: HeadwaterError) -> None:
        """Answer all callers with an error."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.answered(error)


def _unknown(reason: str) -> CommitTimeoutError:
    return CommitTimeoutError(
        f"the metadata command may be applied or not: {reason}. Look at the result before a repeat"
    )
