"""One seed of a cluster's life: production machines under faults, checked after every step.

A seed draws its size, its timings and its own subset of faults, so that rare windows are common in
some seed. It has three parts: trouble, healing, and a long look at what is there in the end.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from broker.core.election import ElectionTiming
from broker.core.isr import LagLimits
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    CreateStream,
    NameCandidate,
    ReassignReplicas,
    StopBroker,
    decode,
)
from broker.core.metadata.placement import balance
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot, state_hash
from broker.core.metadata.state import MetadataState, PartitionState
from broker.core.replication.follower import FollowerTiming
from broker.errors import HeadwaterError, SegmentCorruptError
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.records import AckPolicy
from broker.model.stream import Stream, StreamConfig
from checkkit.readings import Reading
from simkit.cluster.broker import SimBroker
from simkit.cluster.clients import Producer, Reader
from simkit.cluster.control import CONTROL, Control
from simkit.cluster.log import ModelLog, RealLog
from simkit.cluster.operator import Operator
from simkit.cluster.oracle import Oracle
from simkit.cluster.publish import Setting
from simkit.cluster.table import Table
from simkit.cluster.witness import Witness
from simkit.network.world import Network, World, both_ways

UUID = StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10")
PARTITION = PartitionId(UUID, PartitionNumber(0))
HEAL_MS_MAX = 120_000  # a thousand records, one by one, through a slow network
FAULTS = (
    "crash", "power", "pause", "partition", "one-way", "swizzle", "clog", "wipe", "rot", "full",
    "fsync", "office", "controller", "balance", "reassign", "skew", "stop", "all",
    "restore", "read",
)  # fmt: skip
INTERVAL_FAULTS = ("stop", "power", "crash", "all", "pause", "balance", "office", "one-way")
TIERED_FAULTS = ("unclean", "rejoin")  # beside those, where there is a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a seed saw."""

    seen: Counter[str]
    digest: str
    steps: int
    committed: int
    acked: int


class ClusterSim:
    """Runs one seed."""

    def __init__(
        self,
        seed: int,
        *,
        real_log: bool = False,
        brokers: int | None = None,
        factor: int | None = None,
        min_isr: int | None = None,
        faults: frozenset[str] | None = None,
        policies: tuple[AckPolicy, ...] | None = None,
        late: bool = False,
        tiered: bool = False,
        interval: bool = False,
    ) -> None:
        """Draw what is not given.

        ``late``: many messages come a second time, much later. ``tiered``: there is a table, local
        records are freed, and an operator elects who has not everything. ``interval``: the stream
        syncs now and then, so a process that did not stop politely may have lost what it had.
        """
        self.world = world = World(seed)
        rng = world.rng
        self.real_log = real_log
        self.faults = _draw_faults(rng, tiered, interval) if faults is None else faults
        self.table = Table() if tiered else None
        self.network = Network(
            world,
            delay_ms_max=rng.choice((3, 20, 60)),
            ordered=rng.random() < 0.5 and not late,
            doubling=0.3 if late else rng.choice((0.0, 0.02)),
        )
        count = brokers or rng.choice((3, 3, 3, 4, 5))
        self.names = [BrokerId("abcdefg"[one]) for one in range(count)]
        self.interval = interval
        if interval:
            factor, min_isr = factor or rng.choice((1, 1, 2, 3)), 1
        self.factor = factor or min(count, rng.choice((1, 2, 3, 3, 3, 3, 5)))
        self.min_isr = min_isr or (
            1 if self.factor == 1 else rng.choice((1, 2, 2, 2, max(2, self.factor - 1)))
        )
        self.election = ElectionTiming(
            session_ms=rng.choice((450, 600, 900)),
            report_window_ms=800,
            ask_ms=rng.choice((20, 100)),
            confirm_ms=200,
            retry_ms=100,
            offline_ms=200,
            stall_ms=250,
        )
        self.setting = self._draw_setting(late=late)
        self.control = Control(world, self.network, self.election)
        self.control.brokers = list(self.names)
        self.witness = Witness(world)
        self.oracle = Oracle(PARTITION, self.control, self.witness)
        self.oracle.table = self.table
        self.operator = Operator(self)
        self.brokers: dict[str, SimBroker] = {name: self._make_broker(name) for name in self.names}
        self.oracle.watch(self.brokers)
        self.producers: list[Producer] = []
        wanted = policies or tuple(
            rng.choice((AckPolicy.ALL, AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE))
            for _ in range(rng.choice((1, 2, 3)))
        )
        self._wanted = wanted
        self._trouble = False
        self._copies: list[tuple[str, Any, list[str]]] = []  # of whose disk, what, its sessions

    def _make_broker(self, name: BrokerId) -> SimBroker:
        rng = self.world.rng
        log = RealLog(rng) if self.real_log else ModelLog(rng)
        log.interval = self.interval
        return SimBroker(name, self.world, self.network, self.oracle, log, self.setting)

    def _draw_setting(self, *, late: bool) -> Setting:
        rng = self.world.rng
        idle_ms = rng.choice((60, 150))
        return Setting(
            partition_id=PARTITION,
            limits=LagLimits(
                time_ms_max=rng.choice((250, 500, 1000)), records_max=rng.choice((None, None, 3))
            ),
            timing=FollowerTiming(
                request_ms=rng.choice((80, 150)),
                retry_ms=20,
                idle_ms=idle_ms,
                wait_ms=rng.choice((0, idle_ms)),
                leader_ms=rng.choice((300, 700)),
            ),
            election=self.election,
            sync_ms_max=rng.choice((15, 40) if late else (0, 3, 15)),
            fetch_count=rng.choice((1, 2, 10)),
            table=self.table,
        )

    # ------------------------------------------------------------------ the story

    def run(self) -> Result:
        """Begin, trouble, heal, look."""
        self.begin()
        self._trouble = True
        long = self.interval or self.table is not None
        trouble_ms = (3000, 6000) if long else (1500, 3000, 4500)
        self.run_for(self.world.rng.choice(trouble_ms))
        self.heal()
        self.look()
        return self.result()

    def begin(self) -> None:
        """Start everything and create the stream."""
        for broker in self.brokers.values():
            broker.start()
        while len(self.control.state.brokers) < len(self.names):
            assert self.world.step()
        replicas = tuple(self.world.rng.sample(self.names, self.factor))
        self.create(replicas)
        for number, policy in enumerate(self._wanted):
            self.producers.append(
                Producer(
                    number, self.world, self.network, self.control, self.oracle, self.brokers,
                    self.witness, policy=policy, window=self.world.rng.choice((1, 2, 4)),
                    pause_ms=self.world.rng.choice((10, 40, 150)),
                )
            )  # fmt: skip
        self.reader = Reader(self.world, self.oracle, self.brokers, self.witness, self.table)
        self.world.at(100, self._strike)
        if self.interval:
            self.world.at(300, self._operate)

    def _operate(self) -> None:
        """Let an operator accept what a crash of everybody has cost; now and then it is late."""
        if self.world.chance(0.4):
            self.operator.look_again()
        self.world.at(300, self._operate)

    def create(self, replicas: tuple[BrokerId, ...]) -> None:
        """Create the stream on these brokers."""
        config = StreamConfig(subject="s", flush="interval" if self.interval else "always")
        stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
        error = self.control.propose(
            CreateStream(
                stream=stream, leader=replicas[0], assignment=(replicas,), min_isr=self.min_isr
            )
        )
        assert error is None, error

    @property
    def one(self) -> PartitionState:
        """The partition as the metadata has it."""
        return self.control.state.partitions[UUID][0]

    def run_for(self, duration_ms: int) -> None:
        """Let time pass, checking after every step."""
        end_ms = self.world.now_ms + duration_ms
        while self.world.now_ms < end_ms:
            assert self.world.step(), "nothing is left to happen"
            self.oracle.check()

    def heal(self) -> None:
        """End all trouble; within a bounded time everything has to be well again."""
        self._trouble = False
        self.oracle.on_joining = None
        self.network.heal_all()
        self.world.note("healing")
        for name in sorted(self.brokers):
            broker = self.brokers[name]
            broker.log.set_full(full=False)
            broker.resume()
            if not broker.alive:
                broker.start()
        if self.control.paused:
            self.control.resume()
        for producer in self.producers:
            producer.stopped = True
        deadline_ms = self.world.now_ms + HEAL_MS_MAX
        while not self.healthy():
            assert self.world.now_ms < deadline_ms, f"not healed: {self.describe()}"
            self.run_for(100)
            if self.one.status == "offline":
                self.operator.look_again()

    def healthy(self) -> bool:
        """Tell whether everybody has everything and nobody waits."""
        one = self.one
        if one.status != "online" or set(one.isr) != set(one.replicas) or one.target:
            return False
        if not all(producer.drained for producer in self.producers):
            return False
        end = len(self.oracle.committed)
        leader = self.brokers[one.leader or ""].replica
        if leader is None or leader.leader is None or leader.leader.high_watermark != end:
            return False
        for name in one.replicas:
            facts = self.brokers[name].log.facts()
            if (facts.log_end, facts.synced_end) != (end, end):
                return False
        return all(self._is_readable(self.brokers[name]) for name in one.replicas)

    def _is_readable(self, broker: SimBroker) -> bool:
        """Read all of a replica, as a scrubber would; rot that nobody had met is found here."""
        try:
            facts = broker.log.facts()
            broker.log.read(facts.log_start, facts.log_end - facts.log_start)
        except SegmentCorruptError:
            broker.found_rot()
            return False
        return True

    def describe(self) -> str:
        """Say what is not well."""
        lines = [repr(self.one), f"committed {len(self.oracle.committed)}"]
        for name, broker in self.brokers.items():
            replica = broker.replica
            role = "-" if replica is None else replica.role
            phase = replica.follower.phase if replica is not None and replica.follower else ""
            lines.append(f"{name} alive={broker.alive} {role} {phase} {broker.log.facts()}")
        lines += [f"{one.name} {one.policy} drained={one.drained}" for one in self.producers]
        return "\n".join(lines)

    def look(self) -> None:
        """Read every replica separately; replay the metadata; judge what the clients saw."""
        self.oracle.check_end(self.one.replicas)
        verdict = self.witness.judge(self.final_reads())
        assert verdict.ok, str(verdict)
        self._check_metadata()

    def final_reads(self) -> list[Reading]:
        """Read every replica apart, as the judge of real clusters wants it."""
        logs = {name: broker.log for name, broker in self.brokers.items()}
        return self.witness.final_reads(logs, self.one.replicas, self.table)

    def _check_metadata(self) -> None:
        """Every node that applies the log, or jumps by a snapshot, gets the same state."""
        state = MetadataState()
        half = len(self.control.log) // 2
        for index, data in enumerate(self.control.log):
            state, _ = apply(state, decode(data))
            if index == half:
                state, _ = decode_snapshot(encode_snapshot(state, index))
        assert state_hash(state) == state_hash(self.control.state), "metadata diverged"

    def result(self) -> Result:
        """Return what was seen."""
        return Result(
            seen=self.world.seen,
            digest=self.world.digest(),
            steps=self.world.steps,
            committed=len(self.oracle.committed),
            acked=self.oracle.acked_count,
        )

    # ------------------------------------------------------------------ trouble

    def _strike(self) -> None:
        """Draw one fault, and when it ends; then plan the next."""
        rng = self.world.rng
        if not self._trouble:
            if self.world.now_ms < 1_000:
                self.world.at(100, self._strike)
            return
        kinds = sorted(self.faults)
        if kinds:
            getattr(self, "_fault_" + rng.choice(kinds).replace("-", "_"))()
        self.world.at(rng.choice((40, 120, 300)), self._strike)

    def _some(self) -> SimBroker:
        """Choose a broker, more often one that matters."""
        rng = self.world.rng
        one = self.one
        pool = [one.leader, one.candidate, *one.isr] if rng.random() < 0.6 else self.names
        return self.brokers[rng.choice([name for name in pool if name] or self.names)]

    def _back(self, broker: SimBroker) -> None:
        delay_ms = self.world.rng.choice((10, 100, 400, 1200))
        self.world.at(delay_ms, self._restart, broker)

    def _restart(self, broker: SimBroker) -> None:
        if not broker.alive:
            broker.start()

    def _end_process(self, broker: SimBroker) -> None:
        broker.crash(power=False)

    def _fault_crash(self) -> None:
        broker = self._some()
        self._end_process(broker)
        self._back(broker)

    def _fault_power(self) -> None:
        broker = self._some()
        broker.crash(power=True)
        self._back(broker)

    def _fault_all(self) -> None:
        """The power of the whole room goes."""
        if self.world.chance(0.3):
            self.world.note("all power lost")
            for broker in self.brokers.values():
                broker.crash(power=True)
                self._back(broker)

    def _fault_pause(self) -> None:
        broker = self._some()
        broker.pause()
        self.world.at(self.world.rng.choice((100, 500, 1500)), broker.resume)

    def _fault_partition(self) -> None:
        """Split the brokers; the controllers stay with one side."""
        rng = self.world.rng
        nodes = [*self.names, CONTROL]
        rng.shuffle(nodes)
        split = rng.randrange(1, len(nodes))
        self._cut(both_ways(nodes[:split], nodes[split:]))
        self.world.note("partitioned", nodes[:split], nodes[split:])

    def _fault_one_way(self) -> None:
        sender, receiver = self.world.rng.sample([*self.names, CONTROL], 2)
        self._cut([(sender, receiver)])
        self.world.note("one-way cut", sender, receiver)

    def _fault_swizzle(self) -> None:
        """Cut some brokers off one by one, and let them back in another order."""
        rng = self.world.rng
        chosen = rng.sample(self.names, rng.randrange(1, len(self.names) + 1))
        for number, name in enumerate(chosen):
            links = both_ways([name], [one for one in [*self.names, CONTROL] if one != name])
            self.world.at(number * 60, self._cut_links, links)
            self.world.at(300 + rng.randrange(900), self._heal_links, links)
        self.world.note("swizzled")

    def _fault_clog(self) -> None:
        clients = [one.name for one in self.producers]
        sender = self.world.rng.choice([*self.names, CONTROL, self.one.leader or CONTROL])
        receiver = self.world.rng.choice([*self.names, CONTROL, *clients])
        self.network.clog(sender, receiver, self.world.rng.choice((50, 200, 600)))
        self.world.at(700, self.network.heal, sender, receiver)

    def _cut(self, links: list[tuple[str, str]]) -> None:
        self._cut_links(links)
        self.world.at(self.world.rng.choice((100, 400, 1200)), self._heal_links, links)

    def _cut_links(self, links: list[tuple[str, str]]) -> None:
        for sender, receiver in links:
            if self._trouble:
                self.network.cut(sender, receiver)

    def _heal_links(self, links: list[tuple[str, str]]) -> None:
        for sender, receiver in links:
            self.network.heal(sender, receiver)

    def _may_lose_a_disk(self) -> bool:
        """The stated fault model: min ISR - 1 disks at a time, and never the last copy but one."""
        one = self.one
        damaged = {
            name
            for name, broker in self.brokers.items()
            if broker.unproved or broker.forgot_life is not None
        }
        members = (*one.isr, *one.eligible)
        whole = [name for name in members if name not in damaged]
        allowed = min(self.min_isr, len(members)) - 1
        return len(damaged) < allowed and len(whole) >= 2

    def _fault_restore(self) -> None:
        """Copy disks while their brokers run, or let one be what a copy says that it was."""
        rng = self.world.rng
        broker = self._some()
        if rng.random() < 0.4:
            self._copies += [
                (name, one.log.copy(), list(one.folder)) for name, one in self.brokers.items()
            ]
            del self._copies[: -4 * len(self.names)]
        elif self._may_lose_a_disk():
            kind = rng.choice(("lost", "earlier", "partition", "another's"))
            own = kind != "another's"
            found = [one for one in self._copies if (one[0] == broker.name) == own]
            if kind == "lost":
                broker.put_back(None, None)
            elif found:
                _, copy, folder = rng.choice(found)
                broker.put_back(copy, folder if kind == "earlier" else None)
            if rng.random() < 0.5:  # the power of the whole room was gone
                for one in self.brokers.values():
                    one.crash(power=True)
                    self._back(one)
            self._back(broker)

    def _fault_wipe(self) -> None:
        broker = self._some()
        if self._may_lose_a_disk() and self.world.chance(0.5):
            broker.wipe()
            self._back(broker)

    def _fault_unclean(self) -> None:
        """Let one replica fall behind, all others end, and an operator make do with that one."""
        self.operator.strand()

    def _fault_rejoin(self) -> None:
        """End the next replica that is about to join, while the proposal is under way (A8)."""
        self.oracle.on_joining = self._end_joining if self._trouble else None

    def _end_joining(self, leader: BrokerId, joining: BrokerId) -> None:
        self.network.clog(leader, CONTROL, 400)
        self.world.at(700, self.network.heal, leader, CONTROL)
        self.world.at(0, self._end_process, self.brokers[joining])
        self.world.at(1, self._restart, self.brokers[joining])

    def _fault_rot(self) -> None:
        broker = self._some()
        if self._may_lose_a_disk() and self.world.chance(0.5):
            broker.crash(power=False)
            if broker.log.rot():
                broker.unproved = broker.rotten = True
                self.world.note("rotted", broker.name)
            self._back(broker)

    def _fault_read(self) -> None:
        """From now on the device refuses to read; writing and syncing still work."""
        broker = self._some()
        if self._may_lose_a_disk() and self.world.chance(0.5):
            broker.log.unreadable = broker.unproved = broker.rotten = True
            self.world.note("reads fail", broker.name)

    def _fault_full(self) -> None:
        broker = self._some()
        broker.log.set_full(full=True)
        self.world.at(400, lambda: broker.log.set_full(full=False))

    def _fault_fsync(self) -> None:
        self._some().log.fail_next_sync()

    def _fault_office(self) -> None:
        self.control.change_office(self.world.rng.choice((0, 200, 600)))

    def _fault_controller(self) -> None:
        if not self.control.paused:
            self.control.pause()
            self.world.at(self.world.rng.choice((200, 1500)), self._resume_control)

    def _resume_control(self) -> None:
        if self.control.paused:
            self.control.resume()

    def _fault_balance(self) -> None:
        """Hand leadership over, to where it belongs or around in quick succession."""
        for command in balance(self.control.state):
            self._hand_over(command)
        if self.world.chance(0.5):
            for number in range(self.world.rng.choice((1, 3, 6))):
                self.world.at(number * 30, self._hand_on)

    def _hand_on(self) -> None:
        one = self.one
        others = [name for name in one.isr if name != one.leader]
        if self._trouble and one.leader is not None and others:
            to = self.world.rng.choice(others)
            self._hand_over(
                NameCandidate(
                    stream_uuid=UUID,
                    partition=0,
                    leader_epoch=one.leader_epoch,
                    partition_epoch=one.partition_epoch,
                    candidate=to,
                    candidate_epoch=self.control.state.brokers[to].epoch,
                )
            )

    def _hand_over(self, command: NameCandidate) -> None:
        if self.control.propose(command) is None:
            self.world.note("leadership handed over")

    def _fault_reassign(self) -> None:
        rng = self.world.rng
        target = tuple(rng.sample(self.names, self.factor))
        command = ReassignReplicas(
            stream_uuid=UUID, partition=0, partition_epoch=self.one.partition_epoch, target=target
        )
        if not self.one.target and rng.random() < 0.3 and self.control.propose(command) is None:
            self.world.note("reassigned", target)

    def _fault_skew(self) -> None:
        self._some_clock(self.world.rng.choice((0.9, 1.0, 1.1)))

    def _some_clock(self, rate: float) -> None:
        """Change a clock's rate; it never goes back."""
        broker = self._some()
        broker.set_rate(rate)

    def _fault_stop(self) -> None:
        """Begin a graceful shutdown, and end the process when leadership has moved."""
        broker = self._some()
        registered = self.control.state.brokers[broker.name]
        if broker.alive and not registered.stopping and self.world.chance(0.4):
            command = StopBroker(broker=broker.name, broker_epoch=registered.epoch)
            if self.control.propose(command) is None:
                self.world.note("stopping", broker.name)
                self.world.at(600, self._end_gracefully, broker)

    def _end_gracefully(self, broker: SimBroker) -> None:
        broker.stop()
        self._restart(broker)


def _draw_faults(rng: random.Random, tiered: bool, interval: bool) -> frozenset[str]:
    faults = frozenset(one for one in FAULTS if rng.random() < 0.35)
    if interval:
        faults = frozenset(one for one in INTERVAL_FAULTS if rng.random() < 0.6)
    if tiered:
        faults |= {one for one in TIERED_FAULTS if rng.random() < 0.6}
    return faults


def run_seed(
    seed: int,
    *,
    real_log: bool = False,
    late: bool = False,
    tiered: bool = False,
    interval: bool = False,
    faults: frozenset[str] | None = None,
) -> Result:
    """Run one seed; raise AssertionError, with the seed in it, when a promise was broken."""
    sim = ClusterSim(
        seed, real_log=real_log, late=late, tiered=tiered, interval=interval, faults=faults
    )
    try:
        return sim.run()
    except (AssertionError, HeadwaterError, OSError, LookupError, TypeError) as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
