"""Single situations of a Raft member, each of which cost some implementation its data."""

from __future__ import annotations

import pytest

from broker.codec.checksum import crc32c
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.events import (
    Apply,
    Barrier,
    BarrierFailed,
    BarrierPassed,
    Diverged,
    Effect,
    Propose,
    Received,
    Refusal,
    Refused,
    Restore,
    Save,
    Saved,
    Send,
    SnapshotMade,
    StateHashed,
    Tick,
    TransferLeadership,
)
from broker.core.raft.member import Role
from broker.errors import InvalidConfigError
from broker.model.raft import (
    Entry,
    EntryKind,
    HardState,
    LogImage,
    NodeId,
    Proposal,
    Snapshot,
    SnapshotId,
    Stored,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Message,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)

A, B, C, D, E = (NodeId(name) for name in "abcde")
X = NodeId("stranger")


def _noop(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.NOOP, 0, 0, b"")


def _log(*terms: int, base: tuple[int, int] = (0, 0)) -> LogImage:
    entries = (_noop(base[0] + 1 + at, term) for at, term in enumerate(terms))
    return LogImage(*base, tuple(entries))


def _snapshot(index: int, term: int, data: bytes = b"s") -> Snapshot:
    return Snapshot(SnapshotId(index, term, len(data), crc32c(data)), data)


class Rig:
    """A core whose saves are answered at once, unless the test wants to do that."""

    def __init__(
        self,
        *,
        members: tuple[NodeId, ...] = (A, B, C),
        hard: HardState | None = None,
        log: LogImage | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        stored = Stored(hard or HardState(), snapshot, log or _log())
        config = RaftConfig(members=members, append_bytes_max=100, chunk_bytes_max=4)
        self.core = RaftCore(config, A, stored, random=lambda low, high: low)
        self.member = self.core.member
        self.now = 0
        self.saves = True
        self.effects = self._settled(self.core.start(0))

    def step(self, event: object) -> list[Effect]:
        """Feed one event; return all that follows."""
        self.effects = self._settled(self.core.step(self.now, event))  # type: ignore[arg-type]
        return self.effects

    def get(self, sender: NodeId, message: Message) -> list[Message]:
        """Receive a message; return what is sent because of it."""
        return self.sent(self.step(Received(sender, message)))

    def sent(self, effects: list[Effect]) -> list[Message]:
        """Return the messages among the effects."""
        return [one.message for one in effects if isinstance(one, Send)]

    def role(self) -> Role:
        """Return what the member is now."""
        return self.member.role

    def wait(self, ms: int) -> list[Effect]:
        """Let time pass."""
        self.now += ms
        return self.step(Tick())

    def lead(self) -> None:
        """Win an election."""
        self.wait(1000)
        term = self.member.term + 1
        for peer in self.member.peers:
            self.get(peer, PreVoteReply(term - 1, term, True))
        for peer in self.member.peers:
            self.get(peer, VoteReply(term, True))
        assert self.member.role is Role.LEADER

    def _settled(self, effects: list[Effect]) -> list[Effect]:
        found = list(effects)
        for effect in effects:
            if isinstance(effect, Save) and self.saves:
                found += self._settled(self.core.step(self.now, Saved(effect.number)))
        return found


def test_a_late_message_does_not_cut_what_matches() -> None:
    """Entries behind an old message stay: they do not conflict with it (S1)."""
    rig = Rig(log=_log(1, 1, 1, 1), hard=HardState(1))
    (reply,) = rig.get(B, Append(1, 0, 0, 0, 1, 0, 0, (_noop(1, 1),)))
    assert reply == AppendReply(1, True, 1, 0, 0, 1)
    assert rig.member.log.last_index == 4


def test_a_conflict_is_cut_from_its_first_entry_on() -> None:
    """What a dead leader left behind makes room for the living one's entries."""
    rig = Rig(log=_log(1, 1, 2, 2), hard=HardState(2))
    rig.get(B, Append(3, 1, 1, 0, 1, 0, 0, (_noop(2, 1), _noop(3, 3))))
    (save,) = [one for one in rig.effects if isinstance(one, Save)]
    assert (save.truncate, save.entries) == (3, (_noop(3, 3),))
    assert rig.member.log.last_index == 3


def test_an_answer_of_an_old_term_commits_nothing() -> None:
    """A copy counts in the term in which it was confirmed (S2)."""
    rig = Rig(members=(A, B, C, D, E))
    rig.lead()
    old = rig.member.term
    rig.get(B, VoteReply(old + 3, False))
    rig.lead()
    for peer in (B, C):
        rig.get(peer, AppendReply(old, True, rig.member.log.last_index, 0, 0, 1))
    assert rig.member.commit == 0


def test_a_chunk_commits_nothing() -> None:
    """An own, conflicting tail stays uncommitted while a snapshot comes in (S3)."""
    rig = Rig(log=_log(1, 1, 1), hard=HardState(1))
    snapshot = _snapshot(3, 2, b"12345678")
    rig.get(B, Chunk(2, snapshot.id, 0, 1, b"1234"))
    assert rig.member.commit == 0
    assert not any(isinstance(one, Apply) for one in rig.effects)
    rig.get(B, Chunk(2, snapshot.id, 4, 1, b"5678"))
    assert (rig.member.commit, rig.member.log.last_term) == (3, 2)
    assert Restore(snapshot) in rig.effects


def test_chunks_in_any_order_make_a_whole_snapshot_or_none() -> None:
    """The receiver says where it is; a piece that does not belong there is not taken (S9)."""
    rig = Rig()
    snapshot = _snapshot(9, 2, b"12345678")
    one, two = (Chunk(2, snapshot.id, at, 1, snapshot.data[at : at + 4]) for at in (0, 4))
    assert rig.get(B, two) == [ChunkReply(2, snapshot.id, 0, 1)]
    assert rig.get(B, one) == [ChunkReply(2, snapshot.id, 4, 1)]
    assert rig.get(B, one) == [ChunkReply(2, snapshot.id, 4, 1)]
    bad = Chunk(2, snapshot.id, 4, 1, b"5679")
    assert rig.get(B, bad) == [ChunkReply(2, snapshot.id, 0, 1)]  # a wrong checksum: begin again
    assert rig.member.snapshot is None
    rig.get(B, one)
    assert rig.get(B, two) == [AppendReply(2, True, 9, 0, 0, 1)]


def test_an_installed_snapshot_keeps_a_tail_that_agrees() -> None:
    """Newer entries behind the snapshot's own entry are not lost (S10)."""
    rig = Rig(log=_log(1, 1, 1, 1), hard=HardState(1))
    rig.get(B, Chunk(1, _snapshot(2, 1).id, 0, 1, b"s"))
    assert (rig.member.log.base_index, rig.member.log.last_index) == (2, 4)


def test_one_member_votes_once() -> None:
    """Votes are a set of members: doubles, strangers and other terms add nothing (S8)."""
    rig = Rig(members=(A, B, C, D, E))
    rig.wait(1000)
    for peer in (B, C):
        rig.get(peer, PreVoteReply(0, 1, True))
    assert rig.role() is Role.CANDIDATE
    for sender, term in ((B, 1), (B, 1), (X, 1), (C, 0)):
        rig.get(sender, VoteReply(term, True))
    assert rig.role() is Role.CANDIDATE
    rig.get(D, VoteReply(1, True))
    assert rig.role() is Role.LEADER


def test_nothing_is_heard_from_strangers() -> None:
    """A process that is not a member changes nothing, whatever term it claims (S12)."""
    rig = Rig()
    assert rig.get(X, Append(99, 0, 0, 0, 1, 0, 0, (_noop(1, 99),))) == []
    assert (rig.member.term, rig.member.log.last_index) == (0, 0)


def test_a_vote_is_said_only_once_it_is_durable() -> None:
    """A power cut cannot make a member vote twice in a term (S6)."""
    rig = Rig()
    rig.saves = False
    assert rig.get(B, Vote(1, 0, 0, False)) == []
    (save,) = [one for one in rig.effects if isinstance(one, Save)]
    assert save.hard == HardState(1, B, 0)
    assert rig.sent(rig.step(Saved(save.number))) == [VoteReply(1, True)]
    assert rig.get(C, Vote(1, 5, 0, False)) == [VoteReply(1, False)]


def test_an_entry_is_acknowledged_once_it_is_durable() -> None:
    """The leader hears of a copy after the sync that made it one."""
    rig = Rig()
    rig.saves = False
    assert rig.get(B, Append(1, 0, 0, 1, 1, 0, 0, (_noop(1, 1),))) == []
    assert not any(isinstance(one, Apply) for one in rig.effects)
    effects = rig.step(Saved(1))
    assert AppendReply(1, True, 1, 0, 0, 1) in rig.sent(effects)
    assert any(isinstance(one, Apply) for one in effects)


def test_a_leader_counts_itself_after_its_own_sync() -> None:
    """One other copy is no majority of three while the leader's own is in its cache."""
    rig = Rig()
    rig.lead()
    rig.saves = False
    rig.step(Propose(Proposal(EntryKind.COMMAND, 1, 1, b"x")))
    index = rig.member.log.last_index
    (save,) = [one for one in rig.effects if isinstance(one, Save)]
    rig.get(B, AppendReply(1, True, index, 0, 0, 1))
    assert rig.member.commit < index
    rig.step(Saved(save.number))
    assert rig.member.commit == index


def test_entries_of_old_terms_are_committed_by_one_of_the_own() -> None:
    """Figure 8 of the Raft paper: copies of an old entry prove nothing by themselves."""
    rig = Rig(log=_log(1, 2), hard=HardState(2))
    rig.lead()
    rig.get(B, AppendReply(rig.member.term, True, 2, 0, 0, 1))
    assert rig.member.commit == 0
    rig.get(B, AppendReply(rig.member.term, True, 3, 0, 0, 1))
    assert rig.member.commit == 3


def test_a_commit_reaches_as_far_as_the_message_has_shown() -> None:
    """A heartbeat does not commit the unchecked tail behind it."""
    rig = Rig(log=_log(1, 1, 1), hard=HardState(1))
    rig.get(B, Append(2, 1, 1, 3, 1, 0, 0, ()))
    assert rig.member.commit == 1


def test_a_member_that_hears_its_leader_lets_nobody_else_stand() -> None:
    """Neither a pre-vote nor a vote is given while the leader speaks (L2), but for a hand-over."""
    rig = Rig()
    rig.get(B, Append(1, 0, 0, 0, 1, 0, 0, ()))
    assert rig.get(C, PreVote(2, 9, 1)) == [PreVoteReply(1, 2, False)]
    assert rig.get(C, Vote(2, 9, 1, False)) == []
    assert rig.member.term == 1
    assert rig.get(C, Vote(2, 9, 1, True)) == [VoteReply(2, True)]


def test_a_promise_counts_although_its_giver_is_terms_behind() -> None:
    """A candidate with a higher term can still be elected; otherwise no member could be."""
    rig = Rig(hard=HardState(7))
    rig.wait(1000)
    assert PreVote(8, 0, 0) in rig.sent(rig.effects)
    assert Vote(8, 0, 0, False) in rig.get(B, PreVoteReply(3, 8, True))


def test_a_leader_that_nobody_answers_gives_way() -> None:
    """Check-quorum is quicker than an election, not thirty seconds (L3)."""
    rig = Rig()
    rig.lead()
    for _ in range(11):
        rig.wait(100)
    assert rig.member.role is Role.FOLLOWER


def test_a_refusal_at_the_compacted_end_leads_to_the_snapshot() -> None:
    """Logs that differ at the leader's base need the snapshot: seed 73 found a livelock here."""
    rig = Rig(log=_log(4, base=(14, 4)), snapshot=_snapshot(14, 4), hard=HardState(4))
    rig.lead()
    term = rig.member.term
    rig.get(B, AppendReply(term, False, 15, 15, 3, 1))
    replies = rig.get(B, AppendReply(term, False, 14, 14, 3, 1))
    assert [type(one) for one in replies] == [Chunk]


def test_copies_of_an_answer_breed_no_chunks() -> None:
    """A doubled answer to a chunk is answered once: else two copies make four, and so on."""
    rig = Rig(
        log=_log(4, base=(14, 4)), snapshot=_snapshot(14, 4, b"0123456789"), hard=HardState(4)
    )
    rig.lead()
    term, wanted = rig.member.term, rig.member.snapshot
    assert wanted is not None
    rig.get(B, AppendReply(term, False, 15, 15, 3, 1))
    (first,) = rig.get(B, AppendReply(term, False, 14, 14, 3, 1))
    assert isinstance(first, Chunk)
    took = ChunkReply(term, wanted.id, 4, first.round)
    assert [one.offset for one in rig.get(B, took) if isinstance(one, Chunk)] == [4]
    for _ in range(3):
        assert rig.get(B, took) == []
    lost = ChunkReply(term, wanted.id, 0, first.round + 1)
    assert rig.get(B, lost) == [], "nobody asked in that round yet"
    beat = rig.sent(rig.wait(rig.member.config.heartbeat_ms))
    asked = [one for one in beat if isinstance(one, Chunk)]
    assert [(one.data, one.round) for one in asked] == [(b"", lost.round)]
    assert [one.offset for one in rig.get(B, lost) if isinstance(one, Chunk)] == [0]


def test_refusals_in_any_number_step_back_and_never_forth() -> None:
    """Doubled and late refusals do not undo a step back (L1)."""
    rig = Rig(log=_log(*[1] * 20), hard=HardState(1))
    rig.lead()
    term = rig.member.term
    (append,) = rig.get(B, AppendReply(term, False, 20, 8, 1, 1))
    assert isinstance(append, Append)
    assert append.prev_index == 8
    for _ in range(3):
        assert rig.get(B, AppendReply(term, False, 20, 12, 1, 1)) == []
    again = rig.get(B, AppendReply(term, True, 8, 0, 0, 1))
    assert isinstance(again[0], Append)
    assert again[0].prev_index == 8


def test_a_barrier_needs_an_answer_to_a_question_asked_after_it() -> None:
    """Answers to earlier rounds prove nothing about now (§6.4)."""
    rig = Rig()
    rig.lead()
    index = rig.member.log.last_index
    rig.get(B, AppendReply(1, True, index, 0, 0, 0))
    questions = rig.sent(rig.step(Barrier(5)))
    rounds = {one.round for one in questions if isinstance(one, Append)}
    assert len(rounds) == 1
    (now,) = rounds
    rig.get(B, AppendReply(1, True, index, 0, 0, now - 1))
    assert BarrierPassed(5, index) not in rig.effects
    rig.get(B, AppendReply(1, True, index, 0, 0, now))
    assert BarrierPassed(5, index) in rig.effects


def test_a_new_leader_answers_no_barrier_before_its_own_entry_is_committed() -> None:
    """It may not know yet which entries its predecessor has committed (A16)."""
    rig = Rig(log=_log(1, 1), hard=HardState(1))
    rig.lead()
    rig.step(Barrier(1))
    rig.get(B, AppendReply(2, True, 2, 0, 0, 9))
    assert not any(isinstance(one, BarrierPassed) for one in rig.effects)


def test_barriers_of_a_fallen_leader_fail() -> None:
    """A waiting caller gets an error that allows a retry."""
    rig = Rig()
    rig.lead()
    rig.step(Barrier(3))
    rig.get(B, VoteReply(5, False))
    assert BarrierFailed(3) in rig.effects


def test_one_node_alone_needs_nobody() -> None:
    """A group of one leads once its own vote is durable, and commits by its own sync."""
    rig = Rig(members=(A,))
    assert rig.member.role is Role.LEADER
    rig.step(Propose(Proposal(EntryKind.COMMAND, 1, 1, b"x")))
    assert rig.member.commit == 2
    rig.step(Barrier(1))
    assert BarrierPassed(1, 2) in rig.effects


def test_only_a_leader_takes_proposals_and_not_too_many_or_too_large() -> None:
    """A refusal is definite: nothing of the proposal is in the log."""
    rig = Rig()
    one = Proposal(EntryKind.COMMAND, 1, 1, b"x")
    assert Refused(one, Refusal.NOT_LEADER) in rig.step(Propose(one))
    rig.lead()
    large = Proposal(EntryKind.COMMAND, 1, 2, bytes(300_000))
    assert Refused(large, Refusal.TOO_LARGE) in rig.step(Propose(large))
    heavy = Proposal(EntryKind.COMMAND, 1, 3, bytes(32_000))
    for _ in range(140):
        rig.step(Propose(heavy))
    assert Refused(heavy, Refusal.OVERLOADED) in rig.effects


def test_a_hung_disk_makes_a_leader_give_way() -> None:
    """A leader whose own sync does not return lets another member lead (D12)."""
    rig = Rig()
    rig.lead()
    rig.saves = False
    rig.step(Propose(Proposal(EntryKind.COMMAND, 1, 1, b"x")))
    for _ in range(30):
        for peer in (B, C):
            rig.get(peer, AppendReply(1, True, 1, 0, 0, 1))
        rig.wait(100)
    assert rig.member.role is not Role.LEADER


def test_hand_over_lets_the_target_stand_when_it_has_everything() -> None:
    """The leader asks for the election only once nothing is missing there, and takes no more."""
    rig = Rig()
    rig.lead()
    index = rig.member.log.last_index
    rig.step(TransferLeadership(B))
    assert TimeoutNow(1) not in rig.sent(rig.effects)
    one = Proposal(EntryKind.COMMAND, 1, 1, b"x")
    assert Refused(one, Refusal.TRANSFERRING) in rig.step(Propose(one))
    assert TimeoutNow(1) in rig.get(B, AppendReply(1, True, index, 0, 0, 1))


def test_another_state_at_the_same_index_is_noticed() -> None:
    """A node whose state differs from its leader's stops."""
    rig = Rig()
    rig.step(StateHashed(4, 111))
    rig.get(B, Append(1, 0, 0, 0, 1, 4, 222, ()))
    assert Diverged(4, 111, 222) in rig.effects


@pytest.mark.parametrize("members", [(), (A, B), (A, A, B), (A, B, C, D)])
def test_a_group_has_one_three_or_five_members(members: tuple[NodeId, ...]) -> None:
    """An even group tolerates no more than the odd one below it, and a double name is a mistake."""
    with pytest.raises(InvalidConfigError):
        RaftConfig(members=members)


def test_behind_a_snapshot_few_bytes_are_kept() -> None:
    """A thousand large entries would make a journal that is larger than what an opener reads."""
    entries = tuple(
        Entry(index, 1, EntryKind.COMMAND, 7, index, bytes(1000)) for index in range(1, 101)
    )
    for keep_bytes, kept in ((1 << 20, 100), (5 * entries[0].weight, 5), (0, 0)):
        config = RaftConfig(members=(A,), keep_bytes=keep_bytes)
        stored = Stored(HardState(1, A, 100), None, LogImage(0, 0, entries))
        core = RaftCore(config, A, stored, random=lambda low, _: low)
        core.start(0)
        (save,) = (
            one for one in core.step(0, SnapshotMade(100, b"state")) if isinstance(one, Save)
        )
        assert save.image is not None
        assert len([one for one in save.image.entries if one.index <= 100]) == kept
