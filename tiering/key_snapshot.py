"""The key snapshot: a Delta table with the newest record of every key, at an exact cut.

It lies beside the stream's own table as ``<table>__latest``, with the same columns and one row per
partition and key. For each partition an application transaction says which history it is exactly
of: ``[start, end)``, always offsets that the stream's table held when it was built. It never covers
the tail: records that a lost broker could take with it must not be in a table that outlives it.
A key whose newest record is a tombstone is absent; records without a key are in no key snapshot.

This module finds and opens the table; key_snapshot_plan.py decides what an advance rewrites and
key_snapshot_writer.py writes the files. The job is spark_jobs/jobs/snapshot.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.errors import TableMismatchError
from broker.model.ids import StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from broker.model.stream import Stream
from tiering.delta_table import DeltaStreamTable
from tiering.lake import Lake, storage_options_of
from tiering.object_proof import require_objects
from tiering.object_store import ObjectStore
from tiering.proofs import prove
from tiering.table import (
    DataFile,
    TableSnapshot,
    recreated_table_name,
    table_path,
)

SUFFIX: Final = "__latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTable:
    """One version of a key snapshot: exactly the newest rows per key of these ranges.

    It is as our own commits made it. ``distrusted`` partitions were rewritten by somebody else who
    says that no row changed, which only building them anew would prove: do not read those.
    """

    uri: str
    version: int
    stream_uuid: StreamUuid
    ends: Mapping[int, Offset]  # per partition: first offset that it does not cover
    starts: Mapping[int, Offset]  # first offset that it covers: what remote retention had left
    files: tuple[DataFile, ...]
    distrusted: frozenset[int] = frozenset()


def open_latest(
    lake: Lake,
    stream_name: str,
    *,
    stream_uuid: str | None = None,
    table_name: str | None = None,
    namespace: str = "default",
    version: int | None = None,
) -> LatestTable | None:
    """Open the key snapshot of a stream; None when there is none. Blocks.

    Give ``stream_uuid``: a name that was given away and taken again has a table per incarnation,
    and without it the table of the first one is opened. ``table_name`` is the stream's own table
    folder where it is known (the last piece of a cut's ``table_uri``).

    Raises:
        TableMismatchError: somebody else changed it (facts: version, operation, author).
        ObjectMissingError, ObjectCorruptError: a part of the table is gone or damaged, or it has
            no such ``version``.
        RemoteTierUnavailableError: the store does not answer.
    """
    names = [table_name] if table_name is not None else [stream_name]
    if stream_uuid is not None and table_name is None:
        names.append(recreated_table_name(stream_name, stream_uuid))
    for name in names:
        for folder in _folders(name, stream_uuid):
            table = _table_in(lake, namespace, folder)
            try:
                newest = table.find()
            except TableMismatchError:
                continue  # a stream's history, or somebody's table: not a key snapshot
            if newest is None or (stream_uuid is not None and newest.stream_uuid != stream_uuid):
                continue
            found = newest if version is None else table.snapshot(version)
            return _latest(found, prove_latest(found, table.store))
    return None


def latest_table(lake: Lake, stream: Stream) -> DeltaStreamTable:
    """Return a stream's key snapshot for reading and writing, whether it exists or not.

    The folder is ``<table>__latest``; where that holds something else (the history of a stream of
    that very name), ``<table>__latest-<uuid8>``.
    """
    first, second = _folders(stream.table_name, stream.uuid)
    table = _table_in(lake, stream.namespace, first, stream)
    try:
        if table.find() is not None or next(iter(table.store.list("")), None) is None:
            return table
    except TableMismatchError:
        pass
    return _table_in(lake, stream.namespace, second, stream)


def prove_latest(snapshot: TableSnapshot, store: ObjectStore) -> frozenset[int]:
    """Prove whose commits made a key snapshot, and its objects; return what is distrusted.

    Raises:
        TableMismatchError: somebody else changed it (facts: version, operation, author).
        ObjectMissingError, ObjectCorruptError: an object is not the one that was committed.
        RemoteTierUnavailableError: the store does not answer.
    """
    proof = prove(snapshot, store)
    distrusted = frozenset(one.file.partition for one in proof.files.values() if not one.ours)
    everything = OffsetRange(Offset(0), Offset(OFFSET_MAX))
    within = {number: everything for number in snapshot.ranges if number not in distrusted}
    require_objects(proof, snapshot, store, within=within)
    return distrusted


def made_of(history: TableSnapshot) -> str:
    """Return what a commit says of the history that a key snapshot is made of."""
    ranges = {str(n): [int(held.start), int(held.end)] for n, held in history.ranges.items()}
    return json.dumps(
        {"table_id": history.table_id, "version": history.version, "ranges": ranges}, sort_keys=True
    )


def ranges_of(snapshot: TableSnapshot) -> Mapping[int, OffsetRange]:
    """Return the history that each partition of a key snapshot is of."""
    return snapshot.ranges


def _folders(table_name: str, uuid: str | None) -> list[str]:
    first = f"{table_name}{SUFFIX}"
    return [first] if uuid is None else [first, recreated_table_name(first, uuid)]


def _table_in(
    lake: Lake, namespace: str, folder: str, stream: Stream | None = None
) -> DeltaStreamTable:
    store = lake.store.under(table_path(namespace, folder))
    return DeltaStreamTable(
        store,
        stream=stream,
        cluster=lake.cluster if stream is not None else None,
        kind="latest",
        storage_options=storage_options_of(store),
    )


def _latest(snapshot: TableSnapshot, distrusted: frozenset[int]) -> LatestTable:
    return LatestTable(
        uri=snapshot.uri,
        version=snapshot.version,
        stream_uuid=snapshot.stream_uuid,
        ends={number: held.end for number, held in snapshot.ranges.items()},
        starts={number: held.start for number, held in snapshot.ranges.items()},
        files=snapshot.files,
        distrusted=distrusted,
    )
