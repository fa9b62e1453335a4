"""What a replica is doing on its broker, in one word that metrics and operators are shown."""

from __future__ import annotations

from enum import StrEnum


class ReplicaState(StrEnum):
    """The first that applies, from the top: a replica that is closing is nothing else."""

    CLOSING = "closing"  # takes no more work; queued work is finished, then the files are closed
    DAMAGED = "damaged"  # its log was found damaged when it was opened; nothing is deleted
    FAILED = "failed"  # its disk refused a write or rot was read; no writes until it is reopened
    REPLACED = "replaced"  # another process leads this history, by the lake's word; no writes
    OPENING = "opening"  # no view of the metadata is taken in, or the log could not be opened yet
    CLAIMING = "claiming"  # leads, and its claim on the history in the lake is not settled yet
    LEADING = "leading"  # takes writes
    CANDIDATE = "candidate"  # named to lead, and not the leader before everything is shown
    FOLLOWING = "following"  # copies the log of a leader
    WAITING = "waiting"  # holds a log and knows of no leader to copy from

    @property
    def takes_writes(self) -> bool:
        """Whether a publish can be written now; while claiming it waits."""
        return self in (ReplicaState.LEADING, ReplicaState.CLAIMING)

    @property
    def is_well(self) -> bool:
        """Whether nobody has to look after the replica."""
        return self not in (ReplicaState.DAMAGED, ReplicaState.FAILED, ReplicaState.REPLACED)
