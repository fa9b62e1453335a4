"""The pump that withdraws replicas with failed logs from ISR and eligible.

A log fails while it is open, or is found damaged when it is opened: at the start, or later, for
example once the key of its stream can be had. The pump proposes the withdrawal until the metadata
shows it. A log that was found damaged is then set aside, as at a start, and its replica begins anew
with an empty log. That log needs no new broker epoch: a damaged log has no role, so no leader and
no controller has an answer about it under the present one. Only withdrawals name it. One whose
outcome is unknown may be applied later, and would give up the replica with the new log. The damaged
log then stays until the next start, whose broker epoch voids the withdrawal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import CommitTimeoutError, HeadwaterError, StaleBrokerEpochError
from broker.model.ids import BrokerId, PartitionId
from broker.ports.pumps import NEVER_MS
from broker.runtime.inbox import Inbox
from broker.runtime.metadata.metadata_log import Answered, AppliedMetadata
from broker.runtime.partition.driver import PartitionDriver

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 100  # until a withdrawal without effect is proposed again
_LOOK_MS: Final = 1_000  # between looks at a replica that cannot be withdrawn now, or is


class Withdrawals:
    """Any thread adds; one thread at a time takes turns."""

    def __init__(
        self,
        *,
        me: BrokerId,
        metadata: AppliedMetadata,
        find: Callable[[PartitionId], PartitionDriver | None],
        propose: Callable[[PartitionId, Answered], None],
        set_aside: Callable[[PartitionId], None],
        wake: Callable[[], None],
    ) -> None:
        """Let ``propose`` propose a withdrawal, and ``set_aside`` begin to replace a log."""
        self._me = me
        self._metadata = metadata
        self._find = find
        self._propose = propose
        self._begin_set_aside = set_aside
        self._wake = wake
        self._noted = Inbox(waiting_max=0, wake=wake)
        self._failed: dict[PartitionId, int] = {}  # with the time of the next proposal
        self._under_way: set[PartitionId] = set()  # repeats would queue behind these
        self._unknown: set[PartitionId] = set()  # a withdrawal may still be applied; for ever
        self._refused: set[PartitionId] = set()  # for ever
        self._told: set[PartitionId] = set()  # that they are kept
        self._set_aside: set[PartitionId] = set()  # once a process: the disk may be at fault

    def add(self, partition_id: PartitionId) -> None:
        """Note a replica whose log has failed, or is being opened and is damaged. Any thread."""
        self._noted.put(partition_id, partition_id)

    def turn(self, now_ms: int) -> int:
        """Look at every replica that was noted, until it has another log or is gone."""
        while (noted := self._noted.take()) is not None:
            self._failed.setdefault(noted[1], now_ms)
        next_ms = NEVER_MS
        for partition_id in list(self._failed):
            look_ms = self._look(partition_id, now_ms)
            if look_ms is None:
                del self._failed[partition_id]
                self._told.discard(partition_id)
            else:
                next_ms = min(next_ms, look_ms)
        return next_ms

    def _look(self, partition_id: PartitionId, now_ms: int) -> int | None:
        """Take the next step for a replica; return when to look again, None if that is over."""
        row, driver = self._metadata.state.partition(partition_id), self._find(partition_id)
        if row is None or self._me not in row.replicas or partition_id in self._refused:
            return None
        if driver is None:
            return now_ms + _AGAIN_MS  # it is being opened
        if driver.health.failure is None:
            return None  # another log has taken the place of the failed one
        if not {*row.isr, *row.eligible} - {self._me}:
            self._keep(partition_id, driver, "it is the last")
        elif self._me in (*row.isr, *row.eligible, row.leader):
            return self._withdraw(partition_id, now_ms)
        elif partition_id in self._unknown:
            self._keep(partition_id, driver, "a withdrawal may still come; restart the broker")
        elif driver.health.is_damaged and partition_id not in self._set_aside | self._under_way:
            self._set_aside.add(partition_id)
            self._begin_set_aside(partition_id)
        return now_ms + _LOOK_MS

    def _keep(self, partition_id: PartitionId, driver: PartitionDriver, reason: str) -> None:
        """Say once why a damaged log stays."""
        if driver.health.is_damaged and partition_id not in self._told:
            self._told.add(partition_id)
            _log.error("damaged_replica_kept", partition=str(partition_id), reason=reason)

    def _withdraw(self, partition_id: PartitionId, now_ms: int) -> int:
        if partition_id in self._under_way:
            return now_ms + _LOOK_MS  # the answer wakes this pump
        if now_ms >= self._failed[partition_id]:
            self._failed[partition_id] = now_ms + _AGAIN_MS
            self._under_way.add(partition_id)  # first: the answer may come at once
            self._propose(partition_id, lambda error: self._answered(partition_id, error))
        return self._failed[partition_id]

    def _answered(self, partition_id: PartitionId, error: HeadwaterError | None) -> None:
        if isinstance(error, StaleBrokerEpochError):  # another process has registered
            self._refused.add(partition_id)
        if isinstance(error, CommitTimeoutError):
            self._unknown.add(partition_id)
        self._under_way.discard(partition_id)
        self._wake()
