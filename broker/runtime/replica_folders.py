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
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log.replacement import replace_log
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
    """One thread at a time: whoever reconciles."""

    def __init__(self, files: Files, promises: Promises) -> None:
        """Work in ``files``; ``promises`` say what each log has to hold."""
        self._files = files
        self._promises = promises
        self._broker_epoch = BrokerEpoch(0)
        self._unknown: list[str] = []  # where logs are now that nobody knows of

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Name what is moved aside after this broker epoch from now on."""
        self._broker_epoch = broker_epoch

    # ------------------------------------------------------------------ opening

    def open_log(self, partition_id: PartitionId, config: LogConfig, *, held: bool) -> PartitionLog:
        """Open a log; one that the disk does not give is damaged, and no other suffers for it."""
        folder = log_folder(partition_id)
        promise = self._promises.replica(partition_id)
        try:
            return PartitionLog.open(
                self._files, folder, partition_id, config, promise=promise, held=held
            )
        except (CorruptDataError, LogFailedError) as error:
            _log.error("replica_unreadable", partition=str(partition_id), reason=error.message)
            return PartitionLog.unreadable(
                self._files, folder, partition_id, config, promise=promise, error=error
            )

    def beginner(self, partition_id: PartitionId, config: LogConfig) -> BeginLog:
        """Return what replaces the log of a partition by an empty one."""
        folder = log_folder(partition_id)

        def begin_log(start: Offset, epochs: EpochHistory) -> PartitionLog:
            promise = self._promises.replica(partition_id)
            replace_log(
                self._files, folder, partition_id, start=start, epochs=epochs, promise=promise
            )
            log = PartitionLog.open(self._files, folder, partition_id, config, promise=promise)
            self._promises.sync()
            return log

        return begin_log

    def sync_promises(self) -> None:
        """Make the promises of what was opened durable."""
        self._promises.sync()

    # ------------------------------------------------------------------ removing

    def remove(self, partition_id: PartitionId) -> None:
        """Remove a log that is not held any more, and after it what was promised of it."""
        uuid = partition_id.stream_uuid
        self._files.remove_folder(log_folder(partition_id))
        if not stored_numbers(self._files, uuid):  # else others belong here: open, or waiting
            self._files.remove_folder(stream_folder(uuid))
            _log.info("stream_removed", stream_uuid=uuid)
        self._promises.replica(partition_id).remove()

    def set_aside(self, partition_id: PartitionId) -> None:
        """Move a damaged log away, for whoever wants to look at it."""
        aside = None
        if self._files.exists(log_folder(partition_id)):
            aside = self._move(partition_id, _ASIDE)
        # After it: a damaged log must not be believed because nothing is promised.
        self._promises.replica(partition_id).renew()
        _log.error("damaged_log_set_aside", partition=str(partition_id), folder=aside)

    def remove_leftovers(
        self, state: MetadataState, me: BrokerId, *, is_open: Callable[[PartitionId], bool]
    ) -> None:
        """Remove what was deleted, or moved to other brokers, while this broker was down.

        ``state`` is confirmed. A log of which it neither knows nor remembers the deletion is moved
        aside instead: perhaps the whole cluster's metadata is older than this log. So is one that
        is said to be elsewhere, and has records of a leader of whom nothing is known.
        """
        stored = stored_partitions(self._files)
        for partition_id in sorted({*stored, *self._promises.replicas()}):
            if is_open(partition_id):
                continue  # a newer state is for the next reconcile
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
        """What was found at start that nobody knows of, if anything was."""
        if not self._unknown:
            return None
        return (
            f"logs of streams that the metadata does not know were moved to {self._unknown[0]}"
            f"{' and others' if self._unknown[1:] else ''}: the metadata may be older than they"
        )

    def _is_elsewhere(
        self, state: MetadataState, partition_id: PartitionId, belongs: Belongs
    ) -> bool:
        """Tell whether others have what a log holds: the metadata is not older than the log."""
        if belongs is not Belongs.ELSEWHERE:
            return False
        epoch = newest_epoch(self._files, partition_id)
        row = state.partitions[partition_id.stream_uuid][partition_id.number]
        return epoch is not None and epoch <= row.leader_epoch

    def _move(self, partition_id: PartitionId, aside: str) -> str:
        """Move a log to where nobody opens it, durably; return where it is now."""
        folder = f"{aside}/{partition_id.stream_uuid}-{partition_id.number}-{self._broker_epoch}"
        self._files.make_folder(aside)
        self._files.replace(log_folder(partition_id), folder)
        self._files.sync_folder(aside)
        self._files.sync_folder(stream_folder(partition_id.stream_uuid))
        return folder
