"""The faults of a house, one after the other, each with its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.core.metadata.commands import ReassignReplicas
from broker.core.metadata.placement import balance
from simkit.disk.disk import ROOMY, SimDisk
from simkit.house.beneath.raft import RaftHouse
from simkit.house.metadata import META
from simkit.network.world import both_ways

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node

FAULTS: Final = (
    "kill", "power", "middle", "all", "pause", "one-way", "cut", "slow", "full", "skew", "office",
    "balance", "reassign", "wipe", "folder", "rot", "stop",
)  # fmt: skip
LAKE_FAULTS: Final = ("away", "shaky")
MIXED_FAULTS: Final = ("nats", "fsync", "put-back", "unread", "unclean", "rejoin")  # beside those
RAFT_FAULT: Final = "older"  # with Raft beneath


class Faults:
    """Strikes while there is to be trouble, and ends it.

    The class is not split: a fault is a method of a few lines and its end another, and a seed draws
    from all of them.
    """

    def __init__(self, house: House, kinds: frozenset[str] | None) -> None:
        self._house = house
        self._world = house.world
        rng = house.world.rng
        drawn = frozenset(one for one in FAULTS if rng.random() < 0.4)
        if house.lake is not None:
            drawn |= {one for one in LAKE_FAULTS if rng.random() < 0.5}
        if house.mixed:
            drawn |= {one for one in MIXED_FAULTS if house.draw_more(0.4)}
        if isinstance(house.house, RaftHouse) and house.house.draws_older:
            drawn |= {RAFT_FAULT}
        self._kinds = sorted(drawn if kinds is None else kinds)
        if RAFT_FAULT in self._kinds and isinstance(house.house, RaftHouse):
            house.house.wait_for_all()
        self._trouble = False
        self._damage = house.damage

    @property
    def is_trouble(self) -> bool:
        """Whether faults strike."""
        return self._trouble

    def begin(self) -> None:
        """Let there be trouble."""
        self._trouble = True
        self._world.at(200, self._strike)

    def end(self) -> None:
        """Undo every fault; start the brokers that are down."""
        self._trouble = False
        self._house.network.heal_all()
        self._house.oracle.on_joining = None
        self._lake_is_well()
        for name in sorted(self._house.nodes):
            node = self._house.nodes[name]
            node.machine.disk.capacity_bytes = ROOMY
            node.machine.disk.stop_after = None
            node.machine.disk.datasync_failures = 0
            if node.machine.paused:
                node.machine.resume()
            node.start_again()

    def _strike(self) -> None:
        if not self._trouble:
            return
        if self._kinds:
            kind = self._world.rng.choice(self._kinds)
            getattr(self, "_" + kind.replace("-", "_"))()
        self._world.at(self._world.rng.choice((40, 120, 300)), self._strike)

    def _some(self) -> Node:
        """Choose a broker, more often one that leads something or the metadata."""
        rng, house = self._world.rng, self._house
        names = sorted(house.nodes)
        if rng.random() < 0.6:
            row = house.row(rng.choice(house.partitions))
            names = [name for name in (row.leader, row.candidate, house.house.leader) if name]
        return house.nodes[rng.choice(names)]

    def _back(self, node: Node) -> None:
        self._world.at(self._world.rng.choice((10, 100, 400, 1200)), node.start_again)

    # ------------------------------------------------------------------ one by one

    def _kill(self) -> None:
        node = self._some()
        node.kill(power=False)
        self._back(node)

    def _power(self) -> None:
        node = self._some()
        node.kill(power=True)
        self._back(node)

    def _stop(self) -> None:
        self._some().stop()

    def _wipe(self) -> None:
        self._while_down(self._damage.wipe)

    def _folder(self) -> None:
        self._while_down(self._damage.lose_folder)

    def _rot(self) -> None:
        self._while_down(self._damage.rot)

    def _nats(self) -> None:
        """The NATS server restarts: every connection ends."""
        if self._house.nats is not None:
            self._house.nats.restart()

    def _put_back(self) -> None:
        """Copy disks while their brokers run, or put one back to its copy."""
        if self._world.chance(0.4):
            self._damage.copy_disks()
        else:
            self._while_down(self._damage.put_back)

    def _unread(self) -> None:
        """From now on the device refuses to read some log; writing and syncing still work."""
        self._damage.refuse_reads(self._some())

    def _fsync(self) -> None:
        """One of the next syncs fails, and the pages are gone."""
        self._damage.fail_sync(self._some())

    def _unclean(self) -> None:
        """Let one replica fall behind, stop all others, and let an operator elect that one."""
        self._house.operator.strand()

    def _rejoin(self) -> None:
        """End the next replica that is about to join, while the proposal is under way (A8)."""
        self._house.oracle.on_joining = self._end_joining if self._trouble else None

    def _end_joining(self, leader: str, joining: str) -> None:
        self._house.network.clog(leader, META, 400)
        self._world.at(700, self._house.network.heal, leader, META)
        self._world.at(0, self._end_process, joining)

    def _end_process(self, name: str) -> None:
        node = self._house.nodes[name]
        node.kill(power=False)
        self._world.at(1, node.start_again)

    def _older(self) -> None:
        """Put a controller's metadata folder back to an older copy."""
        metadata = self._house.house
        assert isinstance(metadata, RaftHouse), "only with Raft beneath there is such a folder"
        if self._world.chance(0.5):
            metadata.copy_folder(self._some().machine)
        else:
            self._while_down(lambda node: metadata.put_back(node.machine))

    def _while_down(self, damage: Callable[[Node], None]) -> None:
        """End a process and damage its disk; sometimes the power of the whole room goes."""
        if self._world.chance(0.5):
            return
        node = self._some()
        node.kill(power=self._world.chance(0.5))
        damage(node)
        if self._world.chance(0.15):
            self._power_of_all()
        self._back(node)

    def _away(self) -> None:
        """The store cannot be reached by one broker, or by any."""
        lake = self._house.lake
        assert lake is not None, "only a house with a lake can lose it"
        some = self._world.chance(0.5)
        lake.away.update([self._some().name] if some else self._house.nodes)
        self._world.note("lake away from one" if some else "lake away from all")
        self._world.at(self._world.rng.choice((100, 500, 1500)), self._lake_is_well)

    def _shaky(self) -> None:
        """Answers of the store are lost, or come before the work is done."""
        lake = self._house.lake
        assert lake is not None, "only a house with a lake can lose its answers"
        lake.shaky = 0.4
        self._world.at(self._world.rng.choice((300, 1000)), self._lake_is_well)

    def _lake_is_well(self) -> None:
        if self._house.lake is not None:
            self._house.lake.away.clear()
            self._house.lake.shaky = 0.0

    def _middle(self) -> None:
        """End a process at one of its next operations on the disk."""
        node = self._some()
        node.machine.disk.stop_after = self._world.rng.randrange(12)
        node.machine.fails_by_power = self._world.chance(0.5)
        self._world.at(400, self._back, node)

    def _all(self) -> None:
        """The power of the whole room goes."""
        if self._world.chance(0.3):
            self._power_of_all()

    def _power_of_all(self) -> None:
        self._world.note("all power lost")
        for name in sorted(self._house.nodes):
            self._house.nodes[name].kill(power=True)
            self._back(self._house.nodes[name])

    def _pause(self) -> None:
        node = self._some()
        if node.machine.alive and not node.machine.paused:
            node.machine.pause()
            self._world.note("paused", node.name)
            delay_ms = self._world.rng.choice((50, 400, 1200))
            leads = node.name == self._house.house.leader
            long = leads and delay_ms > self._house.setting.election.session_ms
            self._world.at(delay_ms, self._resume, node, node.machine.life, long)

    def _resume(self, node: Node, life: int, long: bool) -> None:
        if node.machine.paused and node.machine.life == life:
            if long:
                self._world.note("A17 controller resumed after a session's length")
            self._world.note("resumed", node.name)
            node.machine.resume()

    def _others(self, node: Node) -> list[str]:
        return [META, *sorted(set(self._house.nodes) - {node.name})]

    def _one_way(self) -> None:
        """A broker is not heard any more, or does not hear."""
        node = self._some()
        others = self._others(node)
        if self._world.chance(0.5):
            links = [(str(node.name), other) for other in others]
        else:
            links = [(other, str(node.name)) for other in others]
        if self._world.chance(0.5):
            links = [self._world.rng.choice(links)]
        self._cut_links(links, "links cut one way")

    def _cut(self) -> None:
        node = self._some()
        self._cut_links(both_ways([node.name], self._others(node)), "broker cut off")

    def _cut_links(self, links: list[tuple[str, str]], what: str) -> None:
        if self._house.network.links() and self._world.chance(0.8):
            return  # mostly one broker at a time: the others go on, and leave it behind
        self._world.note(what)
        for sender, receiver in links:
            self._house.network.cut(sender, receiver)
        self._world.at(self._world.rng.choice((100, 400, 1200, 2500)), self._mend, links)

    def _mend(self, links: list[tuple[str, str]]) -> None:
        for sender, receiver in links:
            self._house.network.heal(sender, receiver)

    def _slow(self) -> None:
        node = self._some()
        links = both_ways([node.name], self._others(node))[self._world.rng.randrange(2) :: 2]
        self._world.note("links slow")
        for sender, receiver in links:
            self._house.network.clog(sender, receiver, self._world.rng.choice((100, 500)))
        self._world.at(self._world.rng.choice((400, 1200)), self._mend, links)

    def _full(self) -> None:
        self._fill(self._some().machine.disk)

    def _full_copying(self) -> None:
        """Fill a disk that needs room for every write. Only drawn if a test names it."""
        disk = self._some().machine.disk
        disk.copies_on_write = True
        self._fill(disk)

    def _fill(self, disk: SimDisk) -> None:
        self._world.note("disk full")
        disk.capacity_bytes = disk.used_bytes() + self._world.rng.choice((0, 0, 600, 5000))
        self._world.at(self._world.rng.choice((200, 600)), self._room, disk)

    def _room(self, disk: SimDisk) -> None:
        disk.capacity_bytes = ROOMY

    def _skew(self) -> None:
        """Change a clock's rate; it never goes back."""
        self._world.note("clock rate changed")
        self._some().machine.set_rate(self._world.rng.choice((0.9, 1.0, 1.1)))

    def _ask(self) -> None:
        """Ask a member for the newest state. No fault; only drawn if a test names it."""
        metadata = self._house.house
        assert isinstance(metadata, RaftHouse), "only Raft has barriers to look at"
        metadata.ask_newest()

    def _office(self) -> None:
        self._house.house.change_leader()

    def _balance(self) -> None:
        for command in balance(self._house.house.state):
            if self._house.house.propose(command) is None:
                self._world.note("leadership handed over")

    def _reassign(self) -> None:
        rng, house = self._world.rng, self._house
        partition_id = rng.choice(house.partitions)
        row = house.row(partition_id)
        if row.target or rng.random() < 0.5:
            return
        target = tuple(rng.sample([one.name for one in house.nodes.values()], len(row.replicas)))
        command = ReassignReplicas(
            stream_uuid=partition_id.stream_uuid,
            partition=partition_id.number,
            partition_epoch=row.partition_epoch,
            target=target,
        )
        if house.house.propose(command) is None:
            self._world.note("replicas reassigned", target)
