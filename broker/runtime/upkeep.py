"""The regular work of the local replicas: timers, maintenance, and freeing of segments."""

from __future__ import annotations

from functools import partial
from typing import Final

import structlog

from broker.errors import HeadwaterError
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.ports.system import Clock
from broker.runtime.api.leases import LeaseFloors
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.metadata.metadata_log import WaitingMetadata
from broker.runtime.partition.driver import PartitionDriver

_log = structlog.get_logger(__name__)

_MAINTENANCE_MS: Final = 250
_ALL_MS: Final = 1_000  # also replicas that do not write are looked at this often


class Upkeep:
    """One thread ticks; no tick waits for a partition."""

    def __init__(
        self, replicas: HostedPartitions, metadata: WaitingMetadata, clock: Clock, *, tick_ms: int
    ) -> None:
        """Expect a tick every ``tick_ms``; the leases that hold segments are in ``metadata``."""
        self._replicas = replicas
        self._metadata = metadata
        self._clock = clock
        self._floors = LeaseFloors()
        self._every = max(1, _MAINTENANCE_MS // tick_ms)  # ticks from one maintenance to the next
        self._all_every = max(1, _ALL_MS // tick_ms)

    def tick(self, count: int) -> None:
        """Queue the due work of every replica; ``count`` is the number of earlier ticks.

        Each replica is looked at once a second, in shares, and one that writes more often.
        """
        drivers = self._replicas.all()
        for driver in drivers[-count % self._all_every :: self._all_every]:
            if driver.replication.rests:
                driver.replication.tick()
            self._maintain(driver)
        maintains = (count + 1) % self._every == 0
        for driver in [one for one in drivers if not one.replication.rests]:
            driver.replication.tick()
            if maintains and driver.maintenance.is_busy:
                self._maintain(driver)

    def _maintain(self, driver: PartitionDriver) -> None:
        try:
            if not driver.replication.rests or driver.maintenance.is_due:
                driver.maintenance.tick()
            driver.frees.soon(partial(self._lease_floor, driver.partition_id))
        except HeadwaterError as error:
            _log.warning("tick_failed", partition=str(driver.partition_id), error=str(error))

    def _lease_floor(self, partition: PartitionId) -> Offset:
        return self._floors.floor(self._metadata.state, partition, self._clock.now_us())
