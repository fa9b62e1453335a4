"""The leader's part: replicates, commits, confirms reads, hands over. It lives for one term.

An answer counts only if it names this leader's term. A commit needs synced copies of an entry of
this same term on a majority (Raft §5.4.2). A barrier is confirmed by a round of messages that began
after the barrier: a majority that answers the round knew no newer leader (§6.4). Observers get the
same messages as voters, but their answers count nowhere. The voters may change within a term:
`changing.py` has the rules, and every count uses the configuration that is in force.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.raft.changing import VoterChange
from broker.core.raft.events import BarrierFailed, ChangeVoters, Refusal, Refused
from broker.core.raft.member import Member
from broker.core.raft.progress import Progress, Sending
from broker.model.raft import (
    PAYLOAD_BYTES_MAX,
    Entry,
    EntryKind,
    NodeId,
    Proposal,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    ReadIndexReply,
    TimeoutNow,
)


@dataclass(frozen=True, slots=True)
class _Read:
    origin: NodeId
    number: int


@dataclass(frozen=True, slots=True)
class _ReadRound:
    round: int
    index: int
    reads: tuple[_Read, ...]


class Leader:
    """The leader of one term. Owner: one `RaftCore`, which drops the object when the term ends.

    The class is not split: replication, commits, confirmed reads and the hand-over count the same
    answers of the same peers. ``progress.py`` has what is known about one peer, ``changing.py``
    the changes of voters.
    """

    def __init__(self, member: Member) -> None:
        """Take office: add an entry of the new term; its commit commits all entries before it."""
        self._m = member
        self._round = 0
        self._beat_ms = member.now_ms
        self._waiting_reads: list[_Read] = []
        self._open_round: _ReadRound | None = None
        self._target: NodeId | None = None
        self._target_until_ms = 0
        self._uncommitted = member.log.weight(member.commit + 1)
        next_index = member.log.last_index + 1
        others = (*member.peers, *member.observers)
        self._progress = {peer: Progress(next_index, member.now_ms) for peer in others}
        self._change = VoterChange(member, self._progress)
        self._voters = [self._progress[peer] for peer in member.peers]
        self._own_count = int(member.is_voter)  # 1 if this leader counts itself, else 0
        self._add(Proposal(EntryKind.NOOP, 0, 0, b""))

    # ------------------------------------------------------------------ events

    def tick(self) -> bool:
        """Send heartbeats that are due; return False if this node cannot lead any more.

        The reasons: no majority has answered in time, its own disk hangs, or it was removed from
        the voters and no other member took over in time.
        """
        m = self._m
        if m.peers and m.disk_is_stuck:
            return False
        lately = (m.now_ms - one.heard_ms < m.config.election_ms_min for one in self._voters)
        if self._own_count + sum(lately) < m.quorum:
            return False
        if self._target is not None and m.now_ms >= self._target_until_ms:
            self._target = None
            if self._change.is_over_for_me():
                return False
        if m.now_ms - self._beat_ms >= m.config.heartbeat_ms:
            self._beat()
        return True

    def propose(self, proposal: Proposal) -> None:
        """Add a proposal to the log, or refuse it."""
        if self._target is not None:
            self._m.emit(Refused(proposal, Refusal.TRANSFERRING))
        elif len(proposal.payload) > PAYLOAD_BYTES_MAX:
            self._m.emit(Refused(proposal, Refusal.TOO_LARGE))
        elif self._uncommitted >= self._m.config.uncommitted_bytes_max:
            self._m.emit(Refused(proposal, Refusal.OVERLOADED))
        else:
            self._add(proposal)

    def change_voters(self, wanted: ChangeVoters) -> None:
        """Start or continue a change of one voter, and report its result."""
        found = self._change.ask(wanted, is_handing_over=self._target is not None)
        if found is not None:
            self._add(found)
            self._count_voters()
            self._change.tell_done(wanted)

    def on_invited(self, sender: NodeId, disk: int) -> None:
        """Note the number of a member's disk."""
        self._change.disks[sender] = disk

    def seen(self, node: NodeId) -> tuple[int | None, int | None]:
        """Return how many entries a member lacks, and how many ms it has been silent."""
        m, one = self._m, self._progress.get(node)
        if one is None:
            return (m.log.last_index - m.durable, 0) if node == m.me else (None, None)
        return m.log.last_index - one.match, m.now_ms - one.heard_ms

    def _count_voters(self) -> None:
        """Use the configuration that is in force now for all counts."""
        m = self._m
        self._voters = [self._progress[peer] for peer in m.peers]
        self._own_count = int(m.is_voter)

    def read(self, origin: NodeId, number: int) -> None:
        """Queue a barrier for the next round."""
        if len(self._waiting_reads) < self._m.config.reads_max:
            self._waiting_reads.append(_Read(origin, number))
        elif origin == self._m.me:
            self._m.emit(BarrierFailed(number))

    def transfer(self, target: NodeId) -> None:
        """Refuse proposals, bring the target up to date, then tell it to stand for election."""
        if target in self._m.peers:
            self._target = target
            self._target_until_ms = self._m.now_ms + self._m.config.election_ms_min
            self._hand_over()

    def forget_copies(self, member: NodeId) -> None:
        """Forget the copies that a member's former process reported: its disk may be another.

        A new round begins. Only answers to it, or to a later round, are of the new process.
        """
        one = self._progress.get(member)
        if one is not None:
            one.void_round = self._round
            one.forget(self._m.log.last_index + 1)
            self._beat()

    def on_append_reply(self, sender: NodeId, reply: AppendReply) -> None:
        """Note how far a member is, or where to search for the last equal entry."""
        one = self._heard(sender, reply.round)
        if reply.round <= one.void_round:
            return
        if reply.ok:
            if reply.index <= self._m.log.last_index:  # else it describes another log
                one.matched(reply.index)
                self._hand_over()
        elif self._m.may_lose_disk(sender) and reply.index <= one.match:
            one.forget(reply.index + 1)  # its disk was wiped; nothing committed depends on it
            self._change.disks.pop(sender, None)
            self._step_back(one, reply)
        elif one.sending is Sending.REPLICATE and reply.index > one.match:
            one.probe(one.match + 1)
        elif one.sending is Sending.PROBE and reply.index == one.next - 1:
            self._step_back(one, reply)
            one.waiting = False

    def on_chunk_reply(self, sender: NodeId, reply: ChunkReply) -> None:
        """Continue at the offset that the receiver has reached.

        The network may duplicate answers. If each duplicate caused a chunk, duplicates would
        multiply. So only progress counts, or an answer to a round that began after the chunk.
        """
        one = self._heard(sender, reply.round)
        snapshot = one.snapshot
        void = reply.round <= one.void_round
        if void or snapshot is None or reply.snapshot != snapshot.id:
            return
        asked_later = min(reply.round, self._round) > one.chunk_round
        if reply.offset > one.chunk_offset or asked_later:
            one.chunk_offset = min(reply.offset, snapshot.id.size)
            one.waiting = False

    def after_step(self) -> None:
        """Commit what a majority has, then send what is due; the last call of every step."""
        self._commit()
        self._confirm_reads()
        if self._target is None and self._change.is_over_for_me():
            self._leave_office()
        for peer, one in self._progress.items():
            self._send_next(peer, one)

    def abandon(self) -> None:
        """End the term: callers on this node must repeat their barriers."""
        rounds = [self._open_round.reads] if self._open_round is not None else []
        for read in [*(read for reads in rounds for read in reads), *self._waiting_reads]:
            if read.origin == self._m.me:
                self._m.emit(BarrierFailed(read.number))

    # ------------------------------------------------------------------ inside

    def _heard(self, sender: NodeId, round_number: int) -> Progress:
        one = self._progress[sender]
        one.heard_ms = self._m.now_ms
        one.round = max(one.round, min(round_number, self._round))
        return one

    def _step_back(self, one: Progress, reply: AppendReply) -> None:
        """Probe below the refused index; at or below the base only the snapshot is left to send."""
        agreed = reply.hint_index
        if agreed >= self._m.log.base_index:
            agreed, _ = self._m.log.agreement(reply.hint_index, reply.hint_term)
        one.next = max(min(agreed + 1, reply.index), one.match + 1)

    def _add(self, proposal: Proposal) -> None:
        m = self._m
        entry = Entry(
            m.log.last_index + 1,
            m.term,
            proposal.kind,
            proposal.session,
            proposal.sequence,
            proposal.payload,
        )
        m.append((entry,))
        self._uncommitted += entry.weight

    def _commit(self) -> None:
        m = self._m
        own = (m.durable,) * self._own_count
        synced = sorted([*own, *(one.match for one in self._voters)])
        index = synced[len(synced) - m.quorum]
        if index > m.commit and m.log.term_at(index) == m.term:
            done = m.log.slice(m.commit + 1, index + 1, 1 << 62)
            self._uncommitted -= sum(entry.weight for entry in done)
            m.commit_to(index)

    def _confirm_reads(self) -> None:
        m = self._m
        while True:
            found = self._open_round
            if found is not None:
                answered = sum(one.round >= found.round for one in self._voters)
                if self._own_count + answered < m.quorum:
                    return
                for read in found.reads:
                    self._answer(read, found.index)
                self._open_round = None
            if not self._waiting_reads or m.log.term_at(m.commit) != m.term:
                return  # the commit of earlier terms is known only after a commit of this term
            reads = tuple(self._waiting_reads)
            self._waiting_reads.clear()
            self._open_round = _ReadRound(self._round + 1, m.commit, reads)
            self._beat()

    def _answer(self, read: _Read, index: int) -> None:
        if read.origin == self._m.me:
            self._m.wait_for(read.number, index)
        else:
            self._m.send_now(read.origin, ReadIndexReply(self._m.term, read.number, index))

    def _leave_office(self) -> None:
        """Hand over to the voter with the longest log: this node's removal is committed."""
        best = max(self._m.peers, key=lambda peer: self._progress[peer].match)
        self.transfer(best)

    def _hand_over(self) -> None:
        target = self._target
        if target is not None and self._progress[target].match == self._m.log.last_index:
            self._m.send_now(target, TimeoutNow(self._m.term))

    def _beat(self) -> None:
        """Begin a round: send one message to each member, whatever is in flight."""
        self._round += 1
        self._beat_ms = self._m.now_ms
        for peer, one in self._progress.items():
            if one.sending is Sending.SNAPSHOT:
                if one.waiting:  # the chunk or its answer may be lost: ask for the offset
                    self._send_chunk(peer, one, data=False)
            elif one.sending is Sending.PROBE:
                one.waiting = False
            elif self._m.log.term_at(one.next - 1) is None:
                one.probe(one.next)  # the entries were compacted while it was silent
            else:
                self._send_append(peer, one, ())

    def _send_next(self, peer: NodeId, one: Progress) -> None:
        m = self._m
        while True:
            if one.sending is not Sending.SNAPSHOT and m.log.term_at(one.next - 1) is None:
                assert m.snapshot is not None, "a compacted log without a snapshot"
                one.send_snapshot(m.snapshot)
            if one.sending is Sending.SNAPSHOT:
                if not one.waiting:
                    self._send_chunk(peer, one, data=True)
                    one.chunk_round = self._round
                    one.waiting = True
                return
            if one.sending is Sending.PROBE:
                if not one.waiting:
                    self._send_append(peer, one, self._entries_from(peer, one.next))
                    one.waiting = True
                return
            room = (
                one.inflight_bytes < m.config.inflight_bytes_max
                and one.inflight_count < m.config.inflight_messages_max
            )
            if one.next <= self._change.end_for(peer) and room:
                entries = self._entries_from(peer, one.next)
                self._send_append(peer, one, entries)
                one.sent(entries[-1].index, sum(entry.weight for entry in entries))
                continue
            if one.commit_sent < min(m.commit, one.match):
                self._send_append(peer, one, ())
            return

    def _entries_from(self, peer: NodeId, index: int) -> tuple[Entry, ...]:
        end = max(index, self._change.end_for(peer) + 1)
        return self._m.log.slice(index, end, self._m.config.append_bytes_max)

    def _send_append(self, peer: NodeId, one: Progress, entries: tuple[Entry, ...]) -> None:
        m = self._m
        prev_term = m.log.term_at(one.next - 1)
        assert prev_term is not None, "an append behind a compacted entry"
        check_index, check_hash = m.hashes[-1] if m.hashes else (0, 0)
        one.commit_sent = m.commit
        m.send_now(
            peer,
            Append(
                term=m.term,
                prev_index=one.next - 1,
                prev_term=prev_term,
                commit=m.commit,
                round=self._round,
                check_index=check_index,
                check_hash=check_hash,
                entries=entries,
            ),
        )

    def _send_chunk(self, peer: NodeId, one: Progress, *, data: bool) -> None:
        snapshot = one.snapshot
        assert snapshot is not None, "sending a snapshot without one"
        start = one.chunk_offset
        end = start + self._m.config.chunk_bytes_max if data else start
        self._m.send_now(
            peer, Chunk(self._m.term, snapshot.id, start, self._round, snapshot.data[start:end])
        )
