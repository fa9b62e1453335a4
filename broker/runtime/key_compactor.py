"""The pump that compacts the logs of this broker, one partition after the other.

It takes small steps, and rests between them while publishers write, so that they hardly notice.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import structlog

from broker.core.metadata.stream_expiry import lease_limit
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.ports.system import Clock
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.metadata.metadata_log import WaitingMetadata
from broker.runtime.partition.driver import PartitionDriver

_log = structlog.get_logger(__name__)

_LOOK_MS: Final = 1_000  # how often an idle pump looks for work
_WAIT_MS: Final = 2  # for a partition's turn
_REST: Final = 1  # times as long as the step took, while publishers write
_BURST_MS: Final = 20  # steps of one turn of the pump take about so long


class KeyCompactor:
    """One pass at a time, so that memory has the keys of one pass. One thread takes the turns."""

    def __init__(self, replicas: HostedPartitions, metadata: WaitingMetadata, clock: Clock) -> None:
        """Compact ``replicas``; the leases that hold records are in ``metadata``."""
        self._replicas = replicas
        self._metadata = metadata
        self._clock = clock
        self._busy: PartitionDriver | None = None
        self._appended = 0

    def turn(self, now_ms: int) -> int:
        """Take some steps; return when to go on."""
        if self._busy is None:
            self._busy = self._next_busy()
        driver = self._busy
        if driver is None:
            return now_ms + _LOOK_MS
        until_ms = now_ms + _BURST_MS
        while True:
            went_on = self._step(driver)
            after_ms = self._clock.monotonic_ms()
            if not driver.compaction.has_begun:
                self._busy = None
                return after_ms + _WAIT_MS
            if not went_on:
                return after_ms + _WAIT_MS
            if after_ms >= until_ms:
                break
        spent_ms = max(1, after_ms - now_ms)
        return after_ms + (_REST * spent_ms if self._are_publishers_busy() else 0)

    def _next_busy(self) -> PartitionDriver | None:
        wanted = [one for one in self._replicas.all() if one.compaction.is_wanted]
        # First those for which an operator waits.
        for driver in sorted(wanted, key=lambda one: not one.compaction.is_asked):
            if self._step(driver):
                return driver
        return None

    def _step(self, driver: PartitionDriver) -> bool:
        return driver.compaction.step(partial(self._lease_floor, driver.partition_id))

    def _lease_floor(self, partition: PartitionId) -> Offset:
        return lease_limit(self._metadata.state, partition, self._clock.now_us())

    def _are_publishers_busy(self) -> bool:
        appended = sum(driver.counters.appended_records for driver in self._replicas.all())
        before, self._appended = self._appended, appended
        return appended != before
