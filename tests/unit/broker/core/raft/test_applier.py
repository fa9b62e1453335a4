"""Sessions: a proposal takes effect once, and all nodes forget the same sessions."""

from __future__ import annotations

import pytest

from broker.codec.disk.raft_state import SessionState, decode_state, encode_state
from broker.core.raft.applier import SESSIONS_MAX, WINDOW, Applier, Outcome, Verdict
from broker.errors import MetadataCorruptError
from broker.model.raft import Entry, EntryKind


class Counter:
    """A state machine that counts what reaches it."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, index: int, command: bytes) -> bytes:
        """Count; answer with the number."""
        self.count += 1
        return b"%d" % self.count

    def snapshot(self) -> bytes:
        """Return the count."""
        return b"%d" % self.count

    def restore(self, data: bytes) -> None:
        """Take the count."""
        self.count = int(data)


class Rig:
    """An applier that is fed entries one by one."""

    def __init__(self) -> None:
        self.machine = Counter()
        self.applier = Applier(self.machine)

    def put(self, kind: EntryKind, session: int, sequence: int) -> Outcome | None:
        """Apply the next entry."""
        entry = Entry(self.applier.index + 1, 1, kind, session, sequence, b"x")
        outcomes = self.applier.apply([entry])
        return outcomes[0] if outcomes else None

    def open(self, session: int) -> None:
        """Open a session."""
        self.put(EntryKind.OPEN_SESSION, session, 0)

    def do(self, session: int, sequence: int) -> tuple[Verdict, bytes]:
        """Apply a command; return its verdict and reply."""
        outcome = self.put(EntryKind.COMMAND, session, sequence)
        assert outcome is not None
        return outcome.verdict, outcome.reply


def test_a_retry_gets_the_first_reply_and_changes_nothing() -> None:
    """However often it is in the log, in whatever order with others."""
    rig = Rig()
    rig.open(5)
    rig.open(5)
    assert rig.do(5, 2) == (Verdict.APPLIED, b"1")
    assert rig.do(5, 1) == (Verdict.APPLIED, b"2")
    assert rig.do(5, 2) == (Verdict.APPLIED, b"1")
    assert rig.machine.count == 2


def test_opening_a_session_again_forgets_nothing() -> None:
    """A client that got no answer opens it twice; a retry from before still changes nothing."""
    rig = Rig()
    rig.open(5)
    assert rig.do(5, 1) == (Verdict.APPLIED, b"1")
    rig.open(5)
    assert rig.do(5, 1) == (Verdict.APPLIED, b"1")
    assert rig.machine.count == 1


def test_a_command_of_no_session_has_no_effect() -> None:
    """Whether an earlier try had one is unknown, so it is not applied a second time."""
    rig = Rig()
    assert rig.do(5, 1) == (Verdict.UNKNOWN_SESSION, b"")
    assert rig.machine.count == 0


def test_what_is_older_than_the_window_has_no_effect() -> None:
    """Its reply is forgotten, so it cannot be told from a retry."""
    rig = Rig()
    rig.open(5)
    rig.do(5, WINDOW + 10)
    assert rig.do(5, 10) == (Verdict.FORGOTTEN, b"")
    assert rig.do(5, 11)[0] is Verdict.APPLIED
    assert rig.machine.count == 2


def test_the_session_that_was_idle_longest_goes_first() -> None:
    """The table is bounded, and every node forgets the same session at the same entry."""
    rig = Rig()
    for session in range(1, SESSIONS_MAX + 1):
        rig.open(session)
    rig.do(1, 1)
    rig.open(9999)
    assert rig.do(1, 1) == (Verdict.APPLIED, b"1")
    assert rig.do(2, 1)[0] is Verdict.UNKNOWN_SESSION


def test_sessions_travel_with_the_snapshot() -> None:
    """A node that was restored from a snapshot recognises the same retries."""
    rig, other = Rig(), Rig()
    rig.open(5)
    rig.do(5, 1)
    data = rig.applier.snapshot()
    other.applier.restore(rig.applier.index, data)
    assert other.applier.snapshot() == data
    assert other.do(5, 1) == rig.do(5, 1) == (Verdict.APPLIED, b"1")
    assert other.do(5, 2) == rig.do(5, 2) == (Verdict.APPLIED, b"2")


def test_an_entry_out_of_turn_is_a_bug() -> None:
    """Nothing is applied twice or left out."""
    rig = Rig()
    with pytest.raises(AssertionError, match="applying 2 after 0"):
        rig.applier.apply([Entry(2, 1, EntryKind.NOOP, 0, 0, b"")])


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    """Cut anywhere, of another index, or out of order: one typed error."""
    good = encode_state(6, [SessionState(4, 5, 1, {2: b"r"})], b"machine")
    for end in range(len(good)):
        with pytest.raises(MetadataCorruptError):
            decode_state(6, good[:end])
    with pytest.raises(MetadataCorruptError):
        decode_state(7, good)
    with pytest.raises(MetadataCorruptError):
        decode_state(6, good + b"x")
