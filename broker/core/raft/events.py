"""What happens to a member of the group, and what it wants done.

Effects are carried out in the order given. `Save` is answered by `Saved` once all of it is durable,
and saves complete in order; whatever must not be said before that is held back by the core, so a
`Send` may go out at once. `Apply` and `Restore` must be done before the effects behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker.model.raft import Entry, HardState, LogImage, NodeId, Proposal, Snapshot
from broker.model.raft_messages import Message

# ---------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; several times per heartbeat."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived from a peer that the transport has identified."""

    sender: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Saved:
    """The save of this number, and all before it, are durable."""

    number: int


@dataclass(frozen=True, slots=True)
class Propose:
    """A caller on this node wants something in the log. Only a leader takes it."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Barrier:
    """A caller on this node wants to see everything that was committed before it asked."""

    number: int


@dataclass(frozen=True, slots=True)
class SnapshotMade:
    """The state machine wrote down what it is after applying ``index``."""

    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StateHashed:
    """The state machine's hash after applying ``index``."""

    index: int
    hash: int


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Hand over to ``target`` if this node leads."""

    target: NodeId


@dataclass(frozen=True, slots=True)
class MemberAsks:
    """A new process of a member asks how far this one is; the former process has ended.

    Its disk may be an older one, so what the former process acknowledged counts no more. This is
    to be taken in before the answer leaves.
    """

    member: NodeId


@dataclass(frozen=True, slots=True)
class ChangeVoters:
    """Make ``add`` a voter, or ``remove`` none; one of the two. Only a leader takes it.

    What is not ready yet is refused and begun: ask again. What is so already is done.
    """

    number: int
    add: NodeId | None = None
    remove: NodeId | None = None


Event = (
    Tick
    | Received
    | Saved
    | Propose
    | Barrier
    | SnapshotMade
    | StateHashed
    | TransferLeadership
    | MemberAsks
    | ChangeVoters
)

# ---------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Save:
    """Make durable, in this order: ``disk``, ``hard``, ``snapshot``, then the log.

    ``image`` replaces the whole log; else entries from ``truncate`` on go (None: none), and
    ``entries`` follow. ``disk`` is the number that the disk gets (None: it stays as it is).
    """

    number: int
    hard: HardState | None
    snapshot: Snapshot | None
    image: LogImage | None
    truncate: int | None
    entries: tuple[Entry, ...]
    disk: int | None = None

    @property
    def adds_only(self) -> bool:
        """Tell whether it does nothing but add entries: one sync may do for it and others."""
        rest = (self.hard, self.snapshot, self.image, self.truncate, self.disk)
        return all(one is None for one in rest)


@dataclass(frozen=True, slots=True)
class Send:
    """Send if there is a connection; messages may be lost, doubled or late."""

    target: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Apply:
    """These entries are committed, durable here, and next in turn. Each is applied exactly once."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """The state machine becomes what the snapshot says; what it was before is a prefix of that."""

    snapshot: Snapshot


class Refusal(Enum):
    """Why a proposal was not taken. It is in no log, unless an earlier try of it is."""

    NOT_LEADER = "not leader"
    OVERLOADED = "overloaded"
    TRANSFERRING = "transferring"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True)
class Refused:
    """The proposal was not taken by this node."""

    proposal: Proposal
    reason: Refusal


class ChangeRefusal(Enum):
    """Why a change of the voters was not taken. Nothing of it is in any log."""

    NOT_LEADER = "this member does not lead"
    TERM_BEGINS = "nothing of the leader's own term is committed yet"
    CHANGE_UNDER_WAY = "another change of the voters is not committed yet"
    TRANSFERRING = "the leader hands over"
    UNKNOWN = "no such member"
    SILENT = "it does not answer"
    INVITED = "it was asked for its disk"
    CATCHING_UP = "it has not caught up with the leader's commit"
    LAST = "it is the only voter"
    TOO_FEW = "no majority of those who would vote answers"
    TOO_MANY = "there are too many voters"
    FIXED = "the voters of a group that runs pysyncobj cannot change"


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """The change that was asked for stands in the log at ``index``, or earlier; not committed."""

    number: int
    index: int


@dataclass(frozen=True, slots=True)
class VotersKept:
    """The change that was asked for was not made, now, because of ``reason``."""

    number: int
    reason: ChangeRefusal


@dataclass(frozen=True, slots=True)
class BarrierPassed:
    """Everything committed before the barrier was asked for is applied here."""

    number: int
    index: int


@dataclass(frozen=True, slots=True)
class BarrierFailed:
    """Nobody could confirm; ask again."""

    number: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """For logs and metrics. Never a licence to decide: decisions are entries of the log."""

    role: str
    term: int
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class Diverged:
    """This node's state differs from the leader's at the same index: it must stop."""

    index: int
    ours: int
    theirs: int


@dataclass(frozen=True, slots=True)
class FloorReached:
    """This node's disk has all that it may have had before it was wiped: the floor may be dropped.

    Nothing hangs on when that is done: a node that finds its floor again finds it reached.
    """


Effect = (
    Save
    | Send
    | Apply
    | Restore
    | Refused
    | VotersChanged
    | VotersKept
    | BarrierPassed
    | BarrierFailed
    | RoleChanged
    | Diverged
    | FloorReached
)
