"""What readers see of a replica that has just opened its log, before a leader vouches for it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.lineage import Leadership, Lineage
from broker.model.offsets import Offset
from broker.ports.system import Files
from simkit.brokers.driver_rig import ME, DriverRig, alone_view, values_of
from simkit.brokers.quiet_links import OTHER, QuietLinks
from simkit.disk.disk import SimDisk

VALUES = [b"one", b"two", b"three"]


def _lineage(*starts: tuple[int, int]) -> Lineage:
    return tuple(
        Leadership(leader_epoch=LeaderEpoch(epoch), lineage_id=f"{epoch:032x}", start=Offset(start))
        for epoch, start in starts
    )


@pytest.fixture
def files() -> Files:
    """Give a disk with a log of three records, which were written in leader epoch 1."""
    disk = SimDisk(random.Random(1))
    rig = DriverRig(disk.files())
    for value in VALUES:
        rig.put(value)
        rig.turns.run()
    rig.close()
    return disk.files()


def _returned(files: Files, cold_end: int, lineage: Lineage) -> DriverRig:
    """Open the log on one of two brokers, while the partition has no leader."""
    rig = DriverRig(files, epoch=2, links=QuietLinks(), cold_end=cold_end, lineage=lineage)
    assert rig.driver.reads.high_watermark <= cold_end, "seen before the first view"
    both = {ME: BrokerEpoch(2), OTHER: BrokerEpoch(1)}
    rig.view(
        replace(
            alone_view(leader_epoch=3),
            status="offline",
            leader=None,
            replicas=(ME, OTHER),
            isr=frozenset({OTHER}),
            broker_epochs=both,
            joinable=frozenset({ME}),
            cold_end=Offset(cold_end),
            lineage=lineage,
        )
    )
    assert rig.driver.replication.role == "waiting"
    return rig


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_returned_leader_shows_no_record_that_its_successor_replaced(
    files: Files, start: int
) -> None:
    """The table has the successor's records at the offsets of those that were not committed."""
    rig = _returned(files, 5, _lineage((1, 0), (2, start)))
    assert rig.driver.reads.high_watermark == start
    assert values_of(rig.driver) == VALUES[:start]


def test_the_table_vouches_for_no_log_of_an_unknown_lineage(files: Files) -> None:
    """Without the lineage nobody knows whose records are in the table."""
    assert values_of(_returned(files, 5, ()).driver) == []
    assert values_of(_returned(files, 5, _lineage((7, 2))).driver) == []


@pytest.mark.parametrize("cold_end", [0, 2, 3])
def test_a_replica_without_a_leader_serves_what_is_in_the_table(
    files: Files, cold_end: int
) -> None:
    """By the lineage, its log has the table's records; the later ones may not be committed."""
    rig = _returned(files, cold_end, _lineage((1, 0), (2, 3)))
    assert values_of(rig.driver) == VALUES[:cold_end]


def test_a_lone_broker_serves_everything_as_soon_as_it_leads(files: Files) -> None:
    """Its first view is enough: no tick and no other broker is waited for."""
    assert values_of(DriverRig(files, epoch=2).driver) == VALUES
