"""Commands about consumer groups whose members use Headwater's own client.

They need ``FEATURE_LEVEL_STREAMS``. Positions of all groups are written by them, and by SetCursors
of Liftbridge's clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.groups import PositionCommit, PositionReset
from broker.model.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinMember:
    """Make a process a member of a group; a group without members begins with it.

    The same process again changes nothing, unless it begins its next membership: then its claims
    get a new epoch. Another process takes the place and the claims of a static member of this name,
    under a new epoch; a member that is not static is not replaced. A late command of an earlier
    membership, or of a process that was replaced, is rejected.
    """

    group: str
    member: str
    instance: str
    streams: tuple[str, ...]
    session_ms: int
    coordinator: BrokerId  # of a new group
    static: bool = False
    owner: str = ""
    membership: int = 0  # of the process; raised before it joins again
    weight_max: int | None = None  # of all metadata with it; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveMember:
    """End a membership; the member's partitions go to others at once.

    A coordinator that expels a silent member names itself and the group's epoch: the command is
    rejected if the group has another coordinator or epoch by now. A member names the membership
    that it ends. A late command would else end the next membership of the same process.
    """

    group: str
    member: str
    instance: str
    expelled_by: BrokerId | None = None
    epoch: int | None = None
    membership: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPositions:
    """Store positions under claims, and release claims. Each write is checked for itself.

    A write whose claim has ended is refused; the other writes are stored. A write that is not newer
    than the stored position (by claim and number) is a retry, and changes nothing.
    """

    group: str
    member: str
    instance: str
    writes: tuple[PositionCommit, ...]
    weight_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPositions:
    """Store positions that an operator chose, in partitions that no member reads."""

    group: str
    writes: tuple[PositionReset, ...]
    weight_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Forget the positions of a group without members."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceGroup:
    """Assign the partitions of a group anew, because its streams have more partitions than before.

    The command is rejected if the group has another epoch by now.
    """

    group: str
    epoch: int


MemberCommand = (
    JoinMember | LeaveMember | CommitPositions | ResetPositions | DeleteGroup | RebalanceGroup
)
