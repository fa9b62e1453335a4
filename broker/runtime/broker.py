"""A broker: its parts, its start, how it follows the metadata, and its stop.

The parts implement ``BrokerApi`` for the network services and ``TierCatalog`` for tiering. The
daemon gives the broker its adapters, and a ``Membership`` that says whether it is alone or one of
several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.ports.pumps import Drive, Driven
from broker.ports.system import Clock, Files
from broker.ports.tiering import TierCatalog
from broker.runtime.activity import ActivityWriter, EncodeEvent
from broker.runtime.api.cold_tier import ColdEnds, ColdTier
from broker.runtime.api.cuts import Cuts
from broker.runtime.api.groups import Cursors, Groups
from broker.runtime.api.known_lineages import KnownLineages
from broker.runtime.api.members import Members
from broker.runtime.api.partitions import Partitions
from broker.runtime.api.pauses import Pauses
from broker.runtime.api.remote_starts import MetadataRemoteStarts
from broker.runtime.api.streams import StreamDefaults, Streams
from broker.runtime.api.tier_catalog import BrokerCatalog, TierListeners
from broker.runtime.background import Background
from broker.runtime.broker_start import BrokerStart
from broker.runtime.cluster.membership import CONFIRM_MS, Membership
from broker.runtime.cluster.promise_keeper import PromiseKeeper
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.key_compactor import KeyCompactor
from broker.runtime.led import LeadListener, LedPartitions
from broker.runtime.metadata.bounded_metadata import BoundedMetadata
from broker.runtime.metadata.metadata_log import SharedMetadata
from broker.runtime.opened_marks import OpenedMarks
from broker.runtime.partition.commit_scheduler import TurnScheduler
from broker.runtime.partition.counters import OnCommit, ignore_commit
from broker.runtime.partition.id_budget import IdBudget
from broker.runtime.partition.leadership_gate import SETTLE_MS, Claims
from broker.runtime.partition.tier_view import RecordColdEnd
from broker.runtime.pumps import on_threads, wait_for_answer
from broker.runtime.replica_folders import ReplicaFolders
from broker.runtime.replica_opener import ReplicaOpener, ReplicaSetting
from broker.runtime.stream_keys import StreamKeys
from broker.runtime.upkeep import Upkeep
from broker.storage.promises.promises import Promises

_log = structlog.get_logger(__name__)

_TICK_MS: Final = 250  # of a single broker; replicas of a cluster have shorter timers


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerName:
    """The names of this broker, its cluster and its namespace."""

    cluster: str
    broker_id: BrokerId
    namespace: str  # of the streams that are created here


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """The adapters and services that a broker works with."""

    files: Files
    metadata: SharedMetadata
    membership: Membership
    clock: Clock
    scheduler: TurnScheduler
    promises: Promises | None = None  # the maker closes them; None: the broker makes its own
    drive: Drive | None = None  # drives the pumps; None: a thread for each pump
    id_budget: IdBudget = field(default_factory=IdBudget)
    on_commit: OnCommit = ignore_commit
    keys: StreamKeys | None = None  # of encrypted streams; None: they are refused
    encode_event: EncodeEvent | None = None  # of the activity stream; None: it is not written


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPace:
    """The interval of ticks, and how long a broker waits for claims and for slow replicas."""

    tick_ms: int = _TICK_MS
    claim_ms: int = SETTLE_MS  # to wait for a claim in the lake before writes are accepted
    patience_s: float = 1.0  # to wait for a slow replica when the metadata changes
    start_s: float = 10.0  # to wait for a slow replica at the start
    limits: LagLimits | None = None
    timing: FollowerTiming | None = None


class Broker:
    """Implements ``StartedBroker``, and through its parts ``BrokerApi``."""

    def __init__(
        self, name: BrokerName, ports: BrokerParts, pace: BrokerPace | None = None
    ) -> None:
        """Connect the parts; no log is opened before :meth:`start`."""
        pace = pace or BrokerPace()
        metadata, membership, clock = ports.metadata, ports.membership, ports.clock
        self.cluster, self._me = name.cluster, name.broker_id
        self._metadata = metadata
        self._membership = membership
        self._clock = clock
        self._start_s = pace.start_s
        self._listeners: list[LeadListener] = []
        self._reconciling = threading.Lock()
        self._own_promises = ports.promises is None
        self._promises = promises = ports.promises or Promises(ports.files)
        self.tier_listeners = TierListeners()
        drive = ports.drive or on_threads(clock, ports.scheduler.on_crash)
        self._background = Background(
            tick_ms=pace.tick_ms,
            tick=lambda count: self._upkeep.tick(count),  # noqa: PLW0108 - made below
            reconcile=self.reconcile,
            drive=drive,
        )
        soon, ends = self._background.reconcile_soon, ColdEnds(metadata)
        folders = ReplicaFolders(ports.files, promises)
        setting = self._replica_setting(ports, pace, record_cold_end=ends.record)
        self.replicas = HostedPartitions(
            self._me,
            ReplicaOpener(setting, folders),
            folders,
            OpenedMarks(self._me, metadata),
            on_late=soon,
            patience_s=pace.patience_s,
        )
        self._upkeep = Upkeep(self.replicas, metadata, clock, tick_ms=pace.tick_ms)
        self._compacting = drive("compactor", KeyCompactor(self.replicas, metadata, clock).turn)
        self._keeper = PromiseKeeper(promises, self._open_what_waits, drive)
        bounded = BoundedMetadata(metadata)  # for what clients ask
        self.streams = Streams(
            bounded,
            membership,
            clock,
            defaults=StreamDefaults(
                leader=self._me,
                namespace=name.namespace,
                table_name=lambda stream: self.cold.table_name(stream),  # noqa: PLW0108 - made below
            ),
            replicas=self.replicas,
            follow=self.reconcile,
            keys=ports.keys,
        )
        self.pauses = Pauses(metadata, clock, self.streams, follow_soon=soon)
        self.cold = ColdTier(self.streams, ends)
        lineages = KnownLineages(metadata, confirm_ms=CONFIRM_MS)
        self.partitions = Partitions(metadata, membership, self.streams, self.replicas, lineages)
        self.cursors = Cursors(bounded)
        self.groups = Groups(self._me, bounded, clock)
        self.members = Members(self._me, bounded, clock, self.groups)
        self._expelling = drive("groups", self.groups.turn)
        self._activity = self._activity_writer(ports.encode_event, drive)
        self.cuts = Cuts(
            name.cluster,
            bounded,
            clock,
            streams=self.streams,
            partitions=self.partitions,
            cold=self.cold,
            ends=ends,
            lineages=lineages,
        )

    def _replica_setting(
        self, ports: BrokerParts, pace: BrokerPace, *, record_cold_end: RecordColdEnd
    ) -> ReplicaSetting:
        return ReplicaSetting(
            me=self._me,
            clock=ports.clock,
            scheduler=ports.scheduler,
            make_links=ports.membership.make_links,
            record_cold_end=record_cold_end,
            on_sealed=self.tier_listeners.sealed,
            claims=Claims(self.tier_listeners.leading, pace.claim_ms),
            id_budget=ports.id_budget,
            on_commit=ports.on_commit,
            on_idle=lambda *found: self.pauses.pause_idle(*found),  # noqa: PLW0108 - made later
            limits=pace.limits,
            timing=pace.timing,
            keys=ports.keys,
        )

    def catalog(self) -> TierCatalog:
        """Return this broker's streams as tiering sees them."""
        starts = MetadataRemoteStarts(self._metadata, self._clock)
        return BrokerCatalog(
            self.streams, self.replicas, self._metadata, self.tier_listeners, starts
        )

    # ------------------------------------------------------------------ the start

    def start(self) -> None:
        """Take a new broker epoch, recover every log, start ticking. Blocks."""
        wait_for_answer(self._clock, lambda *calls: self.starting(*calls).turn)

    def starting(
        self, wake: Callable[[], None], answered: Callable[[BrokerEpoch], None]
    ) -> BrokerStart:
        """Return the pump that starts this broker; its answer is the broker epoch."""
        if self._promises.complaint is not None:
            _log.warning("promises_incomplete", reason=self._promises.complaint)

        def started(broker_epoch: BrokerEpoch) -> None:
            self._go_on()
            answered(broker_epoch)

        return BrokerStart(
            self,
            membership=self._membership,
            hosted=self.replicas,
            patience_s=self._start_s,
            wake=wake,
            answered=started,
        )

    def _go_on(self) -> None:
        """Start the pumps: this process is registered and its logs are open."""
        self._keeper.start()
        self._background.start()
        self._expelling.start()
        self._compacting.start()
        if self._activity is not None:
            self._activity.start()

    def _activity_writer(self, encode: EncodeEvent | None, drive: Drive) -> Driven | None:
        if encode is None:
            return None
        writer = ActivityWriter(
            self._metadata, self.replicas, encode=encode, wake=self._wake_activity
        )
        return drive("activity", writer.turn)

    def _wake_activity(self) -> None:
        if self._activity is not None:
            self._activity.wake()

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """See ``StartedBroker.registered``."""
        self.replicas.registered(broker_epoch)

    def remove_leftovers(self) -> None:
        """See ``StartedBroker.remove_leftovers``: partitions deleted or moved while it was down."""
        try:
            self.replicas.remove_leftovers(self._metadata.state)
        except (HeadwaterError, OSError) as error:
            _log.warning("leftovers_kept", reason=str(error))

    def begin_leading(self) -> None:
        """See ``StartedBroker.begin_leading``: called before publishers are served."""
        ends = {
            driver.partition_id: (driver.reads.leader_epoch, driver.reads.log_end)
            for driver in self.replicas.all()
            if driver.leads and driver.health.failure is None
        }
        self._membership.begin_leading(ends)

    # ------------------------------------------------------------------ following the metadata

    def add_listener(self, listener: LeadListener) -> None:
        """Add a listener; it is called at later changes only."""
        self._listeners.append(listener)

    def open_listeners(self) -> None:
        """Tell the listeners what this broker leads at start. Blocks."""
        for led in self.replicas.led():
            self._tell(led)

    def reconcile(self, *, patience_s: float | None = None) -> None:
        """Apply the newest local metadata to the replicas; tell the listeners. Blocks.

        One caller at a time. Each caller reads the state after it has the lock. A caller with a
        state read earlier could replace a newer one in replicas and listeners.
        """
        with self._reconciling:
            found = self.replicas.reconcile(self._metadata.state, patience_s=patience_s)
            for led in found.changed:
                self._tell(led)
            if found.failure is not None:
                raise found.failure

    def _open_what_waits(self) -> None:
        if self.replicas.unopened() or self.replicas.removal_waits:
            self.reconcile()

    def _tell(self, led: LedPartitions) -> None:
        for listener in self._listeners:
            listener.led_changed(led)

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Finish queued writes and close every log. Blocks; call after the services stopped."""
        if self._activity is not None:
            self._activity.stop()
        self._expelling.stop()
        self._compacting.stop()
        self._background.stop()
        self._keeper.stop()
        closed_whole = self.replicas.close()
        if self._own_promises:
            self._promises.close()
        if closed_whole:
            self._membership.logs_closed()
