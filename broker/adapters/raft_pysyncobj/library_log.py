"""The log with the interface that the library expects, stored in our format.

It replaces the library's journal; for the library it is a file that never fails. Nothing is written
here. At the end of a step `take_save` returns what changed, and the shell makes it durable with
`RaftJournal`. Until then no effect of the step leaves the member. Position 0 is the entry before
the first one of the log.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, overload

from broker.core.raft.events import Save
from broker.core.raft.log import RaftLog
from broker.errors import LogFailedError
from broker.model.raft import (
    Entry,
    EntryKind,
    Floor,
    HardState,
    NodeId,
    Proposal,
    Snapshot,
    Stored,
)

Row = tuple["Command", int, int]  # command, index, term

_ALL: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the library passes it around; the library only asks for its length.

    The length stays below the limit above which the library would send an entry in pickled pieces.
    """

    proposal: Proposal
    length: int

    def __len__(self) -> int:
        return self.length


class LibraryLog:
    """Term, vote, commit, log and snapshot of one member. Owner: its core."""

    def __init__(self, stored: Stored, *, length_max: int, keep_entries: int) -> None:
        self.entries = RaftLog(stored.log)
        self.snapshot = stored.snapshot
        self.term = max(stored.hard.term, self.entries.last_term)
        self.vote = stored.hard.vote if self.term == stored.hard.term else None
        self.floor = stored.floor
        self.bar = stored.bar
        self.durable = self.entries.last_index
        covered = stored.snapshot.id.index if stored.snapshot else 0
        self.commit = max(covered, min(stored.hard.commit, self.durable))
        self.hashes: deque[tuple[int, int]] = deque(maxlen=64)  # (index, hash) of our own state
        self._length_max = length_max
        self._keep_entries = keep_entries
        self._hard_changed = False
        self._snapshot_changed = False
        self._image_changed = False
        self._truncate: int | None = None
        self._first_new: int | None = None

    # ------------------------------------------------------------------ after a lost disk

    @property
    def abstains(self) -> bool:
        """Tell whether the log may lack entries that the member acknowledged on a former disk."""
        return self.floor > Floor()

    @property
    def end(self) -> Floor:
        """The end of the log, or the floor if that is higher."""
        return max(Floor(self.entries.last_term, self.entries.last_index), self.floor)

    @property
    def voting_end(self) -> Floor:
        """The end that a candidate's log must reach: this log's end, or the bar if it is higher."""
        return max(Floor(self.entries.last_term, self.entries.last_index), self.bar)

    @property
    def may_stand(self) -> bool:
        """Tell whether the member may be elected: it would vote for a log like its own."""
        own = Floor(self.entries.last_term, self.entries.last_index)
        return not self.abstains and own >= self.voting_end

    def drop_reached_floor(self) -> bool:
        """Drop the floor if everything up to it is durable here; return whether it was dropped."""
        term = self.entries.term_at(self.durable)
        if not self.abstains or term is None or Floor(term, self.durable) < self.floor:
            return False
        self.floor = Floor()
        return True

    # ------------------------------------------------------------------ changes of ours

    def command(self, proposal: Proposal) -> Command:
        """Return an entry's command for the library."""
        weight = Entry(0, 0, proposal.kind, 0, 0, proposal.payload).weight
        return Command(proposal, min(weight, self._length_max))

    def row(self, entry: Entry) -> Row:
        """Return an entry as the library passes it around."""
        proposal = Proposal(entry.kind, entry.session, entry.sequence, entry.payload)
        return self.command(proposal), entry.index, entry.term

    def compact(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of our own state machine, and drop entries that it covers."""
        if self.snapshot is not None and snapshot.id.index <= self.snapshot.id.index:
            return
        self.snapshot = snapshot
        first = max(self.entries.base_index, snapshot.id.index - self._keep_entries)
        self.entries.compact(first)
        self._snapshot_changed = self._image_changed = True

    def install(self, snapshot: Snapshot) -> None:
        """Install the leader's snapshot; keep later entries if the log agrees with it."""
        index, term = snapshot.id.index, snapshot.id.term
        if self.entries.term_at(index) == term:
            self.entries.compact(index)
        else:
            self.entries.reset(index, term)
            self.durable = 0
        self.snapshot = snapshot
        self.commit = index
        self._snapshot_changed = self._image_changed = True

    def take_save(self, number: int) -> Save | None:
        """Return everything that must be made durable, as one save; None if nothing changed."""
        if not (self._hard_changed or self._image_changed or self._first_new or self._truncate):
            return None
        log = self.entries
        entries: tuple[Entry, ...] = ()
        if self._first_new is not None and not self._image_changed:
            entries = log.slice(self._first_new, log.last_index + 1, _ALL)
        hard = HardState(self.term, self.vote and NodeId(self.vote), min(self.commit, self.durable))
        save = Save(
            number=number,
            hard=hard if self._hard_changed else None,
            snapshot=self.snapshot if self._snapshot_changed else None,
            image=log.image() if self._image_changed else None,
            truncate=None if self._image_changed else self._truncate,
            entries=entries,
        )
        self._hard_changed = self._snapshot_changed = self._image_changed = False
        self._truncate = self._first_new = None
        return save

    def saved(self) -> None:
        """Note that everything is durable."""
        self.durable = self.entries.last_index

    # ------------------------------------------------------------------ what the library calls

    def __len__(self) -> int:
        return self.entries.last_index - self.entries.base_index + 1

    @overload
    def __getitem__(self, item: int) -> Row: ...

    @overload
    def __getitem__(self, item: slice) -> list[Row]: ...

    def __getitem__(self, item: int | slice) -> Row | list[Row]:
        if isinstance(item, int):
            return self._rows(*slice(item, item + 1 or None).indices(len(self))[:2])[0]
        return self._rows(*item.indices(len(self))[:2])

    def _rows(self, start: int, stop: int) -> list[Row]:
        log, rows = self.entries, []
        if start >= stop:
            return []
        if start == 0:
            base = Entry(log.base_index, log.base_term, EntryKind.NOOP, 0, 0, b"")
            rows.append(self.row(base))
            start = 1
        if start < stop:
            found = log.slice(log.base_index + start, log.base_index + stop, _ALL)
            rows += map(self.row, found)
        return rows

    def add(self, command: Command | bytes, index: int, term: int) -> None:
        """Append an entry; bytes are the library's own entry, with which a new leader begins."""
        one = (
            Proposal(EntryKind.NOOP, 0, 0, b"") if isinstance(command, bytes) else command.proposal
        )
        entry = Entry(index, term, one.kind, one.session, one.sequence, one.payload)
        self.entries.append((entry,))
        if self._first_new is None:
            self._first_new = index

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802 - the library's name
        """Remove entries that conflict with the leader's log; never committed ones."""
        index = self.entries.base_index + position
        if index <= self.commit:
            raise LogFailedError(f"the leader's log lacks entry {index}, which is committed here")
        self.entries.truncate(index)
        self.durable = min(self.durable, index - 1)
        if self._first_new is not None and self._first_new >= index:
            self._first_new = None
        self._truncate = index if self._truncate is None else min(self._truncate, index)

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802
        """Move to a later term, or vote in this one."""
        if term < self.term or (term == self.term and self.vote not in {None, vote}):
            raise LogFailedError(f"a vote for {vote} in {term} after {self.vote} in {self.term}")
        self.term, self.vote = term, None if vote is None else NodeId(vote)
        self._hard_changed = True

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the term."""
        return self.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        """Return the member that got this member's vote in its term."""
        return self.vote

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Note the commit index; it never decreases."""
        if index < self.commit:
            raise LogFailedError(f"a commit of {index} after one of {self.commit}")
        self.commit = index

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return the commit index."""
        return self.commit

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing: every step is durable before its effects, not once a second."""
