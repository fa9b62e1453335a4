"""A Raft member with the interface of `broker.core.raft.RaftCore` that uses pysyncobj.

So the same shell drives it, the same journal stores it, the same transport connects it, and the
same simulation tests it. Its own rules:

- A step that changed anything durable ends with one `Save`. Until that save is durable, the member
  takes no further event and releases no effect of the step: no message, no apply, no answer. Events
  that arrive meanwhile are one batch, with one save, afterwards.
- The library runs at the end of each batch. Its time is the time of the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.adapters.raft_pysyncobj import pinned
from broker.adapters.raft_pysyncobj.corrections import Corrections, Surroundings
from broker.adapters.raft_pysyncobj.library_log import LibraryLog
from broker.adapters.raft_pysyncobj.outbox import Outbox, Reads
from broker.adapters.raft_pysyncobj.settings import ToldClock
from broker.codec.checksum import crc32c
from broker.core.raft.config import RaftConfig
from broker.core.raft.events import (
    Barrier,
    BarrierFailed,
    ChangeRefusal,
    ChangeVoters,
    Effect,
    Event,
    FloorReached,
    MemberAsks,
    Propose,
    Received,
    Refusal,
    Refused,
    Restore,
    RoleChanged,
    Saved,
    SnapshotMade,
    StateHashed,
    Tick,
    TransferLeadership,
    VotersKept,
)
from broker.core.raft.log import RaftLog
from broker.core.raft.member import Role
from broker.core.raft.voters import VoterHistory
from broker.errors import InvalidConfigError
from broker.model.raft import (
    U64_MAX,
    GroupSeen,
    MemberSeen,
    NodeId,
    Snapshot,
    SnapshotId,
    Standing,
    Stored,
)

_WAITING_MAX: Final = 4096  # events that wait while a disk hangs; further messages are dropped
_DRAWS: Final = 1 << 32


@dataclass(slots=True)
class Seen:
    """The member's state as of its last durable step."""

    _now: LibraryLog
    role: Role = Role.FOLLOWER
    term: int = 0
    leader: NodeId | None = None
    commit: int = 0
    applied: int = 0
    durable: int = 0
    voters: Mapping[NodeId, int] = field(default_factory=dict)
    is_voter: bool = True

    @property
    def log(self) -> RaftLog:
        """The log in memory; it may be ahead of the last durable step."""
        return self._now.entries

    @property
    def standing(self) -> Standing:
        """The member's answer to a member with an empty disk; it describes the log in memory.

        A leader may still count an acknowledgement of that member for entries that the leader's own
        disk does not have yet.
        """
        return Standing(behind=self._now.abstains, term=self._now.term, last=self._now.end)


class PysyncobjCore:
    """Owner: one thread, which passes events and performs the effects in order."""

    def __init__(
        self,
        config: RaftConfig,
        me: NodeId,
        stored: Stored,
        *,
        random: Callable[[int, int], int],
    ) -> None:
        """Start from the content of the disk; ``random(low, high)`` includes both bounds.

        Raises:
            InvalidConfigError: the library is missing or is another release; or there are
                observers, which the library cannot have, because it counts every member that it
                replicates to.
        """
        if config.observers:
            raise InvalidConfigError(
                "with cluster.raft = pysyncobj every broker must be a controller, because the "
                "library has no members without a vote: name all brokers as controllers, or set "
                "cluster.raft = own"
            )
        if VoterHistory(config.members, stored).index:
            raise InvalidConfigError(
                "the controllers of this cluster were changed, and with cluster.raft = pysyncobj "
                "they are fixed: set cluster.raft = own"
            )
        assert me in config.members, f"{me!r} is not a member of {config.members}"
        self._clock = ToldClock()
        self._out = Outbox()
        self._log = LibraryLog(
            stored, length_max=config.append_bytes_max, keep_entries=config.keep_entries
        )
        module = pinned.load(
            clock=self._clock.seconds,
            dice=lambda: random(0, _DRAWS - 1) / _DRAWS,
            journal=self._log,
        )
        reads = Reads(config, me, self._out, random(0, U64_MAX >> 1))
        kind = type("Member", (Corrections, module.SyncObj), {})
        around = Surroundings(
            config, me, self._log, self._clock, self._out, reads, random(0, U64_MAX >> 1)
        )
        self._library: Corrections = kind(module, around)
        self._waiting: deque[Event] = deque()
        self._held: list[Effect] = []
        self._number = 0
        self._saving = False
        self._reported: tuple[Role, int, NodeId | None] | None = None
        self._seen = Seen(self._log, voters=dict.fromkeys(config.members, 0))
        self._publish()

    @property
    def member(self) -> Seen:
        """The member's state, for metrics and tests; callers must not change it."""
        return self._seen

    @property
    def group(self) -> GroupSeen:
        """The members, who all vote; the library does not tell the progress of each."""
        members = tuple(MemberSeen(one, votes=True) for one in sorted(self._seen.voters))
        return GroupSeen(self._seen.leader, True, members)

    def start(self, now_ms: int) -> list[Effect]:
        """Start; call it once, before every other method."""
        self._clock.now_ms = now_ms
        if self._log.snapshot is not None:
            self._out.emit(Restore(self._log.snapshot))
        self._library.begin()
        return self._end_batch()

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Take one event; return the effects in order. ``now_ms`` never decreases."""
        self._clock.now_ms = max(self._clock.now_ms, now_ms)
        if isinstance(event, Saved):
            effects = self._release(event.number)
            return effects + self._run() if self._waiting and not self._saving else effects
        if isinstance(event, MemberAsks):
            self._library.forget_copies(event.member)  # before it is answered, so at once
            return []
        if self._saving:
            return self._wait(event)
        self._waiting.append(event)
        return self._run()

    def _wait(self, event: Event) -> list[Effect]:
        if len(self._waiting) < _WAITING_MAX or isinstance(event, SnapshotMade | StateHashed):
            self._waiting.append(event)
        elif isinstance(event, Propose):
            return [Refused(event.proposal, Refusal.OVERLOADED)]
        elif isinstance(event, Barrier):
            return [BarrierFailed(event.number)]
        return []

    def _run(self) -> list[Effect]:
        while self._waiting:
            self._take(self._waiting.popleft())
        self._library.settle()
        return self._end_batch()

    def _take(self, event: Event) -> None:
        match event:
            case Received(sender, message):
                self._library.receive(sender, message)
            case Propose(proposal):
                self._library.propose(proposal)
            case ChangeVoters(number):
                self._out.emit(VotersKept(number, ChangeRefusal.FIXED))
            case Barrier(number):
                self._library.barrier(number)
            case SnapshotMade(index, data):
                term = self._log.entries.term_at(index)
                if term is not None:
                    identity = SnapshotId(index, term, len(data), crc32c(data))
                    self._log.compact(Snapshot(identity, data))
            case StateHashed(index, value):
                self._log.hashes.append((index, value))
            case TransferLeadership(target):
                self._library.hand_over_to(target)
            case Tick() | Saved() | MemberAsks():
                pass  # the library looks at the clock after every batch

    def _end_batch(self) -> list[Effect]:
        self._held = self._out.take()
        self._number += 1
        save = self._log.take_save(self._number)
        if save is None:
            return self._release(self._number)
        self._saving = True
        return [save]

    def _release(self, number: int) -> list[Effect]:
        """Release the effects of a step whose save is durable."""
        if number != self._number:
            return []
        self._saving = False
        self._log.saved()
        reached = self._log.drop_reached_floor()
        effects, self._held = self._held, []
        if reached:
            effects.append(FloorReached())
        self._publish()
        present = (self._seen.role, self._seen.term, self._seen.leader)
        if present != self._reported:
            self._reported = present
            effects.append(RoleChanged(present[0].value, present[1], present[2]))
        return effects

    def _publish(self) -> None:
        seen, library = self._seen, self._library
        if library.is_leader():
            seen.role = Role.LEADER
        elif library.is_asking():
            seen.role = Role.PRECANDIDATE
        else:
            seen.role = Role.CANDIDATE if library.is_candidate() else Role.FOLLOWER
        seen.term, seen.commit, seen.durable = self._log.term, self._log.commit, self._log.durable
        seen.leader = library.leader_name()
        seen.applied = library.raftLastApplied
