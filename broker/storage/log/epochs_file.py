"""The file with a log's epoch history: read at a start, and checked against the log.

The file is written before the first record of an epoch. It may be damaged, an older copy, or belong
to another partition. Then the epochs of the log's own batches are used.
"""

from __future__ import annotations

from broker.codec.disk.log_state_format import decode_epochs
from broker.errors import CorruptDataError
from broker.model.epoch_history import EpochHistory
from broker.model.offsets import Offset
from broker.storage.log_folder import EPOCHS_NAME, LogFolder
from broker.storage.no_room import PROCESS_LIMITS


def load_epochs(
    folder: LogFolder, scanned: EpochHistory, log_end: Offset
) -> tuple[EpochHistory, bool]:
    """Return the epochs of a log, and whether the file must be written again.

    ``scanned`` are the epochs that occur in the log's batches.
    """
    try:
        owner, starts = decode_epochs(folder.read(folder.file(EPOCHS_NAME)))
    except FileNotFoundError:
        return scanned, bool(scanned.starts)
    except CorruptDataError:
        return scanned, True
    except OSError as cause:
        if cause.errno in PROCESS_LIMITS:
            raise  # the file may be whole: a history without it would forget freed epochs
        return scanned, True
    history = EpochHistory(starts)
    if owner != folder.partition_id or scanned.latest > history.latest:
        return scanned, True  # another partition's file, or an older copy
    return history.cut(log_end), False
