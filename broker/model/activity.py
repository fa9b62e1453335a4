"""Events of the activity stream, and those that wait to be stored there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

ACTIVITY_STREAM: Final = "__activity"
CURSORS_STREAM: Final = "__cursors"  # Liftbridge's clients look for it; no log has this name
RESERVED_STREAMS: Final = frozenset({ACTIVITY_STREAM, CURSORS_STREAM})

ActivityOp = Literal[
    "create_stream",
    "delete_stream",
    "pause_stream",
    "resume_stream",
    "set_stream_readonly",
    "join_consumer_group",
    "leave_consumer_group",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityEvent:
    """One change of the cluster's streams or groups. Ids follow each other without a gap."""

    id: int
    op: ActivityOp
    stream: str = ""
    partitions: tuple[int, ...] = ()
    flag: bool = False  # of a pause: resume_all; of read-only: on; of a leave: was expelled
    group: str = ""
    member: str = ""
    streams: tuple[str, ...] = ()  # of a join

    @property
    def weight(self) -> int:
        """Bytes of its JSON text, roughly."""
        names = (self.stream, self.group, self.member, *self.streams)
        return 96 + sum(len(one.encode()) + 3 for one in names) + 5 * len(self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOutbox:
    """The events that are not known to be stored in the activity stream, the oldest first."""

    open: bool = True  # whether there is an activity stream; without one nothing is noted
    last_id: int = 0  # of all events that there ever were
    events: tuple[ActivityEvent, ...] = ()
    weight: int = 0  # of the events
    given_up: int = 0  # events that were dropped, because too many waited
