"""Opens one replica: its log, and the driver over it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from broker.core.metadata.state import PartitionState
from broker.core.replication.follower import FollowerTiming
from broker.core.replication.isr import LagLimits
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.stream import Stream
from broker.ports.system import Clock
from broker.runtime.partition.commit_scheduler import TurnScheduler
from broker.runtime.partition.context import (
    OpenedLog,
    PartitionNotices,
    PartitionPorts,
    StreamPartition,
)
from broker.runtime.partition.counters import OnCommit
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.id_budget import IdBudget
from broker.runtime.partition.leadership_gate import Claims
from broker.runtime.partition.local_log import log_config
from broker.runtime.partition.replica_shell import ReplicaIdentity, ReplicaLinks
from broker.runtime.partition.tier_view import RecordColdEnd
from broker.runtime.replica_folders import ReplicaFolders
from broker.runtime.stream_keys import StreamKeys, require_keys
from broker.storage.log.partition_log import PartitionLog

_log = structlog.get_logger(__name__)

MakeLinks = Callable[[Stream, PartitionId], ReplicaLinks]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetting:
    """The parts that all replicas on this broker share."""

    me: BrokerId
    clock: Clock
    scheduler: TurnScheduler
    make_links: MakeLinks
    record_cold_end: RecordColdEnd
    on_sealed: Callable[[PartitionId], None]
    on_commit: OnCommit
    on_idle: Callable[[PartitionId, LeaderEpoch], None]
    claims: Claims | None = None  # of leaderships of tiered streams
    id_budget: IdBudget = field(default_factory=IdBudget)
    limits: LagLimits | None = None
    timing: FollowerTiming | None = None
    keys: StreamKeys | None = None  # None: this broker serves no encrypted stream


class ReplicaOpener:
    """One thread at a time: the one that reconciles."""

    def __init__(self, setting: ReplicaSetting, folders: ReplicaFolders) -> None:
        """Open logs in ``folders``; call :meth:`registered` before the first."""
        self._setting = setting
        self._folders = folders
        self._broker_epoch = BrokerEpoch(0)

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Set the broker epoch under which this process opens replicas from now on."""
        self._broker_epoch = broker_epoch

    def open(self, partition: StreamPartition, row: PartitionState) -> PartitionDriver:
        """Open the log of a partition and return its driver; ``row`` is its metadata state.

        Raises:
            HeadwaterError: a new log has no room.
            EncryptionKeyError, KeyProviderUnavailableError: the stream is encrypted and a data key
                cannot be used; the log is not touched.
        """
        stream, partition_id, setting = partition.stream, partition.partition_id, self._setting
        if stream.is_encrypted:
            require_keys(setting.keys, stream)
        config = log_config(stream.config)
        log = self._folders.open_log(partition_id, config, held=setting.me in row.opened)
        try:
            driver = self._driver_of(partition, row, log)
        except BaseException:  # for example no free descriptor: the next try opens it again
            with suppress(HeadwaterError):
                log.close()
            raise
        _log.info(
            "partition_recovered",
            stream=stream.name,
            partition=partition.number,
            log_start=log.log_start,
            log_end=log.log_end,
            leader_epoch=row.leader_epoch,
            recovery=str(log.recovery),
        )
        return driver

    def _driver_of(
        self, partition: StreamPartition, row: PartitionState, log: PartitionLog
    ) -> PartitionDriver:
        stream, partition_id, setting = partition.stream, partition.partition_id, self._setting
        config = log_config(stream.config)
        driver = PartitionDriver(
            partition,
            OpenedLog(
                log=log,
                begin_log=self._folders.beginner(partition_id, config),
                cold_end=row.cold_end,
                purged_end=row.purged_end,
                remote_start=row.remote_start,
                lineage=row.lineage,
            ),
            ReplicaIdentity(
                me=setting.me,
                broker_epoch=self._broker_epoch,
                limits=setting.limits,
                timing=setting.timing,
            ),
            PartitionPorts(
                clock=setting.clock,
                scheduler=setting.scheduler,
                links=setting.make_links(stream, partition_id),
                id_budget=setting.id_budget,
                keys=setting.keys,
            ),
            PartitionNotices(
                record_cold_end=setting.record_cold_end,
                on_sealed=setting.on_sealed,
                on_commit=setting.on_commit,
                on_idle=setting.on_idle,
                claims=setting.claims,
            ),
        )
        if row.replicas == (setting.me,):
            driver.health.refuse_if_replaced()
        return driver
