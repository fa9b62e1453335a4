"""A Raft member at the edges of its promises: one term, one entry, one answer more or less.

`make plant` moves these edges, and each test here is the one that notices.
"""

from __future__ import annotations

from typing import Any

from broker.codec.checksum import crc32c
from broker.codec.disk.raft_voters import encode_voters
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.events import (
    Apply,
    Barrier,
    BarrierFailed,
    BarrierPassed,
    ChangeRefusal,
    ChangeVoters,
    Effect,
    MemberAsks,
    Propose,
    Received,
    Save,
    Saved,
    Send,
    Tick,
    VotersKept,
)
from broker.core.raft.log import RaftLog
from broker.core.raft.member import Role
from broker.core.raft.progress import Progress
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.model.raft import (
    Entry,
    EntryKind,
    HardState,
    LogImage,
    NodeId,
    Proposal,
    SnapshotId,
    Standing,
    Stored,
    Voter,
    Voters,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Invite,
    Invited,
    Message,
    PreVoteReply,
    ReadIndexReply,
    ReadIndexRequest,
    TimeoutNow,
    Vote,
    VoteReply,
)

A, B, C, D, E = (NodeId(name) for name in "abcde")


def _noop(index: int, term: int, payload: bytes = b"") -> Entry:
    return Entry(index, term, EntryKind.NOOP, 0, 0, payload)


def _log(*terms: int) -> LogImage:
    return LogImage(0, 0, tuple(_noop(1 + at, term) for at, term in enumerate(terms)))


class Rig:
    """Member `a`; a test may do its saves itself."""

    def __init__(
        self,
        *terms: int,
        members: tuple[NodeId, ...] = (A, B, C),
        observers: tuple[NodeId, ...] = (),
        hard: HardState | None = None,
        me: NodeId = A,
        log: LogImage | None = None,
    ) -> None:
        known = hard or HardState(max(terms, default=0))
        config = RaftConfig(members=members, observers=observers)
        stored = Stored(known, None, log or _log(*terms))
        self.core = RaftCore(config, me, stored, random=lambda low, _: low)
        self.member = self.core.member
        self.saves = True
        self.now_ms = 0
        self.effects: list[Effect] = self._settled(self.core.start(0))

    def step(self, event: Any) -> list[Effect]:
        """Feed one event; return all that follows."""
        self.effects = self._settled(self.core.step(self.now_ms, event))
        return self.effects

    def get(self, sender: NodeId, message: Message) -> list[Message]:
        """Receive a message; return what is sent because of it."""
        return [
            one.message for one in self.step(Received(sender, message)) if isinstance(one, Send)
        ]

    def role(self) -> Role:
        """Return what the member is now."""
        return self.member.role

    def wait(self, ms: int) -> list[Effect]:
        """Let time pass."""
        self.now_ms += ms
        return self.step(Tick())

    def save(self) -> Save:
        """Return the save of the last step."""
        (found,) = (one for one in self.effects if isinstance(one, Save))
        return found

    def stand(self) -> None:
        """Ask for votes in a new term."""
        self.wait(1_000)
        for peer in self.member.peers:
            self.get(peer, PreVoteReply(self.member.term, self.member.term + 1, True))

    def lead(self) -> None:
        """Win an election."""
        self.stand()
        for peer in self.member.peers:
            self.get(peer, VoteReply(self.member.term, True))
        assert self.role() is Role.LEADER

    def ok(self, index: int, round_number: int = 1) -> AppendReply:
        """Return a member's confirmation of everything up to an entry."""
        return AppendReply(self.member.term, True, index, 0, 0, round_number)

    def _settled(self, effects: list[Effect]) -> list[Effect]:
        found = list(effects)
        for effect in effects:
            if isinstance(effect, Save) and self.saves:
                found += self._settled(self.core.step(self.now_ms, Saved(effect.number)))
        return found


# ---------------------------------------------------------------------------- votes


def test_a_vote_in_the_present_term_is_kept_as_well() -> None:
    """The term is on the disk already, but the vote has to be saved, too."""
    rig = Rig(hard=HardState(1))
    rig.saves = False
    assert rig.get(B, Vote(1, 0, 0, False)) == []
    assert rig.save().hard == HardState(1, B, 0)


def test_a_later_term_begins_without_a_vote() -> None:
    """An earlier candidate has no claim on the vote."""
    rig = Rig(hard=HardState(1, B))
    assert rig.get(C, Vote(2, 0, 0, False)) == [VoteReply(2, True)]
    assert rig.get(B, Vote(2, 0, 0, False)) == [VoteReply(2, False)]


def test_a_candidate_counts_itself_once_its_vote_is_durable() -> None:
    """With one vote of three beside it, it leads after its own save and not before."""
    rig = Rig()
    rig.wait(1_000)
    rig.saves = False
    rig.get(B, PreVoteReply(0, 1, True))
    own = rig.save()
    rig.get(B, VoteReply(1, True))
    assert rig.role() is Role.CANDIDATE
    rig.step(Saved(own.number))
    assert rig.role() is Role.LEADER


def test_only_votes_given_for_this_term_by_the_named_disks_count() -> None:
    """A refusal, a vote from another disk, and a pre-vote for another term do not count."""
    rig = Rig()
    rig.wait(1_000)
    for asked in (0, 2):
        rig.get(B, PreVoteReply(0, asked, True))
    assert rig.role() is Role.PRECANDIDATE
    rig.get(B, PreVoteReply(0, 1, True))
    for peer in (B, C):
        rig.get(peer, VoteReply(1, False))
        rig.get(peer, VoteReply(1, True, 0, 7))
    assert rig.role() is Role.CANDIDATE
    rig.get(C, VoteReply(1, True))
    assert rig.role() is Role.LEADER


def test_a_voter_with_another_disk_than_the_named_one_is_none() -> None:
    """The configuration names member and disk; this disk was put in the place of disk 9."""
    voters: Voters = (Voter(A, 9), Voter(B), Voter(C))
    changed = Entry(1, 1, EntryKind.VOTERS, 0, 0, encode_voters(voters))
    rig = Rig(hard=HardState(1, None, 1), log=LogImage(0, 0, (changed,)))
    assert not rig.member.is_voter
    rig.wait(1_000)
    assert rig.role() is Role.FOLLOWER


def test_a_disk_s_number_is_durable_before_it_is_told() -> None:
    """Other voters count votes by this number."""
    rig = Rig(members=(A, B, C), observers=(D,), me=D)
    rig.get(B, Append(1, 0, 0, 0, 1, 0, 0, ()))
    rig.saves = False
    assert rig.get(B, Invite(1)) == []
    number = rig.save()
    assert number.disk == 1
    told = [one.message for one in rig.step(Saved(number.number)) if isinstance(one, Send)]
    assert told == [Invited(1, 1)]


# ---------------------------------------------------------------------------- the log


def test_entries_follow_an_entry_of_the_same_term_or_are_refused() -> None:
    """An entry at the place before is not enough."""
    rig = Rig(1, 1)
    (reply,) = rig.get(B, Append(3, 2, 2, 0, 1, 0, 0, (_noop(3, 3),)))
    assert isinstance(reply, AppendReply)
    assert (reply.ok, rig.member.log.last_index) == (False, 2)


def test_a_leader_of_the_term_before_is_told_and_not_followed() -> None:
    """One term behind is behind."""
    rig = Rig(1, hard=HardState(2))
    assert rig.get(B, Append(1, 1, 1, 1, 4, 0, 0, (_noop(2, 1),))) == [
        AppendReply(2, False, 1, 0, 0, 4)
    ]
    assert (rig.member.leader, rig.member.log.last_index) == (None, 1)


def test_what_is_cut_is_no_longer_durable_even_if_its_save_ends_later() -> None:
    """An entry in its place is applied once its own save is done."""
    rig = Rig(1, hard=HardState(1))
    rig.saves = False
    rig.get(B, Append(2, 1, 1, 0, 1, 0, 0, (_noop(2, 2), _noop(3, 2))))
    first = rig.save()
    rig.get(C, Append(3, 1, 1, 3, 1, 0, 0, (_noop(2, 3), _noop(3, 3))))
    second = rig.save()
    rig.step(Saved(first.number))
    assert rig.member.durable == 1
    assert not any(isinstance(one, Apply) and one.entries[-1].index > 1 for one in rig.effects)
    rig.step(Saved(second.number))
    assert rig.member.durable == 3
    durable = Rig(1, 1, 1)
    durable.saves = False
    durable.get(B, Append(2, 1, 1, 0, 1, 0, 0, (_noop(2, 2),)))
    assert durable.member.durable == 1


def test_a_message_takes_what_fits_and_at_least_one_entry() -> None:
    """An entry that would exceed the bound waits for the next message."""
    log = RaftLog(LogImage(0, 0, tuple(_noop(at, 1, bytes(100)) for at in (1, 2, 3, 4))))
    weight = log.entry_at(1).weight
    assert len(log.slice(1, 5, 2 * weight)) == 2
    assert len(log.slice(1, 5, 2 * weight - 1)) == 1
    assert len(log.slice(1, 5, 1)) == 1


def test_logs_agree_at_most_at_the_lower_term() -> None:
    """An entry of a later term than the other log's cannot be in both."""
    log = RaftLog(_log(1, 2, 3))
    assert [log.agreement(3, term) for term in (1, 2, 3)] == [(1, 1), (2, 2), (3, 3)]


def test_pieces_of_two_snapshots_make_none() -> None:
    """A second leader sends another one: chunks of the first do not count."""
    rig = Rig()
    one, other = (SnapshotId(index, 1, 8, crc32c(b"12345678")) for index in (5, 6))
    assert rig.get(B, Chunk(1, one, 0, 1, b"1234")) == [ChunkReply(1, one, 4, 1)]
    assert rig.get(B, Chunk(1, other, 4, 1, b"5678")) == [ChunkReply(1, other, 0, 1)]
    assert rig.member.snapshot is None


# ---------------------------------------------------------------------------- the leader


def test_copies_of_a_former_process_do_not_count() -> None:
    """A voter asks anew after its start; an answer of its former process comes afterwards."""
    rig = Rig(members=(A, B, C))
    rig.lead()
    rig.step(MemberAsks(B))
    rig.get(B, rig.ok(1, 0))
    assert rig.member.commit == 0
    rig.get(B, rig.ok(1, 9))
    assert rig.member.commit == 1


def test_an_answer_about_entries_that_are_not_in_the_log_does_not_count() -> None:
    """Otherwise the next entry would be committed before a majority has it."""
    rig = Rig()
    rig.lead()
    rig.get(B, rig.ok(rig.member.log.last_index + 1))
    rig.step(Propose(Proposal(EntryKind.COMMAND, 1, 1, b"x")))
    assert rig.member.commit < rig.member.log.last_index


def test_a_change_of_the_voters_waits_for_an_entry_of_the_term() -> None:
    """What earlier terms committed is not enough (Ongaro's mail of 2015)."""
    rig = Rig(1, hard=HardState(1, None, 1))
    rig.lead()
    rig.step(ChangeVoters(1, remove=C))
    assert [one.reason for one in rig.effects if isinstance(one, VotersKept)] == [
        ChangeRefusal.TERM_BEGINS
    ]


def test_a_removed_leader_hands_over_to_who_has_most() -> None:
    """The other would have to be brought up to date first."""
    rig = Rig(members=(A, B, C, D, E))
    rig.lead()
    for peer in (B, C, D, E):
        rig.get(peer, rig.ok(1))
    rig.step(ChangeVoters(1, remove=A))
    last = rig.member.log.last_index
    for peer in (C, D, E):
        rig.get(peer, rig.ok(last))
    asked = {one.target for one in rig.effects if isinstance(one, Send) and _stands(one.message)}
    assert asked, "a member with every entry is asked to stand at once"
    assert B not in asked


def _stands(message: Message) -> bool:
    return isinstance(message, TimeoutNow)


def test_what_a_member_has_does_not_shrink_and_a_probe_frees_its_budget() -> None:
    """Late answers tell less than newer ones; messages in flight before a probe are lost."""
    one = Progress(1, 0)
    one.matched(5)
    one.sent(9, 1_000)
    one.matched(3)
    assert (one.match, one.next) == (5, 10)
    one.probe(6)
    assert (one.inflight_bytes, one.inflight_count) == (0, 0)


# ---------------------------------------------------------------------------- barriers


def test_barriers_pass_in_the_order_of_their_indexes_once_those_are_applied() -> None:
    """An answer that was given later may name an earlier index."""
    rig = Rig()
    rig.get(B, Append(1, 0, 0, 1, 1, 0, 0, (_noop(1, 1),)))
    asked = []
    for number in (1, 2):
        sent = [one.message for one in rig.step(Barrier(number)) if isinstance(one, Send)]
        asked += [one.number for one in sent if isinstance(one, ReadIndexRequest)]
    rig.get(B, ReadIndexReply(1, asked[0], 3))
    rig.get(B, ReadIndexReply(1, asked[1], 2))
    passed = _passed(rig)
    assert passed == []
    rig.get(B, Append(1, 1, 1, 2, 1, 0, 0, (_noop(2, 1), _noop(3, 1))))
    assert _passed(rig) == [2]
    rig.get(B, Append(1, 3, 1, 3, 1, 0, 0, ()))
    assert _passed(rig) == [1]


def _passed(rig: Rig) -> list[int]:
    return [one.number for one in rig.effects if isinstance(one, BarrierPassed)]


def test_a_barrier_without_an_answer_fails_in_time() -> None:
    """The question or its answer is lost: the waiting member asks again."""
    rig = Rig()
    rig.get(B, Append(1, 0, 0, 0, 1, 0, 0, ()))
    rig.step(Barrier(7))
    rig.now_ms += 900
    rig.get(B, Append(1, 0, 0, 0, 1, 0, 0, ()))
    assert BarrierFailed(7) not in rig.wait(99)
    assert BarrierFailed(7) in rig.wait(1)


# ---------------------------------------------------------------------------- the start


def test_a_wiped_member_of_a_changed_group_takes_part_as_an_observer() -> None:
    """It cannot know who all the others are, so it is not the voter that it was."""
    joining = Rejoin(RaftConfig(members=(A, B, C)), A, random=lambda low, _: low)
    told = Standing(term=3, voters=(A, B, D))
    assert joining.told(B, joining.request_id, 1, told) == TakePart(disk=1)


def test_while_a_change_is_not_committed_both_configurations_are_named() -> None:
    """A restarting voter waits for the voters of both, because the change may be cut off."""
    voters: Voters = (Voter(A), Voter(B), Voter(D, 9))
    changed = Entry(2, 1, EntryKind.VOTERS, 0, 0, encode_voters(voters))
    log = LogImage(0, 0, (_noop(1, 1), changed))
    for commit, names in ((1, (A, B, C, D)), (2, (A, B, D))):
        assert Rig(hard=HardState(1, None, commit), log=log).member.standing.voters == names
