"""Converts the data folder of a single broker of release 0.1 to a Raft group of one.

The state in ``metadata/`` becomes the first snapshot of the Raft journal, at the same index, in
term 1. A crash between any two steps is harmless: the next start repeats the steps.

1. read the old folder, whose last entry is made durable;
2. note in `sessions.json` that a single broker used this folder;
3. write the snapshot, then the journal that begins at it, each durably;
4. rename ``metadata`` to ``metadata.before-raft``, durably. Only now Raft may start.

Nothing in the old folder is deleted, except its ballast if the disk is full. A data folder that has
both ``metadata`` and a Raft journal with entries of its own is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from broker.codec.checksum import crc32c
from broker.codec.disk.raft_state import encode_state
from broker.core.metadata.snapshot import encode_snapshot
from broker.core.metadata.state import FEATURE_LEVEL_REPLICATED
from broker.errors import DiskFullError, MetadataCorruptError
from broker.model.raft import HardState, LogImage, NodeId, Snapshot, SnapshotId
from broker.ports.system import Files
from broker.runtime.ingest.sessions import note_alone
from broker.runtime.metadata.lone_journal import COUNTER, FOLDER, read_lone_journal
from broker.runtime.metadata.unknown_logs import require_counted, require_known
from broker.storage.no_room import is_full
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal import RaftJournal

_log = structlog.get_logger(__name__)

KEPT: Final = "metadata.before-raft"
_TERM: Final = 1
_EMPTY: Final = LogImage(0, 0, ())


def take_over(
    files: Files, *, cluster: str, me: NodeId, promises: Promises | None, folder: str = "raft"
) -> None:
    """Convert the old folder to a Raft journal, if there is one. Blocks.

    Raises:
        MetadataCorruptError: the old folder is damaged or older than its promises, or a Raft
            journal beside it has entries of its own.
        DiskFullError, LogFailedError: the disk is full, or failed; the next start continues.
    """
    if not files.exists(FOLDER):
        return
    snapshot = _snapshot(files, promises)
    try:
        _make(files, folder, snapshot, cluster=cluster, me=me, promises=promises)
    except (DiskFullError, OSError) as error:
        if not (isinstance(error, DiskFullError) or is_full(error)) or not _give_ballast(files):
            raise
        _make(files, folder, snapshot, cluster=cluster, me=me, promises=promises)
    if files.exists(KEPT):
        raise _two_lives(KEPT)
    files.replace(FOLDER, KEPT)
    files.sync_folder("")
    index = 0 if snapshot is None else snapshot.id.index
    _log.info("metadata_taken_over", kept=KEPT, index=index)


def _snapshot(files: Files, promises: Promises | None) -> Snapshot | None:
    """Return the old folder's state as a snapshot; None if it never held anything."""
    noted = None if promises is None else promises.noted(COUNTER)
    state, index = read_lone_journal(files, answered=0 if noted is None else noted[0])
    known = " ".join((*state.partitions, *state.deleted)).encode()
    require_known(files, [known], folder=FOLDER, end=index)
    require_counted(files, state, folder=FOLDER, end=index)
    if index == 0:
        return None
    level = max(state.feature_level, FEATURE_LEVEL_REPLICATED)
    machine = encode_snapshot(replace(state, feature_level=level), index)
    data = encode_state(index, [], machine)
    return Snapshot(SnapshotId(index, _TERM, len(data), crc32c(data)), data)


def _make(
    files: Files,
    folder: str,
    snapshot: Snapshot | None,
    *,
    cluster: str,
    me: NodeId,
    promises: Promises | None,
) -> None:
    note_alone(files)
    journal = RaftJournal(files, folder, cluster=cluster, node=me, promises=promises)
    try:
        _write(journal, folder, snapshot, me)
    finally:
        journal.close()


def _give_ballast(files: Files) -> bool:
    """Delete the ballast of the old release to free space; return whether there was any."""
    path = f"{FOLDER}/ballast"
    if not files.exists(path):
        return False
    file = files.open(path)
    try:
        given = file.size()
        file.truncate(0)
    finally:
        file.close()
    return given > 0


def _write(journal: RaftJournal, folder: str, snapshot: Snapshot | None, me: NodeId) -> None:
    """Write the journal, unless it was written before a crash."""
    stored = journal.stored
    has_begun = journal.has_member_file or journal.has_forgotten or stored.hard.term > _TERM
    is_empty = not has_begun and stored.snapshot is None and stored.log == _EMPTY
    if snapshot is None:
        if not is_empty:
            raise _two_lives(folder)
        return
    image = LogImage(snapshot.id.index, _TERM, ())
    if is_empty:
        journal.save(hard=HardState(_TERM, me, 0))
        journal.save(snapshot=snapshot, image=image)
    elif has_begun or stored.snapshot != snapshot or stored.log != image:
        raise _two_lives(folder)


def _two_lives(other: str) -> MetadataCorruptError:
    return MetadataCorruptError(
        f"the folder {FOLDER} is of release 0.1, and {other} beside it says that this broker has "
        f"converted it before. Only you can tell which of the two is newer. Nothing was changed. "
        f"If {FOLDER} was put there by mistake, move it out of the data folder; to go back to it, "
        "restore a copy of the whole data folder.",
        path=FOLDER,
        other=other,
    )
