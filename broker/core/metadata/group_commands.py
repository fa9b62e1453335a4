"""Commands about consumers: their cursors (stored offsets) and their groups.

They need ``FEATURE_LEVEL_LIFTBRIDGE``: a build that does not know a command would refuse it while
the other brokers apply it.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorWrite:
    """The cursor of one consumer in one partition: ``offset``.

    The stream need not exist (yet), unless the cursor is a group's.
    """

    cursor_id: str
    stream: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCursors:
    """Store cursors; each replaces the former one of its cursor id, stream and partition."""

    writes: tuple[CursorWrite, ...]
    weight_max: int | None = None  # of all metadata with them; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """Make a consumer a member of a group; a group without members begins with it.

    ``coordinator`` is the coordinator of a new group; a group that exists keeps its own.
    """

    group: str
    member: str
    streams: tuple[str, ...]
    coordinator: BrokerId
    weight_max: int | None = None  # as in SetCursors


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """Remove a member from its group: at its own request, or because it was silent for too long.

    With ``epoch`` the command is rejected if the group has another epoch by now.
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
