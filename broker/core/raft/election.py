"""How a member stands for election and how it votes.

- A member stands only after a majority has promised its votes (pre-vote). A member that hears a
  leader promises nothing. So a member that was cut off returns without disturbing the group.
- Votes are a set of members, for one term and one process of the candidate. The candidate's own
  vote counts when it is durable.
- A member below its floor (`rejoin.py`), or an observer, neither stands nor votes nor promises.
- A member that restarted votes as if its log ended at its bar (`compare.py`), and does not stand
  while its log is below the bar.
- A vote counts if the candidate's configuration names the voter with the disk that it voted with.
  The voter may not know that configuration yet.
"""

from __future__ import annotations

from broker.core.raft.member import Member, Role
from broker.model.raft import U64_MAX, Floor, NodeId
from broker.model.raft_messages import PreVote, PreVoteReply, Vote, VoteReply


class Election:
    """Deadlines, votes asked for and votes given. Owner: one `RaftCore`."""

    def __init__(self, member: Member) -> None:
        self._m = member
        self._deadline_ms = 0
        self._heard_ms: int | None = None  # when a leader of our term last spoke
        self._votes: set[NodeId] = set()
        self._own_vote_save = 0
        self._candidacy = member.random(0, U64_MAX >> 1)

    def restart_timer(self) -> None:
        """Wait a new random time before standing."""
        config = self._m.config
        wait_ms = self._m.random(config.election_ms_min, config.election_ms_max)
        self._deadline_ms = self._m.now_ms + wait_ms

    def leader_spoke(self) -> None:
        """Note that a leader of the present term sent a message."""
        self._heard_ms = self._m.now_ms
        self._m.renew_bar()
        self.restart_timer()

    def forget_leader(self) -> None:
        """Note that the term changed: no leader of the new term has been heard."""
        self._heard_ms = None

    def is_due(self) -> bool:
        """Tell whether it is time to stand."""
        return self._m.now_ms >= self._deadline_ms

    @property
    def hears_leader(self) -> bool:
        """Tell whether there is a leader, so that no other member should be elected."""
        m = self._m
        if m.role is Role.LEADER:
            return True
        heard = self._heard_ms
        return heard is not None and m.now_ms - heard < m.config.election_ms_min

    # ------------------------------------------------------------------ standing

    def ask_first(self) -> None:
        """Ask the other members for promises of their votes; the term does not change."""
        m = self._m
        m.leader = None
        self.restart_timer()
        if not m.may_stand:
            return
        m.role = Role.PRECANDIDATE
        self._votes = {m.me} if m.is_voter else set()
        for peer in m.peers:
            m.send(peer, PreVote(m.term + 1, m.log.last_index, m.log.last_term, m.disk))

    def stand(self, *, transfer: bool) -> None:
        """Start a new term and ask for votes in it."""
        m = self._m
        if not m.may_stand:
            return
        m.role = Role.CANDIDATE
        m.leader = None
        self._heard_ms = None
        self._votes = set()
        self._own_vote_save = m.next_save
        m.set_term(m.term + 1, m.me)
        self.restart_timer()
        for peer in m.peers:
            m.send(peer, self._vote(transfer=transfer))

    def _vote(self, *, transfer: bool) -> Vote:
        m = self._m
        last_index, last_term = m.log.last_index, m.log.last_term
        return Vote(m.term, last_index, last_term, transfer, self._candidacy, m.disk)

    def on_pre_vote_reply(self, sender: NodeId, reply: PreVoteReply) -> None:
        """Count a promise for the next term."""
        m = self._m
        is_now = m.role is Role.PRECANDIDATE and reply.asked == m.term + 1
        if reply.granted and is_now and sender in m.voters:
            self._votes.add(sender)

    def on_vote_reply(self, sender: NodeId, reply: VoteReply) -> None:
        """Count a vote of this term that this process asked for, once for each voter."""
        m = self._m
        ours = reply.term == m.term and reply.candidacy == self._candidacy
        ours = ours and m.voters.get(sender) == reply.disk
        if reply.granted and m.role is Role.CANDIDATE and ours:
            self._votes.add(sender)

    def has_majority(self) -> bool:
        """Tell whether a majority votes for this member; its own vote counts when it is durable."""
        m = self._m
        if m.role is Role.CANDIDATE and m.is_voter and m.is_saved(self._own_vote_save):
            self._votes.add(m.me)
        return len(self._votes) >= m.quorum

    # ------------------------------------------------------------------ voting

    def on_pre_vote(self, sender: NodeId, asked: PreVote) -> None:
        """Answer whether this member would vote; a candidate of an old term learns the new term."""
        m = self._m
        granted = (
            asked.term > m.term
            and m.may_vote
            and not self.hears_leader
            and self._is_complete(asked.last_index, asked.last_term)
        )
        m.send(sender, PreVoteReply(m.term, asked.term, granted))

    def on_vote(self, sender: NodeId, asked: Vote) -> None:
        """Vote at most once in a term, for a log that has all of this log. The terms are equal."""
        m = self._m
        granted = (
            m.may_vote
            and m.vote in {None, sender}
            and self._is_complete(asked.last_index, asked.last_term)
        )
        if granted:
            if m.vote is None:
                m.set_term(m.term, sender)
            self.restart_timer()
        m.send(sender, VoteReply(m.term, granted, asked.candidacy, m.disk))

    def _is_complete(self, last_index: int, last_term: int) -> bool:
        return Floor(last_term, last_index) >= self._m.voting_end
