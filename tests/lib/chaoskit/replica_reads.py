"""Full reads of replicas apart: the log that one broker holds on its disk, without any broker.

The broker is stopped. Its files are copied, so that opening the log, which may repair a torn tail,
changes nothing; damage in the middle is an error here, as it is there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from broker.adapters.disk.files import DiskFiles
from broker.codec.record_batch import decode_body, to_rows
from broker.codec.schema import ROW_SCHEMA
from broker.model.ids import PartitionId
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.stream_folders import log_folder
from chaoskit.cluster import ChaosError
from checkkit.arrow import COLUMNS, columns_by_partition
from checkkit.readings import PartReading, RowColumns, of_log

_BYTES_MAX = 64 * 1024 * 1024
_SCHEMA = pa.schema([ROW_SCHEMA.field(name) for name in COLUMNS])
_NO_ROWS = RowColumns.of(())


def read_replica(
    data_dir: Path, partition_id: PartitionId, *, subject: str, scratch: Path
) -> PartReading | None:
    """Read one partition's log out of a stopped broker's data directory; None: it has none.

    Raises:
        ChaosError: a part of the log is damaged.
    """
    folder = log_folder(partition_id)
    if not (data_dir / folder).is_dir():
        return None
    shutil.copytree(data_dir / folder, scratch / folder)
    files = DiskFiles(scratch)
    log = PartitionLog.open(files, folder, partition_id, LogConfig())
    try:
        if log.recovery.damaged:
            raise ChaosError(f"{data_dir.name} {partition_id}: {log.recovery.damaged}")
        table = _read_all(log, int(partition_id.number), subject)
        start, end = int(log.log_start), int(log.log_end)
    finally:
        log.close()
        files.close()
        shutil.rmtree(scratch / folder)
    number = int(partition_id.number)
    rows = columns_by_partition(table).get(number, _NO_ROWS)
    return of_log(number, rows, start=start, end=end)


def _read_all(log: PartitionLog, partition: int, subject: str) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    position = log.log_start
    while position < log.log_end:
        found = log.read(position, log.log_end, bytes_max=_BYTES_MAX)
        for stored in found:
            body = decode_body(stored.header, stored.body)
            batches.append(
                to_rows(stored.header, body, partition=partition, subject=subject, schema=_SCHEMA)
            )
        position = found[-1].header.end_offset
    return pa.Table.from_batches(batches, _SCHEMA)
