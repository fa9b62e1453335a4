"""The composition root: the only module that knows every concrete class.

Order of a start: lock the data directory, check which broker owns it, replay the metadata, recover
the logs, start tiering, listen. A stop is the reverse, so that every accepted record is answered,
synced and closed before the process ends. After a bug the process ends at once and writes nothing
more, because its memory may be wrong. The file is not split: it is one start and one stop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from broker.adapters.clock import SystemClock
from broker.adapters.disk.files import DiskFiles
from broker.adapters.flight.service import FlightService
from broker.adapters.http.health import HealthServer
from broker.adapters.nats.liftbridge_messages import decode_publish, encode_ack
from broker.adapters.nats.transport import NatsTransport
from broker.config import BrokerConfig, watches_files
from broker.errors import (
    HeadwaterError,
    InvalidConfigError,
    RemoteTierUnavailableError,
    ShuttingDownError,
)
from broker.model.ids import BrokerId
from broker.model.table_credentials import StorePlace
from broker.process.access import (
    make_access,
    metrics_guard,
    no_grants_yet,
    read_files,
    read_policy,
    reply_rule,
    require_guarded,
)
from broker.process.activity import begin_activity, encode_event
from broker.process.allocator import keep_freed_memory
from broker.process.audit import begin_audit
from broker.process.certificates import Certificates
from broker.process.descriptors import SPARES, DescriptorBudget, limit_here
from broker.process.encryption import stream_keys
from broker.process.exit_codes import EXIT_CONFIG, EXIT_CRASH, EXIT_OK
from broker.process.flight import flight_service_config
from broker.process.freed_memory import memory_given_back
from broker.process.ingest_bridge import IngestBridge
from broker.process.liftbridge import start_liftbridge
from broker.process.logging import configure_logging
from broker.process.lone_node import LoneNode, Node
from broker.process.metrics import CONTENT_TYPE, BrokerMetrics
from broker.process.node import ClusterNode
from broker.process.samples import BrokerSamples, limits_sample
from broker.process.start_failure import say_failed
from broker.process.table_credentials import vended_credentials
from broker.process.watched_files import Watched, WatchedFiles
from broker.runtime.api.access import Access
from broker.runtime.api.table_credentials import VendedCredentials
from broker.runtime.audit import Audit
from broker.runtime.broker import Broker, BrokerName, BrokerParts
from broker.runtime.cluster.identity import claim_directory
from broker.runtime.ingest.nats_ingest import NatsIngest
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.runtime.operations import ClusterOperations
from broker.runtime.partition.commit_scheduler import CommitScheduler
from broker.runtime.partition.id_budget import IdBudget
from broker.runtime.process_end import end_process
from broker.storage.cached_files import CachedFiles
from broker.storage.promises.promises import Promises
from broker.storage.stream_folders import STREAMS
from broker.turns import paced_turns
from tiering.config import TieringConfig
from tiering.keys.snapshot import key_snapshot_uri
from tiering.read.lake import Lake
from tiering.store.fence import Fence
from tiering.store.location import StoreConfig
from tiering.tiering import Tiering

if TYPE_CHECKING:
    from broker.adapters.access.casbin_policy import CasbinFiles
    from broker.adapters.liftbridge.service import LiftbridgeService

_log = structlog.get_logger(__name__)
_STARTING: Final = "recovering, or waiting for a majority of the controllers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAddresses:
    """Where a running broker can be reached."""

    flight_port: int
    http_port: int
    liftbridge_port: int | None  # None: Liftbridge's API is off
    nats_url: str
    lake_uri: str


def run(
    config: BrokerConfig,
    *,
    on_ready: Callable[[ServingAddresses], None] | None = None,
    on_stopping: Callable[[], None] | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Run a broker until SIGINT, SIGTERM or ``stop``; return the exit code. Blocks.

    ``on_ready`` is called with the addresses when the broker serves, ``on_stopping`` when it begins
    to stop. Signals are handled only if this runs on the main thread.
    """
    if not __debug__:
        raise InvalidConfigError("Headwater's invariants are asserts: do not run it with -O")
    configure_logging(level=config.log.level, format=config.log.format)  # type: ignore[arg-type]
    keep_freed_memory()
    try:
        with paced_turns(), memory_given_back():
            return asyncio.run(_Daemon(config, on_ready, on_stopping, stop).run())
    except HeadwaterError as error:
        say_failed(error)
        return EXIT_CONFIG


class _Daemon:
    """One run of a broker. Owner: its event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        on_ready: Callable[[ServingAddresses], None] | None,
        on_stopping: Callable[[], None] | None,
        stop: threading.Event | None,
    ) -> None:
        self._config = config
        self._on_ready = on_ready
        self._on_stopping = on_stopping
        self._external_stop = stop
        self._stopping = asyncio.Event()
        self._stop_asked = threading.Event()  # the same, for threads that wait for other brokers
        self._exit_code = EXIT_OK
        self._not_ready: str | None = _STARTING
        self._metrics: BrokerMetrics | None = None
        self._samples: BrokerSamples | None = None
        self._lake: Lake | None = None
        self._node: Node | None = None
        self._missing: list[Callable[[], str | None]] = []  # e.g. NATS
        self._undo: list[Callable[[], object]] = []  # blocking, last first
        self._metrics_guard: Callable[[str | None, str | None, str], None] = no_grants_yet
        if not config.access.enabled:
            self._metrics_guard = lambda *_: None
        self._certificates = Certificates(SystemClock())
        self._watched: list[Watched] = [self._certificates]
        self._files = WatchedFiles(self._watched, SystemClock(), self._crashed)
        self._relieve: Callable[[], None] = lambda: None  # break idle connections now

    async def run(self) -> int:
        """Start, serve, stop."""
        self._loop = asyncio.get_running_loop()
        self._watch_signals()
        try:
            await self._start()
            self._not_ready = None
            await self._stopping.wait()
        except HeadwaterError as error:
            if not isinstance(error, ShuttingDownError) or not self._stopping.is_set():
                self._exit_code = EXIT_CONFIG
                raise  # else the broker was stopped while it waited for the other controllers
        finally:
            self._not_ready = "shutting down"
            _log.info("broker_stopping")
            if self._on_stopping is not None:
                self._on_stopping()
            for undo in reversed(self._undo):
                await asyncio.to_thread(undo)
            _log.info("broker_stopped", exit_code=self._exit_code)
        return self._exit_code

    async def _start(self) -> None:
        config = self._config
        for one in require_guarded(config):
            _log.warning("insecure", reason=one, because="access.insecure = true")
        policy = await asyncio.to_thread(self._watch_files)
        # Before the other controllers are waited for: their operator needs this broker's token.
        authenticators = await asyncio.to_thread(read_files, config.access)
        self._watched.extend(one for one in authenticators if isinstance(one, Watched))
        files, directory, promises = await asyncio.to_thread(self._open_data_dir)
        health = self._start_health()
        clock = SystemClock()
        self._node = node = await asyncio.to_thread(self._open_node, files, clock, promises)
        self._undo.append(node.close)
        scheduler = CommitScheduler(config.node.commit_threads, self._crashed)
        scheduler.start()
        self._undo.append(scheduler.stop)
        broker = Broker(
            BrokerName(
                cluster=config.node.cluster,
                broker_id=BrokerId(config.node.id),
                namespace=config.node.namespace,
            ),
            BrokerParts(
                files=files,
                metadata=node.metadata,
                membership=node.membership,
                clock=clock,
                scheduler=scheduler,
                promises=promises,
                on_commit=self._commit_done,
                id_budget=IdBudget(config.node.message_ids_bytes_max),
                keys=stream_keys(config.encryption, clock),
                encode_event=encode_event,
            ),
            node.pace,
        )
        tiering = await asyncio.to_thread(self._make_tiering, broker, clock)
        self._undo.append(broker.stop)
        self._samples = samples = BrokerSamples(broker, tiering)
        samples.certificates = self._certificates.samples
        self._metrics = BrokerMetrics(
            samples, broker_id=config.node.id, version=installed_version()
        )
        samples.cluster = node.attach(broker, clock)
        self._undo.append(node.stop)
        await asyncio.to_thread(_start_broker, broker, tiering, claim_ms=node.claim_wait_ms)
        node.start()
        if tiering is not None:
            tiering.start()
            self._undo.append(tiering.stop)
        await self._start_ingest(broker, samples, node)
        access = make_access(config, authenticators, node.metadata, clock, policy)
        samples.usage = access.usage
        audit = begin_audit(config, broker, clock, self._crashed, self._undo)
        self._metrics_guard = metrics_guard(access, audit)
        flight = self._start_flight(broker, node, clock, access, audit)
        samples.limits = partial(limits_sample, self._budget, files, flight)
        liftbridge = await self._start_liftbridge(broker, clock, access, audit, samples)
        if config.node.activity_stream:
            self._undo.append(begin_activity(broker, clock, self._crashed))
        self._undo.append(node.hand_over)
        addresses = ServingAddresses(
            flight_port=flight.port,
            http_port=health.port,
            liftbridge_port=None if liftbridge is None else liftbridge.port,
            nats_url=config.nats.url,
            lake_uri=config.lake.uri,
        )
        self._say_ready(addresses, directory, streams_count=len(broker.streams.all()))

    def _watch_files(self) -> CasbinFiles | None:
        """Begin to look at files that may change; return the policy in files, if there is one."""
        policy = read_policy(self._config.access)
        if policy is not None:
            self._watched.append(policy)
        self._files.start()  # before others are waited for: the certificates may have expired
        self._undo.append(self._files.stop)
        return policy

    async def _start_liftbridge(
        self,
        broker: Broker,
        clock: SystemClock,
        access: Access,
        audit: Audit | None,
        samples: BrokerSamples,
    ) -> LiftbridgeService | None:
        return await start_liftbridge(
            self._config,
            broker,
            clock,
            not_ready=self._reason,
            on_crash=self._crashed,
            undo=self._undo,
            nats_errors=samples.nats_errors,
            connections_max=max(1, self._budget.liftbridge),
            certificates=self._certificates,
            access=access,
            audit=audit,
        )

    def _start_flight(
        self, broker: Broker, node: Node, clock: SystemClock, access: Access, audit: Audit | None
    ) -> FlightService:
        config = self._config
        self._certificates.of_flight(config.flight)
        flight = FlightService(
            broker,
            clock,
            flight_service_config(
                config.flight, nats_url=config.nats.url, connections_max=self._budget.flight
            ),
            operations=_operations(config, broker, node.metadata, clock, self._cannot_reach),
            access=access,
            audit=audit,
            credentials=self._credentials_of(broker),
        )
        flight.start()
        self._undo.append(flight.close)
        self._relieve = flight.relieve
        return flight

    def _credentials_of(self, broker: Broker) -> VendedCredentials | None:
        lake = self._lake
        if lake is None:
            return None
        at = lake.config
        place = StorePlace(endpoint=at.endpoint, region=at.region, path_style=at.path_style)
        return vended_credentials(self._config, broker, partial(key_snapshot_uri, lake), place)

    def _say_ready(
        self, addresses: ServingAddresses, directory: str, *, streams_count: int
    ) -> None:
        _log.info(
            "broker_started",
            directory=directory,
            flight_port=addresses.flight_port,
            http_port=addresses.http_port,
            streams_count=streams_count,
        )
        if self._on_ready is not None:
            self._on_ready(addresses)

    def _open_data_dir(self) -> tuple[CachedFiles, str, Promises]:
        """Lock the data directory, check which broker owns it, and open its promises."""
        node = self._config.node
        self._budget = budget = DescriptorBudget.of(limit_here(raised=True), self._config)
        _log.info("descriptor_budget", **dataclasses.asdict(budget))
        disk = DiskFiles(Path(node.data_dir), spare_descriptors=SPARES)
        self._undo.append(disk.close)
        files = CachedFiles(
            disk,
            open_max=budget.files,
            below=STREAMS,
            pause=time.sleep,
            on_shortage=self._short_of_descriptors,
        )
        directory = claim_directory(files, cluster=node.cluster, broker_id=node.id)
        promises = Promises(files, directory)
        self._undo.append(promises.close)
        return files, directory, promises

    def _short_of_descriptors(self) -> None:
        """Break idle connections now, as far as there are too many; any thread."""
        self._relieve()

    def _open_node(self, files: CachedFiles, clock: SystemClock, promises: Promises) -> Node:
        """Open the metadata, alone or as one of several."""
        config = self._config
        if not config.cluster.brokers:
            return LoneNode(config, files, clock, self._crashed, promises=promises)
        node = ClusterNode(
            config,
            files,
            clock,
            self._crashed,
            self._stop_asked,
            promises=promises,
            on_refused=self._refused,
            on_waiting=self._waits_for,
        )
        self._certificates.of_peers(config, node.link)
        return node

    def _waits_for(self, controllers: Sequence[str]) -> None:
        """Tell probes for whom the start waits; any thread."""
        names = ", ".join(controllers)
        self._not_ready = f"waiting for the other controllers: {names}" if names else _STARTING

    def _make_tiering(self, broker: Broker, clock: SystemClock) -> Tiering | None:
        lake_config = self._config.lake
        if not lake_config.uri:
            return None
        encryption = self._config.encryption
        location = replace(
            StoreConfig.from_env(lake_config.uri, single_writer=lake_config.single_writer),
            key_provider=encryption.provider,
            keyring_file=encryption.keyring_file,
            kms_key_id=encryption.kms_key_id,
        )
        self._lake = lake = Lake.open(location, cluster=self._config.node.cluster)
        fence = Fence(lake.require_fence, clock)
        try:
            fence.require()
        except RemoteTierUnavailableError as error:
            _log.warning(
                "lake_unreachable",
                reason=error.message,
                effect="claims, shipping and reads of the tables wait until it answers",
            )
        tiering = Tiering(
            lake,
            broker.catalog(),
            clock,
            TieringConfig(
                check_interval_ms=lake_config.check_interval_ms,
                expiry_interval_ms=lake_config.expiry_interval_ms,
                upload_timeout_ms=lake_config.upload_timeout_ms,
                broker=self._config.node.id,
            ),
            observer=self._tier_event,
            fence=fence.require,
        )
        self._missing.append(lambda: _lake_complaint(lake.uri, fence.error, tiering.unreachable()))
        broker.cold.attach(tiering)
        return tiering

    def _start_health(self) -> HealthServer:
        """Answer health probes from the start: a controller may wait long for the others."""
        health = HealthServer(
            host=self._config.http.host,
            port=self._config.http.port,
            metrics=lambda: b"" if self._metrics is None else self._metrics.render(),
            metrics_content_type=CONTENT_TYPE,
            not_ready_reason=self._reason,
            missing=self._cannot_reach,
            guard=lambda *asked: self._metrics_guard(*asked),  # noqa: PLW0108 - set later
            tls=self._certificates.of_door("http", self._config.http),
        )
        health.start()
        self._undo.append(health.stop)
        return health

    def _reason(self) -> str | None:
        """Return why the broker is not ready; None if it is."""
        if self._not_ready is not None or self._samples is None or self._node is None:
            return self._not_ready
        return self._samples.failure() or self._node.complaint

    def _cannot_reach(self) -> list[str]:
        """Return a sentence for each outside system that cannot be reached now. Any thread."""
        told = [complaint() for complaint in list(self._missing)]
        return [one for one in told if one is not None]

    async def _start_ingest(self, broker: Broker, samples: BrokerSamples, node: Node) -> None:
        if not self._config.nats.url:
            return
        ingest = NatsIngest(
            clock=SystemClock(),
            decode_publish=decode_publish,
            encode_ack=encode_ack,
            takes_answers=reply_rule(self._config, node.metadata),
        )
        transport = NatsTransport(
            self._config.nats,
            client_name=f"headwater-{self._config.node.id}",
            sink=ingest,
            on_crash=self._crashed,
        )
        ingest.attach(transport)
        self._missing.append(lambda: transport.complaint)
        await ingest.start(must_connect=False)
        samples.ingest = ingest
        samples.nats_errors["ingest"] = transport.counters.server_errors
        bridge = IngestBridge(ingest, broker.replicas, self._loop)
        self._undo.append(bridge.stop)
        listener, end = node.listener(bridge, self._crashed)
        self._undo.append(end)
        broker.add_listener(listener)
        await asyncio.to_thread(broker.open_listeners)

    def _tier_event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Log an event of tiering; any thread."""
        log_tiering(event, facts)
        if event == "segments_shipped" and self._metrics is not None:
            self._metrics.observe_shipment(seconds=facts["elapsed_ms"] / 1000)

    def _commit_done(self, seconds: float, records_count: int) -> None:
        """Count one group commit; on a commit thread."""
        if self._metrics is not None:
            self._metrics.observe_commit(seconds=seconds, records_count=records_count)

    def _watch_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._ask_to_stop)
            if watches_files(self._config):  # else a terminal that is closed ends the broker
                self._loop.add_signal_handler(signal.SIGHUP, self._files.look_now)
        external = self._external_stop
        if external is not None:

            def relay() -> None:
                external.wait()
                self._loop.call_soon_threadsafe(self._ask_to_stop)

            threading.Thread(target=relay, name="stop-relay", daemon=True).start()

    def _ask_to_stop(self) -> None:
        self._stop_asked.set()
        self._stopping.set()

    def _refused(self, error: HeadwaterError) -> None:
        """Note, on any thread, that the cluster refuses this broker for good."""
        end_process(EXIT_CONFIG, lambda: say_failed(error))

    def _crashed(self, crash: BaseException) -> None:
        """End the process at once because of a bug; any thread."""
        end_process(EXIT_CRASH, lambda: _log.error("broker_crashed", exc_info=crash))


def _operations(
    config: BrokerConfig,
    broker: Broker,
    metadata: RaftMetadataLog,
    clock: SystemClock,
    missing: Callable[[], list[str]],
) -> ClusterOperations:
    return ClusterOperations(
        cluster=config.node.cluster,
        me=BrokerId(config.node.id),
        metadata=metadata,
        broker=broker,
        clock=clock,
        controllers=config.cluster.voters(),
        controller=lambda: metadata.leader,
        voters=metadata,
        missing=missing,
    )


def _lake_complaint(uri: str, *errors: HeadwaterError | None) -> str | None:
    """Return why the lake cannot be used: it does not answer, or refuses writes. None if it can."""
    error = next((one for one in errors if one is not None), None)
    return None if error is None else f"the lake at {uri}: {error.message}"


def log_tiering(event: str, facts: Mapping[str, Any]) -> None:
    """Log an event of tiering. Of failures in a row only the first is a warning; any thread."""
    if event == "tier_failed" and facts["failures"] == 1:
        _log.warning("tier_failed", **facts)
    elif event == "object_put_again":
        _log.warning("object_put_again", **facts)
    elif event == "tier_crashed":
        _log.error("tier_crashed", **facts)
    elif event == "claim_crashed":
        _log.error("claim_crashed", **facts)
    else:
        _log.info(event, **facts)


def _start_broker(broker: Broker, tiering: Tiering | None, *, claim_ms: int) -> None:
    """Start the broker; without a lake, only if neither the disk nor the metadata has a table.

    Returns when the leaderships of this broker are claimed in the lake, or after ``claim_ms``.
    """
    if tiering is None:
        _require_no_table(broker)
    broker.start()
    if tiering is None:
        _require_no_table(broker)
    else:
        tiering.await_claims(claim_ms)


def installed_version() -> str:
    """Return the version of the installed package; empty if the source was never installed."""
    try:
        return metadata.version("headwater")
    except metadata.PackageNotFoundError:
        return ""


def _require_no_table(broker: Broker) -> None:
    """Refuse to run without the lake that holds records: reads would begin above them."""
    tiered = [stream.name for stream in broker.streams.in_tables()]
    if tiered:
        raise InvalidConfigError(
            f"records of {', '.join(tiered[:10])}{' and others' if tiered[10:] else ''} are in "
            "tables, and lake.uri (HEADWATER_LAKE_URI) is empty; set it to where the tables are",
            streams=tiered[:10],
        )
