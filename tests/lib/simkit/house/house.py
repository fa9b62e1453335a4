"""One seed of a cluster's life: the product's shells under faults, judged by what clients saw.

A seed draws its size, its timings and its own subset of faults. It has three parts: trouble,
healing, and a long look at every replica in the end.

The file is not split: it is the story of a seed in the order in which it happens.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack, cast

from broker.core.election import ElectionTiming
from broker.core.metadata.commands import CreateStream
from broker.core.metadata.placement import place
from broker.core.metadata.state import PartitionState
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.records import AckPolicy
from broker.model.stream import Stream, StreamConfig
from broker.runtime.api import streams
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.id_budget import SLICE_BYTES
from broker.runtime.partition.replica_shell import ReplicaShell
from checkkit.checker import check_reading, judge
from checkkit.history import History
from checkkit.readings import PartReading, Reading, Row, Source
from simkit.house.beneath.raft import RaftHouse
from simkit.house.changes import Changes
from simkit.house.clients import RULES, CommittedReader, Publisher, rows_of, serve
from simkit.house.compacting import Compacting
from simkit.house.cuts import CutTaker
from simkit.house.damage import Damage
from simkit.house.encryption import HouseKeys
from simkit.house.expiring import Expiring
from simkit.house.faults import Faults
from simkit.house.flight_clients import FlightPublisher
from simkit.house.growth import Growth
from simkit.house.lake import HouseLake
from simkit.house.metadata import MetadataHouse
from simkit.house.nats import NatsServer
from simkit.house.node import Beneath, Node, Setting
from simkit.house.operator import Operator
from simkit.house.oracle import Oracle, watching
from simkit.house.own_world import own_world
from simkit.house.pausing import Pausing
from simkit.house.process import Machine
from simkit.house.shape import Shape, drawn_policies, drawn_shape
from simkit.house.situations import Place, counting
from simkit.house.standing import Standing, standing_timing
from simkit.network.world import Network, World
from simkit.replacing import replaced, together
from tiering.config import TieringConfig

HEAL_MS_MAX = 8_000  # the slowest of 200 seeds without a lake took 3,113
# With one, the backlog has to be shipped through a store that was slow: 29,802 of seed 21.
HEAL_WITH_LAKE_MS_MAX = 60_000
LATE_MS = 2_000  # how long clients publish that come while a life heals


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a seed."""

    seen: Counter[str]
    digest: str
    steps: int
    acked: int
    heal_ms: int


class Choices(TypedDict, total=False):
    """What a life is told and does not draw; whatever is left out is false, or drawn."""

    faults: frozenset[str] | None
    with_lake: bool
    # Ack policies, streams that sync by interval, late copies of messages, failing syncs, disks
    # that are put back, and an operator who accepts losses.
    mixed: bool
    with_raft: bool  # the product's Raft beneath the brokers, instead of an ideal log
    with_flight: bool  # publishers call over Flight, instead of writing at a partition
    changing: bool  # an operator changes and purges the streams
    growing: bool  # an operator adds partitions to the streams
    expiring: bool  # an operator lets the tables expire; with a lake
    compacting: bool  # an operator lets superseded records leave the tables; with a lake
    pausing: bool  # an operator pauses streams, resumes them, and makes them read-only
    standing: bool  # followers' fetches may stand, and publishers fall silent
    encrypted: bool  # streams are encrypted; brokers lack keys now and then, and keys are rotated
    shape: Shape


class House:
    """Runs one seed.

    The class is not split: what is drawn at the beginning is needed until the last look.
    """

    def __init__(self, seed: int, **choices: Unpack[Choices]) -> None:
        """Draw what is not given; see `Choices`."""
        self.mixed = mixed = choices.get("mixed", False)
        self._more = random.Random(f"more {seed}")
        shape = drawn_shape(self._more) if mixed else choices.get("shape", Shape())
        if choices.get("with_flight"):
            shape = replace(
                shape, flight=True, policies=shape.policies or drawn_policies(self._more)
            )
        self.shape = shape
        self.world = world = World(seed)
        self.lake = HouseLake(world) if choices.get("with_lake") else None
        rng = world.rng
        self.network = Network(
            world,
            delay_ms_max=rng.choice((3, 20, 50)),
            ordered=rng.random() < 0.5 and not shape.late,
            doubling=max(rng.choice((0.0, 0.02)), 0.3 if shape.late else 0.0),
        )
        count = rng.choice((3, 3, 3, 4, 5))
        names = [f"b{one}" for one in range(shape.brokers or count)]
        machines = {name: Machine(name, world) for name in names}
        self.keys = HouseKeys(self, seed) if choices.get("encrypted") else None
        self.compacting = Compacting(self, seed) if choices.get("compacting") else None
        self.standing = Standing(self, seed) if choices.get("standing") else None
        self.setting = setting = self._draw_setting(seed)
        if self.standing is not None:
            self.setting = setting = replace(setting, timing=standing_timing(setting.timing))
        self.nodes = {
            name: Node(name, world, self.network, setting, machines[name], serve) for name in names
        }
        self.house: Beneath = (
            RaftHouse(world, machines, seed)
            if choices.get("with_raft")
            else MetadataHouse(world, self.network, machines)
        )
        for node in self.nodes.values():
            node.house = self.house
        self.nats = NatsServer(world, self.network, names) if setting.nats else None
        self.history = History()
        self.streams: list[Stream] = []
        self.partitions: list[PartitionId] = []
        self.publishers: list[Publisher] = []
        self.readers: list[CommittedReader] = []
        self.takers: list[CutTaker] = []
        self.oracle = Oracle(self)
        for machine in machines.values():
            machine.on_end.insert(0, self.oracle.process_ended)
        for node in self.nodes.values():
            node.oracle = self.oracle
            node.closes_politely = mixed or shape.interval
        self.damage = Damage(self)
        self.operator = Operator(self)
        self.changes = Changes(self, seed) if choices.get("changing") else None
        self.growth = Growth(self, seed) if choices.get("growing") else None
        self.expiring = Expiring(self, seed) if choices.get("expiring") else None
        self.pausing = Pausing(self, seed) if choices.get("pausing") else None
        self.faults = Faults(self, choices.get("faults"))
        self.heal_ms = 0  # how long it took

    def draw_more(self, probability: float) -> bool:
        """Draw for a mixed life, beside what every life draws."""
        return self._more.random() < probability

    def _draw_setting(self, seed: int) -> Setting:
        rng = self.world.rng
        idle_ms = rng.choice((60, 150))
        return Setting(
            limits=LagLimits(time_ms_max=rng.choice((400, 1000))),
            timing=FollowerTiming(
                request_ms=rng.choice((80, 150)),
                retry_ms=20,
                idle_ms=idle_ms,
                wait_ms=rng.choice((0, idle_ms)),
                leader_ms=rng.choice((300, 700)),
            ),
            election=ElectionTiming(
                session_ms=rng.choice((450, 600, 900)),
                report_window_ms=800,
                ask_ms=rng.choice((20, 100)),
                confirm_ms=200,
                retry_ms=100,
                offline_ms=200,
                stall_ms=250,
            ),
            turn_ms_max=rng.choice((0, 3, 15, 60)),
            tick_ms=rng.choice((10, 20)),
            ids_slice_bytes=random.Random(f"slices {seed}").choice((1, 3_000, SLICE_BYTES)),
            nats=self.mixed or self.shape.nats,
            keyed=self.compacting is not None,
            keys=None if self.keys is None else self.keys.of,
            **({} if self.lake is None else self._draw_tiering(self.lake)),
        )

    def _draw_tiering(self, lake: HouseLake) -> dict[str, Any]:
        rng = self.world.rng
        config = TieringConfig(
            check_interval_ms=rng.choice((250, 800)),
            object_bytes_max=rng.choice((1, 20_000)),
            backoff_ms_min=50,
            backoff_ms_max=400,
            checkpoint_interval_commits=rng.choice((3, 20)),
            expiry_interval_ms=100,
        )
        return {
            "lake": lake,
            "tiering": config,
            "claim_ms": rng.choice((100, 600)),
            "store_ms_max": rng.choice((0, 10, 60)),
        }

    # ------------------------------------------------------------------ the story

    def run(self) -> Result:
        """Begin, trouble, heal, look."""
        self.begin()
        self.faults.begin()
        self.damage.restart_the_red()
        if self.mixed:
            self.operator.begin()
        for one in (
            self.changes, self.growth, self.expiring, self.compacting, self.pausing, self.standing,
            self.keys,
        ):  # fmt: skip
            if one is not None:
                one.begin()
        self.run_for(self.world.rng.choice((1500, 2500, 4000, 6000)))
        self.heal()
        self.look()
        return self._result()

    def begin(self) -> None:
        """Start everything, create the streams, let clients come."""
        for node in self.nodes.values():
            node.start()
        self._run_until(lambda: len(self.house.state.brokers) == len(self.nodes), 5_000)
        count = self.world.rng.choice((1, 2, 2))
        for number in range(self.shape.streams or count):
            self.create(f"s{number}")
        for number, partition_id in enumerate(self.partitions):
            self._let_clients_come(number, partition_id)
        if self.lake is not None:
            numbers = {one: number for number, one in enumerate(self.partitions)}
            self.takers = [
                CutTaker(
                    stream,
                    numbers,
                    self.world,
                    self.nodes,
                    self.lake,
                    own_version=self.expiring is not None or self.compacting is not None,
                )
                for stream in self.streams
            ]

    def add_partition(self, partition_id: PartitionId) -> None:
        """Let clients come to a partition that was added to a stream."""
        self.partitions.append(partition_id)
        known = len(self.publishers)
        self._let_clients_come(len(self.partitions) - 1, partition_id)
        if not self.faults.is_trouble:  # a life in which somebody publishes on is hardly ever well
            for publisher in self.publishers[known:]:
                self.world.at(LATE_MS, publisher.stop)
        for taker in self.takers:
            taker.numbers[partition_id] = len(self.partitions) - 1

    def _let_clients_come(self, number: int, partition_id: PartitionId) -> None:
        some = (AckPolicy.ALL,) * self.world.rng.choice((1, 1, 2))
        for policy in self.shape.policies or some:
            self.publishers.append(self._publisher(number, partition_id, policy))
        self.readers.append(
            CommittedReader(
                (number, partition_id), self.world, self.nodes, self.history,
                lease_ms=self.setting.election.lease_ms() + self.setting.election.hear_ms(),
                lake=self.lake, changes=self.changes, expiring=self.expiring,
            )
        )  # fmt: skip

    def _publisher(self, number: int, partition_id: PartitionId, policy: AckPolicy) -> Publisher:
        by_id = self.world.chance(0.4)
        given = (
            len(self.publishers), (number, partition_id), self.world, self.network,
            self.house, self.nodes, self.history,
        )  # fmt: skip
        # Without an id a retry under LEADER is another record: a lost copy could not be told.
        plain = policy is AckPolicy.LEADER or (by_id and policy is AckPolicy.ALL)
        if self.shape.flight and not plain:
            name = next(one.name for one in self.streams if one.uuid == partition_id.stream_uuid)
            by_id = policy is not AckPolicy.ALL
            return FlightPublisher(*given, stream=name, by_id=by_id, policy=policy)
        subject = self.subject_of(partition_id)
        return Publisher(*given, by_id=by_id, policy=policy, subject=subject)

    def create(self, name: str) -> None:
        """Create a stream, as an operator at a broker does."""
        rng, shape = self.world.rng, self.shape
        stream_uuid = StreamUuid(str(uuid.uuid4()))
        factor, min_isr = rng.choice((2, 3, 3)), rng.choice((1, 2, 2))
        factor, min_isr = shape.factor or factor, shape.min_isr or min_isr
        partitions = rng.choice((1, 2, 3))
        config = StreamConfig(
            subject=name,
            flush="interval" if shape.interval else "always",
            partitions=shape.partitions or partitions,
            replication_factor=factor,
            min_isr=min_isr,
            segment_bytes_max=rng.choice((4096, 1 << 20)),
            puback=self.nats is not None,
            tiering=False,
        )
        if self.lake is not None:
            config = replace(
                config,
                tiering=True,
                segment_bytes_max=4096,
                segment_age_ms_max=rng.choice((200, 600, 600_000)),
                local_retention_bytes=rng.choice((0, 0, 6000)),
            )
        stream = Stream(name=name, uuid=stream_uuid, config=config, created_us=1, table_name=name)
        if self.keys is not None:
            config = replace(config, encryption="xaes-256-gcm")
            stream = replace(stream, config=config, data_keys=self.keys.first(stream_uuid))
        rows = place(self.house.state, partitions=config.partitions, replication_factor=factor)
        error = self.house.propose(
            CreateStream(stream=stream, leader=rows[0][0], assignment=rows, min_isr=min_isr)
        )
        assert error is None, error
        self.streams.append(stream)
        self._run_until(lambda: name in self.house.state.streams, 5_000)
        self.partitions += [
            PartitionId(stream_uuid, PartitionNumber(number)) for number in range(config.partitions)
        ]

    def row(self, partition_id: PartitionId) -> PartitionState:
        """Return the metadata's word on a partition."""
        return self.house.state.partitions[partition_id.stream_uuid][partition_id.number]

    def subject_of(self, partition_id: PartitionId) -> str | None:
        """Return the NATS subject of a partition, where there is a NATS server."""
        stream = next(one for one in self.streams if one.uuid == partition_id.stream_uuid)
        return stream.config.partition_subject(partition_id.number) if self.nats else None

    def is_interval(self, partition_id: PartitionId) -> bool:
        """Tell whether a partition's stream syncs by interval."""
        return self.shape.interval

    def place_of(self, shell: ReplicaShell) -> Place:
        """Return whose replica a shell is."""
        name, _, number = shell._name.rpartition("/")
        stream_uuid = next(one.uuid for one in self.streams if one.name == name)
        process = self.nodes[shell._replica._me].machine.process
        return Place(PartitionId(stream_uuid, PartitionNumber(int(number))), process)

    def run_for(self, duration_ms: int) -> None:
        """Let time pass, looking at what counts."""
        end_ms = self.world.now_ms + duration_ms
        while self.world.now_ms < end_ms:
            assert self.world.step(), "nothing is left to happen"
            self.look_now()

    def look_now(self) -> None:
        """Check what has to hold at every moment."""
        self.operator.look()
        self.oracle.look()
        self.damage.look()
        for one in (self.growth, self.pausing, self.standing):
            if one is not None:
                one.look()

    def _run_until(self, done: Callable[[], bool], patience_ms: int) -> None:
        end_ms = self.world.now_ms + patience_ms
        while not done():
            assert self.world.now_ms < end_ms, f"not well in time: {self.describe()}"
            self.run_for(50)
            if self.mixed or self.shape.interval:
                self.operator.look_again()

    def heal(self) -> None:
        """End all trouble; within a bounded time everything has to be well again."""
        self.faults.end()
        for one in (self.keys, self.pausing):
            if one is not None:
                one.end()
        self.world.note("healing")
        for publisher in self.publishers:
            publisher.stop()
        began_ms = self.world.now_ms
        patience_ms = HEAL_MS_MAX if self.lake is None else HEAL_WITH_LAKE_MS_MAX
        many = 1 if self.changes is None else 3  # smaller segments are more objects to ship
        self._run_until(self.healthy, many * patience_ms)
        self.heal_ms = self.world.now_ms - began_ms

    def healthy(self) -> bool:
        """Tell whether every replica has every record, and every leader's partition is served."""
        if any(publisher.pending for publisher in self.publishers):
            return False
        return (
            all(map(self._is_well, self.partitions))
            and all(map(self._is_shipped, self.partitions))
            and (self.expiring is None or all(map(self.expiring.is_done, self.partitions)))
            and (self.pausing is None or self.pausing.is_done())
            and all(self._serves_what_it_leads(node) for node in self.nodes.values())
            and self.damage.is_legible()
            and (self.keys is None or self.keys.are_usable())
        )

    def _is_well(self, partition_id: PartitionId) -> bool:
        row = self.row(partition_id)
        if row.status != "online" or set(row.isr) != set(row.replicas) or row.target:
            return False
        leader = self.nodes[row.leader or ""].replica(partition_id)
        if leader is None or not leader.leads:
            return False
        end = leader.replication.newest_committed
        drivers = [self.nodes[name].replica(partition_id) for name in row.replicas]
        return end is not None and all(
            one is not None
            and one.health.failure is None
            and (one.reads.log_end, one.reads.high_watermark, one.replication.synced_position[1])
            == (end, end, end)
            for one in drivers
        )

    def _is_shipped(self, partition_id: PartitionId) -> bool:
        """Tell whether sealed and committed segments are in the table, as the leader knows."""
        leader = self.nodes[self.row(partition_id).leader or ""].replica(partition_id)
        return self.lake is None or (
            leader is not None
            and all(
                one.end_offset <= min(leader.tier.cold_end, self.row(partition_id).cold_end)
                for one in leader.tier.segments()
                if one.sealed
            )
        )

    def _serves_what_it_leads(self, node: Node) -> bool:
        led: dict[StreamUuid, set[int]] = {}
        for partition_id in self.partitions:
            if self.row(partition_id).leader == node.name:
                led.setdefault(partition_id.stream_uuid, set()).add(partition_id.number)
        return {uuid: set(numbers) for uuid, numbers in node.served.items() if numbers} == led

    def describe(self) -> str:
        """Describe what is not healthy."""
        lines = [
            f"{one.name} waits for {one.pending[:2]}" for one in self.publishers if one.pending
        ]
        for partition_id in self.partitions:
            lines.append(
                f"{partition_id} well={self._is_well(partition_id)} {self.row(partition_id)}"
            )
            for name, node in self.nodes.items():
                driver = node.replica(partition_id)
                if driver is not None:
                    reads, view = driver.reads, driver.replication.view
                    facts = f"leads={driver.leads} end={reads.log_end} hw={reads.high_watermark}"
                    lines.append(f"  {name} {facts} {driver.health.failure} {view}")
        for name, node in self.nodes.items():
            lines.append(f"{name} alive={node.machine.alive} {node.is_open} serves {node.served}")
        return "\n".join(lines)

    # ------------------------------------------------------------------ the end

    def look(self) -> None:
        """Read every replica apart, and judge what clients saw by it."""
        for one in (self.changes, self.expiring, self.compacting):
            if one is not None:
                one.look()
        tiered = self.tiered_reads()
        verdict = judge(self.history, [*self.final_reads(), *tiered], RULES)
        assert verdict.ok, str(verdict)
        for reading in (one for taker in self.takers for one in taker.readings):
            rules = replace(RULES, expires=self.expiring is not None)
            wrong = [*check_reading(self.history, reading, rules)]
            assert not wrong, f"{reading.name}: {wrong[:3]}"
            for number, part in reading.parts.items():
                end = self.oracle.certain_end(
                    self.partitions[number], reading.began_ns, part.hot_end
                )
                history = _rows(tiered[0].parts[number])[part.start : end]
                found = _rows(part)[: max(0, end - part.start)]
                assert found == history, f"{reading.name}: other records"

    def final_reads(self) -> list[Reading]:
        """Read every replica of every broker, whole."""
        finals = []
        for name in sorted(self.nodes):
            parts = [
                self._read(number, one)
                for number, partition_id in enumerate(self.partitions)
                if name in self.row(partition_id).replicas
                and (one := self.nodes[name].replica(partition_id)) is not None
            ]
            if parts:
                finals.append(Reading.of(name, self.world.steps, parts, Source.REPLICA))
        return finals

    def _read(self, number: int, driver: PartitionDriver) -> PartReading:
        start, end = driver.reads.log_start, driver.reads.log_end
        rows = self.read_all(driver)
        if self.changes is not None and self.lake is None:  # below, what was purged from here
            rows = [row for row in rows if row.offset >= start]
            rows, start = [*self.changes.below(driver.partition_id, start), *rows], Offset(0)
        return PartReading(
            partition=number,
            start=start if self.lake is not None else 0,
            cold_end=start,
            hot_end=end,
            cold_rows=[],
            hot_rows=rows,
        )

    def tiered_reads(self) -> list[Reading]:
        """Read the table and the leader's log as one, and compare the table with its digests."""
        lake = self.lake
        if lake is None:
            return []
        for stream in self.streams:
            lake.verify(stream)
        parts = [self._read_both(lake, number, one) for number, one in enumerate(self.partitions)]
        return [Reading.of("both tiers", self.world.steps, parts)]

    def _read_both(self, lake: HouseLake, number: int, partition_id: PartitionId) -> PartReading:
        stream = next(one for one in self.streams if one.uuid == partition_id.stream_uuid)
        leader = self.nodes[self.row(partition_id).leader or ""].replica(partition_id)
        assert leader is not None, "a healthy partition has a leader"
        snapshot = lake.snapshot(stream)
        cold_end = Offset(0) if snapshot is None else snapshot.cold_end(partition_id.number)
        assert cold_end >= self.row(partition_id).cold_end, "recorded, and not in the table"
        start = self.row(partition_id).remote_start
        cold = OffsetRange(start, cold_end)
        gone = [] if self.expiring is None else self.expiring.below(partition_id, start)
        return PartReading(
            partition=number,
            start=0,
            cold_end=cold_end,
            hot_end=leader.reads.log_end,
            cold_rows=gone + (lake.rows(stream, partition_id.number, cold) if len(cold) else []),
            hot_rows=[row for row in self.read_all(leader) if row.offset >= cold_end],
        )

    def read_all(self, driver: PartitionDriver) -> list[Row]:
        """Return all rows of a replica."""
        rows: list[Row] = []
        at, end = driver.reads.log_start, driver.reads.log_end
        while at < end:
            batches = driver.reads.read(at, end, bytes_max=1 << 20)
            rows += rows_of(batches)
            at = batches[-1].header.end_offset
        return rows

    def _result(self) -> Result:
        digest = hashlib.blake2b(self.world.digest().encode(), digest_size=16)
        for reading in self.final_reads():
            for number in sorted(reading.parts):
                digest.update(repr(reading.parts[number].hot_rows).encode())
        for node in self.nodes.values():
            self.world.seen.update(node.machine.disk.seen)
        return Result(
            seen=self.world.seen,
            digest=digest.hexdigest(),
            steps=self.world.steps,
            acked=self.history.acked_count,
            heal_ms=self.heal_ms,
        )


def _rows(part: PartReading) -> list[Row]:
    return [*cast("list[Row]", part.cold_rows), *cast("list[Row]", part.hot_rows)]


@contextmanager
def opened(seed: int, **choices: Unpack[Choices]) -> Iterator[House]:
    """Lend a house, and record the effects of its replicas."""
    with own_world(seed, with_flight=choices.get("with_flight", False)):
        house = House(seed, **choices)
        try:
            # Nobody waits for a new replica here: it is opened in a later turn.
            with together(watching(house), counting(house), replaced(streams, "_OPEN_S", 0.0)):
                yield house
        finally:
            for node in house.nodes.values():
                node.forget()
            if house.lake is not None:
                house.lake.close()


def run_seed(seed: int, **choices: Unpack[Choices]) -> Result:
    """Run one seed; raise AssertionError, with the seed in it, when a promise was broken."""
    with opened(seed, **choices) as house:
        try:
            return house.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
