"""The messages between members of the Raft group.

No message names its sender: the transport knows the sender from its certificate. Every message
carries a term. An answer also names its request, so that a late answer is not taken for an answer
to a newer request.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.raft import Entry, Proposal, SnapshotId


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me in ``term``? Neither side changes its state. ``disk``: see `Vote`."""

    term: int
    last_index: int
    last_term: int
    disk: int = 0


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """``asked`` is the term of the request, ``term`` the voter's own."""

    term: int
    asked: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote for me in ``term``. With ``transfer`` the leader itself asked for this election.

    ``candidacy`` names the candidate's process. A later process of the same node, with an empty
    disk, may become a candidate in the same term, and must not count the votes for the former
    process. ``disk`` is the number of the candidate's disk; 0 for a voter of the first
    configuration.
    """

    term: int
    last_index: int
    last_term: int
    transfer: bool
    candidacy: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class VoteReply:
    """A vote, durable on the voter's ``disk``, or a refusal. ``candidacy`` is the request's.

    A candidate counts a vote only if its configuration names the voter with this disk.
    """

    term: int
    granted: bool
    candidacy: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """Entries that follow ``prev_index``; without any it is a heartbeat.

    ``check_index`` and ``check_hash`` are the leader's state hash at an applied index (0: none).
    """

    term: int
    prev_index: int
    prev_term: int
    commit: int
    round: int
    check_index: int
    check_hash: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class AppendReply:
    """``ok``: everything up to ``index`` is the leader's log and durable here.

    Otherwise ``index`` is the refused ``prev_index``, and the two logs can agree at ``hint_index``
    at the latest, whose entry here has ``hint_term``. ``round`` is the request's.
    """

    term: int
    ok: bool
    index: int
    hint_index: int
    hint_term: int
    round: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a snapshot, from byte ``offset``; an empty piece asks how many bytes arrived."""

    term: int
    snapshot: SnapshotId
    offset: int
    round: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ChunkReply:
    """The receiver has the first ``offset`` bytes of this snapshot; the answer to every chunk."""

    term: int
    snapshot: SnapshotId
    offset: int
    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: start an election at once."""

    term: int


@dataclass(frozen=True, slots=True)
class Invite:
    """The leader may make the receiver a voter, and asks for the number of its disk."""

    term: int


@dataclass(frozen=True, slots=True)
class Invited:
    """The answer to `Invite`: ``disk`` is the number of the disk, and is durable on it."""

    term: int
    disk: int


@dataclass(frozen=True, slots=True)
class ReadIndexRequest:
    """Asks the leader up to which index a member must apply to have all that is committed now."""

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class ReadIndexReply:
    """The answer to the `ReadIndexRequest` with this ``number``: apply up to ``index``."""

    term: int
    number: int
    index: int


@dataclass(frozen=True, slots=True)
class Forward:
    """A member's proposal, for the leader. There is no answer: the log shows the outcome."""

    term: int
    proposal: Proposal


Message = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | Append
    | AppendReply
    | Chunk
    | ChunkReply
    | TimeoutNow
    | Invite
    | Invited
    | ReadIndexRequest
    | ReadIndexReply
    | Forward
)
