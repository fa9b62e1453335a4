"""The operator of a simulated cluster: accepts a loss where nobody is left who has everything.

It does what ``ClusterOperations.elect_unclean`` does: looks how far the table reaches, notes that,
then names a living replica with what is known of its log. What it may lose is exactly what the
oracle forgives, and no more than the loss that the metadata keeps.

Left out: a replica whose log is long enough and has other records where something was committed,
as of a leader that nobody followed. Nothing in the metadata tells the operator, who here passes it
over: the recorded loss would begin at its log's end, and tiering refuse its history by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.metadata.commands import ElectUnclean
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from simkit.cluster import commands
from simkit.cluster.control import CONTROL
from simkit.network.world import both_ways

if TYPE_CHECKING:
    from simkit.cluster.sim import ClusterSim

_ATTEMPTS: Final = 30


class Operator:
    """Acts on one simulated cluster."""

    def __init__(self, sim: ClusterSim) -> None:
        self._sim = sim
        self._busy = False

    # ------------------------------------------------------------------ the story

    def strand(self) -> None:
        """Cut one follower off until it has left the ISR; then all others end for a while."""
        sim, rng = self._sim, self._sim.world.rng
        one = sim.one
        others = [name for name in one.replicas if name != one.leader]
        if self._busy or one.leader is None or not others:
            return
        self._busy = True
        last = rng.choice(others)
        links = both_ways([last], [name for name in [*sim.names, CONTROL] if name != last])
        sim.world.note("cut off for long", last)
        sim._cut_links(links)
        sim.world.at(rng.choice((600, 1200, 2000)), self._end_the_others, last, links)

    def _end_the_others(self, last: BrokerId, links: list[tuple[str, str]]) -> None:
        sim, rng = self._sim, self._sim.world.rng
        sim._heal_links(links)
        if not sim._trouble:
            return
        for name in sim.one.replicas:
            if name != last:
                sim.brokers[name].crash(power=rng.random() < 0.5)
                sim.world.at(rng.choice((2500, 4000)), sim._restart, sim.brokers[name])
        if not sim.brokers[last].alive:
            sim._restart(sim.brokers[last])
        self._attempt(last, _ATTEMPTS)

    def _attempt(self, last: BrokerId, left: int) -> None:
        if not left or not self._sim._trouble or self.elect(last):
            self._busy = False
            return
        self._sim.world.at(100, self._attempt, last, left - 1)

    def look_again(self) -> None:
        """Name a replica when nobody is left who has everything.

        The one that was named before has ended before it led; or all have ended, and what their
        streams had not synced may be gone.
        """
        sim, one = self._sim, self._sim.one
        known = sim.oracle.gives_up or sim.interval
        if known and one.status == "offline" and not one.isr and not one.eligible:
            any(self.elect(name) for name in one.replicas)

    # ------------------------------------------------------------------ the deed

    def elect(self, name: BrokerId) -> bool:
        """Make a replica the leader, with what it has; False when that is not to be."""
        sim = self._sim
        broker, registered = sim.brokers[name], sim.control.state.brokers[name]
        ready = broker.alive and not broker.paused and broker.replica is not None
        whole = not broker.unproved and not broker.log.damaged
        whole = whole and (sim.interval or broker.forgot_life is None)
        if not ready or not whole or registered.fenced or registered.session != broker.session:
            return False
        if sim.one.status not in ("election", "offline") or sim.control.paused:
            return False
        self.learn_cold_end()
        facts, known_end, one = broker.log.facts(), Offset(len(sim.oracle.committed)), sim.one
        kept_end = facts.synced_end
        held = Offset(0) if sim.table is None else sim.table.end
        common_end = sim.oracle.common_end(broker.log)
        if held <= kept_end and common_end < min(kept_end, known_end):
            sim.world.note("T operator passes over a log that has left the history", name)
            return False
        lost_from = max(common_end, held)
        force = ElectUnclean(
            stream_uuid=sim.setting.partition_id.stream_uuid,
            partition=0,
            partition_epoch=one.partition_epoch,
            broker=name,
            broker_epoch=registered.epoch,
            log_end=kept_end,
            known_end=Offset(max(known_end, kept_end, one.cold_end)),
            operator="simulated",
            accept_data_loss=True,
        )
        if sim.control.propose(force) is not None:
            return False
        self._note(kept_end, held)
        if lost_from < known_end:
            sim.world.note("T committed records recorded as lost", lost_from, known_end)
        self.check_recorded(name, lost_from, known_end)
        sim.oracle.give_up(lost_from)
        sim.reader.truncated(lost_from)
        for producer in sim.producers:
            producer.told_of_loss(sim.one.leader_epoch)
        return True

    def learn_cold_end(self) -> None:
        """Note how far the table reaches: who shipped last may have ended before its note."""
        sim = self._sim
        if sim.table is not None and sim.table.end > sim.one.cold_end:
            sim.world.note("T cold end learned from the table", sim.table.end, sim.one.cold_end)
            command = commands.cold_end(sim.setting.partition_id, sim.table.end)
            assert sim.control.propose(command) is None

    def check_recorded(self, name: BrokerId, lost_from: int, known_end: int) -> None:
        """What is lost is in the metadata: who led on, from where on, up to what was known."""
        assert self._sim.one.losses, "a loss that nobody can read of"
        loss = self._sim.one.losses[-1]
        assert loss.leader == name, "the loss names another leader"
        if lost_from < known_end:
            told = (loss.log_end, loss.known_end)
            assert loss.log_end <= lost_from, f"[{lost_from}, {known_end}) is lost; told: {told}"
            assert loss.known_end >= known_end, f"[{lost_from}, {known_end}) is lost; told: {told}"

    def _note(self, log_end: Offset, held: Offset) -> None:
        where = "below" if log_end < held else "above"
        self._sim.world.note(f"T unclean election {where} the cold end", log_end, held)
