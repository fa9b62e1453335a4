"""The metadata of a single broker: a Raft group of one, without network.

It is the same code as in a cluster, so a single broker can become one of several. No other broker
has a copy. So before any change the disk's metadata is compared with the second place (`promises`)
and with the logs beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from broker.core.metadata.state import MetadataState
from broker.core.raft.applier import Applier
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import NewConsensus
from broker.core.raft.core import RaftCore
from broker.errors import (
    InvalidConfigError,
    LogFailedError,
    MetadataCorruptError,
    NoRoomError,
)
from broker.model.ids import BrokerId
from broker.model.raft import Floor, LogImage, NodeId, Snapshot
from broker.ports.system import Clock, Files
from broker.runtime.ingest.sessions import note_alone
from broker.runtime.metadata import lone_journal
from broker.runtime.metadata.controllers_note import check_controllers, note_controllers
from broker.runtime.metadata.lone_takeover import KEPT, take_over
from broker.runtime.metadata.raft.machine import MetadataMachine
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.runtime.metadata.unknown_logs import require_counted, require_known
from broker.storage.no_room import lacks_room, no_room
from broker.storage.promises.promises import PROMISES_NAME, Promises
from broker.storage.raft.journal import COUNTER, RaftJournal
from broker.storage.raft.journal_scan import Found

_log = structlog.get_logger(__name__)

_FOLDER: Final = "raft"
_AHEAD_BYTES: Final = 256 * 1024  # a few thousand commands
_HEARTBEAT_MS: Final = 300  # not sent; the idle thread wakes up twice in it
_JOURNAL_BYTES_MAX: Final = 2 * 1024 * 1024  # a start reads and applies the whole journal


def open_alone(
    files: Files,
    *,
    cluster: str,
    me: BrokerId,
    clock: Clock,
    on_crash: Callable[[BaseException], None],
    promises: Promises | None = None,
    new_core: NewConsensus = RaftCore,
) -> RaftMetadataLog:
    """Return the running log with every answered command applied. Blocks for milliseconds.

    Raises:
        InvalidConfigError: the folder belongs to a broker of a cluster.
        MetadataCorruptError: the metadata is damaged, missing, older than its promises, or older
            than a local log.
        DiskFullError, LogFailedError: the disk is full, or failed.
    """
    node = NodeId(me)
    journal = open_lone_journal(files, cluster=cluster, me=node, promises=promises)
    metadata = RaftMetadataLog(
        files,
        RaftConfig(members=(node,), heartbeat_ms=_HEARTBEAT_MS),
        cluster=cluster,
        me=node,
        clock=clock,
        on_crash=partial(_ended, on_crash),
        journal_bytes_max=_JOURNAL_BYTES_MAX,
        journal=journal,
        new_core=new_core,
    )
    try:
        metadata.barrier()
        _require_no_others(metadata, me)
        note_alone(files)
    except BaseException as error:
        metadata.close()
        if isinstance(error, OSError):
            raise _translated(error) from error
        raise
    return metadata


def _ended(on_crash: Callable[[BaseException], None], crash: BaseException) -> None:
    """Continue without metadata after its disk failed, to serve reads from this broker.

    Every proposal is refused with that failure; reads make no proposals.
    """
    if isinstance(crash, LogFailedError):
        _log.error("metadata_failed", reason=crash.message)
    else:
        on_crash(crash)


def open_lone_journal(
    files: Files, *, cluster: str, me: NodeId, promises: Promises | None
) -> RaftJournal:
    """Return the journal for Raft; finish what a crash interrupted. Blocks.

    Raises as :func:`open_alone` does.
    """
    try:
        return _open(files, cluster=cluster, me=me, promises=promises)
    except OSError as cause:
        raise _translated(cause) from cause


def _translated(cause: OSError) -> NoRoomError | LogFailedError:
    if lacks_room(cause):
        return no_room("the metadata cannot be opened", cause)
    return LogFailedError(f"the metadata cannot be opened: {cause}")


def _open(files: Files, *, cluster: str, me: NodeId, promises: Promises | None) -> RaftJournal:
    take_over(files, cluster=cluster, me=me, promises=promises)
    _require_not_lost(files, promises, has_taken_part=check_controllers(files, [me]))
    journal = RaftJournal(
        files,
        _FOLDER,
        cluster=cluster,
        node=me,
        ahead_bytes=_AHEAD_BYTES,
        promises=promises,
        examine=partial(_examine, files, promises),
    )
    try:
        _require_not_forgotten(journal)
        if not journal.has_member_file:  # from now on an empty folder means a loss
            journal.take_part(0, Floor())
        note_controllers(files, [me])
    except BaseException:
        journal.close()
        raise
    return journal


def _require_not_lost(files: Files, promises: Promises | None, *, has_taken_part: bool) -> None:
    """Refuse to create new metadata if anything shows that this broker was in use."""
    if files.list(_FOLDER):
        return
    counted = promises is not None and promises.noted(lone_journal.COUNTER) is not None
    left = [one for one in ("streams", KEPT) if files.exists(one)]
    if has_taken_part or left or counted or RaftJournal.is_noted(promises):
        raise MetadataCorruptError(
            f"the metadata folder {_FOLDER} is missing or empty, and this data directory was in "
            "use: the metadata is lost. Nothing was changed. Restore a copy of the whole data "
            "directory, or rebuild the streams from their tables in an empty one",
            path=_FOLDER,
        )


def _examine(
    files: Files, promises: Promises | None, snapshot: Snapshot | None, found: Found
) -> None:
    """Refuse an older copy, before anything is changed."""
    noted = None if promises is None else promises.noted(COUNTER)
    if noted is not None and found.last_number < noted[1]:
        raise MetadataCorruptError(
            f"the metadata in {_FOLDER} ends at record {found.last_number}, and record {noted[1]} "
            "had been written: files were lost, or an older copy was put back. Nothing was "
            "changed. Put the newest copy of the folder back, or rebuild the streams from their "
            "tables.",
            path=_FOLDER,
            expected=noted[1],
            found=found.last_number,
        )
    entries = found.image.entries
    texts = [b"" if snapshot is None else snapshot.data, *(one.payload for one in entries)]
    end = found.image.base_index + len(entries)
    require_known(files, texts, folder=_FOLDER, end=end)
    require_counted(files, _state_at_end(snapshot, found.image), folder=_FOLDER, end=end)


def _state_at_end(snapshot: Snapshot | None, image: LogImage) -> MetadataState:
    """Return the state after the last entry: all entries of a broker alone take effect.

    Before Raft begins, because its first entry and term would make the newest copy look older.
    """
    machine = MetadataMachine()
    applier = Applier(machine)
    if snapshot is not None:
        applier.restore(snapshot.id.index, snapshot.data)
    if image.base_index <= applier.index:  # else the journal refuses to open
        applier.apply(image.entries[applier.index - image.base_index :])
    return machine.state


def _require_not_forgotten(journal: RaftJournal) -> None:
    """Refuse files of an earlier term: their records may belong to another history."""
    if journal.has_forgotten:
        raise MetadataCorruptError(
            f"the metadata in {_FOLDER} is older than the file {PROMISES_NAME} says: an older copy "
            "was put back. Put the newest copy of the folder back, or rebuild the streams from "
            "their tables.",
            path=_FOLDER,
        )


def _require_no_others(metadata: RaftMetadataLog, me: BrokerId) -> None:
    """Refuse the folder of a broker of a cluster."""
    brokers = metadata.state.brokers
    others = sorted(one for one in brokers if one != me)
    if others or (me in brokers and brokers[me].session):
        raise InvalidConfigError(
            "this data directory belongs to a broker of a cluster, but cluster.brokers is empty: "
            "list the cluster's brokers there",
            others=others,
        )
