"""The state of a replica on its broker, for metrics and operators."""

from __future__ import annotations

from enum import StrEnum


class ReplicaState(StrEnum):
    """The states. If several apply, the first in this list counts: CLOSING wins over all others."""

    CLOSING = "closing"  # takes no more work; queued work is finished, then the files are closed
    DAMAGED = "damaged"  # its log was found damaged when it was opened; nothing is deleted
    FAILED = "failed"  # its disk refused a write or rot was read; no writes until it is reopened
    REPLACED = "replaced"  # by a claim in the lake, another process leads this history; no writes
    LOCKED = "locked"  # its stream is encrypted, and this broker cannot use a key of it; not open
    OPENING = "opening"  # has no view of the metadata yet, or its log could not be opened yet
    FULL = "full"  # its disk has no room; records are taken again once there is, without a restart
    CLAIMING = "claiming"  # leads, but its claim on the history in the lake is not settled yet
    READING_IDS = "reading_ids"  # leads; writes wait until it knows the message ids of its window
    PAUSED = "paused"  # leads, and takes no writes until the partition is resumed
    READONLY = "readonly"  # leads, and takes no writes until an operator allows them
    LEADING = "leading"  # takes writes
    CANDIDATE = "candidate"  # the controller named it to lead; it has not confirmed yet
    FOLLOWING = "following"  # copies the log of a leader
    WAITING = "waiting"  # holds a log and knows no leader to copy from


class PassState(StrEnum):
    """How far a request to compact a replica's log is; the first two are not final."""

    WAITING = "waiting"  # for its turn: a broker compacts one log after the other
    RUNNING = "running"
    COMPACTED = "compacted"  # as far as the report says
    NOTHING = "nothing"  # no segment could be taken; the report says why
    FAILED = "failed"  # the report says why
