"""A log that cannot be opened: it holds its place, serves nothing and says why."""

from __future__ import annotations

from broker.errors import HeadwaterError
from broker.model.ids import PartitionId
from broker.ports.system import Files
from broker.storage.log.config import LogConfig
from broker.storage.log.partition_log import PartitionLog
from broker.storage.log_folder import LogFolder
from broker.storage.promises.log_promise import LogPromise
from broker.storage.promises.lost_log import unreadable
from broker.storage.promises.promises import ReplicaPromise


def unreadable_log(
    files: Files,
    folder: str,
    partition_id: PartitionId,
    config: LogConfig,
    *,
    promise: ReplicaPromise | None,
    error: HeadwaterError,
) -> PartitionLog:
    """Return a log whose whole range is damaged, for a log that ``PartitionLog.open`` refused."""
    place, own = LogFolder(files, folder, partition_id), LogPromise(promise)
    found = unreadable(place, own.known(held=True), error.message)
    return PartitionLog(place, config, found, own)
