"""Which partitions have a folder below ``streams``, whoever knows of them.

Only looks: what is done with a folder that nobody knows is for who has the metadata.
"""

from __future__ import annotations

from typing import Final

from broker.codec.disk.log_state_format import decode_epochs
from broker.errors import CorruptDataError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid, is_uuid
from broker.ports.system import Files
from broker.storage.log.folder import EPOCHS_NAME, LogFolder

STREAMS: Final = "streams"


def stream_folder(uuid: StreamUuid) -> str:
    """Return where the logs of a stream are."""
    return f"{STREAMS}/{uuid}"


def log_folder(partition_id: PartitionId) -> str:
    """Return where the log of a partition is."""
    return f"{STREAMS}/{partition_id.stream_uuid}/{partition_id.number}"


def stored_partitions(files: Files) -> list[PartitionId]:
    """Return the partitions that have a folder, sorted."""
    return sorted(
        PartitionId(StreamUuid(uuid), PartitionNumber(number))
        for uuid in files.list(STREAMS)
        if is_uuid(uuid)
        for number in stored_numbers(files, StreamUuid(uuid))
    )


def stored_numbers(files: Files, uuid: StreamUuid) -> list[int]:
    """Return the numbers of a stream's partitions that have a folder."""
    return [
        int(name)
        for name in files.list(stream_folder(uuid))
        if name.isascii() and name.isdigit() and str(int(name)) == name
    ]


def newest_epoch(files: Files, partition_id: PartitionId) -> LeaderEpoch | None:
    """Return the newest leader epoch that a log took records in, 0 for none; None: not legible."""
    folder = LogFolder(files, log_folder(partition_id), partition_id)
    path = folder.file(EPOCHS_NAME)
    try:
        if not files.exists(path):
            return LeaderEpoch(0)
        _, starts = decode_epochs(folder.read(path))
    except (CorruptDataError, OSError):
        return None
    return starts[-1].leader_epoch if starts else LeaderEpoch(0)
