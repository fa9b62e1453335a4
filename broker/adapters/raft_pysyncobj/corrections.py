"""The library's member with replaced methods, and with messages corrected before they reach it.

Elections, votes, appends, counts of copies, applying and stepping down are the library's code. The
corrections add what it lacks: messages of an old term or of an unknown sender are dropped; a member
becomes a candidate only after a majority has promised its votes; only conflicting entries are
removed; a commit goes no further than a message has shown both logs to be equal; an answer names
its request. Numbers like S8 and L2 are those of the defects in `docs/raft.md`. Names like
``_SyncObj__x`` are the library's private ``__x``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from broker.adapters.raft_pysyncobj.following import Following
from broker.adapters.raft_pysyncobj.leading import Leading
from broker.adapters.raft_pysyncobj.library_log import LibraryLog
from broker.adapters.raft_pysyncobj.outbox import Outbox, Reads
from broker.adapters.raft_pysyncobj.settings import ToldClock, configuration, peer, port
from broker.core.raft.config import RaftConfig
from broker.model.raft import Floor, NodeId
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Forward,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndexReply,
    ReadIndexRequest,
    TimeoutNow,
    Vote,
    VoteReply,
)

_AT_ONCE: Final = -1.0  # a deadline that has passed


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects that a member uses."""

    config: RaftConfig
    me: NodeId
    log: LibraryLog
    clock: ToldClock
    out: Outbox
    reads: Reads
    candidacy: int  # the id of this process in its requests for votes


class Corrections(Following, Leading):
    """One member. Owner: its core, one thread."""

    def __init__(self, module: Any, around: Surroundings) -> None:
        config, log = around.config, around.log
        self._config = config
        self._me = around.me
        self._log = log
        self._clock = around.clock
        self._out = around.out
        self._reads = around.reads
        self._candidacy = around.candidacy
        self._voting_for = 0  # the candidacy of the candidate that asked for this vote
        self._states = vars(module)["_RAFT_STATE"]
        self._nodes: dict[str, Any] = {one: peer(module, config, one) for one in config.members}
        self._others = {one: node for one, node in self._nodes.items() if one != self._me}
        self._voters: set[NodeId] = set()
        self._asking: set[NodeId] | None = None  # who promised a vote for the next term
        self._heard_ms: int | None = None  # when a leader of our term last spoke
        self._begin_following()
        self._begin_leading()
        others = list(self._others.values())
        conf = configuration(module, config, self._on_state_changed)
        super().__init__(self._nodes[self._me], others, conf=conf, transport=port(module, self))
        snapshot = log.snapshot
        self._SyncObj__raftLastApplied = snapshot.id.index if snapshot else log.entries.base_index
        for node in others:  # sending is always allowed; the transport may drop messages
            self._SyncObj__onNodeConnected(node)

    # ------------------------------------------------------------------ what can be seen

    def is_leader(self) -> bool:
        """Tell whether this member leads its term."""
        return bool(self._SyncObj__raftState == self._states.LEADER)

    def is_candidate(self) -> bool:
        """Tell whether this member has asked for votes."""
        return bool(self._SyncObj__raftState == self._states.CANDIDATE)

    def is_asking(self) -> bool:
        """Tell whether this member asks for promises of votes (pre-vote)."""
        return self._asking is not None

    def leader_name(self) -> NodeId | None:
        """Return the leader, as far as this member knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else NodeId(node.id)

    def _term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    # ------------------------------------------------------------------ time

    def begin(self) -> None:
        """Start the election timer; in a group of one, begin an election at once."""
        self.renew_bar()
        if self._others:
            self._restart_timer()
        else:
            self._SyncObj__raftElectionDeadline = _AT_ONCE
        self.settle()

    def settle(self) -> None:
        """End a batch of events: the library elects, commits and applies; send what is due."""
        self._uncommitted = None
        self._lapse_bar()
        self._reads.expire(self._clock.now_ms)
        self._ask_first_if_due()
        commit = self._log.commit
        self._by_transfer = self._SyncObj__transferInProgress
        self._onTick(0)
        self._by_transfer = False
        if self.is_leader():
            self._hand_over()
            if self._must_send or self._log.commit > commit:
                self._SyncObj__sendAppendEntries()
            self._confirm_reads()
        self._reads.pass_applied(self._SyncObj__raftLastApplied)

    def _restart_timer(self) -> None:
        wait_s = self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftElectionDeadline = self._clock.seconds() + wait_s

    def _hears_leader(self) -> bool:
        if self.is_leader():
            return True
        heard = self._heard_ms
        return heard is not None and self._clock.now_ms - heard < self._config.election_ms_min

    def _ask_first_if_due(self) -> None:
        """Ask for promises of votes (pre-vote) before an election changes the term (L2)."""
        if self.is_leader() or not self._others or self._SyncObj__transferInProgress:
            return
        if self._asking is not None and len(self._asking) >= self._config.quorum:
            self._asking = None
            self._SyncObj__raftElectionDeadline = _AT_ONCE  # the library begins an election
        elif self._SyncObj__raftElectionDeadline < self._clock.seconds():
            self._restart_timer()
            self._SyncObj__raftLeader = None
            self._reads.leader_changed()
            if not self._log.may_stand:
                return
            self._asking = {self._me}
            log = self._log.entries
            for peer in self._others:
                question = PreVote(self._term() + 1, log.last_index, log.last_term)
                self._out.send(NodeId(peer), question)

    def _on_state_changed(self, old: int, new: int) -> None:
        self._asking = None
        self._reads.leader_changed()
        if old == self._states.LEADER:
            self._outgoing.clear()
            self._target = None
            self._restart_timer()
        if new == self._states.LEADER:
            self._answered.clear()
            self._stepped_back.clear()

    # ------------------------------------------------------------------ messages

    def receive(self, sender: NodeId, message: Message) -> None:
        """Take a message of a member; one of an old term changes nothing (S2, S8, S12)."""
        node = self._others.get(sender)
        if node is None:
            return
        if isinstance(message, PreVote):
            self._on_pre_vote(sender, message)
            return
        if isinstance(message, PreVoteReply) and message.granted:
            if self._asking is not None and message.asked == self._term() + 1:
                self._asking.add(sender)
            return
        if isinstance(message, Vote) and self._hears_leader() and not message.transfer:
            return
        if message.term > self._term():
            self._newer_term(message.term)
        if message.term < self._term():
            self._answer_old_term(sender, message)
            return
        match message:
            case Append() | Chunk():
                self._follow(node, sender, message)
            case Vote():
                self._on_vote(node, sender, message)
            case VoteReply():
                self._on_vote_reply(node, sender, message)
            case TimeoutNow(term) if self._log.may_stand:
                self._SyncObj__onMessageReceived(node, {"type": "timeout_now", "term": term})
            case ReadIndexReply(_, number, index):
                self._reads.replied(number, index)
            case _:
                self._ask_leader(node, sender, message)

    def _newer_term(self, term: int) -> None:
        self._asking = None
        self._heard_ms = None
        self._SyncObj__setState(self._states.FOLLOWER)
        self._SyncObj__raftLeader = None
        self._reads.leader_changed()
        self._SyncObj__setCurrentTerm(term, None)

    def _answer_old_term(self, sender: NodeId, message: Message) -> None:
        """Tell a sender with an old term about the newer term; ignore answers of old terms."""
        term = self._term()
        match message:
            case Append(_, prev_index, _, _, round_number):
                self._out.send(sender, AppendReply(term, False, prev_index, 0, 0, round_number))
            case Chunk(_, _, _, round_number):
                self._out.send(sender, AppendReply(term, False, 0, 0, 0, round_number))
            case Vote():
                self._out.send(sender, VoteReply(term, False, message.candidacy))
            case Forward() | ReadIndexRequest():
                self._ask_leader(self._others[sender], sender, message)
            case _:
                pass

    def _ask_leader(self, node: Any, sender: NodeId, message: Message) -> None:
        if not self.is_leader():
            return
        match message:
            case AppendReply():
                self._on_append_reply(node, sender, message)
            case ChunkReply():
                self._on_chunk_reply(node, sender, message)
            case ReadIndexRequest(_, number):
                self._reads.queue(sender, number)
            case Forward(_, proposal):
                self.propose(proposal)
            case _:
                pass

    # ------------------------------------------------------------------ votes

    def _is_complete(self, last_index: int, last_term: int) -> bool:
        return Floor(last_term, last_index) >= self._log.voting_end

    def _on_pre_vote(self, sender: NodeId, asked: PreVote) -> None:
        granted = (
            asked.term > self._term()
            and not self._log.abstains
            and not self._hears_leader()
            and self._is_complete(asked.last_index, asked.last_term)
        )
        self._out.send(sender, PreVoteReply(self._term(), asked.term, granted))

    def _on_vote(self, node: Any, sender: NodeId, asked: Vote) -> None:
        if self._log.abstains or not self._is_complete(asked.last_index, asked.last_term):
            self._out.send(sender, VoteReply(asked.term, False, asked.candidacy))
            return
        if self._log.vote == sender:  # the first answer may be lost
            self._out.send(sender, VoteReply(asked.term, True, asked.candidacy))
            return
        self._voting_for = asked.candidacy
        question = {
            "type": "request_vote",
            "term": asked.term,
            "last_log_index": asked.last_index,
            "last_log_term": asked.last_term,
        }
        self._SyncObj__onMessageReceived(node, question)

    def _on_vote_reply(self, node: Any, sender: NodeId, reply: VoteReply) -> None:
        """Count each voter once, and only votes that this process asked for (S8)."""
        ours = reply.candidacy == self._candidacy
        if reply.granted and ours and self.is_candidate() and sender not in self._voters:
            self._voters.add(sender)
            vote = {"type": "response_vote", "term": reply.term}
            self._SyncObj__onMessageReceived(node, vote)

    def _SyncObj__setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802
        """Forget the voters of the last term."""
        self._voters.clear()
        super()._SyncObj__setCurrentTerm(term, vote)
