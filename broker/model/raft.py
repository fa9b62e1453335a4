"""The vocabulary of the Raft group: members, entries, snapshots. Values only.

Terms and indexes are plain integers that only grow: index 1 is the first entry of a log, index 0
and term 0 mean "before it". The proposer chooses a session number at random. Session number and
sequence together name one proposal, so that a retry is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NewType

NodeId = NewType("NodeId", str)  # a member of the group, as the configuration names it

RaftName = Literal["own", "pysyncobj"]  # which implementation a group runs

PAYLOAD_BYTES_MAX: Final = 256 * 1024
# What a member takes: the largest state of the metadata (`core/metadata/size.py`), with sessions.
SNAPSHOT_BYTES_MAX: Final = (256 + 64) * 1024 * 1024
MESSAGE_BYTES_MAX: Final = 1024 * 1024
CHUNK_BYTES_MAX: Final = 512 * 1024
NODE_ID_BYTES_MAX: Final = 64
VOTERS_MAX: Final = 7  # five, one that replaces another and is added first, and one to spare
DISK_MAX: Final = (1 << 62) - 1
ENTRY_OVERHEAD: Final = 40  # bytes that an entry counts for beside its payload, in every budget
U64_MAX: Final = (1 << 64) - 1


class EntryKind(IntEnum):
    """The purpose of an entry."""

    NOOP = 0  # a new leader's first entry: it commits what earlier terms left
    COMMAND = 1
    OPEN_SESSION = 2  # from here on the session's sequences are remembered
    VOTERS = 3  # from here on these members vote: in force as soon as it is in a member's log


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter: a member, with the disk that remembers its votes.

    A voter of the first configuration has ``disk`` 0: its disk has no number. Any later voter has
    the number that was drawn on its disk. A member with another disk is not this voter.
    """

    node: NodeId
    disk: int = 0


Voters = tuple[Voter, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A request for a log entry; equal (session, sequence) means the same proposal."""

    kind: EntryKind
    session: int
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of the log. Equal index and term mean equal content, and an equal log before it."""

    index: int
    term: int
    kind: EntryKind
    session: int
    sequence: int
    payload: bytes

    @property
    def weight(self) -> int:
        """Bytes that the entry counts for in every budget."""
        return ENTRY_OVERHEAD + len(self.payload)


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """The identity of a snapshot: the state after ``index``, and the checksum of its bytes."""

    index: int
    term: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state machine's bytes; ``data`` was checked against the id before."""

    id: SnapshotId
    data: bytes


@dataclass(frozen=True, slots=True)
class HardState:
    """The state that a node may never forget: its term, and its vote in that term.

    ``commit`` is a hint that is never above what the node has synced.
    """

    term: int = 0
    vote: NodeId | None = None
    commit: int = 0


@dataclass(frozen=True, slots=True)
class LogImage:
    """A whole log: the entries after ``base_index``, whose entry had ``base_term``."""

    base_index: int
    base_term: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, order=True)
class Floor:
    """How far a log must reach before its node may vote. (0, 0): the node may vote now.

    Floors are compared by term first. A node whose disk was wiped may once have acknowledged every
    entry up to its floor.
    """

    term: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Everything that a node finds on its disk when it starts; all of it is durable."""

    hard: HardState
    snapshot: Snapshot | None
    log: LogImage
    floor: Floor = Floor()
    bar: Floor = Floor()  # the node votes as if its log ended here, if its own log ends earlier
    disk: int = 0  # number of the disk, see `Voter`; 0: none


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a member, which it tells a starting member."""

    fresh: bool = False  # its disk is empty, so it waits for the answers of others itself
    behind: bool = False  # its disk was empty at a start, and it has not reached its floor yet
    term: int = 0
    last: Floor = Floor()  # the end of its log in memory, or its floor if that is higher
    # The voters, and those that vote if the newest change is cut off; () before the first change.
    voters: tuple[NodeId, ...] = ()

    @property
    def knows(self) -> bool:
        """Tell whether this member knows a term or an entry of the group."""
        return self.term > 0 or self.last > Floor()


def standing_of(stored: Stored) -> Standing:
    """Return the standing of a member before its Raft runs, from its disk."""
    log = stored.log
    last = log.entries[-1] if log.entries else None
    end = Floor(last.term, last.index) if last else Floor(log.base_term, log.base_index)
    term = max(stored.hard.term, end.term)
    return Standing(behind=stored.floor > Floor(), term=term, last=max(end, stored.floor))


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A member, as another member sees it."""

    node: NodeId
    votes: bool
    behind: int | None = None  # entries that it has not confirmed; None: only a leader knows
    silent_ms: int | None = None  # since the leader's last message from it


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """Voters, observers and their progress, as one member sees them. No decision may use it."""

    leader: NodeId | None
    settled: bool  # no change of the voters is under way
    members: tuple[MemberSeen, ...]


@dataclass(frozen=True, slots=True)
class VoterChanged:
    """The result of a requested change of the voters."""

    done: bool
    reason: str  # why the change is not done yet
    leader: NodeId | None  # the member to ask for the next step, if it is known
