"""Files of a version and actions of a commit, between delta-rs's types and ours."""

from __future__ import annotations

import time

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from broker.codec.schema import ROW_SCHEMA
from broker.errors import TableMismatchError
from broker.model.offsets import Offset
from broker.model.stream import PARTITIONS_MAX
from tiering.table.delta_library import add_actions_of, column
from tiering.table.table import DataFile, NewFile, first_of_ms, last_of_ms


def remove_action(file: DataFile, *, data_change: bool) -> RemoveAction:
    """Return the action that removes a file."""
    return RemoveAction(
        path=file.path,
        data_change=data_change,
        deletion_timestamp=time.time_ns() // 1_000_000,
        size=file.size_bytes,
        partition_values={"partition": str(file.partition)},
    )


def add_action(file: NewFile, *, data_change: bool = True) -> AddAction:
    """Return the action that adds a file."""
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={"partition": str(file.partition)},
        modification_time=file.modified_us // 1000,
        data_change=data_change,
        stats=file.stats_json,
    )


class ListedFiles:
    """The files of one table's versions; each is translated once. Not thread-safe."""

    def __init__(self, uri: str) -> None:
        """Know no version yet; ``uri`` is the table's, for errors."""
        self._uri = uri
        self._rows = ROW_SCHEMA.empty_table()  # the add actions of the files translated last
        self._files: tuple[DataFile, ...] = ()

    def of(self, table: DeltaTable) -> tuple[DataFile, ...]:
        """Return the files that a loaded version lists, by partition and offset.

        The Delta library lists the newest first. If the rest is the list that was translated last,
        only the new ones are translated.

        Raises:
            TableMismatchError: a file belongs to no partition of a stream.
        """
        actions, before, kept = add_actions_of(table), self._rows, self._files
        new_count = actions.num_rows - before.num_rows
        if not (new_count >= 0 and actions.slice(new_count).equals(before)):
            kept, new_count = (), actions.num_rows
        files = [*kept, *_translated(actions.slice(0, new_count), self._uri)]
        files.sort(key=lambda file: (file.partition, file.min_offset or 0, file.path))
        self._rows, self._files = actions, tuple(files)
        return self._files


def _translated(actions: pa.Table, uri: str) -> list[DataFile]:
    names = ("path", "size_bytes", "partition.partition", "num_records", "min.offset")
    columns = [column(actions, name) for name in (*names, "max.offset")]
    columns += [_stamps_us(actions, "max.timestamp"), _stamps_us(actions, "min.timestamp")]
    files = []
    for path, size, partition, count, least, greatest, latest, first in zip(*columns, strict=True):
        known = None not in (count, least, greatest)
        if partition is None or not 0 <= partition < PARTITIONS_MAX or "://" in path:
            raise unknown_partition(uri, path)
        files.append(
            DataFile(
                path=path,
                size_bytes=size,
                partition=partition,
                records_count=count,
                min_offset=Offset(least) if known else None,
                max_offset=Offset(greatest) if known else None,
                max_timestamp_us=last_of_ms(latest),
                min_timestamp_us=first_of_ms(first),
            )
        )
    return files


def unknown_partition(uri: str, path: str) -> TableMismatchError:
    """Return the error for a file that belongs to no partition."""
    return TableMismatchError(
        f"{uri} lists {path}, which belongs to no partition of this stream",
        uri=uri,
        path=path,
    )


def _stamps_us(actions: pa.Table, name: str) -> list[int | None]:
    """Return one bound of each file's timestamps in microseconds; None where unknown."""
    if name not in actions.column_names:
        return [None] * actions.num_rows
    found = actions.column(name)
    if not pa.types.is_timestamp(found.type):
        found = found.cast(pa.int64())
    # A view, because a cast imports pyarrow.compute, which takes 30 ms of a short command.
    return [stamp for chunk in found.chunks for stamp in chunk.view(pa.int64()).to_pylist()]
