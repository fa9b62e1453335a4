"""One Raft member of any implementation, on a simulated disk, fed message by message.

For single situations. The other members are the test: it says what they say, and reads what this
one answers. A save is done at once unless the test wants to do it, or stops the disk in the middle.
"""

from __future__ import annotations

import random
from collections import deque

from broker.codec.checksum import crc32c
from broker.core.raft.applier import Applier, Outcome
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import NewConsensus
from broker.core.raft.events import Apply, Effect, Event, Received, Restore, Save, Saved, Send, Tick
from broker.core.raft.member import Role
from broker.model.raft import Entry, EntryKind, NodeId, Proposal, Snapshot, SnapshotId
from broker.model.raft_messages import Append, Message, PreVoteReply, VoteReply
from broker.storage.raft.journal import RaftJournal
from simkit.disk.disk import PowerLostError, SimDisk
from simkit.raft.truth import KEYS, Registers, command

A, B, C, D, E = (NodeId(name) for name in "abcde")
GROUP = (A, B, C)
STRANGER = NodeId("stranger")
SESSION = 7


def entry(index: int, term: int) -> Entry:
    """Return a command's entry; equal arguments give equal entries."""
    return Entry(index, term, EntryKind.COMMAND, SESSION, index, command(index % KEYS, 0, index))


def entries(first: int, last: int, term: int) -> tuple[Entry, ...]:
    """Return the entries ``first .. last``."""
    return tuple(entry(index, term) for index in range(first, last + 1))


def append(
    term: int,
    prev: tuple[int, int],
    new: tuple[Entry, ...] = (),
    *,
    commit: int = 0,
    round_number: int = 1,
) -> Append:
    """Return a leader's message."""
    return Append(term, *prev, commit, round_number, 0, 0, new)


def snapshot_of(index: int, term: int) -> Snapshot:
    """Return a snapshot that a state machine of :class:`Registers` can restore."""
    applier = Applier(Registers())
    applier.index = index
    data = applier.snapshot()
    return Snapshot(SnapshotId(index, term, len(data), crc32c(data)), data)


def _middle(low: int, high: int) -> int:
    """Draw times from the middle, and names of processes (wide ranges) always 0."""
    return (low + high) // 2 if high < 1 << 40 else low


class MemberRig:
    """Member `a` of a group."""

    def __init__(
        self,
        new_core: NewConsensus,
        *,
        members: tuple[NodeId, ...] = GROUP,
        observers: tuple[NodeId, ...] = (),
        append_bytes_max: int = 100_000,
        chunk_bytes_max: int = 100_000,
    ) -> None:
        self._new_core = new_core
        self.config = RaftConfig(
            members=members,
            observers=observers,
            append_bytes_max=append_bytes_max,
            chunk_bytes_max=chunk_bytes_max,
            keep_entries=0,
        )
        self.disk = SimDisk(random.Random(1))
        self.now_ms = 0
        self.start()

    # ------------------------------------------------------------------ life and death

    def start(self) -> None:
        """Start on the content of the disk."""
        self.journal = RaftJournal(
            self.disk.files(), "raft", cluster="rig", node=A, preallocate_bytes=4096
        )
        self.saves_at_once = True
        self.applied: list[Entry] = []
        self.outcomes: list[Outcome] = []
        self.restored: list[Snapshot] = []
        self.effects: list[Effect] = []
        self._saves: deque[Save] = deque()
        self._applier = Applier(Registers())
        self.core = self._new_core(self.config, A, self.journal.stored, random=_middle)
        self.take(self.core.start(self.now_ms))

    def restart(self, *, power: bool) -> None:
        """Lose the process, or the power; start again."""
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill()
        self.start()

    # ------------------------------------------------------------------ events

    def step(self, event: Event) -> list[Message]:
        """Feed one event; return the messages sent because of it."""
        return self.take(self.core.step(self.now_ms, event))

    def get(self, sender: NodeId, message: Message) -> list[Message]:
        """Receive a message; return the messages sent because of it."""
        return self.step(Received(sender, message))

    def wait(self, ms: int) -> list[Message]:
        """Let time pass."""
        self.now_ms += ms
        return self.step(Tick())

    def save(self) -> list[Message]:
        """Do the oldest save that waits."""
        return self._save(self._saves.popleft())

    @property
    def waiting_saves(self) -> int:
        """How many saves are not done."""
        return len(self._saves)

    def lead(self) -> int:
        """Win an election with the votes of all members; return the term."""
        self.wait(self.config.election_ms_max + 1)
        term = self.member.term + 1
        for peer in self.config.members[1:]:
            self.get(peer, PreVoteReply(term - 1, term, granted=True))
        for peer in self.config.members[1:]:
            self.get(peer, VoteReply(term, granted=True))
        assert self.leads(), "the rig no longer leads to an election"
        return int(term)

    def lead_with(self, voter: NodeId, reply: VoteReply) -> None:
        """Stand, and get one vote beside the own."""
        self.wait(self.config.election_ms_max + 1)
        term = self.member.term + 1
        for peer in (*self.config.members[1:], *self.config.observers):
            self.get(peer, PreVoteReply(term - 1, term, granted=True))
        assert self.member.term == term, "the rig no longer leads to a candidate"
        for peer in self.config.members[1:-1]:
            self.get(peer, VoteReply(term, granted=True))
        self.get(voter, reply)

    def leads(self) -> bool:
        """Tell whether the member is the leader."""
        return bool(self.member.role is Role.LEADER)

    def said_to(self, target: NodeId) -> list[Message]:
        """Return the member's messages to ``target``, and forget all effects so far."""
        said = [
            one.message for one in self.effects if isinstance(one, Send) and one.target == target
        ]
        self.effects.clear()
        return said

    @property
    def member(self):  # type: ignore[no-untyped-def]  # each implementation has its own
        """What is known of the member: log, term, role, commit."""
        return self.core.member

    @property
    def last_index(self) -> int:
        """The end of the log in memory."""
        return int(self.member.log.last_index)

    # ------------------------------------------------------------------ effects

    def take(self, effects: list[Effect]) -> list[Message]:
        """Carry out effects; return the messages among them, in order."""
        self.effects += effects
        said: list[Message] = []
        for effect in effects:
            match effect:
                case Send(_, message):
                    said.append(message)
                case Save():
                    self._saves.append(effect)
                case Apply(new):
                    self.applied += new
                    self.outcomes += self._applier.apply(new)
                case Restore(snapshot):
                    self.restored.append(snapshot)
                    self._applier.restore(snapshot.id.index, snapshot.data)
                case _:
                    pass
        while self.saves_at_once and self._saves:
            said += self.save()
        return said

    def _save(self, save: Save) -> list[Message]:
        self.journal.save(
            hard=save.hard,
            snapshot=save.snapshot,
            image=save.image,
            truncate=save.truncate,
            entries=save.entries,
            disk=save.disk,
        )
        return self.step(Saved(save.number))

    def take_snapshot(self) -> bytes:
        """Return the state machine's snapshot of the applied state."""
        return self._applier.snapshot()

    def dies_at(self, operation: int, event: Event) -> bool:
        """Feed an event and stop the machine at its n-th disk operation; True if it came so far."""
        self.disk.stop_after = operation
        try:
            self.step(event)
        except PowerLostError:
            return True
        finally:
            self.disk.stop_after = None
        return False


def proposal(sequence: int) -> Proposal:
    """Return a caller's wish; sequence 0 opens the session, each other one sets a register."""
    kind = EntryKind.COMMAND if sequence else EntryKind.OPEN_SESSION
    payload = command(sequence % KEYS, 0, sequence) if sequence else b""
    return Proposal(kind, SESSION, sequence, payload)
