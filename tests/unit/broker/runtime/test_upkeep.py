"""How often a replica gets its regular work: as often as what it does needs it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.core.metadata.state import MetadataState
from broker.runtime.upkeep import Upkeep
from simkit.brokers.driver_rig import DriverRig
from simkit.brokers.memory_broker import FakeClock
from simkit.disk.disk import SimDisk

TICK_MS = 50
SECONDS = 3


@dataclass
class _Replica:
    """Counts what it is asked."""

    rests: bool
    is_busy: bool
    is_due: bool = False
    partition_id: str = "p"
    looked_at: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.replication: Any = SimpleNamespace(rests=self.rests, tick=lambda: self._count("tick"))
        self.maintenance: Any = SimpleNamespace(
            is_busy=self.is_busy, is_due=self.is_due, tick=lambda: self._count("maintain")
        )
        self.frees: Any = SimpleNamespace(soon=lambda _: self._count("free"))

    def _count(self, name: str) -> None:
        self.looked_at[name] = self.looked_at.get(name, 0) + 1


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        (_Replica(rests=True, is_busy=False), {"tick": 1, "free": 1}),
        (_Replica(rests=True, is_busy=False, is_due=True), {"tick": 1, "free": 1, "maintain": 1}),
        (_Replica(rests=False, is_busy=False), {"tick": 20, "free": 1, "maintain": 1}),
        (_Replica(rests=False, is_busy=True), {"tick": 20, "free": 5, "maintain": 5}),
    ],
    ids=["rests", "rests, and a segment is old", "awake", "writes"],
)
def test_a_replica_is_looked_at_as_often_as_it_needs(
    replica: _Replica, expected: dict[str, int]
) -> None:
    """A thousand that wait for a leader must not cost what a thousand that write do."""
    others = [_Replica(rests=True, is_busy=False) for _ in range(30)]
    replicas: Any = SimpleNamespace(all=lambda: [*others, replica])
    metadata: Any = SimpleNamespace(state=MetadataState())
    upkeep = Upkeep(replicas, metadata, cast("Any", FakeClock()), tick_ms=TICK_MS)
    for count in range(SECONDS * 1_000 // TICK_MS):
        upkeep.tick(count)
    assert replica.looked_at == {name: SECONDS * one for name, one in expected.items()}
    assert all(one.looked_at == {"tick": SECONDS, "free": SECONDS} for one in others)


def test_a_partition_is_busy_until_its_records_are_synced_and_looked_at() -> None:
    """A record of a stream that syncs by interval waits for the next run of the maintenance."""
    rig = DriverRig(SimDisk(random.Random(1)).files(), flush="interval", flush_interval_ms=1_000)
    maintenance = rig.driver.maintenance

    def maintained() -> bool:
        maintenance.tick()
        rig.turns.run()
        return maintenance.is_busy

    assert not maintained()
    rig.put(b"x")
    rig.turns.run()
    assert maintenance.is_busy
    assert maintained(), "its interval is not over"
    rig.clock.advance(us=1_100_000)
    assert not maintained()
