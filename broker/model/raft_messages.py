"""The messages between members of the Raft group.

No message names its sender: the transport knows it from the certificate. Every message carries a
term; an answer also names its question, so that a late answer cannot be taken for another.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.raft import Entry, Proposal, SnapshotId


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me in ``term``? Changes nothing anywhere. ``disk``: see `Vote`."""

    term: int
    last_index: int
    last_term: int
    disk: int = 0


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """``asked`` is the term of the question, ``term`` the answerer's own."""

    term: int
    asked: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote for me in ``term``. With ``transfer`` the leader itself asked for this election.

    ``candidacy`` names the candidate's process: a later one, with an empty disk, may come to stand
    in the same term, and must not get the answers that were for the former process. ``disk`` is
    the number of the candidate's disk, 0 for that of a voter of the first configuration.
    """

    term: int
    last_index: int
    last_term: int
    transfer: bool
    candidacy: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class VoteReply:
    """A vote, durable on the voter's ``disk``, or a refusal. ``candidacy`` repeats the question's.

    A candidate counts it if its configuration names the voter with this very disk.
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
    at the latest, whose entry here has ``hint_term``. ``round`` repeats the question's.
    """

    term: int
    ok: bool
    index: int
    hint_index: int
    hint_term: int
    round: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a snapshot, from ``offset``; an empty one asks how far the receiver is."""

    term: int
    snapshot: SnapshotId
    offset: int
    round: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ChunkReply:
    """The receiver has ``offset`` bytes of this snapshot; it says so again for every chunk."""

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
    """The leader may make you a voter: which disk is it that will remember your votes?"""

    term: int


@dataclass(frozen=True, slots=True)
class Invited:
    """``disk`` is the number of the answerer's disk, durable there."""

    term: int
    disk: int


@dataclass(frozen=True, slots=True)
class ReadIndexRequest:
    """Up to which index must I have applied to see everything committed by now?"""

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class ReadIndexReply:
    """The answer to the request of this number."""

    term: int
    number: int
    index: int


@dataclass(frozen=True, slots=True)
class Forward:
    """A member's proposal, for the leader. Whether it was taken shows in the log, nowhere else."""

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
