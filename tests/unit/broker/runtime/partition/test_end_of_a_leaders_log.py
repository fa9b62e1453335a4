"""Where a leader's log ends: known before what is committed, but not after a lapse."""

from __future__ import annotations

import random
from dataclasses import replace

from broker.model.epochs import BrokerEpoch
from broker.model.records import AckPolicy
from simkit.brokers.driver_rig import ME, DriverRig, alone_view
from simkit.brokers.memory_broker import FakeClock
from simkit.brokers.quiet_links import LONG, OTHER, QuietLinks
from simkit.disk.disk import SimDisk


class LapsingLinks(QuietLinks):
    """Gives a lease that ends, and tells how often one has."""

    def __init__(self, until_ms: int) -> None:
        super().__init__(until_ms)
        self.lapses = 0

    def lease_lapses(self) -> int:
        """Tell."""
        return self.lapses

    def grant_again(self) -> None:
        """Extend the lease for long, after it has ended."""
        self._lease_until_ms = LONG
        self.lapses += 1


def test_the_end_of_a_leaders_log_is_told_while_no_other_broker_can_lead() -> None:
    """After a lapse of the lease another may lead, until a record shows that it does not."""
    disk = SimDisk(random.Random(1))
    rig = DriverRig(disk.files())
    rig.put(b"a", b"b", b"c")
    rig.turns.run()
    rig.close()
    clock = FakeClock()
    links = LapsingLinks(clock.monotonic_ms() + 1_000)
    rig = DriverRig(disk.files(), clock=clock, links=links, replication_factor=2)
    both = {ME: BrokerEpoch(1), OTHER: BrokerEpoch(2)}
    rig.view(
        replace(
            alone_view(leader_epoch=2), replicas=(ME, OTHER), isr=frozenset({ME}), min_isr=2,
            broker_epochs=both, joinable=frozenset(both),
        )
    )  # fmt: skip
    told = rig.driver.replication
    assert told.newest_committed is None, "a former leader may have shown more"
    assert told.whole_end == 3
    rig.put(b"d", policy=AckPolicy.LEADER)
    rig.turns.run()
    ends = [told.whole_end]
    rig.clock.advance(us=1_000_000)
    ends.append(told.whole_end)
    links.grant_again()
    told.tick()
    rig.turns.run()
    assert told.leader is not None
    assert not told.leader.is_fenced(rig.clock.monotonic_ms())
    ends.append(told.whole_end)
    assert ends == [rig.driver.reads.log_end, None, None]
