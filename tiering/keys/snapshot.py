"""The key snapshot: a Delta table with the newest record of every key, at an exact cut.

The table is ``<table>__latest``, beside the stream's own table. It has the same columns, and one
row per partition and key. Application transactions say exactly which offsets ``[start, end)`` of
each partition the key snapshot covers. The stream's table held all of them when the key snapshot
was built. The tail is never covered: only brokers have its records, and a table must not keep
records that the stream itself may lose with a broker.
A key whose newest record is a tombstone is absent; records without a key are in no key snapshot.

This module finds and opens the table; keys/plan.py decides what an advance rewrites and
keys/writer.py writes the files. The job is spark_jobs/jobs/snapshot.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.errors import ForeignHistoryError, ObjectMissingError, TableMismatchError
from broker.model.ids import StreamUuid
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from broker.model.stream import Stream
from tiering.proof.object_proof import require_objects
from tiering.proof.proofs import prove
from tiering.read.lake import Lake, storage_options_of
from tiering.store.object_store import ObjectStore
from tiering.table.commit_files import actions_in, info_of, object_in
from tiering.table.delta_log import LOG_FILE, commit_digest, log_key
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.table import (
    MADE_OF,
    DataFile,
    TableSnapshot,
    recreated_table_name,
    table_path,
)

SUFFIX: Final = "__latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTable:
    """One version of a key snapshot: exactly the newest rows per key of these ranges.

    Every commit of the table was checked: each is ours or claims to change no row. ``distrusted``
    partitions have files of a foreign writer that claims so. Only a new build from history could
    prove that claim, so do not read these partitions.
    """

    uri: str
    version: int
    stream_uuid: StreamUuid
    ends: Mapping[int, Offset]  # per partition: the first offset that is not covered
    starts: Mapping[int, Offset]  # the first covered offset: where the table began at the build
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

    Give ``stream_uuid`` if possible. A stream that was deleted and created again under the same
    name has one table per incarnation; without a uuid the first incarnation's table is opened.
    ``table_name`` is the folder of the stream's own table, if known (the last piece of a cut's
    ``table_uri``).

    Raises:
        TableMismatchError: a foreign writer changed it (facts: version, operation, author).
        ForeignHistoryError: it was built from another history than the stream's table beside it.
        ObjectMissingError, ObjectCorruptError: a part of the table is gone or damaged, or the table
            has no such ``version``.
        RemoteTierUnavailableError: the store does not answer.
    """
    names = [table_name] if table_name is not None else [stream_name]
    if stream_uuid is not None and table_name is None:
        names.append(recreated_table_name(stream_name, stream_uuid))
    for name in names:
        for folder in folders_of(name, stream_uuid):
            table = _table_in(lake, namespace, folder)
            if not lake.config.may_read(table.uri):
                continue
            try:
                newest = table.find()
            except TableMismatchError:
                continue  # the history of a stream, or a foreign table: not a key snapshot
            if newest is None or (stream_uuid is not None and newest.stream_uuid != stream_uuid):
                continue
            found = newest if version is None else table.snapshot(version)
            distrusted = prove_latest(found, table.store)
            if not is_of_history(found, table.store, lake.store.under(table_path(namespace, name))):
                distrusted = frozenset(found.ranges)
            return _latest(found, distrusted)
    return None


def latest_table(lake: Lake, stream: Stream) -> DeltaStreamTable:
    """Return a stream's key snapshot for reading and writing, whether it exists or not.

    The folder is ``<table>__latest``. If that folder holds something else (the history of a stream
    with exactly that name), the folder is ``<table>__latest-<uuid8>``.
    """
    first, second = folders_of(stream.table_name, stream.uuid)
    table = _table_in(lake, stream.namespace, first, stream)
    try:
        if table.find() is not None or next(iter(table.store.list("")), None) is None:
            return table
    except TableMismatchError:
        pass
    return _table_in(lake, stream.namespace, second, stream)


def key_snapshot_uri(lake: Lake, stream: Stream) -> str | None:
    """Return the URI of a stream's key snapshot; None if it has none. Blocks.

    Raises RemoteTierUnavailableError.
    """
    table = latest_table(lake, stream)
    try:
        return None if table.find() is None else table.uri
    except TableMismatchError:
        return None  # the folder is somebody else's


def prove_latest(snapshot: TableSnapshot, store: ObjectStore) -> frozenset[int]:
    """Prove the commits and the objects of a key snapshot; return the distrusted partitions.

    Raises:
        TableMismatchError: a foreign writer changed it (facts: version, operation, author).
        ObjectMissingError, ObjectCorruptError: an object is not the one that was committed.
        RemoteTierUnavailableError: the store does not answer.
    """
    proof = prove(snapshot, store)
    distrusted = frozenset(one.file.partition for one in proof.files.values() if not one.ours)
    everything = OffsetRange(Offset(0), Offset(OFFSET_MAX))
    within = {number: everything for number in snapshot.ranges if number not in distrusted}
    require_objects(proof, snapshot, store, within=within)
    return distrusted


def is_of_history(snapshot: TableSnapshot, store: ObjectStore, history: ObjectStore) -> bool:
    """Tell whether a key snapshot was built from a commit that the stream's table still has.

    An operator may replace the stream's table by an older copy. The table then gets other records
    under the same versions and offsets. A key snapshot from before that still shows the lost
    records, and hides newer ones. An advance by an old build that noted no commit is not checked.

    False: nothing tells it any more, because old commits of one of the tables were cleaned up, as
    Delta does after 30 days. Such a key snapshot must not be read; an advance builds it anew.

    Raises:
        ForeignHistoryError: the stream's table has another commit under that version, or none.
        ObjectMissingError, RemoteTierUnavailableError.
    """
    for version in range(snapshot.version, 0, -1):
        try:
            commit = store.get(log_key(version))
        except ObjectMissingError:
            if version < _oldest_version(store):
                return False
            raise
        info = info_of(list(actions_in(commit, version, snapshot.uri)))
        if MADE_OF not in info:
            continue  # an OPTIMIZE or a property: the rows are those of an earlier advance
        told = object_in(info[MADE_OF])
        made_at, expected = told.get("version"), told.get("commit")
        if type(made_at) is not int or not isinstance(expected, str):
            return True
        try:
            found: str | None = commit_digest(history, made_at)
        except ObjectMissingError:
            if made_at < _oldest_version(history):
                return False
            found = None
        if found != expected:
            raise ForeignHistoryError(
                f"version {version} of the key snapshot {snapshot.uri} was built from version "
                f"{made_at} of the stream's table, and that version is now another commit: the "
                "stream's table was replaced by an older copy, and the key snapshot was not. Move "
                "the key snapshot's folder away: 'headwater job snapshot' builds a new one",
                uri=snapshot.uri,
                version=version,
                expected=expected,
                found=found,
            )
        return True
    return True


def _oldest_version(store: ObjectStore) -> int:
    """Return the first version whose commit is still there; 0 if there is none."""
    commits = (LOG_FILE.fullmatch(info.key) for info in store.list("_delta_log/"))
    return min((int(one[1]) for one in commits if one), default=0)


def made_of(history: TableSnapshot, commit: str | None = None) -> str:
    """Return the text by which a key snapshot's commit names the history that it was built from.

    ``commit`` is the SHA-256 of the commit file of the history's version. The version number alone
    is not enough: a table that was replaced by an older copy uses the same numbers again.
    """
    ranges = {str(n): [int(held.start), int(held.end)] for n, held in history.ranges.items()}
    told = {"table_id": history.table_id, "version": history.version, "ranges": ranges}
    return json.dumps(told if commit is None else {**told, "commit": commit}, sort_keys=True)


def folders_of(table_name: str, uuid: str | None) -> list[str]:
    """Return the folders beside a table that may hold its key snapshot."""
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
