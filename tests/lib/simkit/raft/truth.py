"""The promises of a Raft group, checked from outside at every moment.

The truth is the list of entries that some member has called committed, in order. Everything else is
measured against it: who may lead, what may be applied, what a caller may be told, what a disk must
give back. Nothing here knows how the group works.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from broker.codec.checksum import crc32c
from broker.model.raft import Entry, EntryKind, HardState, NodeId, Stored

_COMMAND = struct.Struct("<BII")
_REPLY = struct.Struct("<BI")
KEYS = 4


def command(key: int, expected: int, value: int) -> bytes:
    """Return a compare-and-set of one register."""
    return _COMMAND.pack(key, expected, value)


class Registers:
    """A state machine of a few registers under compare-and-set; its hash covers its history."""

    def __init__(self) -> None:
        self.values = [0] * KEYS
        self.hash = 0

    def apply(self, index: int, data: bytes) -> bytes:
        """Set a register if it has the expected value; return whether, and what it has now."""
        key, expected, value = _COMMAND.unpack(data)
        done = self.values[key] == expected
        if done:
            self.values[key] = value
        self.hash = crc32c(struct.pack("<Q", index) + data, self.hash)
        return _REPLY.pack(done, self.values[key])

    def snapshot(self) -> bytes:
        """Return registers and hash."""
        return struct.pack(f"<I{KEYS}I", self.hash, *self.values)

    def restore(self, data: bytes) -> None:
        """Replace the state by the snapshot's."""
        self.hash, *self.values = struct.unpack(f"<I{KEYS}I", data)


@dataclass(slots=True)
class Promises:
    """The content that one disk has confirmed, and must keep through everything but rot."""

    term: int = 0
    vote: NodeId | None = None
    base: int = 0
    terms: dict[int, int] = field(default_factory=dict)  # index -> term, above the base
    cut: int | None = None  # a save that has begun may drop the entries from here on

    def attempted(self, image: tuple[int, Sequence[Entry]] | None, truncate: int | None) -> None:
        """Note a save that may take effect although no member is told."""
        if image is not None:
            self.cut = image[0] + len(image[1]) + 1
        elif truncate is not None:
            self.cut = truncate

    def has(self, index: int, term: int) -> bool:
        """Tell whether the entry is durable here; below the base everything committed is."""
        return index <= self.base or self.terms.get(index) == term

    def saved(
        self,
        hard: HardState | None,
        image: tuple[int, Sequence[Entry]] | None,
        truncate: int | None,
        entries: Sequence[Entry],
    ) -> None:
        """Take in one confirmed save."""
        self.cut = None
        if hard is not None:
            self.term, self.vote = hard.term, hard.vote
        if image is not None:
            self.base, entries = image
            self.terms = {}
        elif truncate is not None:
            for index in [one for one in self.terms if one >= truncate]:
                del self.terms[index]
        for entry in entries:
            self.terms[entry.index] = entry.term

    def check(self, stored: Stored) -> None:
        """Compare with the content that a restarted node found."""
        hard = stored.hard
        assert hard.term >= self.term, f"term {self.term} was promised, {hard.term} found"
        if hard.term == self.term:
            assert self.vote in {None, hard.vote}, f"the vote for {self.vote} was forgotten"
        log, floor = stored.log, stored.snapshot.id.index if stored.snapshot else 0
        assert floor >= self.base or log.base_index >= 0, "the snapshot was lost"
        found = {one.index: one.term for one in log.entries}
        for index, term in self.terms.items():
            if index > floor and (self.cut is None or index < self.cut):
                assert found.get(index) == term, f"entry {index} of term {term} was forgotten"


class Truth:
    """Owner: one simulation."""

    def __init__(self, seen: Counter[str], voters: Collection[NodeId]) -> None:
        self.seen = seen
        self.voters = voters
        self.quorum = len(voters) // 2 + 1
        self.chosen: list[Entry] = []
        self._terms: list[int] = []  # in which each was first committed, at the latest
        self.promises: dict[NodeId, Promises] = {}
        self.leaders: dict[int, NodeId] = {}
        self.votes: dict[tuple[int, NodeId], tuple[NodeId, int, int]] = {}
        self.wiped: Counter[NodeId] = Counter()  # how often a member lost its disk
        self.lost: set[NodeId] = set()  # have no disk yet, or have not reached their floor
        self.can_win: Callable[[NodeId, int], bool] = lambda *_: True
        self.hashes = [0]  # of the state after each index
        self.replies: dict[tuple[int, int], tuple[int, bytes]] = {}  # first effect of a proposal
        self._known: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._model = Registers()
        self._opened: set[int] = set()
        self._snapshots: dict[int, tuple[int, int, int]] = {}

    def wrote(self, entries: tuple[Entry, ...], previous_term: int) -> None:
        """Log matching: equal index and term mean an equal entry after an equal one."""
        for entry in entries:
            known = self._known.setdefault((entry.index, entry.term), (entry, previous_term))
            assert known == (entry, previous_term), f"two entries at {entry.index}/{entry.term}"
            previous_term = entry.term

    def led(self, node: NodeId, term: int, terms: dict[int, int], base: int) -> None:
        """Election safety and leader completeness, at the moment of taking office."""
        assert node in self.voters, f"{node} leads term {term} and may not vote"
        first = self.leaders.setdefault(term, node)
        assert first == node, f"{first} and {node} both lead term {term}"
        for entry, committed_in in zip(self.chosen[base:], self._terms[base:], strict=True):
            if committed_in >= term:
                break  # by a later leader, which this one, woken late, has not heard of
            assert terms.get(entry.index) == entry.term, (
                f"{node} leads term {term} without committed entry {entry.index}"
            )

    def voted(self, voter: NodeId, term: int, candidate: NodeId, candidacy: int) -> None:
        """Check: no vote for two candidates in a term; after a new disk, not if both can win."""
        assert voter in self.voters, f"{voter} votes in {term} for {candidate}"
        wiped = self.wiped[voter]
        first = self.votes.setdefault((term, voter), (candidate, candidacy, wiped))
        if first[0] != candidate:
            forgotten = first[2] < wiped and not self.can_win(first[0], first[1])
            assert forgotten, f"{voter} voted for {first[0]} and {candidate} in {term}"
            self.votes[term, voter] = (candidate, candidacy, wiped)
            self.seen["voted again for the dead one's term"] += 1

    def committed(self, node: NodeId, term: int, entries: tuple[Entry, ...]) -> None:
        """A commit is the same everywhere, for ever, and durable on most voters when first said.

        A copy may be on a disk that was wiped since: then that member must not vote.
        """
        for entry in entries:
            if entry.index <= len(self.chosen):
                known = self.chosen[entry.index - 1]
                assert known == entry, f"{node} commits another entry at {entry.index}"
                continue
            assert entry.index == len(self.chosen) + 1, "a commit leaves a hole"
            copies = sum(
                one.has(entry.index, entry.term) or name in self.lost
                for name, one in self.promises.items()
                if name in self.voters
            )
            assert copies >= self.quorum, (
                f"{node} commits {entry.index}/{entry.term}, durable on {copies} only"
            )
            self.chosen.append(entry)
            self._terms.append(term)
            self._effect(entry)

    def _effect(self, entry: Entry) -> None:
        """Replay a committed entry on the model: the first try of a proposal counts."""
        proposal = (entry.session, entry.sequence)
        if entry.kind is EntryKind.OPEN_SESSION:
            self._opened.add(entry.session)
        elif entry.kind is EntryKind.COMMAND and entry.session in self._opened:
            if proposal in self.replies:
                self.seen["retry in the log"] += 1
            else:
                reply = self._model.apply(entry.index, entry.payload)
                self.replies[proposal] = (entry.index, reply)
        self.hashes.append(self._model.hash)

    def applied(self, node: NodeId, index: int, state_hash: int) -> None:
        """Equal logs give equal states."""
        assert index <= len(self.chosen), f"{node} applies {index}, which is not committed"
        assert self.hashes[index] == state_hash, f"{node} has another state at {index}"

    def restored(self, node: NodeId, identity: tuple[int, int, int]) -> None:
        """Check that a snapshot has the committed state, and is equal from every sender."""
        index = identity[0]
        assert index <= len(self.chosen), f"{node} restores {index}, which is not committed"
        first = self._snapshots.setdefault(index, identity)
        assert first == identity, f"two snapshots of {index}"
