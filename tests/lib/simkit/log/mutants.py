"""Known ways to get a log wrong, one switch each. The simulation has to catch every one.

A mutant replaces one step of the real code for the length of a `with`. What it stands for is in
its docstring; tests/sim proves that seeds find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from broker.model.offsets import Offset
from broker.storage.log import partition_log, recovery, segment_loading
from broker.storage.log.partition_log import PartitionLog
from broker.storage.log.segment_loading import SegmentLoader
from broker.storage.log.truncation import truncate_files
from broker.storage.log_folder import LogFolder, RecoveryPointFile
from broker.storage.promises.log_promise import LogPromise
from broker.storage.segments.active_segment import ActiveSegment
from broker.storage.segments.damage import RotProof, proof_of_rot
from broker.storage.segments.scan import DamagedStretch, ValidBatch
from simkit.replacing import Mutant, replaced, together


def ack_before_sync() -> Any:
    """Promise durability without asking the disk (NATS, Kafka by default)."""

    def sync(self: PartitionLog) -> Offset:
        self._writable()
        self._synced_end = self.log_end
        return self.log_end

    return replaced(PartitionLog, "sync", sync)


def cut_at_first_bad_batch() -> Any:
    """Take all damage for a torn tail: what most logs do."""
    return replaced(segment_loading, "proof_of_rot", lambda *_: None)


def ignore_recovery_point() -> Any:
    """Forget below what position everything was durable."""

    def start(self: Any, base: Offset, size: int, point: Any) -> Any:
        return original(self, base, size, None)[0], 0

    original = SegmentLoader._start_of_last
    return together(
        replaced(SegmentLoader, "_start_of_last", start),
        replaced(recovery._Recovery, "_check_end", lambda self, *_: self._segments[-1].end_offset),
    )


def ignore_what_later_batches_saw() -> Any:
    """Leave out proof b: a later batch that was written when the log was synced beyond."""

    def proof(
        stretch: DamagedStretch, later: Sequence[ValidBatch | DamagedStretch], durable: int
    ) -> RotProof | None:
        return proof_of_rot(stretch, (), durable)

    return replaced(segment_loading, "proof_of_rot", proof)


def skip_folder_sync() -> Any:
    """Rename and create without syncing the folder."""
    return replaced(LogFolder, "sync", lambda _self: None)


def retry_fsync() -> Any:
    """Ask again after a failed fsync: the second answer is yes, and the data is gone."""

    def datasync(self: ActiveSegment) -> None:
        try:
            original(self)
        except OSError:
            original(self)

    original = ActiveSegment.datasync
    return replaced(ActiveSegment, "datasync", datasync)


def believe_the_page_cache() -> Any:
    """After a restart, serve records from the page cache without writing them again."""

    def write_again(self: Any, file: Any, *_: int) -> None:
        file.datasync()

    return replaced(SegmentLoader, "_write_again", write_again)


def serve_before_durable() -> Any:
    """After a restart, serve the found records without any sync."""
    return replaced(SegmentLoader, "_write_again", lambda *_: None)


def roll_without_sync() -> Any:
    """Start the next segment while the tail of the last one is only in the cache."""

    def roll(self: PartitionLog, active: ActiveSegment) -> ActiveSegment:
        active.dirty = False
        with replaced(ActiveSegment, "trim", lambda _self: None):
            return original(self, active)

    original = PartitionLog._roll
    return replaced(PartitionLog, "_roll", roll)


def free_before_log_start_moves() -> Any:
    """Remove segments first and remember that later."""

    def free(self: PartitionLog, base_offsets: Sequence[Offset]) -> None:
        for base in base_offsets:
            for kind in ("log", "index"):
                self._folder.remove_if_there(self._folder.segment_file(base, kind))
        original(self, base_offsets)

    original = PartitionLog.free
    return replaced(PartitionLog, "free", free)


def leave_partial_write() -> Any:
    """On a full disk, leave the bytes that did fit behind the log's end."""
    return replaced(ActiveSegment, "_cut_back", lambda *_: None)


def keep_slots_on_truncate() -> Any:
    """Truncate without lowering the recovery point first."""

    def cut(folder: LogFolder, point: RecoveryPointFile, *args: Any, **facts: Any) -> None:
        with replaced(RecoveryPointFile, "write", lambda *_, **__: None):
            truncate_files(folder, point, *args, **facts)

    return replaced(partition_log, "truncate_files", cut)


def forget_the_promise() -> Any:
    """Keep no second place up to date: only that the replica is held is known."""
    return replaced(LogPromise, "synced", lambda *_: None)


def promise_without_room_is_skipped() -> Any:
    """Acknowledge records although a full disk refused their promise."""

    def synced(self: LogPromise, *now: Any) -> None:
        with suppress(OSError):
            original(self, *now)

    original = LogPromise.synced
    return replaced(LogPromise, "synced", synced)


def promise_after_the_ack() -> Any:
    """Say that records are durable first, and note it with the next ones."""

    def synced(self: LogPromise, *now: Any) -> None:
        late = waiting.get(self)
        waiting[self] = now
        if late is not None:
            original(self, *late)

    waiting: WeakKeyDictionary[LogPromise, Any] = WeakKeyDictionary()
    original = LogPromise.synced
    return replaced(LogPromise, "synced", synced)


def keep_the_promise_on_truncate() -> Any:
    """Truncate a log without lowering its promise."""
    return replaced(LogPromise, "lower", lambda *_: None)


def believe_an_absent_folder() -> Any:
    """Take a log of which nothing is there for a new one."""

    def believing(folder: LogFolder, *, promised: Any = None, **facts: Any) -> Any:
        there = any(name.endswith(".log") for name in folder.files.list(folder.path))
        return original(folder, promised=promised if there else None, **facts)

    original = recovery.recover
    return replaced(partition_log, "recover", believing)


def believe_a_shorter_log() -> Any:
    """Take the end of the remaining bytes for the end of the log."""
    return replaced(recovery, "below_promise", lambda *_: None)


def copy_without_a_mark() -> Any:
    """Copy a leader's log in groups, and let recovery believe what its batches say."""
    return replaced(PartitionLog, "begin_copying", lambda self: setattr(self, "copying", True))


MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        ack_before_sync,
        cut_at_first_bad_batch,
        ignore_recovery_point,
        ignore_what_later_batches_saw,
        skip_folder_sync,
        retry_fsync,
        believe_the_page_cache,
        serve_before_durable,
        roll_without_sync,
        free_before_log_start_moves,
        leave_partial_write,
        keep_slots_on_truncate,
        forget_the_promise,
        promise_without_room_is_skipped,
        promise_after_the_ack,
        keep_the_promise_on_truncate,
        believe_an_absent_folder,
        believe_a_shorter_log,
        copy_without_a_mark,
    )
}

# The first seed that is known to show each: a hunt begins there.
FIRST_SEEDS: Final[dict[str, int]] = {
    "ack_before_sync": 1,
    "cut_at_first_bad_batch": 63,
    "ignore_recovery_point": 40,
    "ignore_what_later_batches_saw": 111,
    "skip_folder_sync": 0,
    "retry_fsync": 3,
    "believe_the_page_cache": 14,
    "serve_before_durable": 24,
    "roll_without_sync": 103,
    "free_before_log_start_moves": 1,
    "leave_partial_write": 231,
    "keep_slots_on_truncate": 1,
    "forget_the_promise": 51,
    "promise_without_room_is_skipped": 2656,
    "promise_after_the_ack": 5,
    "keep_the_promise_on_truncate": 1,
    "believe_an_absent_folder": 62,
    "believe_a_shorter_log": 40,
    "copy_without_a_mark": 971,
}
