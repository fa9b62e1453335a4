"""The events that a member of the group takes, and the effects that it returns.

The shell performs effects in the given order. It answers a `Save` with `Saved` when all of it is
durable; saves complete in order. The core holds back each message that must wait for a save, so a
`Send` may go out at once. `Apply` and `Restore` must be done before the effects after them.
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
    """A caller on this node proposes an entry. Only a leader accepts it."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Barrier:
    """A caller on this node waits until everything committed before its call is applied."""

    number: int


@dataclass(frozen=True, slots=True)
class SnapshotMade:
    """The state machine wrote a snapshot of its state after applying ``index``."""

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
    """A member has restarted and asks how far this member is; its former process has ended.

    Its disk may have been restored to an older state, so acknowledgements of the former process do
    not count any more. The core takes this event before the shell sends the answer.
    """

    member: NodeId


@dataclass(frozen=True, slots=True)
class ChangeVoters:
    """Make ``add`` a voter, or make ``remove`` no voter; exactly one is set. For a leader only.

    If a condition is not fulfilled, the change is refused, and the leader starts to fulfil it:
    repeat the event. If the voters are already as wanted, the change has succeeded.
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

    ``image`` replaces the whole log. Without it, the entries from ``truncate`` on are removed
    (None: no entry), then ``entries`` are added. ``disk`` is the disk's new number, or None.
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
        """Tell whether it only adds entries: then one sync may cover several saves."""
        rest = (self.hard, self.snapshot, self.image, self.truncate, self.disk)
        return all(one is None for one in rest)


@dataclass(frozen=True, slots=True)
class Send:
    """Send if there is a connection; messages may be lost, doubled or late."""

    target: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Apply:
    """These entries are committed and durable here. Each is applied exactly once, in order."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Replace the state by the snapshot's; the state before is that of a prefix of the same log."""

    snapshot: Snapshot


class Refusal(Enum):
    """Why a proposal was refused. It is in no log, unless an earlier attempt put it there."""

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
    """Why a change of the voters was refused. No log has it."""

    NOT_LEADER = "this member does not lead"
    TERM_BEGINS = "nothing of the leader's own term is committed yet"
    CHANGE_UNDER_WAY = "another change of the voters is not committed yet"
    TRANSFERRING = "the leader hands over"
    UNKNOWN = "no such member"
    SILENT = "it does not answer"
    INVITED = "it was asked which disk it has"
    CATCHING_UP = "it has not caught up with the leader's commit"
    LAST = "it is the only voter"
    TOO_FEW = "no majority of those who would vote answers"
    TOO_MANY = "there are too many voters"
    FIXED = "the voters of a group that runs pysyncobj cannot change"


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """The log has the wanted change, at ``index`` or before; it may not be committed yet."""

    number: int
    index: int


@dataclass(frozen=True, slots=True)
class VotersKept:
    """The wanted change was not made now, because of ``reason``."""

    number: int
    reason: ChangeRefusal


@dataclass(frozen=True, slots=True)
class BarrierPassed:
    """Everything that was committed before the barrier is applied here."""

    number: int
    index: int


@dataclass(frozen=True, slots=True)
class BarrierFailed:
    """No leader confirmed the barrier; ask again."""

    number: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role has changed. For logs and metrics only: all decisions are entries of the log."""

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
    """This node's disk has everything that it may have had before it was wiped.

    So the floor can be removed from the disk, at any time: a node that reads its floor again finds
    that its log has reached it.
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
