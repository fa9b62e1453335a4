"""Small things that every test of the log needs: cheap batches, a log, all that is in it."""

from __future__ import annotations

from typing import Final

from broker.codec.checksum import crc32c
from broker.codec.record_batch import PreparedBatch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.ports.partition import StoredBatch
from broker.ports.system import Files
from broker.storage.log.partition_log import LogConfig, PartitionLog

FOLDER: Final = "streams/s/0"
PARTITION: Final = PartitionId(
    StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(0)
)
SMALL: Final = LogConfig(
    segment_bytes_max=1000,
    index_interval_bytes=200,
    preallocate_bytes=4096,
    checkpoint_bytes=1 << 30,
)


def raw_batch(
    fill: int = 1, *, size: int = 128, records: int = 1, stamp_us: int = 1
) -> PreparedBatch:
    """Return a batch whose body is ``size`` times the byte ``fill``: the log never looks."""
    body = bytes([fill]) * size
    return PreparedBatch(
        body=body,
        body_crc=crc32c(body),
        records_count=records,
        first_timestamp_us=stamp_us,
        max_timestamp_us=stamp_us,
        columns=0,
    )


def open_log(files: Files, config: LogConfig = SMALL) -> PartitionLog:
    """Open the one log that these tests have."""
    return PartitionLog.open(files, FOLDER, PARTITION, config)


def read_all(log: PartitionLog, *, bytes_max: int = 500) -> list[StoredBatch]:
    """Return every batch, read in pieces."""
    found: list[StoredBatch] = []
    start = log.log_start
    while start < log.log_end:
        batches = log.read(start, log.log_end, bytes_max=bytes_max)
        found += batches
        start = batches[-1].header.end_offset
    return found


def bases(batches: list[StoredBatch]) -> list[Offset]:
    """Return the batches' base offsets."""
    return [batch.header.base_offset for batch in batches]
