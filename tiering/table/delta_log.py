"""Reads transactions and our own commits from a table's log, without delta-rs.

delta-rs is too slow for both. It answers for one application id at a time, with separate requests
for each. It holds Python's global lock while it reads the history (measured: a slow store stalls
the whole broker). Both are simple to read: ``txn`` and ``commitInfo`` actions in the commit files,
and ``txn`` in a checkpoint.
Source: Delta's PROTOCOL.md, "Delta Log Entries", "Transaction Identifiers", "Checkpoints".
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from broker.errors import ObjectCorruptError, ObjectMissingError
from tiering.store.arrow_file import bytes_file, parquet_file
from tiering.store.object_store import ObjectStore
from tiering.table.commit_files import Action, info_of, parsed_actions
from tiering.table.table import COMMIT_ID, COMPACTED, EXPIRED, RANGES, Commit

LOG_FILE: Final = re.compile(r"_delta_log/(\d{20})\.json\Z")
CHECKPOINT: Final = re.compile(r"_delta_log/(\d{20})\.checkpoint(\.[\w.-]+)?\.parquet\Z")
WHOLE_CHECKPOINT: Final = re.compile(r"_delta_log/(\d{20})\.checkpoint\.parquet\Z")
LAST_CHECKPOINT: Final = "_delta_log/_last_checkpoint"  # only a hint
_AT_ONCE: Final = 64  # commits that are asked for together
_THREADS: Final = 16

Transactions = Mapping[str, int]  # application id -> version


def log_key(version: int) -> str:
    """Return the key of a commit file, below the table."""
    return f"_delta_log/{version:020}.json"


def commit_digest(store: ObjectStore, version: int) -> str:
    """Return the hex SHA-256 of a version's commit file, which identifies the commit.

    The version number does not: a table that was replaced by an older copy, and written to since,
    has other commits under the same numbers. Raises ObjectMissingError.
    """
    return hashlib.sha256(store.get(log_key(version))).hexdigest()


def transactions_at(store: ObjectStore, version: int) -> Transactions:
    """Return every application transaction of a version, from the log alone.

    Raises:
        ObjectMissingError: a needed commit is missing (the log was cleaned up, or cut).
        ObjectCorruptError: a commit or checkpoint cannot be parsed.
    """
    base, found = _checkpointed(store, version)
    return fold(store, found, above=base, up_to=version)


def fold(store: ObjectStore, known: Transactions, *, above: int, up_to: int) -> Transactions:
    """Return the transactions of version ``up_to``; ``known`` are those of version ``above``.

    Raises as :func:`transactions_at`.
    """
    folded = dict(known)
    for version in range(above + 1, up_to + 1):
        for action in _actions(store, version):
            txn = action.get("txn")
            if txn is not None:
                app_id, number = txn.get("appId"), txn.get("version")
                if not isinstance(app_id, str) or type(number) is not int:
                    raise _corrupt(log_key(version))
                folded[app_id] = number
    return folded


def commits_between(store: ObjectStore, *, above: int, up_to: int) -> list[Commit]:
    """Return our commits in ``(above, up_to]`` that are still in the log, oldest first."""
    present = {
        int(match[1])
        for info in store.list("_delta_log/", start_after=log_key(max(above, 0))[:-1])
        if (match := LOG_FILE.match(info.key))
    }
    commits = []
    for version in sorted(present):
        if not above < version <= up_to:
            continue
        for action in _actions(store, version):
            info = action.get("commitInfo", {})
            if COMMIT_ID in info:
                commits.append(
                    Commit(
                        version=version,
                        commit_id=str(info[COMMIT_ID]),
                        ranges_json=str(info.get(RANGES, "[]")),
                        expired_json=str(info.get(EXPIRED, "")),
                        compacted_json=str(info.get(COMPACTED, "")),
                    )
                )
    return commits


def removals_since(store: ObjectStore, moment_ms: int, *, until_ms: int) -> Mapping[str, int]:
    """Return each file that a commit after a moment removed, with the newest such version.

    The commits themselves are read, because a checkpoint forgets removals that are older than the
    table's ``delta.deletedFileRetentionDuration``. The time of a commit is the latest that it or a
    listed commit before it states, as in Delta: one wrong clock hides no removal, so all commits
    are read. A commit that states no time, or one after ``until_ms``, counts as later
    than the moment. Commits that were cleaned up name nothing: no version below them can be opened.
    Paths are decoded, as the store has them. Blocks.

    Raises:
        ObjectCorruptError: a commit cannot be parsed.
    """
    listed = (LOG_FILE.match(info.key) for info in store.list("_delta_log/"))
    versions = sorted(int(match[1]) for match in listed if match)
    removed: dict[str, int] = {}
    latest_ms: float = -math.inf
    with ThreadPoolExecutor(_THREADS, "headwater-removals") as threads:
        for first in range(0, len(versions), _AT_ONCE):
            some = versions[first : first + _AT_ONCE]
            found = threads.map(lambda at: _actions_if_there(store, at), some)
            for version, actions in zip(some, found, strict=True):
                stated_ms = _stated_ms(actions, until_ms)
                latest_ms = max(latest_ms, -math.inf if stated_ms is None else stated_ms)
                if stated_ms is not None and latest_ms <= moment_ms:
                    continue
                for action in actions:
                    path = action.get("remove", {}).get("path")
                    if isinstance(path, str):
                        removed[unquote(path)] = version
    return removed


def _stated_ms(actions: Sequence[Action], until_ms: int) -> int | None:
    """Return when a commit says that it was made; None if it states no time that can be."""
    info = info_of(actions)
    stated = info.get("inCommitTimestamp", info.get("timestamp"))
    if type(stated) is not int:
        return None
    if stated > until_ms:
        return None  # of a clock that was wrong: it tells nothing
    return stated


def _checkpointed(store: ObjectStore, version: int) -> tuple[int, Transactions]:
    """Return version and transactions of the newest single-file checkpoint up to a version."""
    best, key = -1, ""
    for info in store.list("_delta_log/"):
        match = WHOLE_CHECKPOINT.match(info.key)
        if match and best < int(match[1]) <= version:
            best, key = int(match[1]), info.key
    if best < 0:
        return -1, {}
    try:
        source = parquet_file(bytes_file(store.get(key)), key)
        if not any(path.startswith("txn.") for path in _leaf_paths(source)):
            return best, {}
        rows = source.read(columns=["txn"]).column("txn").to_pylist()
        return best, {row["appId"]: int(row["version"]) for row in rows if row and row["appId"]}
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as cause:
        raise _corrupt(key) from cause


def _leaf_paths(source: pq.ParquetFile) -> list[str]:
    schema = source.metadata.schema
    return [schema.column(number).path for number in range(len(schema))]


def _actions(store: ObjectStore, version: int) -> Iterator[Action]:
    try:
        yield from parsed_actions(store.get(log_key(version)))
    except ValueError as cause:
        raise _corrupt(log_key(version)) from cause


def _actions_if_there(store: ObjectStore, version: int) -> list[Action]:
    """Return the actions of a listed commit; none if it was cleaned up since."""
    try:
        return list(_actions(store, version))
    except ObjectMissingError:
        return []


def _corrupt(key: str) -> ObjectCorruptError:
    return ObjectCorruptError(f"{key} is not a valid file of a Delta log", key=key)
