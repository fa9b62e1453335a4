"""Rows S1 to S12 of docs/raft.md: what pysyncobj does as shipped, and what both of ours do.

Each test first shows the hole in the library's own classes, then that a member of ours does not
have it: our own Raft, and pysyncobj with its corrections. S12 over real sockets is in
tests/integration/broker/test_raft_defects_sockets.py.

The file is not split: it follows a table of docs/raft.md row by row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import journal as library_journal

from broker.codec.peer.raft_messages import decode, encode
from broker.core.raft.events import Propose, Save, SnapshotMade
from broker.core.raft.member import Role
from broker.errors import EnvelopeError, LogFailedError, MetadataCorruptError
from broker.model.raft import EntryKind, HardState, Proposal
from broker.model.raft_messages import (
    AppendReply,
    Chunk,
    ChunkReply,
    Forward,
    PreVoteReply,
    Vote,
    VoteReply,
)
from simkit.raft import pysyncobj_shipped as shipped
from simkit.raft.groups import CORES
from simkit.raft.pysyncobj_shipped import Shipped
from simkit.raft.rig import (
    GROUP,
    SESSION,
    STRANGER,
    A,
    B,
    C,
    D,
    E,
    MemberRig,
    append,
    entries,
    entry,
    proposal,
    snapshot_of,
)
from simkit.raft.truth import command

# pysyncobj opens its meta file without closing it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file.*journal.meta:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in.*FileIO:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture
def clock() -> Iterator[shipped.Clock]:
    """Let the shipped library's time stand still."""
    with shipped.standing_clock() as found:
        yield found


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> Any:
    """Return each implementation in turn."""
    return CORES[request.param]


def _acked(messages: list[Any]) -> int:
    """Return the end of the log that a member of ours has just confirmed."""
    replies = [one for one in messages if isinstance(one, AppendReply) and one.ok]
    return replies[-1].index if replies else 0


# ---------------------------------------------------------------------------- S1


def test_s1_a_follower_keeps_what_does_not_conflict(core: Any, clock: shipped.Clock) -> None:
    """A late copy of the leader's first message takes nothing away that was acknowledged."""
    library = Shipped()
    library.get("b", shipped.append(1, (1, 0), shipped.rows(2, 21, 1)))
    library.get("b", shipped.append(1, (1, 0), shipped.rows(2, 9, 1)))
    assert library.log[-1][1] == 9, "twelve acknowledged entries are still there"

    ours = MemberRig(core)
    assert _acked(ours.get(B, append(1, (0, 0), entries(1, 20, 1)))) == 20
    assert _acked(ours.get(B, append(1, (0, 0), entries(1, 8, 1)))) == 8
    assert _acked(ours.get(B, append(1, (0, 0)))) == 0
    assert ours.last_index == 20
    ours.restart(power=True)
    assert ours.last_index == 20
    ours.get(C, append(2, (8, 1), entries(9, 9, 2)))
    assert ours.last_index == 9, "what does conflict goes"


# ---------------------------------------------------------------------------- S2


def test_s2_an_answer_counts_in_its_own_term_only(core: Any, clock: shipped.Clock) -> None:
    """An answer that was held up across two elections confirms nothing of the new log."""
    follower = Shipped("ba")
    late = follower.get("a", shipped.append(1, (1, 0), shipped.rows(2, 10, 1)))
    library = Shipped("abcde")
    library.get("c", shipped.append(2, (1, 0), shipped.rows(2, 9, 2)))
    library.lead(clock, "b", "d")
    end = library.log[-1][1]
    genuine = {"type": "next_node_idx", "reset": False, "success": True, "next_node_idx": end + 1}
    library.get("d", genuine)
    library.tick()
    assert library.commit == 1, "two of five are no majority"
    assert "term" not in late[0]
    library.get("b", late[0])  # the answer is about another log, in an old term
    library.tick()
    assert library.commit == end, "committed with two copies of five"

    ours = MemberRig(core, members=(A, B, C, D, E))
    ours.get(C, append(1, (0, 0), entries(1, 8, 1)))
    term = ours.lead()
    end = ours.last_index
    ours.get(D, AppendReply(term, True, end, 0, 0, 1))
    ours.get(B, AppendReply(term - 1, True, end, 0, 0, 1))
    ours.wait(1)
    assert (ours.member.commit, ours.applied) == (0, [])
    ours.get(B, AppendReply(term, True, end, 0, 0, 1))
    ours.wait(1)
    assert ours.member.commit == end


# ---------------------------------------------------------------------------- S3


def test_s3_a_snapshot_in_pieces_commits_nothing(core: Any, clock: shipped.Clock) -> None:
    """A leader that was cut off does not take its own tail for committed when chunks arrive."""
    answers: list[Any] = []
    library = Shipped()
    library.lead(clock, "b")
    for value in range(10):
        library.add(value, callback=lambda _, error: answers.append(error))
    library.tick()
    still_writing = {"type": "append_entries", "term": 2, "commit_index": 200, "serialized": None}
    library.get("b", still_writing)
    library.tick()
    assert answers == [shipped.SUCCESS] * 10, "ten commands that exist nowhere else"

    ours = MemberRig(core, chunk_bytes_max=4)
    term = ours.lead()
    for sequence in range(10):
        ours.step(Propose(proposal(sequence)))
    theirs = snapshot_of(200, term + 1)
    for data in (b"", theirs.data[:4]):
        ours.get(B, Chunk(term + 1, theirs.id, 0, 1, data))
        ours.wait(1)
    assert (ours.member.commit, ours.applied, ours.restored) == (0, [], [])
    ours.get(B, Chunk(term + 1, theirs.id, 4, 1, theirs.data[4:]))
    assert (ours.applied, ours.restored, ours.last_index) == ([], [theirs], 200)


# ---------------------------------------------------------------------------- S4, S5


def _library_with_dump(folder: Path, clock: shipped.Clock) -> Shipped:
    """Return a follower that has just written its dump, and not trimmed its journal yet."""
    library = Shipped(folder=folder)
    library.get("b", shipped.append(1, (1, 0), shipped.rows(2, 21, 1), commit=21))
    library.tick()
    library.forceLogCompaction()
    clock.now += 0.1
    library.get("b", shipped.append(1, (21, 1), [], commit=21))
    library.tick()
    assert (folder / "dump").exists()
    return library


def test_s4_a_kill_after_the_snapshot_drops_no_entry(
    core: Any, clock: shipped.Clock, tmp_path: Path
) -> None:
    """Entries acknowledged between the snapshot and the journal's trim survive a kill there."""
    before = tmp_path / "before"
    before.mkdir()
    library = _library_with_dump(before, clock)
    told = library.get("b", shipped.append(1, (21, 1), shipped.rows(22, 51, 1), commit=21))
    assert told[-1]["success"], "thirty entries are acknowledged"
    after = Shipped(folder=shipped.killed_copy(before, tmp_path / "after"))
    after.tick()
    assert after.log[-1][1] == 21, "the thirty are still there"
    library.close()
    after.close()

    survived = 0
    for operation in range(100):
        ours = MemberRig(core)
        ours.get(B, append(1, (0, 0), entries(1, 20, 1), commit=20))
        assert _acked(ours.get(B, append(1, (20, 1), entries(21, 50, 1), commit=20))) == 50
        if not ours.dies_at(operation, SnapshotMade(20, ours.take_snapshot())):
            break
        ours.restart(power=operation % 2 == 1)
        assert ours.last_index == 50, f"killed at operation {operation}"
        survived += 1
    assert survived > 5, "the machine was stopped in every step of the save"


def test_s5_compaction_is_all_or_nothing(
    core: Any, clock: shipped.Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while the journal is being shortened leaves the old one or the new one, whole."""
    journal = library_journal.FileJournal(str(tmp_path / "journal"))
    for index in range(1, 501):
        journal.add(b"x", index, 1)

    class Killed(BaseException):
        pass

    def add(self: Any, *entry: Any) -> None:
        if len(self) == 20:
            raise Killed
        original(self, *entry)

    original = library_journal.FileJournal.add
    with monkeypatch.context() as patch:
        patch.setattr(library_journal.FileJournal, "add", add)
        with pytest.raises(Killed):
            journal.deleteEntriesTo(10)
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "journal"
    copy.write_bytes((tmp_path / "journal").read_bytes())
    found = library_journal.FileJournal(str(copy))
    assert len(found) == 20, "490 entries were to be kept"
    found._destroy()
    journal._destroy()

    lengths = set()
    for operation in range(100):
        ours = MemberRig(core)
        ours.get(B, append(1, (0, 0), entries(1, 60, 1), commit=10))
        died = ours.dies_at(operation, SnapshotMade(10, ours.take_snapshot()))
        ours.restart(power=True)
        assert ours.last_index == 60
        lengths.add(ours.member.log.base_index)
        if not died:
            break
    assert lengths == {0, 10}


# ---------------------------------------------------------------------------- S6


def test_s6_nothing_is_said_before_it_is_durable(
    core: Any, clock: shipped.Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries, votes and terms are on the disk, not in its cache, before a message names them."""
    syncs: list[str] = []
    with monkeypatch.context() as patch:
        for owner, name in (
            (os, "fsync"), (os, "fdatasync"), (library_journal.ResizableFile, "flush"),
        ):  # fmt: skip
            patch.setattr(owner, name, lambda *_, name=name: syncs.append(name))
        library = Shipped(folder=tmp_path)
        vote = {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 0}
        said = library.get("b", vote)
        said += library.get("b", shipped.append(1, (1, 0), shipped.rows(2, 21, 1), commit=21))
        assert [one["type"] for one in said] == ["response_vote", "next_node_idx"]
        assert syncs == [], "a vote and twenty entries were promised without one sync"
    library.close()

    ours = MemberRig(core)
    ours.saves_at_once = False
    for question, answer in (
        (Vote(3, 0, 0, transfer=False), VoteReply(3, granted=True)),
        (append(3, (0, 0), entries(1, 20, 3), commit=20), AppendReply(3, True, 20, 0, 0, 1)),
    ):
        assert ours.get(B, question) == []
        assert ours.applied == []
        said_after = []
        while ours.waiting_saves:
            said_after += ours.save()
        assert answer in said_after
    assert len(ours.applied) == 20
    ours.restart(power=True)
    assert ours.last_index == 20
    assert ours.member.term == 3
    said_after = ours.get(C, Vote(3, 50, 3, transfer=False))
    assert VoteReply(3, granted=True) not in said_after, "b has the vote of term 3"


# ---------------------------------------------------------------------------- S7


def test_s7_a_command_takes_effect_once_whatever_is_raised(core: Any, clock: shipped.Clock) -> None:
    """Neither a caller's callback nor a bad command makes anything happen twice, or for ever."""

    def raises(*_: Any) -> None:
        raise ValueError("the caller's own mistake")

    library = Shipped("a")
    library.lead(clock)
    library.add("x", callback=raises)
    library.tick()
    with pytest.raises(ValueError, match="own mistake"):
        library.tick()
    library.tick()
    assert library.values == ["x", "x"], "applied twice, on this member only"
    library.add(None, too_many=1)  # a call that raises when it is applied
    library.tick()
    library.add("y")
    for _ in range(20):
        with pytest.raises(TypeError):
            library.tick()
    assert library.values == ["x", "x"], "the member makes no progress any more"

    ours = MemberRig(core, members=(A,))
    ours.wait(1)
    again = [0, 1, 1, 1, 2, 1, 2]
    for sequence in again:
        ours.step(Propose(proposal(sequence)))
    nonsense = Proposal(EntryKind.COMMAND, 99, 5, b"of a session that nobody opened")
    ours.step(Propose(nonsense))
    ours.step(Propose(proposal(3)))
    fresh = [one.sequence for one in ours.outcomes if one.fresh]
    assert fresh == [0, 1, 2, 3]
    indexes = [one.index for one in ours.applied]
    assert indexes == sorted(set(indexes)), "each entry is handed over once, in order"
    ours.restart(power=True)
    ours.wait(1)
    assert [one.sequence for one in ours.outcomes if one.fresh] == fresh


# ---------------------------------------------------------------------------- S8


def test_s8_votes_are_those_of_different_members(core: Any, clock: shipped.Clock) -> None:
    """A stranger's vote, a vote told twice and a vote of another term elect nobody."""
    library = Shipped()
    clock.now += 10
    library.tick()
    library.get("stranger", {"type": "response_vote", "term": library.term})
    assert library.state == shipped.LEADER, "elected by a process that is not a member"
    library = Shipped("abcde")
    clock.now += 10
    library.tick()
    for _ in range(2):
        library.get("b", {"type": "response_vote", "term": library.term})
    assert library.state == shipped.LEADER, "elected by one member out of four"

    ours = MemberRig(core, members=(A, B, C, D, E))
    ours.wait(ours.config.election_ms_max + 1)
    for peer in (B, C):
        ours.get(peer, PreVoteReply(0, 1, granted=True))
    assert ours.member.role is Role.CANDIDATE
    for peer, term in ((STRANGER, 1), (B, 1), (B, 1), (A, 1), (C, 0)):
        ours.get(peer, VoteReply(term, granted=True))
        assert ours.member.role is Role.CANDIDATE, f"elected by {peer}"
    ours.get(C, VoteReply(1, granted=True))
    assert ours.leads()


# ---------------------------------------------------------------------------- S9, S10


def test_s9_a_damaged_snapshot_is_no_snapshot(
    core: Any, clock: shipped.Clock, tmp_path: Path
) -> None:
    """It is not answered as taken, replaces no good one, and is not passed over at start."""
    library = _library_with_dump(tmp_path, clock)
    library.tick()  # the journal is trimmed now
    good = (tmp_path / "dump").read_bytes()
    chunk = {"type": "append_entries", "term": 1, "commit_index": 21}
    library.get("b", {**chunk, "serialized": (b"half of one, half of", True, False)})
    said = library.get("b", {**chunk, "serialized": (b"", False, True)})
    assert said[-1]["success"], "a failed load is answered as a success"
    assert (tmp_path / "dump").read_bytes() != good, "and the good dump is gone"
    library.close()
    clock.now += 10
    again = Shipped(folder=tmp_path)
    again.tick()
    assert again.values == [], "an empty state, and it takes part in the group"
    again.close()

    ours = MemberRig(core)
    ours.get(B, append(1, (0, 0), entries(1, 5, 1), commit=5))
    ours.step(SnapshotMade(5, ours.take_snapshot()))
    theirs = snapshot_of(30, 1)
    bad = b"\xff" * theirs.id.size
    said_ours = ours.get(B, Chunk(1, theirs.id, 0, 1, bad))
    assert said_ours == [ChunkReply(1, theirs.id, 0, 1)], "it asks for all of it again"
    other = snapshot_of(31, 1)
    half = len(other.data) // 2
    ours.get(B, Chunk(1, theirs.id, 0, 1, theirs.data[:half]))
    said_ours = ours.get(B, Chunk(1, other.id, half, 1, other.data[half:]))
    assert said_ours == [ChunkReply(1, other.id, 0, 1)], "two halves of two make no whole"
    assert ours.restored == []
    ours.restart(power=True)
    assert [one.id.index for one in ours.restored] == [5]
    ours.disk.kill()
    ours.disk.flip_bit("raft/snapshot", 60, 3)
    with pytest.raises(MetadataCorruptError):
        ours.start()


def test_s10_entries_behind_a_snapshot_stay(
    core: Any, clock: shipped.Clock, tmp_path: Path
) -> None:
    """A snapshot of a beginning of the log does not take the rest of the log away."""
    for name in ("leader", "follower"):
        (tmp_path / name).mkdir()
    leader = _library_with_dump(tmp_path / "leader", clock)
    dump = (tmp_path / "leader" / "dump").read_bytes()
    leader.close()
    library = Shipped(folder=tmp_path / "follower")
    library.get("b", shipped.append(1, (1, 0), shipped.rows(2, 51, 1), commit=1))
    chunk = {"type": "append_entries", "term": 1, "commit_index": 1}
    library.get("b", {**chunk, "serialized": (dump, True, False)})
    library.get("b", {**chunk, "serialized": (b"", False, True)})
    assert library.log[-1][1] == 21, "thirty acknowledged entries are still there"
    library.close()

    ours = MemberRig(core)
    assert _acked(ours.get(B, append(1, (0, 0), entries(1, 50, 1)))) == 50
    theirs = snapshot_of(20, 1)
    assert _acked(ours.get(B, Chunk(1, theirs.id, 0, 1, theirs.data))) == 20
    assert (ours.member.log.base_index, ours.last_index) == (20, 50)
    ours.restart(power=True)
    assert (ours.member.log.base_index, ours.last_index) == (20, 50)


# ---------------------------------------------------------------------------- S11, S12


def test_s11_membership_is_configuration(core: Any, clock: shipped.Clock) -> None:
    """No command changes who is in the group."""
    library = Shipped()
    library.lead(clock, "b")
    removal = b"\x02" + shipped.pickled(["rem", "c", shipped.NODES["c"]])
    library.get("b", {"type": "apply_command", "command": removal})
    library.tick()
    for name in "bc":
        end = library.log[-1][1] + 1
        ack = {"type": "next_node_idx", "reset": False, "success": True, "next_node_idx": end}
        library.get(name, ack)
    library.tick()
    assert {node.id for node in library.otherNodes} == {"b"}, "a member was removed"

    ours = MemberRig(core, members=GROUP)
    term = ours.lead()
    ours.get(B, Forward(term, Proposal(EntryKind.COMMAND, SESSION, 1, removal)))
    ours.get(B, AppendReply(term, True, ours.last_index, 0, 0, 1))
    ours.wait(1)
    assert ours.applied[-1].payload == removal
    said = ours.wait(ours.config.heartbeat_ms + 1)
    assert len(said) == 2, "both others still get heartbeats"
    forward = bytearray(encode(Forward(term, proposal(1))))
    kinds = set()
    for kind in range(256):
        forward[10] = kind
        try:
            kinds.add(decode(bytes(forward)).proposal.kind)  # type: ignore[union-attr]
        except EnvelopeError:
            continue
    assert kinds == {EntryKind.COMMAND, EntryKind.OPEN_SESSION}


def test_s12_only_members_are_heard(core: Any, clock: shipped.Clock) -> None:
    """A process that is not in the configuration changes nothing by any message."""
    library = Shipped()
    library._SyncObj__onReadonlyNodeConnected(shipped.stranger("0"))
    library.get("0", shipped.append(99, (1, 0), shipped.rows(2, 2, 99), commit=2))
    library.tick()
    assert library.values == [2], "a forged command was applied"

    ours = MemberRig(core)
    for message in (
        append(99, (0, 0), entries(1, 1, 99), commit=1),
        Vote(99, 50, 98, transfer=True),
        Chunk(99, snapshot_of(9, 9).id, 0, 1, snapshot_of(9, 9).data),
        Forward(0, proposal(1)),
    ):
        for sender in (STRANGER, A):
            assert ours.get(sender, message) == []
    assert (ours.member.term, ours.last_index, ours.applied, ours.restored) == (0, 0, [], [])


# ---------------------------------------------------------------------------- beyond the rows


def test_a_contradiction_ends_the_member(core: Any) -> None:
    """What cannot happen in a group without a bug or damage is never smoothed over."""
    ours = MemberRig(core)
    ours.get(B, append(3, (0, 0), entries(1, 5, 2), commit=5))
    with pytest.raises((AssertionError, LogFailedError)):
        ours.get(B, append(3, (0, 0), entries(1, 5, 3)))
    ours = MemberRig(core)
    term = ours.lead()
    with pytest.raises((AssertionError, LogFailedError)):
        ours.get(B, append(term, (0, 0), entries(1, 1, term)))


def test_a_save_says_no_commit_that_is_not_durable(core: Any) -> None:
    """Term and vote go to the disk before entries do, so their commit must not name new ones."""
    ours = MemberRig(core, members=(A,))
    ours.wait(1)
    for sequence in range(5):
        ours.step(Propose(proposal(sequence)))
    saves = [one for one in ours.effects if isinstance(one, Save)]
    durable = 0
    for save in saves:
        hard = save.hard or HardState()
        assert hard.commit <= durable
        durable = save.entries[-1].index if save.entries else durable
    assert durable == 6
    assert command(0, 0, 1) != entry(1, 1).payload
