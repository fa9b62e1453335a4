"""The configurations of the group: which one is in force at a member.

A configuration is in force as soon as its entry is in the member's log, committed or not. If that
entry is cut off, the configuration before it is in force again (Raft dissertation, §4.1). The
snapshot has the configuration at the log's base. Without both, the first configuration is in force,
which every member has from its start. Rules and argument: `docs/decisions/0023-*.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.codec.disk.raft_state import voters_of
from broker.codec.disk.raft_voters import decode_voters, encode_voters
from broker.model.raft import (
    Entry,
    EntryKind,
    NodeId,
    Proposal,
    Snapshot,
    Standing,
    Stored,
    Voter,
    Voters,
    standing_of,
)


class VoterHistory:
    """The configurations that one member knows, by the index of their entries, oldest first."""

    def __init__(self, first: Iterable[NodeId], stored: Stored) -> None:
        """Begin with what is on the disk."""
        self._first: Voters = tuple(Voter(one) for one in first)
        self._known: list[tuple[int, Voters]] = []
        self._begin(stored.snapshot)
        self.appended(stored.log.entries)

    def _begin(self, snapshot: Snapshot | None) -> None:
        found = None if snapshot is None else voters_of(snapshot.data)
        if snapshot is None or found is None:
            self._known = [(0, self._first)]
        else:
            self._known = [(snapshot.id.index, found)]

    # ------------------------------------------------------------------ in force

    @property
    def voters(self) -> Voters:
        """The configuration in force."""
        return self._known[-1][1]

    @property
    def index(self) -> int:
        """Index of the configuration in the log, or a later committed index; 0: never changed."""
        return self._known[-1][0]

    @property
    def former(self) -> Voters:
        """The configuration that is in force if the newest change is cut off."""
        return self._known[max(0, len(self._known) - 2)][1]

    def names(self, commit: int) -> tuple[NodeId, ...]:
        """Return the voters, with those that would vote if an uncommitted change were cut off.

        Empty before the first change.
        """
        if not self.index:
            return ()
        both = self.voters if self.index <= commit else (*self.voters, *self.former)
        return tuple(sorted({one.node for one in both}))

    # ------------------------------------------------------------------ what changes it

    def appended(self, entries: Iterable[Entry]) -> bool:
        """Note entries that were added to the log; return whether the voters changed."""
        changed = False
        for one in entries:
            if one.kind is EntryKind.VOTERS:
                known = [old for old in self._known if old[0] < one.index]
                self._known = [*known, (one.index, decode_voters(one.payload))]
                changed = True
        return changed

    def cut(self, index: int) -> bool:
        """Note that the log was cut before ``index``; return whether the voters changed."""
        before = len(self._known)
        while self._known[-1][0] >= index and len(self._known) > 1:
            self._known.pop()
        return len(self._known) != before

    def compacted(self, base: int) -> None:
        """Forget configurations before one at or below the log's base."""
        while len(self._known) > 1 and self._known[1][0] <= base:
            self._known.pop(0)

    def installed(self, snapshot: Snapshot, kept: Iterable[Entry]) -> bool:
        """Note that a snapshot and ``kept`` are the log now; return whether the voters changed."""
        before = self.voters
        self._begin(snapshot)
        self.appended(kept)
        return self.voters != before


def standing_on_disk(first: Iterable[NodeId], stored: Stored) -> Standing:
    """Return a member's answer before its Raft runs: the end of its log, and the voters."""
    voters = VoterHistory(first, stored).names(stored.hard.commit)
    return replace(standing_of(stored), voters=voters)


def change_to(voters: Voters) -> Proposal:
    """Return the proposal of a configuration."""
    return Proposal(EntryKind.VOTERS, 0, 0, encode_voters(voters))


def majority(count: int) -> int:
    """Return how many of ``count`` are more than half."""
    return count // 2 + 1
