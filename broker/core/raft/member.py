"""The state of a member in every role: term, vote, log, and the saves under way.

A step changes this object in memory and marks what must be saved; at its end `flush` makes one
`Save` of all that. A message goes out when every save before it is durable. So no member is told
anything that a power cut could undo. Only a leader's appends do not wait: its term has been durable
since its election, and it counts its own copy of an entry only after its own sync.

The log says who votes (`voters.py`). A vote belongs to a member *and* its disk: a member with
another disk than the configuration names is no voter, and its votes do not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from broker.core.raft.config import RaftConfig
from broker.core.raft.events import (
    Apply,
    BarrierPassed,
    Diverged,
    Effect,
    FloorReached,
    Restore,
    RoleChanged,
    Save,
    Send,
)
from broker.core.raft.log import RaftLog
from broker.core.raft.voters import VoterHistory, majority
from broker.model.raft import (
    DISK_MAX,
    Entry,
    Floor,
    HardState,
    NodeId,
    Snapshot,
    Standing,
    Stored,
)
from broker.model.raft_messages import Message

_HELD_MAX = 4096  # messages that wait while a disk hangs; beyond this the oldest are dropped


class Role(Enum):
    """What a member does in its term."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True)
class _PendingSave:
    number: int
    durable: int  # the log's end after this save; lowered if the log is cut meanwhile
    issued_ms: int


class Member:
    """The state that all roles share. Owner: one `RaftCore`.

    The class is not split: the rules for votes, the log and the pending saves read and change the
    same term, and a step has to leave all three consistent.
    """

    def __init__(
        self, config: RaftConfig, me: NodeId, stored: Stored, random: Callable[[int, int], int]
    ) -> None:
        assert me in (*config.members, *config.observers), f"{me!r} is no part of {config}"
        self.config = config
        self.me = me
        self.disk = stored.disk
        self.history = VoterHistory(config.members, stored)
        self._use_voters()
        self.random = random
        self.now_ms = 0
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.term = max(stored.hard.term, RaftLog(stored.log).last_term)
        self.vote = stored.hard.vote if self.term == stored.hard.term else None
        self.log = RaftLog(stored.log)
        self.snapshot = stored.snapshot
        self.durable = self.log.last_index
        self.floor = stored.floor
        self.bar = stored.bar
        self.bar_until_ms = 0
        covered = stored.snapshot.id.index if stored.snapshot else 0
        self.commit = max(covered, min(stored.hard.commit, self.durable))
        self.applied = 0  # the state machine is empty until the first flush
        self.hashes: deque[tuple[int, int]] = deque(maxlen=64)  # (index, hash) of our own state
        self.reads: deque[tuple[int, int]] = deque()  # (barrier, index) that wait for the apply
        self._told: tuple[Role, int, NodeId | None] | None = None
        self._restoring = stored.snapshot
        self._saves: deque[_PendingSave] = deque()
        self._held: deque[tuple[int, Send]] = deque()
        self._effects: list[Effect] = []
        self._now: list[Send] = []
        self._number = 0
        self._done = 0
        self._hard_dirty = False
        self._truncate: int | None = None
        self._first_new: int | None = None
        self._image_dirty = False
        self._snapshot_dirty = False
        self._disk_dirty = False

    # ------------------------------------------------------------------ who votes

    def _use_voters(self) -> None:
        """Use the configuration that is in force now."""
        config, me = self.config, self.me
        self.voters = {one.node: one.disk for one in self.history.voters}
        self.quorum = majority(len(self.voters))
        named = [*config.members, *config.observers]
        named += sorted(set(self.voters) - set(named))
        self.known = frozenset(named)  # messages of others are dropped
        self.peers = tuple(one for one in named if one in self.voters and one != me)
        self.observers = tuple(one for one in named if one not in self.voters and one != me)

    @property
    def is_entitled(self) -> bool:
        """Tell whether a configuration may name it: then its disk remembers its votes."""
        return self.disk != 0 or self.me in self.config.members

    @property
    def is_voter(self) -> bool:
        """Tell whether the configuration in force names this member with this disk."""
        return self.is_entitled and self.voters.get(self.me) == self.disk

    def may_lose_disk(self, peer: NodeId) -> bool:
        """Tell whether a peer's disk may be wiped at any time without harm."""
        return self.history.index > 0 or self.voters.get(peer, -1) != 0

    def enroll(self) -> None:
        """Give the disk a number if it has none; other members get it once it is durable."""
        if not self.disk:
            self.disk = self.random(1, DISK_MAX)
            self._disk_dirty = True

    # ------------------------------------------------------------------ facts

    @property
    def abstains(self) -> bool:
        """Tell whether it may lack entries that it acknowledged before its disk was wiped."""
        return self.floor > Floor()

    @property
    def may_vote(self) -> bool:
        """Tell whether it may vote. The candidate decides whether the vote counts."""
        return self.is_entitled and not self.abstains

    @property
    def voting_end(self) -> Floor:
        """The end that a candidate's log must reach: that of this member's log, or its bar."""
        return max(Floor(self.log.last_term, self.log.last_index), self.bar)

    @property
    def may_stand(self) -> bool:
        """Tell whether this member may be elected: its log reaches its own voting end."""
        own = Floor(self.log.last_term, self.log.last_index)
        return self.may_vote and self._may_be_needed and own >= self.voting_end

    @property
    def _may_be_needed(self) -> bool:
        """Tell whether it is a voter, or was one before a change that may not be committed.

        In the second case its log may be the longest, so that no other member can be elected. Then
        it stands without a vote of its own, commits the change that removes it, and hands over
        (dissertation, §4.2.2).
        """
        if self.is_voter:
            return True
        was_one = any(one.node == self.me and one.disk == self.disk for one in self.history.former)
        return self.is_entitled and was_one and self.history.index > self.commit

    def renew_bar(self) -> None:
        """Keep the bar for another grace period: after a start, or a message of a leader."""
        self.bar_until_ms = self.now_ms + self.config.bar_ms

    def lapse_bar(self) -> None:
        """Drop the bar after a grace period without a leader: no member has such a log any more."""
        if self.bar > Floor() and self.now_ms >= self.bar_until_ms:
            self.bar = Floor()

    @property
    def standing(self) -> Standing:
        """The answer to a member that starts.

        It describes the log in memory, not the one on the disk: a leader may still count an
        acknowledgement of that member for entries that the leader's own disk does not have yet.
        """
        last = max(Floor(self.log.last_term, self.log.last_index), self.floor)
        voters = self.history.names(self.commit)
        return Standing(behind=self.abstains, term=self.term, last=last, voters=voters)

    # ------------------------------------------------------------------ changes

    def set_term(self, term: int, vote: NodeId | None) -> None:
        """Move to a later term, or vote in this one; messages wait until that is durable."""
        assert term > self.term or (term == self.term and self.vote in {None, vote})
        self.term = term
        self.vote = vote
        self._hard_dirty = True

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Add entries to the log; not durable yet."""
        self.log.append(entries)
        if self.history.appended(entries):
            self._use_voters()
        if self._first_new is None:
            self._first_new = entries[0].index

    def truncate(self, index: int) -> None:
        """Remove the entries from ``index`` on: they conflict with the leader's log."""
        assert index > self.commit, f"cutting {index} below the commit {self.commit}"
        self.log.truncate(index)
        if self.history.cut(index):
            self._use_voters()
        self._lower_durable(index - 1)
        if self._first_new is not None and self._first_new >= index:
            self._first_new = None
        self._truncate = index if self._truncate is None else min(self._truncate, index)

    def compact(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of our own state machine, and drop entries that it covers."""
        if self.snapshot is not None and snapshot.id.index <= self.snapshot.id.index:
            return
        self.snapshot = snapshot
        self._snapshot_dirty = True
        self.log.compact(self._kept_from(snapshot.id.index))
        self.history.compacted(self.log.base_index)
        self._image_dirty = True

    def _kept_from(self, index: int) -> int:
        """Return the new base: some entries are kept for members that lag a little."""
        lowest = max(self.log.base_index, index - self.config.keep_entries)
        left = self.config.keep_bytes
        while index > lowest:
            left -= self.log.entry_at(index).weight
            if left < 0:
                break
            index -= 1
        return index

    def install(self, snapshot: Snapshot) -> None:
        """Install the leader's checked snapshot; keep later entries if the log agrees with it."""
        index, term = snapshot.id.index, snapshot.id.term
        assert index > self.commit, "an installed snapshot must be above the commit"
        if self.log.term_at(index) == term:
            self.log.compact(index)
        else:
            self.log.reset(index, term)
            self._lower_durable(0)
            self._truncate = None
            self._first_new = None
        if self.history.installed(snapshot, self.log.image().entries):
            self._use_voters()
        self.snapshot = snapshot
        self.commit = index
        self._restoring = snapshot
        self._snapshot_dirty = True
        self._image_dirty = True

    def commit_to(self, index: int) -> None:
        """Note that everything up to ``index`` is committed; the log must have it."""
        assert index <= self.log.last_index, f"committing {index}, which is not in the log"
        self.commit = max(self.commit, index)

    def saved(self, number: int) -> None:
        """Note that this save is durable."""
        self._done = max(self._done, number)
        while self._saves and self._saves[0].number <= number:
            self.durable = max(self.durable, self._saves.popleft().durable)

    def is_saved(self, number: int) -> bool:
        """Tell whether the save of this number is done."""
        return number <= self._done

    @property
    def disk_is_stuck(self) -> bool:
        """Tell whether the disk has not answered for longer than an election takes."""
        saves = self._saves
        return bool(saves) and self.now_ms - saves[0].issued_ms > self.config.election_ms_max

    @property
    def next_save(self) -> int:
        """The number that the save of the present step will have, if it makes one."""
        return self._number + 1

    def wait_for(self, barrier: int, index: int) -> None:
        """Pass a barrier when ``index`` is applied; barriers pass in the order of their indexes."""
        at = len(self.reads)
        while at and self.reads[at - 1][1] > index:
            at -= 1
        self.reads.insert(at, (barrier, index))

    def note_hash(self, index: int, value: int) -> None:
        """Remember our state's hash at an index."""
        self.hashes.append((index, value))

    def compare_hash(self, index: int, theirs: int) -> None:
        """Compare the leader's state hash with ours at the same index."""
        for at, ours in self.hashes:
            if at == index and ours != theirs:
                self.emit(Diverged(index, ours, theirs))

    def _lower_durable(self, end: int) -> None:
        self.durable = min(self.durable, end)
        for save in self._saves:
            save.durable = min(save.durable, end)

    # ------------------------------------------------------------------ effects

    def send(self, target: NodeId, message: Message) -> None:
        """Send when everything changed so far is durable."""
        self._held.append((-1, Send(target, message)))

    def send_now(self, target: NodeId, message: Message) -> None:
        """Send at once: a leader's message depends only on its election, which is durable."""
        self._now.append(Send(target, message))

    def emit(self, effect: Effect) -> None:
        """Add any other effect."""
        self._effects.append(effect)

    def flush(self) -> list[Effect]:
        """End the step: return its effects in the order in which they must be performed."""
        effects: list[Effect] = []
        self._drop_reached_floor()
        self._make_save(effects)
        effects += self._now
        self._now.clear()
        self._apply(effects)
        effects += self._effects
        self._effects.clear()
        self._release(effects)
        told = (self.role, self.term, self.leader)
        if told != self._told:
            self._told = told
            effects.append(RoleChanged(self.role.value, self.term, self.leader))
        return effects

    def _drop_reached_floor(self) -> None:
        """Drop the floor when everything up to it is durable here."""
        if self.abstains:
            term = self.log.term_at(self.durable)
            if term is not None and Floor(term, self.durable) >= self.floor:
                self.floor = Floor()
                self._effects.append(FloorReached())

    def _make_save(self, effects: list[Effect]) -> None:
        if not (
            self._hard_dirty
            or self._disk_dirty
            or self._first_new is not None
            or self._truncate is not None
            or self._image_dirty
        ):
            return
        self._number += 1
        entries: tuple[Entry, ...] = ()
        if self._first_new is not None and not self._image_dirty:
            end = self.log.last_index + 1
            entries = self.log.slice(self._first_new, end, 1 << 62)
        effects.append(
            Save(
                number=self._number,
                hard=HardState(self.term, self.vote, min(self.commit, self.durable))
                if self._hard_dirty
                else None,
                snapshot=self.snapshot if self._snapshot_dirty else None,
                image=self.log.image() if self._image_dirty else None,
                truncate=None if self._image_dirty else self._truncate,
                entries=entries,
                disk=self.disk if self._disk_dirty else None,
            )
        )
        self._saves.append(_PendingSave(self._number, self.log.last_index, self.now_ms))
        self._hard_dirty = self._image_dirty = self._snapshot_dirty = self._disk_dirty = False
        self._first_new = self._truncate = None

    def _apply(self, effects: list[Effect]) -> None:
        """Apply entries that are committed and durable on this node's own disk."""
        if self._restoring is not None and self.durable >= self._restoring.id.index:
            effects.append(Restore(self._restoring))
            self.applied = self._restoring.id.index
            self._restoring = None
        end = min(self.commit, self.durable)
        if end > self.applied and self._restoring is None:
            effects.append(Apply(self.log.slice(self.applied + 1, end + 1, 1 << 62)))
            self.applied = end
        while self.reads and self.reads[0][1] <= self.applied:
            effects.append(BarrierPassed(*self.reads.popleft()))

    def _release(self, effects: list[Effect]) -> None:
        """Send the messages whose saves are durable."""
        held = self._held
        for at in range(len(held) - 1, -1, -1):
            if held[at][0] >= 0:
                break
            held[at] = (self._number, held[at][1])
        while held and (self.is_saved(held[0][0]) or len(held) > _HELD_MAX):
            number, send = held.popleft()
            if self.is_saved(number):
                effects.append(send)
