"""The settings of a Raft group. All members have the same; their lists of observers may differ."""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import InvalidConfigError
from broker.model.raft import (
    CHUNK_BYTES_MAX,
    ENTRY_OVERHEAD,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    NodeId,
)

GROUP_SIZES = (1, 3, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Members, timers and limits of a group.

    ``members`` vote. ``observers`` get everything that is committed, and are never counted.
    """

    members: tuple[NodeId, ...]
    observers: tuple[NodeId, ...] = ()
    heartbeat_ms: int = 100
    election_ms_min: int = 1000  # below a second, pauses of Python cause needless elections
    election_ms_max: int = 2000
    append_bytes_max: int = 256 * 1024  # entries of one message
    chunk_bytes_max: int = 256 * 1024
    inflight_bytes_max: int = 1024 * 1024  # entries sent to a member and not answered yet
    inflight_messages_max: int = 64
    uncommitted_bytes_max: int = 4 * 1024 * 1024  # beyond it, proposals are refused
    reads_max: int = 10_000  # barriers that wait at once
    keep_entries: int = 1000  # entries kept before a snapshot, for members that lag a little
    keep_bytes: int = 16 * 1024 * 1024  # their bytes at most, because a journal is read whole
    restart_grace_ms: int = 5000  # how long a restarted member waits for silent members

    @property
    def bar_ms(self) -> int:
        """How long a restarted member keeps its bar while there is no leader.

        The grace period for silent members, but at least two election timeouts: a member whose log
        reaches the bar may wait for a whole timeout before it stands, and may have to stand twice.
        """
        return max(self.restart_grace_ms, 2 * self.election_ms_max)

    def __post_init__(self) -> None:
        if len(set(self.members)) != len(self.members) or len(self.members) not in GROUP_SIZES:
            raise InvalidConfigError(
                f"a Raft group has 1, 3 or 5 different members, not {list(self.members)}"
            )
        if len({*self.members, *self.observers}) != len(self.members) + len(self.observers):
            raise InvalidConfigError(
                f"the observers must be different, and none of them a member: "
                f"{list(self.observers)} beside the members {list(self.members)}"
            )
        if not 0 < 3 * self.heartbeat_ms <= self.election_ms_min < self.election_ms_max:
            raise InvalidConfigError(
                "election_ms_min must be at least three times heartbeat_ms, and election_ms_max "
                "must be above election_ms_min"
            )
        if self.restart_grace_ms < 0:
            raise InvalidConfigError("restart_grace_ms must not be negative")
        smallest = PAYLOAD_BYTES_MAX + ENTRY_OVERHEAD
        if not 1 <= self.chunk_bytes_max <= CHUNK_BYTES_MAX:
            raise InvalidConfigError(f"chunk_bytes_max must be within 1 to {CHUNK_BYTES_MAX}")
        if not 1 <= self.append_bytes_max <= MESSAGE_BYTES_MAX - 2 * smallest:
            raise InvalidConfigError("append_bytes_max must leave room in a message")

    @property
    def quorum(self) -> int:
        """How many members are more than half."""
        return len(self.members) // 2 + 1
