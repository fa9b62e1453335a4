"""The operator of a house: accepts a loss if no replica with every record is left.

It asks the product's ``ClusterOperations.elect_unclean`` of the broker that is to lead. What it may
lose is exactly what the oracle forgives, and no more than the loss that the metadata keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.metadata.state import Loss
from broker.errors import HeadwaterError
from broker.model.ids import BrokerId, PartitionId
from simkit.house.metadata import META
from simkit.house.oracle import Kept, log_of
from simkit.network.world import both_ways

if TYPE_CHECKING:
    from simkit.house.house import House

_ATTEMPTS: Final = 30


class Operator:
    """Acts on one house, and notes every loss that the metadata records."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._world = house.world
        self._busy = False
        self._known: dict[PartitionId, int] = {}  # how many losses were seen
        self._looked = -1

    def begin(self) -> None:
        """Look from time to time; now and then late."""
        if self._world.chance(0.4):
            self.look_again()
        self._world.at(300, self.begin)

    # ------------------------------------------------------------------ the story

    def strand(self) -> None:
        """Cut one follower off until it has left the ISR; then all others end for a while."""
        house, rng = self._house, self._world.rng
        partition_id = rng.choice(house.partitions)
        row = house.row(partition_id)
        others = [name for name in row.replicas if name != row.leader]
        if self._busy or row.leader is None or not others:
            return
        self._busy = True
        last = rng.choice(others)
        self._world.note("cut off for long", last)
        links = both_ways([last], [META, *sorted({*house.nodes} - {last})])
        for sender, receiver in links:
            house.network.cut(sender, receiver)
        self._world.at(rng.choice((600, 1200, 2000)), self._end_others, partition_id, last, links)

    def _end_others(
        self, partition_id: PartitionId, last: BrokerId, links: list[tuple[str, str]]
    ) -> None:
        house, rng = self._house, self._world.rng
        for sender, receiver in links:
            house.network.heal(sender, receiver)
        if not house.faults.is_trouble:
            return
        for name in house.row(partition_id).replicas:
            if name != last:
                house.nodes[name].kill(power=rng.random() < 0.5)
                self._world.at(rng.choice((2500, 4000)), house.nodes[name].start_again)
        house.nodes[last].start_again()
        self._attempt(partition_id, last, _ATTEMPTS)

    def _attempt(self, partition_id: PartitionId, last: BrokerId, left: int) -> None:
        if not left or not self._house.faults.is_trouble or self._elect(partition_id, last):
            self._busy = False
            return
        self._world.at(100, self._attempt, partition_id, last, left - 1)

    def look_again(self) -> None:
        """Elect a replica in each partition without a replica that has every record."""
        for partition_id in self._house.partitions:
            row = self._house.row(partition_id)
            if row.status == "offline" and not row.isr and not row.eligible:
                any(self._elect(partition_id, name) for name in row.replicas)

    # ------------------------------------------------------------------ the deed

    def elect(self, partition_id: PartitionId, name: str, *, accepts: bool = True) -> None:
        """Ask a broker to lead with its own log; raises its answer if that is an error."""
        house, row = self._house, self._house.row(partition_id)
        stream = next(one for one in house.streams if one.uuid == partition_id.stream_uuid)
        house.nodes[name].operations().elect_unclean(
            stream.name,
            partition_id.number,
            broker=name,
            partition_epoch=row.partition_epoch,
            known_end=len(house.oracle.of(partition_id).committed),
            operator="simulated",
            accept_data_loss=accepts,
        )

    def _elect(self, partition_id: PartitionId, name: BrokerId) -> bool:
        """Make a replica the leader with its own log; False if it may not be."""
        house = self._house
        node, driver = house.nodes[name], house.nodes[name].replica(partition_id)
        if driver is None or driver.health.failure is not None or node.machine.paused:
            return False
        if house.damage.is_lost(partition_id, name):
            return False
        log, known_end = log_of(driver), len(house.oracle.of(partition_id).committed)
        common = house.oracle.common_end(partition_id, Kept.of(log), log.log_end)
        if self.held(partition_id) <= log.log_end and common < min(log.log_end, known_end):
            self._world.note("T operator elects a log that has left the history", name)
        told: list[bool] = []

        def ask() -> None:
            try:
                self.elect(partition_id, name)
            except HeadwaterError:
                return
            told.append(True)

        node.machine.run(node.machine.life, ask)
        return bool(told)

    def held(self, partition_id: PartitionId) -> int:
        """Return how far the table reaches."""
        lake = self._house.lake
        if lake is None:
            return 0
        stream = next(one for one in self._house.streams if one.uuid == partition_id.stream_uuid)
        snapshot = lake.snapshot(stream)
        return 0 if snapshot is None else snapshot.cold_end(partition_id.number)

    # ------------------------------------------------------------------ losses

    def look(self) -> None:
        """Note every loss that was recorded since the last look."""
        if self._looked == self._house.house.index:
            return
        self._looked = self._house.house.index
        for number, partition_id in enumerate(self._house.partitions):
            losses = self._house.row(partition_id).losses
            for loss in losses[self._known.get(partition_id, 0) :]:
                self._lost(number, partition_id, loss)
            self._known[partition_id] = len(losses)

    def _lost(self, number: int, partition_id: PartitionId, loss: Loss) -> None:
        """Check that the metadata has the loss: its begin, and the known end."""
        house, oracle = self._house, self._house.oracle
        driver = house.nodes[loss.leader].replica(partition_id)
        truth = oracle.of(partition_id)
        known_end = len(truth.committed)
        if driver is None:  # named by a proposal that was late, when its process had ended
            kept = truth.kept[loss.leader]
            common = oracle.common_end(partition_id, kept, kept.synced_end)
        else:
            log = log_of(driver)
            common = oracle.common_end(partition_id, Kept.of(log), log.log_end)
        lost_from = max(common, self.held(partition_id))
        if lost_from < known_end:
            told = (loss.log_end, loss.known_end)
            self._world.note("T committed records recorded as lost", lost_from, known_end)
            assert loss.log_end <= lost_from, f"[{lost_from}, {known_end}) is lost; told: {told}"
            assert loss.known_end >= known_end, f"[{lost_from}, {known_end}) is lost; told: {told}"
        oracle.give_up(partition_id, lost_from, loss.leader_epoch)
        house.history.forgive(number, lost_from, self._world.steps)
        for reader in house.readers:
            reader.truncated(partition_id, lost_from)
        for publisher in house.publishers:
            publisher.told_of_loss(partition_id, house.row(partition_id).leader_epoch)
