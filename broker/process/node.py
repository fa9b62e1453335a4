"""Builds the parts that only a broker of a cluster has: link, Raft, membership."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import structlog

from broker.adapters.nats.replicas import NatsReplicaTransport
from broker.adapters.peer.control import PeerControlTransport
from broker.adapters.peer.identity import PeerAddress
from broker.adapters.peer.link import PeerLink
from broker.adapters.peer.raft import PeerRaftTransport
from broker.adapters.peer.replicas import PeerReplicaTransport
from broker.adapters.peer.writes import PeerWriteTransport
from broker.config import BrokerConfig
from broker.core.election import ElectionTiming
from broker.core.metadata.state import MetadataState
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import NewConsensus
from broker.core.raft.core import RaftCore
from broker.core.raft.voters import standing_on_disk
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.errors import HeadwaterError, InvalidConfigError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.raft import NodeId, RaftName
from broker.model.replica_messages import STANDING_MS_MIN
from broker.ports.cluster import ReplicaTransport
from broker.ports.system import Clock, Files
from broker.process.certificates import peer_files
from broker.process.cluster_samples import ClusterSamples
from broker.runtime.broker import Broker, BrokerPace
from broker.runtime.cluster.controller import Controller
from broker.runtime.cluster.member import ClusterMember, MemberSetting
from broker.runtime.cluster.membership import Membership
from broker.runtime.led import LeadListener, LedPartitions
from broker.runtime.metadata.controllers_note import note_controllers, noted_controllers
from broker.runtime.metadata.lone_journal import FOLDER
from broker.runtime.metadata.lone_takeover import take_over
from broker.runtime.metadata.raft.rejoin import ControlDesk, take_part
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.promises.promises import Promises

_log = structlog.get_logger(__name__)

TICK_MS: Final = 50
_STAND_MS: Final = 300_000  # after this a follower with nothing to fetch shows itself once more


class ClusterNode:
    """Implements ``Node`` for a broker of a cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        stopping: threading.Event,
        *,
        promises: Promises | None = None,
        on_refused: Callable[[HeadwaterError], None] | None = None,
        on_waiting: Callable[[Sequence[str]], None] = lambda _silent: None,
    ) -> None:
        """Listen, open the metadata journal, start Raft. Blocks until the other voters answered.

        ``on_refused`` is called if the cluster refuses this broker for good, ``on_waiting`` with
        the controllers that the start waits for; both on any thread.

        Raises:
            InvalidConfigError: certificates, addresses, or a folder whose broker was alone.
            ControllersLostError: a majority of the controllers has lost its disks.
            MetadataCorruptError: the metadata journal is damaged.
            ShuttingDownError: ``stopping`` was set before Raft had started.
        """
        cluster, me = config.cluster, BrokerId(config.node.id)
        _take_over(files, config, promises)
        members = {BrokerId(one): PeerAddress(*at) for one, at in cluster.members().items()}
        self.timing = follower_timing(cluster.session_ms, parks=cluster.replica_transport == "peer")
        self.limits = lag_limits(cluster.session_ms)
        self._nats_errors: dict[str, Mapping[str, int]] = {}
        self._claim_ms = config.lake.claim_timeout_ms
        self.link = PeerLink(
            cluster=config.node.cluster,
            me=me,
            listener=_listen(cluster.listen_host or members[me].host, members[me].port),
            peers=members,
            tls=peer_files(config),
            on_crash=on_crash,
        )
        self._on_refused = on_refused
        wire = PeerControlTransport(self.link)
        self._control = control = ControlDesk(wire, on_waiting=on_waiting)
        try:
            self.metadata = self._start_raft(
                config, files, clock, on_crash, stopping, promises=promises
            )
        except BaseException:
            control.close()
            self.link.close()
            raise
        timing = ElectionTiming(session_ms=cluster.session_ms)
        self.controller = Controller(
            metadata=self.metadata, control=control, clock=clock, timing=timing, on_crash=on_crash
        )
        self.member = ClusterMember(
            setting=self._member_setting(config, members, timing),
            files=files,
            metadata=self.metadata,
            control=control,
            replicas=self._replica_transport(config, members, on_crash),
            controller=self.controller,
            writes=PeerWriteTransport(self.link),
            clock=clock,
            on_crash=on_crash,
            stop_asked=stopping,
        )

    def _member_setting(
        self, config: BrokerConfig, members: Mapping[BrokerId, PeerAddress], timing: ElectionTiming
    ) -> MemberSetting:
        cluster, me = config.cluster, BrokerId(config.node.id)
        return MemberSetting(
            me=me,
            addresses=_advertised(config, members[me].host),
            replication_factor=min(cluster.replication_factor, len(members)),
            min_isr=min(cluster.min_isr, len(members)),
            timing=timing,
            following=self.timing,
            limits=self.limits,
        )

    def _replica_transport(
        self,
        config: BrokerConfig,
        members: Mapping[BrokerId, PeerAddress],
        on_crash: Callable[[BaseException], None],
    ) -> ReplicaTransport:
        if config.cluster.replica_transport == "peer":
            return PeerReplicaTransport(self.link)
        transport = NatsReplicaTransport(
            config.nats,
            cluster=config.node.cluster,
            me=self.link.me,
            brokers=members,
            on_crash=on_crash,
        )
        self._nats_errors["replication"] = transport.server_errors
        return transport

    def _start_raft(
        self,
        config: BrokerConfig,
        files: Files,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        stopping: threading.Event,
        *,
        promises: Promises | None,
    ) -> RaftMetadataLog:
        """Find out how this disk joins the group, then start Raft."""
        cluster, me = config.node.cluster, NodeId(config.node.id)
        configured, noted = config.cluster.voters(), noted_controllers(files)
        voters = noted or configured  # for a new group only: later voters are in the log
        others = sorted(set(config.cluster.members()) - set(voters))
        raft = RaftConfig(
            members=tuple(map(NodeId, voters)),
            observers=tuple(map(NodeId, others)),
            restart_grace_ms=config.cluster.restart_grace_ms,
        )
        desk = self._control
        journal = take_part(
            files,
            raft,
            desk,
            cluster=cluster,
            me=me,
            clock=clock,
            stopping=stopping,
            has_taken_part=bool(noted),
            promises=promises,
        )
        if (
            noted == (me,) != configured
            and not standing_on_disk(raft.members, journal.stored).voters
        ):
            journal.close()
            raise _only_controller(me, configured)
        note_controllers(files, voters)
        name = cast(RaftName, config.cluster.raft)  # checked when the configuration was read
        transport = PeerRaftTransport(self.link, raft=name, on_other=self._on_refused)
        metadata = RaftMetadataLog(
            files,
            raft,
            cluster=cluster,
            me=me,
            clock=clock,
            on_crash=on_crash,
            transport=transport if len(voters) + len(others) > 1 else None,
            journal=journal,
            new_core=consensus_of(config),
        )
        desk.answer_with(metadata.tell_standing)
        metadata.subscribe(_compare_controllers(configured, lambda: metadata.voters))
        return metadata

    # ------------------------------------------------------------------ see ``Node``

    @property
    def membership(self) -> Membership:
        """See ``Node.membership``."""
        return self.member

    @property
    def pace(self) -> BrokerPace:
        """See ``Node.pace``."""
        return BrokerPace(
            tick_ms=TICK_MS,
            claim_ms=self._claim_ms,
            limits=self.limits,
            timing=self.timing,
        )

    @property
    def claim_wait_ms(self) -> int:
        """See ``Node.claim_wait_ms``: this broker leads nothing yet."""
        return 0

    @property
    def complaint(self) -> str | None:
        """See ``Node.complaint``: a failure of the metadata ends the process."""
        return None

    def attach(self, broker: Broker, clock: Clock) -> ClusterSamples:
        """See ``Node.attach``."""
        self.member.attach(broker)
        samples = ClusterSamples(broker, self, me=self.link.me, clock=clock)
        samples.nats_errors = self._nats_errors
        return samples

    def start(self) -> None:
        """See ``Node.start``."""
        self.member.start()

    def listener(
        self, listener: LeadListener, on_crash: Callable[[BaseException], None]
    ) -> tuple[LeadListener, Callable[[], None]]:
        """See ``Node.listener``: the thread that applies metadata must not wait for NATS."""
        late = LateListener(listener, on_crash)
        return late, late.stop

    def hand_over(self) -> None:
        """See ``Node.hand_over``."""
        self.member.hand_over()

    def stop(self) -> None:
        """See ``Node.stop``."""
        self.member.stop()

    def close(self) -> None:
        """End Raft and the connections; the member has stopped. Blocks."""
        self._control.close()
        self.metadata.close()
        self.link.close()


def _only_controller(me: NodeId, configured: Sequence[str]) -> InvalidConfigError:
    """Return the error for a broker that was alone and is configured with other controllers."""
    return InvalidConfigError(
        f'{me} is the only controller of its cluster so far: write cluster.controllers = "{me}" at '
        "every broker; `headwater cluster controllers add` lets others vote once they follow",
        expected=me,
        found=",".join(configured),
    )


def _compare_controllers(
    configured: Sequence[str], voters: Callable[[], Sequence[str]]
) -> Callable[[int, MetadataState], None]:
    """Return a function that logs if the configuration names other controllers than the log."""
    said = set(configured)

    def look(_index: int, _state: MetadataState) -> None:
        in_force = voters()
        if set(in_force) == said:
            return
        said.clear()
        said.update(in_force)
        if said != set(configured):
            _log.warning(
                "controllers_differ",
                configured=",".join(configured),
                in_force=",".join(in_force),
                reason="cluster.controllers is for a new cluster only; the metadata says who votes",
            )

    return look


class LateListener:
    """Calls a listener on a thread of its own: the metadata's thread must not wait for NATS.

    Of each stream only the newest waiting event is passed on: an event names every partition of the
    stream that this broker leads.
    """

    def __init__(self, listener: LeadListener, on_crash: Callable[[BaseException], None]) -> None:
        """Start the thread."""
        self._listener = listener
        self._on_crash = on_crash
        self._changed = threading.Condition()
        self._waiting: dict[StreamUuid, LedPartitions] = {}  # oldest first
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="listeners", daemon=True)
        self._thread.start()

    def led_changed(self, led: LedPartitions) -> None:
        """Pass the event to the listener's thread."""
        with self._changed:
            self._waiting.pop(led.stream.uuid, None)
            self._waiting[led.stream.uuid] = led
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; blocks until every event is passed on."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _next(self) -> LedPartitions | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            return self._waiting.pop(next(iter(self._waiting))) if self._waiting else None

    def _run(self) -> None:
        while (led := self._next()) is not None:
            try:
                self._listener.led_changed(led)
            except HeadwaterError as error:
                _log.error("stream_not_served", stream=led.stream.name, reason=error.message)
            except BaseException as crash:  # noqa: BLE001 - the owner ends the process
                self._on_crash(crash)
                return


def _take_over(files: Files, config: BrokerConfig, promises: Promises | None) -> None:
    """Take over the data folder of a single broker of release 0.1; it has the whole metadata."""
    me = config.node.id
    if files.exists(FOLDER) and config.cluster.voters() != (me,):
        raise InvalidConfigError(
            "this data directory belongs to a broker that was alone: it begins a cluster as the "
            f'only controller; write cluster.controllers = "{me}" at every broker',
            expected=me,
            found=",".join(config.cluster.voters()),
        )
    take_over(files, cluster=config.node.cluster, me=NodeId(me), promises=promises)


def consensus_of(config: BrokerConfig) -> NewConsensus:
    """Return the chosen implementation of Raft; pysyncobj is imported only if it is chosen."""
    if config.cluster.raft == "own":
        return RaftCore
    from broker.adapters.raft_pysyncobj.core import PysyncobjCore  # noqa: PLC0415

    return PysyncobjCore


def lag_limits(session_ms: int) -> LagLimits:
    """Return how long a follower may lag before the leader removes it from the ISR."""
    return LagLimits(time_ms_max=session_ms * 8 // 3)


def follower_timing(session_ms: int, *, parks: bool) -> FollowerTiming:
    """Return a follower's timeouts: it notices a silent leader before its session is over.

    If the transport does not hold fetches at the leader, the leader sends notices of new data.
    """
    third = session_ms // 3
    return FollowerTiming(
        request_ms=third,
        idle_ms=third,
        wait_ms=third if parks else 0,
        leader_ms=session_ms * 4 // 5,
        stand_ms=_STAND_MS if parks and third < STANDING_MS_MIN else 0,
        call_ms=third * 4 // 5,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Who finds no place in the queue tries again after a second: late for a leader's lease.
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as cause:
        raise InvalidConfigError(f"cannot listen on {host}:{port}: {cause.strerror}") from cause


def _advertised(config: BrokerConfig, host: str) -> dict[str, str]:
    host = config.cluster.advertised_host or host
    shown = f"[{host}]" if ":" in host else host
    scheme = "grpc+tls" if config.flight.tls_cert_file else "grpc"
    addresses = {
        "flight": f"{scheme}://{shown}:{config.flight.port}",
        "http": f"{'https' if config.http.tls_cert_file else 'http'}://{shown}:{config.http.port}",
    }
    if config.liftbridge.enabled:
        told = config.liftbridge.advertised or f"{shown}:{config.liftbridge.port}"
        addresses["liftbridge"] = told
    return addresses
