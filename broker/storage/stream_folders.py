"""Which partitions have a folder below ``streams``, whether or not the metadata knows them.

This module only reads. Its callers, which have the metadata, decide about unknown folders.
"""

from __future__ import annotations

from typing import Final

from broker.codec.disk.log_state_format import decode_epochs
from broker.errors import CorruptDataError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid, is_uuid
from broker.ports.system import Files
from broker.storage.log_folder import EPOCHS_NAME, LogFolder

STREAMS: Final = "streams"


def stream_folder(uuid: StreamUuid) -> str:
    """Return the folder of a stream's logs."""
    return f"{STREAMS}/{uuid}"


def log_folder(partition_id: PartitionId) -> str:
    """Return the folder of a partition's log."""
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
    """Return the newest leader epoch of a log's records; 0: no records; None: not readable."""
    folder = LogFolder(files, log_folder(partition_id), partition_id)
    path = folder.file(EPOCHS_NAME)
    try:
        if not files.exists(path):
            return LeaderEpoch(0)
        _, starts = decode_epochs(folder.read(path))
    except (CorruptDataError, OSError):
        return None
    return starts[-1].leader_epoch if starts else LeaderEpoch(0)
