"""The folders of the logs on this broker: open, replace, remove, or move aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.core.metadata.leftovers import Belongs, where_belongs
from broker.core.metadata.state import MetadataState
from broker.errors import CorruptDataError, LogFailedError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.ports.system import Files
from broker.runtime.partition.local_log import BeginLog
from broker.storage.log.disk_errors import closed_after_error
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log.replacement import replace_log
from broker.storage.log.unreadable_log import unreadable_log
from broker.storage.promises.promises import Promises
from broker.storage.stream_folders import (
    log_folder,
    newest_epoch,
    stored_numbers,
    stored_partitions,
    stream_folder,
)

_log = structlog.get_logger(__name__)

_ASIDE: Final = "damaged"
_UNKNOWN: Final = "unknown"


class ReplicaFolders:
    """One thread at a time: the one that reconciles."""

    def __init__(self, files: Files, promises: Promises) -> None:
        """Work in ``files``; ``promises`` has how far each log must reach."""
        self._files = files
        self._promises = promises
        self._broker_epoch = BrokerEpoch(0)
        self._unknown: list[str] = []  # new folders of logs that the metadata does not know

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Set the broker epoch for the names of folders that are moved aside from now on."""
        self._broker_epoch = broker_epoch

    # ------------------------------------------------------------------ opening

    def open_log(self, partition_id: PartitionId, config: LogConfig, *, held: bool) -> PartitionLog:
        """Open a log. A log that cannot be read is damaged; the other logs are not affected."""
        folder = log_folder(partition_id)
        promise = self._promises.replica(partition_id)
        try:
            return PartitionLog.open(
                self._files, folder, partition_id, config, promise=promise, held=held
            )
        except (CorruptDataError, LogFailedError) as error:
            _log.error("replica_unreadable", partition=str(partition_id), reason=error.message)
            return unreadable_log(
                self._files, folder, partition_id, config, promise=promise, error=error
            )

    def beginner(self, partition_id: PartitionId, config: LogConfig) -> BeginLog:
        """Return what replaces the log of a partition by an empty one."""
        folder = log_folder(partition_id)

        def begin_log(start: Offset, epochs: EpochHistory, producers: bytes) -> PartitionLog:
            promise = self._promises.replica(partition_id)
            replace_log(
                self._files,
                folder,
                partition_id,
                start=start,
                epochs=epochs,
                producers=producers,
                promise=promise,
            )
            log = PartitionLog.open(self._files, folder, partition_id, config, promise=promise)
            with closed_after_error(log.close):
                self._promises.sync()
            return log

        return begin_log

    def sync_promises(self) -> None:
        """Make the promises of the opened logs durable."""
        self._promises.sync()

    # ------------------------------------------------------------------ removing

    def remove(self, partition_id: PartitionId) -> None:
        """Remove the log of a removed replica, and then its promise."""
        uuid = partition_id.stream_uuid
        self._files.remove_folder(log_folder(partition_id))
        if not stored_numbers(self._files, uuid):  # no other local partition
            self._files.remove_folder(stream_folder(uuid))
            _log.info("stream_removed", stream_uuid=uuid)
        self._promises.replica(partition_id).remove()

    def set_aside(self, partition_id: PartitionId) -> None:
        """Move a damaged log aside, so that it can be examined."""
        aside = None
        if self._files.exists(log_folder(partition_id)):
            aside = self._move(partition_id, _ASIDE)
        # After the move: without a promise a damaged log would pass for a whole one.
        self._promises.replica(partition_id).renew()
        _log.error("damaged_log_set_aside", partition=str(partition_id), folder=aside)

    def remove_leftovers(
        self, state: MetadataState, me: BrokerId, *, is_open: Callable[[PartitionId], bool]
    ) -> None:
        """Remove what was deleted, or moved to other brokers, while this broker was down.

        ``state`` is confirmed. A log whose stream the state neither has nor remembers as
        deleted, or whose partition the stream does not have, is moved aside instead, because the
        whole cluster's metadata may be older than the log. The same is done with a log that the
        state places on other brokers, if it has records of a leader epoch that the state does not
        have.
        """
        stored = stored_partitions(self._files)
        for partition_id in sorted({*stored, *self._promises.replicas()}):
            if is_open(partition_id):
                continue  # the next reconcile has the newer state
            belongs = where_belongs(state, partition_id, me)
            if belongs is Belongs.HERE:
                continue
            if belongs is Belongs.DELETED or self._is_elsewhere(state, partition_id, belongs):
                self.remove(partition_id)
                _log.info("leftover_removed", partition=str(partition_id))
            elif partition_id in stored:
                folder = self._move(partition_id, _UNKNOWN)
                _log.error("unknown_log_set_aside", partition=str(partition_id), folder=folder)
                self._unknown.append(folder)
        if kept := self._files.list(_UNKNOWN):
            _log.warning("unknown_logs_kept", folder=_UNKNOWN, logs=kept[:10], count=len(kept))

    @property
    def complaint(self) -> str | None:
        """The complaint about logs that the metadata does not know, if the start found any."""
        if not self._unknown:
            return None
        return (
            f"logs that the metadata does not know were moved to {self._unknown[0]}"
            f"{' and others' if self._unknown[1:] else ''}: the metadata may be an older copy"
        )

    def _is_elsewhere(
        self, state: MetadataState, partition_id: PartitionId, belongs: Belongs
    ) -> bool:
        """Tell whether other brokers hold the log and the metadata has its newest leader epoch."""
        if belongs is not Belongs.ELSEWHERE:
            return False
        epoch = newest_epoch(self._files, partition_id)
        row = state.partitions[partition_id.stream_uuid][partition_id.number]
        return epoch is not None and epoch <= row.leader_epoch

    def _move(self, partition_id: PartitionId, aside: str) -> str:
        """Move a log durably to a folder that is never opened; return that folder."""
        folder = f"{aside}/{partition_id.stream_uuid}-{partition_id.number}-{self._broker_epoch}"
        self._files.make_folder(aside)
        self._files.replace(log_folder(partition_id), folder)
        self._files.sync_folder(aside)
        self._files.sync_folder(stream_folder(partition_id.stream_uuid))
        return folder
