"""One simulated broker: the product's own composition on a simulated machine.

Broker, HostedPartitions, PartitionDriver, ReplicaShell, TurnQueue, Commits, RetryTables,
ClusterMember, Controller, Promises, PartitionLog and, with a lake, Tiering are the product's.
Messages are encoded when they are sent and decoded where they arrive. It starts by the product's
pump, ``BrokerStart``. See ``broker/process/node.py`` for the real thing.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from broker.codec.peer import control_messages, replica_messages
from broker.core.election import ElectionTiming
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.errors import DiskFullError, HeadwaterError
from broker.model.control_messages import ControlMessage, NewestTold
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId, StreamUuid
from broker.model.replica_messages import ReplicaMessage
from broker.ports.cluster import ControlTransport, ReplicaAddress
from broker.ports.partition import StoredBatch
from broker.ports.pumps import NEVER_MS, Driven, Pump
from broker.ports.system import Clock, Files
from broker.runtime.broker import Broker, BrokerName, BrokerPace, BrokerParts
from broker.runtime.cluster.controller import Controller
from broker.runtime.cluster.member import ClusterMember, MemberSetting
from broker.runtime.hosted_partitions import Closing
from broker.runtime.led import LedPartitions
from broker.runtime.metadata.metadata_log import MetadataLog
from broker.runtime.operations import ClusterOperations
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.id_budget import IdBudget
from broker.runtime.partition.leadership_gate import SETTLE_MS
from broker.runtime.stream_keys import StreamKeys
from broker.storage.cached_files import CachedFiles
from broker.storage.promises.promises import Promises
from simkit.house.beneath.raft import HouseLog, RaftHouse, RaftLane
from simkit.house.flight import FlightCalls
from simkit.house.lake import HouseLake
from simkit.house.metadata import MetadataHouse, MetadataView
from simkit.house.nats import NatsConnection
from simkit.house.process import Machine, WorldTurns, crashed, drive_of
from simkit.network.world import Network, World
from tiering.config import TieringConfig
from tiering.tiering import Tiering

Beneath = MetadataHouse | RaftHouse
Request = Callable[["Node", Any], None]
_STOP_MS: Final = 1_500
_CALLS_MS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings that all brokers of a house share."""

    limits: LagLimits
    timing: FollowerTiming
    election: ElectionTiming
    turn_ms_max: int  # until a turn that was queued is taken
    tick_ms: int
    ids_slice_bytes: int  # of its log that a new leader reads in a turn
    lake: HouseLake | None = None
    tiering: TieringConfig | None = None
    claim_ms: int = SETTLE_MS
    store_ms_max: int = 0  # until a request to the store is done
    nats: bool = False  # brokers ingest from NATS too
    keyed: bool = False  # records have few keys, see ``lake.key_of``
    keys: Callable[[str, Clock], StreamKeys] | None = None  # of a process that begins


class _Lane:
    """A ``ControlTransport`` or a ``ReplicaTransport`` of one process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.deliver: Callable[..., None] | None = None

    def start(self, deliver: Callable[..., None]) -> None:
        """See the transports."""
        self.deliver = deliver

    def close(self) -> None:
        """See the transports."""
        self.deliver = None


class ControlLane(_Lane):
    """Implements ``ControlTransport``."""

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """See ``ControlTransport.send``."""
        data = control_messages.encode(message)
        if to == self._node.name:
            self._node.machine.later(0, self.arrived, to, data)
        else:
            self._node.send(to, ("control", data))

    def arrived(self, sender: BrokerId, data: bytes) -> None:
        """Decode and hand over."""
        if self.deliver is not None:
            self.deliver(sender, control_messages.decode(data))


class ReplicaLane(_Lane):
    """Implements ``ReplicaTransport``."""

    def send(self, to: BrokerId, address: ReplicaAddress, message: ReplicaMessage) -> None:
        """See ``ReplicaTransport.send``."""
        parts = replica_messages.encode(address.partition_id, message)
        self._node.send(to, ("replica", b"".join(bytes(part) for part in parts)))

    def arrived(self, sender: BrokerId, data: bytes) -> None:
        """Decode and hand over."""
        found = replica_messages.decode(memoryview(data), sender=sender, batch=StoredBatch)
        if self.deliver is not None:
            self.deliver(sender, *found)

    def serve(self, address: ReplicaAddress) -> None:
        """See ``ReplicaTransport.serve``: requests come in for every partition anyway."""

    def stop_serving(self, address: ReplicaAddress) -> None:
        """See ``ReplicaTransport.stop_serving``."""


class Node:
    """One broker, process after process.

    The class is not split: it puts together what ``broker/process/node.py`` puts together, and ends
    it in the ways that a process ends; the parts themselves are the product's.
    """

    def __init__(
        self,
        name: str,
        world: World,
        network: Network,
        setting: Setting,
        machine: Machine,
        on_request: Request,
    ) -> None:
        self.name = BrokerId(name)
        self.machine = machine
        self._world = world
        self._network = network
        self.setting = setting
        self._on_request = on_request
        self.house: Beneath | None = None
        self.oracle: Any = None  # hears every acknowledgement
        self.broker: Broker | None = None
        self.member: ClusterMember | None = None
        self.tiering: Tiering | None = None
        self.nats: NatsConnection | None = None
        self.flight: FlightCalls | None = None
        self.served: dict[StreamUuid, frozenset[int]] = {}  # as the listener was told
        self.is_open = False  # it has started
        self.closes_politely = False  # its logs, when it is told to stop
        network.join(name, self._receive)
        machine.on_end.append(lambda _: self.forget())
        machine.start_again = self.start_again

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start a process; see ``broker/process/daemon.py``."""
        machine, house = self.machine, self.house
        assert house is not None
        machine.begin_life()
        self._world.note("process started", machine.process)
        self.served, self.is_open = {}, False
        machine.run(machine.life, self._begin, house)

    def _begin(self, house: Beneath) -> None:
        """Open the metadata; with Raft, when the other members have let this process in."""
        machine = self.machine
        self.broker, self.member = None, None
        self._view: MetadataLog | None = None
        self._control, self._replicas, self._raft = ControlLane(self), ReplicaLane(self), None
        try:
            files = CachedFiles(machine.disk.files(), open_max=4, below="streams")
            promises = Promises(files)
        except OSError as error:
            self._refuse(error)
            return
        if isinstance(house, MetadataHouse):
            view = MetadataView(machine, house, self._network)
            self._compose(files, promises, view, self._control)
            return

        def ready(log: HouseLog, control: ControlTransport, lane: RaftLane) -> None:
            self._driven.stop()
            self._raft = lane
            self._compose(files, promises, log, control)

        def turn(now_ms: int) -> int:
            try:
                return take_part(now_ms)
            except (OSError, DiskFullError) as error:
                self._refuse(error)
                return NEVER_MS

        take_part = house.begin(machine, self, files, promises, self._control, ready)
        self._driven = drive_of(machine)("rejoin", turn)
        self._driven.start()

    def _compose(
        self, files: Files, promises: Promises, view: MetadataLog, control: ControlTransport
    ) -> None:
        machine, setting, drive = self.machine, self.setting, drive_of(self.machine)
        self._view = view
        try:
            controller = Controller(
                metadata=view,
                control=control,
                clock=machine,
                timing=setting.election,
                on_crash=crashed,
                drive=drive,
            )
            self.member = member = ClusterMember(
                setting=MemberSetting(
                    me=self.name,
                    timing=setting.election,
                    following=setting.timing,
                    limits=setting.limits,
                ),
                files=files,
                metadata=view,
                control=control,
                replicas=self._replicas,
                controller=controller,
                clock=machine,
                on_crash=crashed,
                stop_asked=threading.Event(),
                drive=drive,
            )
            self.broker = broker = Broker(
                BrokerName(cluster="house", broker_id=self.name, namespace="default"),
                BrokerParts(
                    files=files,
                    metadata=view,
                    membership=member,
                    clock=machine,
                    scheduler=WorldTurns(machine, setting.turn_ms_max),
                    promises=promises,
                    drive=drive,
                    id_budget=IdBudget(slice_bytes=setting.ids_slice_bytes),
                    keys=None if setting.keys is None else setting.keys(self.name, machine),
                ),
                BrokerPace(
                    tick_ms=setting.tick_ms,
                    claim_ms=setting.claim_ms,
                    patience_s=0.0,
                    start_s=0.0,
                    limits=setting.limits,
                    timing=setting.timing,
                ),
            )
            self._attach_lake(broker, setting)
            broker.add_listener(self)
            self.flight = FlightCalls(self)
            self.nats = None
            if setting.nats:
                self.nats = NatsConnection(self, self._network)
                broker.add_listener(self.nats)
            member.attach(broker)
        except OSError as error:
            self._refuse(error)
            return
        self._starting = broker.starting(self._wake, self._started)
        self._driven = drive("start", self._take_turn)
        self._driven.start()

    def _attach_lake(self, broker: Broker, setting: Setting) -> None:
        self.tiering = None
        if setting.lake is not None:
            self.tiering = Tiering(
                setting.lake.of(self.machine),
                broker.catalog(),
                self.machine,
                setting.tiering,
                drive=drive_of(self.machine, pace_ms_max=setting.store_ms_max),
            )
            broker.cold.attach(self.tiering)

    def _wake(self) -> None:
        self._driven.wake()

    def _take_turn(self, now_ms: int) -> int:
        try:
            return self._starting.turn(now_ms)
        except OSError as error:  # e.g. no room for the session
            self._refuse(error)
            return NEVER_MS

    def _refuse(self, error: OSError | DiskFullError) -> None:
        """End the process, whose disk refused; a process manager tries again."""
        if isinstance(error, DiskFullError) or error.errno == errno.ENOSPC:
            self._world.note("start refused by a full disk", error)
        elif error.errno == errno.EIO:
            self._world.note("start refused by a failing disk", error)
        else:
            raise error
        self.machine.end_life(power=False)
        self._world.at(300, self.start_again)

    def _started(self, _: BrokerEpoch) -> None:
        assert self.member is not None
        self._driven.stop()
        self.is_open = True
        if self.tiering is not None:
            self.tiering.start()
        self.member.start()

    def start_again(self) -> None:
        """Start a process, unless there is one."""
        if not self.machine.alive:
            self.start()

    def led_changed(self, led: LedPartitions) -> None:
        """See ``LeadListener``: what clients are served."""
        self.served[led.stream.uuid] = led.numbers

    def stop(self) -> None:
        """Hand over, and end the process; the wait is limited."""
        self.machine.run(self.machine.life, self._hand_over)

    def _hand_over(self) -> None:
        if self.is_open and self.member is not None:
            self._drive(self.member.handing_over, self._handed_over)
            self.machine.later(_STOP_MS, self._handed_over, False)

    def _handed_over(self, handed_over: bool) -> None:
        self._world.note("stopped, handed over" if handed_over else "stopped, not handed over")
        self._end_calls(0)

    def _end_calls(self, waited_ms: int) -> None:
        """See ``FlightService.close``: for a while calls may end by themselves."""
        over = self.flight is None or self.flight.close()
        if not over and waited_ms < _CALLS_MS:
            self.machine.later(10, self._end_calls, waited_ms + 10)
            return
        if self.closes_politely and self.is_open and self.broker is not None:
            self.is_open = False  # its services have ended
            self._close_logs(self.broker.replicas.begin_close(), self.broker)
        else:
            self._end()

    def _close_logs(self, closing: Closing, broker: Broker) -> None:
        """See ``Broker.close``, but nothing here waits."""
        if not all(call.is_over(0.0) for _, call in closing.begun):
            self.machine.later(10, self._close_logs, closing, broker)
            return
        if broker.replicas._wait_closed(closing, 0.0) and self.member is not None:
            self.member.logs_closed()
            self._world.note("clean stop noted", self.name)
        self._end()

    def _end(self) -> None:
        self.kill(power=False)
        self._world.at(100, self.start_again)

    def kill(self, *, power: bool) -> None:
        """End the process, if there is one."""
        if self.machine.alive:
            self._world.note("power cut" if power else "killed", self.machine.process)
            self.machine.end_life(power=power)

    # ------------------------------------------------------------------ messages

    def send(self, to: str, message: tuple[str, Any]) -> None:
        """Send to another broker or a client."""
        self._network.send(self.name, to, message)

    def _receive(self, sender: str, message: tuple[Any, ...]) -> None:
        run = self.machine.run_beneath if message[0] == "raft" else self.machine.run
        run(self.machine.life, self._take, sender, message)

    def _take(self, sender: str, message: tuple[Any, ...]) -> None:
        match message[0]:
            case "raft":
                if self._raft is not None:
                    self._raft.arrived(sender, message[1])
            case "meta":
                if isinstance(self._view, MetadataView):
                    self._view.take(message[1], message[2])
            case "control":
                self._control.arrived(BrokerId(sender), message[1])
            case "flight":
                if self.flight is not None and self.is_open:
                    self.flight.arrived(sender, *message[1])
            case "nats":
                if self.nats is not None:
                    self.nats.arrived(*message[1:])
            case "replica":
                self._replicas.arrived(BrokerId(sender), message[1])
            case _:
                if self.is_open:
                    self._on_request(self, message[1])

    # ------------------------------------------------------------------ for the checks

    def ask_newest(
        self, partition_id: PartitionId, answered: Callable[[NewestTold | HeadwaterError], None]
    ) -> None:
        """Ask this broker for the committed end; it may ask the leader."""
        self.machine.run(self.machine.life, self._ask_newest, partition_id, answered)

    def _ask_newest(
        self, partition_id: PartitionId, answered: Callable[[NewestTold | HeadwaterError], None]
    ) -> None:
        if self.is_open and self.member is not None:
            ask = partial(self.member.asking_newest, partition_id, str(partition_id))
            self._drive(ask, answered)

    def _drive(self, begin: Callable[..., Pump], answered: Callable[[Any], None]) -> None:
        """Let a pump that answers take its turns."""
        driven: list[Driven] = []

        def wake() -> None:
            driven[0].wake()

        driven.append(drive_of(self.machine)("answer", begin(wake, answered).turn))
        driven[0].start()

    def forget(self) -> None:
        """Drop the state of an ended process that is not on its disk."""
        if self.nats is not None:
            self.nats.forget()

    def operations(self) -> ClusterOperations:
        """Return what operators ask of this broker."""
        assert self.broker is not None, "a broker that runs"
        assert self._view is not None, "its metadata is open"
        return ClusterOperations(
            cluster="house",
            me=self.name,
            metadata=self._view,
            broker=self.broker,
            clock=self.machine,
            controllers=("house",),
        )

    def replica(self, partition_id: PartitionId) -> PartitionDriver | None:
        """Return a partition's replica, if the process lives and has it."""
        return self.log_holder(partition_id) if self.is_open else None

    def log_holder(self, partition_id: PartitionId) -> PartitionDriver | None:
        """Return a partition's replica, also while the process starts or stops."""
        if not self.machine.alive or self.broker is None:
            return None
        return self.broker.replicas.find(partition_id)
