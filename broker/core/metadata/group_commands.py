"""Commands about what consumers leave with the cluster: their positions and their groups.

They need ``FEATURE_LEVEL_LIFTBRIDGE``: a build that does not know a command would refuse it while
the other brokers apply it.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorWrite:
    """A position of one consumer in one partition. The stream need not exist (yet)."""

    cursor_id: str
    stream: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCursors:
    """Store positions, each in place of its last one."""

    writes: tuple[CursorWrite, ...]
    weight_max: int | None = None  # of all metadata with them; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """Make a consumer a member of a group; a group without members begins with it.

    ``coordinator`` is who hears the members of a new group; a group that is there keeps its own.
    """

    group: str
    member: str
    streams: tuple[str, ...]
    coordinator: BrokerId
    weight_max: int | None = None  # as in SetCursors


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """Take a member out of its group, by its own wish or because it is silent.

    With ``epoch`` only if the group has not changed since.
    """

    group: str
    member: str
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCoordinator:
    """A member says that the coordinator of its group does not answer.

    The group gets ``candidate`` as its coordinator once more than half of its members have said so,
    or at once if the coordinator is fenced.
    """

    group: str
    member: str
    coordinator: BrokerId
    epoch: int
    candidate: BrokerId


GroupCommand = SetCursors | JoinGroup | LeaveGroup | ReportCoordinator
