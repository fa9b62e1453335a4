"""Applies the log to a state machine: each proposal takes effect once, however often it is retried.

An entry opens a session. The session remembers the replies to its newest sequences. A retried
proposal gets the reply of its first attempt and changes nothing. The memory is bounded, and every
node forgets the same replies at the same index. A proposal of an unknown session, or one older than
the session's window, is refused and has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from broker.codec.disk.raft_state import (
    REPLY_BYTES_MAX,
    SessionState,
    decode_state,
    encode_state,
)
from broker.codec.disk.raft_voters import decode_voters
from broker.model.raft import Entry, EntryKind, Voters

SESSIONS_MAX: Final = 256
WINDOW: Final = 64  # replies that a session remembers; a client has at most as many proposals open


class StateMachine(Protocol):
    """The replicated state. Deterministic: no clock, no randomness, no I/O. Only restore raises."""

    def apply(self, index: int, command: bytes) -> bytes:
        """Take one command; return its reply, of at most ``REPLY_BYTES_MAX`` bytes."""

    def snapshot(self) -> bytes:
        """Return the whole state; equal states give equal bytes."""

    def restore(self, data: bytes) -> None:
        """Replace the state by a snapshot's. Raises MetadataCorruptError: the node must stop."""


class Verdict(IntEnum):
    """The result of a committed proposal."""

    APPLIED = 0  # now, or by an earlier attempt
    UNKNOWN_SESSION = 1  # no effect now; an earlier attempt may have had one
    FORGOTTEN = 2  # as UNKNOWN_SESSION, for a sequence that is older than the session's window


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reply to one committed proposal."""

    session: int
    sequence: int
    index: int
    verdict: Verdict
    reply: bytes
    fresh: bool  # False: nothing changed, the reply is that of the first attempt


class Applier:
    """Sessions and state machine. Owner: the thread that performs `Apply` and `Restore`."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._sessions: dict[int, SessionState] = {}
        self.index = 0
        self.voters: Voters | None = None  # None: not changed up to here

    def apply(self, entries: Sequence[Entry]) -> list[Outcome]:
        """Apply entries, each of which must be the next one."""
        outcomes = []
        for entry in entries:
            assert entry.index == self.index + 1, f"applying {entry.index} after {self.index}"
            self.index = entry.index
            if entry.kind is EntryKind.OPEN_SESSION:
                self._open(entry)
                outcomes.append(_outcome(entry, Verdict.APPLIED, b"", fresh=True))
            elif entry.kind is EntryKind.COMMAND:
                outcomes.append(self._command(entry))
            elif entry.kind is EntryKind.VOTERS:
                self.voters = decode_voters(entry.payload)
        return outcomes

    def snapshot(self) -> bytes:
        """Return sessions and state as one snapshot, equal on every node at the same index."""
        sessions = list(self._sessions.values())
        return encode_state(self.index, sessions, self._machine.snapshot(), self.voters)

    def restore(self, index: int, data: bytes) -> None:
        """Replace sessions and state by a snapshot of ``index``. Raises MetadataCorruptError."""
        state = decode_state(index, data)
        self._machine.restore(state.machine)
        self._sessions = {one.session: one for one in state.sessions}
        self.voters = state.voters
        self.index = index

    def _open(self, entry: Entry) -> None:
        if entry.session in self._sessions:
            return  # a retry
        if len(self._sessions) >= SESSIONS_MAX:
            idle = min(self._sessions.values(), key=lambda one: (one.used_index, one.session))
            del self._sessions[idle.session]
        self._sessions[entry.session] = SessionState(entry.session, entry.index, 0, {})

    def _command(self, entry: Entry) -> Outcome:
        session = self._sessions.get(entry.session)
        if session is None:
            return _outcome(entry, Verdict.UNKNOWN_SESSION, b"", fresh=False)
        session.used_index = entry.index
        known = session.replies.get(entry.sequence)
        if known is not None:
            return _outcome(entry, Verdict.APPLIED, known, fresh=False)
        if entry.sequence < session.floor:
            return _outcome(entry, Verdict.FORGOTTEN, b"", fresh=False)
        reply = self._machine.apply(entry.index, entry.payload)
        assert len(reply) <= REPLY_BYTES_MAX, f"a reply of {len(reply)} bytes"
        session.replies[entry.sequence] = reply
        session.floor = max(session.floor, entry.sequence - WINDOW + 1)
        for sequence in [one for one in session.replies if one < session.floor]:
            del session.replies[sequence]
        return _outcome(entry, Verdict.APPLIED, reply, fresh=True)


def _outcome(entry: Entry, verdict: Verdict, reply: bytes, *, fresh: bool) -> Outcome:
    return Outcome(entry.session, entry.sequence, entry.index, verdict, reply, fresh)
