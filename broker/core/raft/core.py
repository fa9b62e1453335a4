"""One member of a Raft group: it takes an event and returns effects. No clock, disk or thread.

Source: Ongaro's dissertation, chapters 3, 4.2.3 (leader stickiness), 6 (clients), 9.6 (pre-vote).
The log says who votes (chapter 4, one change at a time: `voters.py`, `changing.py`). A member
follows any leader, also one that is no voter in its own log: that log may lack the newest change.
`events.py` says what the effects promise, `member.py` what must be durable before what.

The time stands beside the event, `step(now_ms, event)`, and not in it as in the other cores: every
event of Raft needs it, and the shell gives one time to all events of a turn.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.codec.checksum import crc32c
from broker.core.raft.config import RaftConfig
from broker.core.raft.election import Election
from broker.core.raft.events import (
    Barrier,
    BarrierFailed,
    ChangeRefusal,
    ChangeVoters,
    Effect,
    Event,
    MemberAsks,
    Propose,
    Received,
    Refusal,
    Refused,
    Saved,
    SnapshotMade,
    StateHashed,
    Tick,
    TransferLeadership,
    VotersKept,
)
from broker.core.raft.follower import Follower
from broker.core.raft.leader import Leader
from broker.core.raft.member import Member, Role
from broker.model.raft import (
    U64_MAX,
    GroupSeen,
    MemberSeen,
    NodeId,
    Snapshot,
    SnapshotId,
    Stored,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Forward,
    Invite,
    Invited,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndexReply,
    ReadIndexRequest,
    TimeoutNow,
    Vote,
    VoteReply,
)


class RaftCore:
    """Owner: one thread, which passes events and performs the effects in order."""

    def __init__(
        self,
        config: RaftConfig,
        me: NodeId,
        stored: Stored,
        *,
        random: Callable[[int, int], int],
    ) -> None:
        """Start from the content of the disk; ``random(low, high)`` includes both bounds."""
        self._m = Member(config, me, stored, random)
        self._election = Election(self._m)
        self._follower = Follower(self._m)
        self._leader: Leader | None = None
        # Random, so that a late reply to a former process never matches a request of this one.
        self._read_number = random(0, U64_MAX >> 1)
        self._remote_reads: dict[int, tuple[int, int]] = {}  # sent to the leader: barrier, deadline

    # ------------------------------------------------------------------ facts

    @property
    def member(self) -> Member:
        """The member's state, for metrics and tests; callers must not change it."""
        return self._m

    @property
    def group(self) -> GroupSeen:
        """Voters and observers; if this member leads, also the progress of each of them."""
        m, leader = self._m, self._leader
        members = [
            MemberSeen(one, one in m.voters, *(leader.seen(one) if leader else (None, None)))
            for one in sorted(m.known)
        ]
        return GroupSeen(m.leader, m.history.index <= m.commit, tuple(members))

    # ------------------------------------------------------------------ steps

    def start(self, now_ms: int) -> list[Effect]:
        """Start; call it once, before every other method."""
        self._m.now_ms = now_ms
        self._election.restart_timer()
        self._m.renew_bar()
        if not self._m.peers:  # else there is no member to ask
            self._election.stand(transfer=False)
        return self._finish()

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Take one event; return the effects in order. ``now_ms`` never decreases."""
        m = self._m
        m.now_ms = max(m.now_ms, now_ms)
        match event:
            case Received(sender, message):
                if self._is_heard(sender, message):
                    self._receive(sender, message)
            case Saved(number):
                m.saved(number)
            case Tick():
                self._tick()
            case Propose(proposal):
                if self._leader is not None:
                    self._leader.propose(proposal)
                else:
                    m.emit(Refused(proposal, Refusal.NOT_LEADER))
            case Barrier(number):
                self._barrier(number)
            case SnapshotMade(index, data):
                term = m.log.term_at(index)
                assert index <= m.applied, "a snapshot beyond the applied index"
                if term is not None:
                    identity = SnapshotId(index, term, len(data), crc32c(data))
                    m.compact(Snapshot(identity, data))
            case StateHashed(index, value):
                m.note_hash(index, value)
            case _:
                self._tell_leader(event)
        return self._finish()

    def _tell_leader(self, event: Event) -> None:
        """Handle the events that only a leader acts on."""
        leader = self._leader
        match event:
            case TransferLeadership(target) if leader is not None:
                leader.transfer(target)
            case MemberAsks(member) if leader is not None:
                leader.forget_copies(member)
            case ChangeVoters() if leader is not None:
                leader.change_voters(event)
            case ChangeVoters(number):
                self._m.emit(VotersKept(number, ChangeRefusal.NOT_LEADER))

    def _finish(self) -> list[Effect]:
        if self._leader is None and self._election.has_majority():
            if self._m.role is Role.PRECANDIDATE:
                self._election.stand(transfer=False)
            elif self._m.role is Role.CANDIDATE:
                self._take_office()
        if self._leader is not None:
            self._leader.after_step()
        return self._m.flush()

    def _take_office(self) -> None:
        self._m.role = Role.LEADER
        self._m.leader = self._m.me
        self._fail_remote_reads()
        self._leader = Leader(self._m)

    def _tick(self) -> None:
        m = self._m
        m.lapse_bar()
        for number, (barrier, deadline_ms) in list(self._remote_reads.items()):
            if m.now_ms >= deadline_ms:
                del self._remote_reads[number]
                m.emit(BarrierFailed(barrier))
        if self._leader is not None:
            if not self._leader.tick():
                self._become_follower(None)
        elif self._is_due():
            self._election.ask_first()

    def _is_due(self) -> bool:
        """Tell whether to ask for votes now; a group of one asks once, when it may stand."""
        m = self._m
        many = m.peers or m.role is Role.FOLLOWER
        return bool(many) and self._election.is_due() and not m.disk_is_stuck

    def _become_follower(self, leader: NodeId | None) -> None:
        m = self._m
        if self._leader is not None:
            self._leader.abandon()
            self._leader = None
            self._election.restart_timer()
        if m.leader != leader:
            self._fail_remote_reads()
        m.role = Role.FOLLOWER
        m.leader = leader

    def _barrier(self, number: int) -> None:
        m = self._m
        if self._leader is not None:
            self._leader.read(m.me, number)
        elif m.leader is None or len(self._remote_reads) >= m.config.reads_max:
            m.emit(BarrierFailed(number))
        else:
            self._read_number += 1
            self._remote_reads[self._read_number] = (number, m.now_ms + m.config.election_ms_min)
            m.send(m.leader, ReadIndexRequest(m.term, self._read_number))

    def _fail_remote_reads(self) -> None:
        for barrier, _ in self._remote_reads.values():
            self._m.emit(BarrierFailed(barrier))
        self._remote_reads.clear()

    # ------------------------------------------------------------------ messages

    def _is_heard(self, sender: NodeId, message: Message) -> bool:
        """Drop messages of unknown senders, and questions about votes that cannot count.

        A candidate that this member's configuration does not name may be a voter in a newer one.
        So it is heard if its disk has a number, or if this member's configuration is from the log.
        Before the first change of voters, only a wrong configuration file can name other voters.
        """
        m = self._m
        if sender not in m.known or sender == m.me:
            return False
        if isinstance(message, PreVote | Vote):
            is_candidate = sender in m.voters or message.disk != 0 or m.history.index > 0
            return m.is_entitled and is_candidate
        return m.is_entitled or not isinstance(message, PreVoteReply | VoteReply | TimeoutNow)

    def _receive(self, sender: NodeId, message: Message) -> None:
        m = self._m
        if isinstance(message, PreVote):
            self._election.on_pre_vote(sender, message)
            return
        if isinstance(message, PreVoteReply) and message.granted:
            self._election.on_pre_vote_reply(sender, message)  # its term may be lower than ours
            return
        if isinstance(message, Vote) and self._election.hears_leader and not message.transfer:
            return
        if message.term > m.term:
            self._become_follower(None)
            m.set_term(message.term, None)
            self._election.forget_leader()
        if message.term < m.term:
            self._answer_old_term(sender, message)
            return
        match message:
            case Append() | Chunk():
                self._follow(sender, message)
            case Vote():
                self._election.on_vote(sender, message)
            case VoteReply():
                self._election.on_vote_reply(sender, message)
            case TimeoutNow():
                if sender == m.leader and self._leader is None:
                    self._election.stand(transfer=True)
            case Invite():
                if sender == m.leader and self._leader is None:
                    m.enroll()
                    m.send(sender, Invited(m.term, m.disk))
            case ReadIndexReply(_, number, index):
                found = self._remote_reads.pop(number, None)
                if found is not None:
                    m.wait_for(found[0], index)
            case _:
                self._ask_leader(sender, message)

    def _follow(self, sender: NodeId, message: Append | Chunk) -> None:
        m = self._m
        assert m.role is not Role.LEADER, f"{sender} and {m.me} both lead term {m.term}"
        assert m.leader in {None, sender}, f"{sender} and {m.leader} both lead term {m.term}"
        self._become_follower(sender)
        self._election.leader_spoke()
        if isinstance(message, Append):
            self._follower.on_append(sender, message)
        else:
            self._follower.on_chunk(sender, message)

    def _ask_leader(self, sender: NodeId, message: Message) -> None:
        """Pass messages that only a leader can answer; any other member drops them."""
        leader = self._leader
        if leader is None:
            return
        match message:
            case AppendReply():
                leader.on_append_reply(sender, message)
            case ChunkReply():
                leader.on_chunk_reply(sender, message)
            case ReadIndexRequest(_, number):
                leader.read(sender, number)
            case Forward(_, proposal):
                leader.propose(proposal)
            case Invited(_, disk):
                leader.on_invited(sender, disk)

    def _answer_old_term(self, sender: NodeId, message: Message) -> None:
        """Tell a sender with an old term about the newer term; ignore answers of old terms."""
        m = self._m
        match message:
            case Append(_, prev_index, _, _, round_number):
                m.send(sender, AppendReply(m.term, False, prev_index, 0, 0, round_number))
            case Chunk(_, _, _, round_number):
                m.send(sender, AppendReply(m.term, False, 0, 0, 0, round_number))
            case Vote():
                m.send(sender, VoteReply(m.term, False, message.candidacy))
            case Forward() | ReadIndexRequest():
                self._ask_leader(sender, message)
            case _:
                pass
