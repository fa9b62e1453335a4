"""Replaces a log by an empty one that begins at a later offset."""

from __future__ import annotations

from broker.codec.disk.log_state_format import encode_epochs, encode_producer_state
from broker.model.epoch_history import EpochHistory
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.ports.system import Files
from broker.storage.log.producer_state import KINDS
from broker.storage.log_folder import EPOCHS_NAME, LogFolder, cannot_open
from broker.storage.promises.log_promise import LogPromise
from broker.storage.promises.promises import ReplicaPromise


def replace_log(
    files: Files,
    folder: str,
    partition_id: PartitionId,
    *,
    start: Offset,
    epochs: EpochHistory,
    producers: bytes,
    promise: ReplicaPromise | None = None,
) -> None:
    """Replace the log in ``folder`` by an empty log that begins at ``start``.

    ``epochs`` and ``producers`` are the epochs and the producers' state of the records before
    ``start``. The log must not be open. The promise is renewed first. A crash may leave no log, but
    never a log without its epochs or producers: whoever has no log begins it anew again.

    Raises:
        DiskFullError: there is no room for the new log; the old log is gone.
        LogFailedError: the disk failed.
    """
    place = LogFolder(files, folder, partition_id)
    try:
        LogPromise(promise).renew()
        files.remove_folder(folder)
        files.make_folder(folder)
        place.replace(place.file(EPOCHS_NAME), encode_epochs(partition_id, epochs.starts))
        state = encode_producer_state(start, producers)
        for kind in KINDS:
            place.replace(place.segment_file(start, kind), state)
        place.sync()
        place.create_segment(start)
        place.sync()
    except OSError as cause:
        raise cannot_open(folder, cause, "replace") from cause
