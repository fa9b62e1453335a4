"""The local log of one partition: append, sync, read, roll, free. No policy.

One thread at a time writes (the caller ensures this); any number of threads read meanwhile. Nothing
is durable before :meth:`PartitionLog.sync` returns. After a failed fsync the log takes no writes; a
full disk only refuses what does not fit. Damage is reported, never repaired by deletion.

The file is not split: it has one class, which says why it is whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from broker.codec.disk.log_state_format import encode_epochs
from broker.codec.record_batch import PreparedBatch
from broker.errors import LogFailedError, NoRoomError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.ports.partition import SegmentInfo, StoredBatch
from broker.ports.system import Files
from broker.storage.key_compaction.exchange import exchange, sealed_at
from broker.storage.key_compaction.rewriter import Replacement, SegmentRewriter
from broker.storage.log import producer_state
from broker.storage.log.config import LogConfig
from broker.storage.log.disk_errors import DiskErrors, closed_after_error
from broker.storage.log.recovery import recover
from broker.storage.log.refusals import stale_epoch, takes_no_writes, waits_for_room
from broker.storage.log.truncation import remove_files, truncate_files
from broker.storage.log_folder import EPOCHS_NAME, LogFolder, cannot_open
from broker.storage.no_room import ignoring_no_room
from broker.storage.promises.log_promise import LogPromise
from broker.storage.promises.lost_log import RecoveredLog
from broker.storage.promises.promises import ReplicaPromise
from broker.storage.segments.active_segment import ActiveSegment
from broker.storage.segments.damage import RecoveryReport
from broker.storage.segments.handle_pool import HandlePool
from broker.storage.segments.index import SegmentIndex
from broker.storage.segments.log_reader import LogReader, LogState
from broker.storage.segments.segment import Segment, write_index

__all__ = ["LogConfig", "PartitionLog"]

_IDLE_HANDLES_MAX: Final = 2  # without the active segment; descriptors are few, partitions many


class PartitionLog:
    """Segments, epochs and recovery point of one partition below one folder.

    The class is not split: it alone knows in which order segments, epochs, the recovery point and
    the promise become durable. Reads, recovery, cuts of files and producers' states are modules of
    their own.
    """

    def __init__(
        self, folder: LogFolder, config: LogConfig, recovered: RecoveredLog, promise: LogPromise
    ) -> None:
        """Take over the result of recovery; callers use :meth:`open`."""
        self._folder = folder
        self._promise = promise
        self._config = config
        self._point = recovered.point
        self._epochs = recovered.epochs
        self._handles = HandlePool(folder.files, _IDLE_HANDLES_MAX)
        self._state = LogState(*recovered.found)
        self._reader = LogReader(
            folder, self._handles, self._state, index_interval_bytes=config.index_interval_bytes
        )
        self._synced_end = recovered.log_end
        self._checkpoint_size = 0  # bytes of the active segment at the last checkpoint
        self._checkpoint_us = 0  # time of the last tick that looked whether one is due
        self._failure: str | None = None
        self._unfinished_cut: tuple[Offset, EpochHistory] | None = None  # no descriptor was free
        self.copying = False  # see begin_copying
        self._active: ActiveSegment | None = None
        if not recovered.report.damaged_ranges and not recovered.segments[-1].sealed:
            self._active = self._open_active(recovered.segments[-1])
            self._checkpoint_size = recovered.segments[-1].size_bytes
        self.recovery: RecoveryReport = recovered.report
        self.sealed_count = 0  # segments sealed since the log was opened

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        partition_id: PartitionId,
        config: LogConfig,
        *,
        promise: ReplicaPromise | None = None,
        held: bool = False,
    ) -> PartitionLog:
        """Open the log in ``folder``, after any end of the last process; create it when it is new.

        A log is new if it has no promise and the metadata does not say that it is ``held``. A
        damaged log opens too: its healthy part is readable, ``recovery.damaged`` names the rest,
        writes raise LogFailedError. On a full disk an existing log opens, and writes raise until
        there is room. Blocks: reads all after the last checkpoint. The promise is durable after the
        next sync of the promises, so that many logs share one sync.

        Raises:
            MetadataCorruptError: the folder is another partition's, or its files are not readable.
            NoRoomError: the disk has no room for a new log, or to make a recovered log durable; or
                the process has no free descriptor.
            OverloadedError: the process has no memory now.
            LogFailedError: the disk failed.
        """
        place, own = LogFolder(files, folder, partition_id), LogPromise(promise)
        try:
            recovered = recover(
                place,
                index_interval_bytes=config.index_interval_bytes,
                promised=own.known(held=held),
            )
            with closed_after_error(recovered.close):
                log = cls(place, config, recovered, own)
        except OSError as cause:
            raise cannot_open(folder, cause) from cause
        with closed_after_error(log.close), suppress(NoRoomError):  # the first write tries again
            log._begin_promise()
        return log

    # ------------------------------------------------------------------ facts, any thread

    @property
    def log_start(self) -> Offset:
        """First offset that this log still has."""
        return self._state.log_start

    @property
    def log_end(self) -> Offset:
        """First offset that is not written."""
        return self._state.log_end

    @property
    def sparse_end(self) -> Offset:
        """First offset from which on the log has every record."""
        return self._state.sparse_end

    @property
    def synced_end(self) -> Offset:
        """First offset that is not known to be durable."""
        return self._synced_end

    @property
    def epochs(self) -> EpochHistory:
        """Which leader epoch wrote which offsets."""
        return self._epochs

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, oldest first; the last is the active one."""
        return [segment.info() for segment in self._state.segments]

    def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[StoredBatch]:
        """Return checked batches that overlap ``[start, end)``; see ``PartitionReader.read``."""
        return self._reader.read(start, end, bytes_max=bytes_max)

    def offset_at(self, timestamp_us: int) -> Offset:
        """Return the first batch with a record at or after ``timestamp_us``, or the log end."""
        return self._reader.offset_at(timestamp_us)

    # ------------------------------------------------------------------ writing, owner thread

    def configure(self, config: LogConfig) -> None:
        """Take other sizes and ages, from the next write on; the index interval must be equal."""
        self._config = config

    def append(
        self, batches: Sequence[PreparedBatch], *, leader_epoch: LeaderEpoch, now_us: int
    ) -> list[Offset]:
        """Write a group at the log's end, and roll when due; return the base offsets.

        On a full disk no batch of the group is written. Not durable before :meth:`sync`.

        Raises:
            NoRoomError: there is no room, or no descriptor; no batch was written.
            LogFailedError: the log takes no more writes.
            StaleLeaderEpochError: the log already has a newer epoch.
        """
        active = self._writable()
        self.end_copying()
        if leader_epoch != self._epochs.latest:
            self._begin_epoch(leader_epoch)
        start, offsets, first = self.log_end, list[Offset](), 0
        try:
            while first < len(batches):
                active = self._roll_when_full(active, batches[first].size, now_us)
                sizes = [batch.size for batch in batches[first:]]
                count = self._config.fitting(active.segment.size_bytes, sizes)
                with self._errors("append"):
                    offsets += active.write(
                        batches[first : first + count],
                        leader_epoch=leader_epoch,
                        synced_end=self._synced_end,
                        now_us=now_us,
                    )
                self._state.log_end = active.segment.end_offset
                first += count
                self._promise.ends_with(batches[first - 1], self.log_end)
        except NoRoomError:
            if self.log_end > start:
                # The group began in an earlier segment. The epoch history is not cut: the epoch
                # continues, and a write of the history would need space on the full disk.
                self._cut(start, self._epochs)
            raise
        return offsets

    def append_stored(self, batches: Sequence[StoredBatch], *, now_us: int = 0) -> Offset:
        """Write batches as their leader stored them; they must continue this log.

        Returns the new log end, not durable before :meth:`sync`; raises as :meth:`append`.
        """
        active = self._writable()
        at = self.log_end
        for batch in batches:
            assert batch.header.base_offset == at, f"{batch.header.base_offset} leaves a gap"
            at = batch.header.end_offset
        for (epoch, sparse), group in itertools.groupby(
            batches, lambda one: (one.header.leader_epoch, one.header.sparse)
        ):
            left = list(group)
            if epoch != self._epochs.latest:
                self._begin_epoch(epoch)
            while left:
                size = left[0].header.size
                active = self._roll_when_full(active, size, now_us, sparse=sparse)
                sizes = [batch.header.size for batch in left]
                count = self._config.fitting(active.segment.size_bytes, sizes)
                with self._errors("append"):
                    active.write_stored(left[:count], now_us=now_us)
                self._state.log_end = active.segment.end_offset
                self._promise.ends_with(left[count - 1].header, self.log_end)
                left = left[count:]
        return self.log_end

    def begin_copying(self) -> None:
        """Take a leader's batches in groups from now on: one sync for many of its own groups.

        Such a batch says that earlier ones were durable, which is so on the leader's disk only: the
        mark makes the next opening ignore that above the recovery point. Raises as `checkpoint`.
        """
        if not self.copying:
            self.checkpoint()
            with self._errors("marking"):
                self._folder.mark_copying()
            self.copying = True

    def end_copying(self) -> None:
        """Believe batches again: first everything is made durable. Raises as :meth:`sync`."""
        if self.copying:
            self.sync()
            with self._errors("marking"):
                self._folder.unmark_copying()
            self.copying = False

    def sync(self) -> Offset:
        """Make everything written durable; return the new synced end. Blocks.

        Raises:
            NoRoomError: the records are durable, but the disk has no room for their promise, so the
                synced end stays; call again.
            LogFailedError: the disk did not confirm; unsynced records may or may not survive, and
                the log takes no more writes until it is opened again.
        """
        self._check_healthy()
        active, end = self._active, self.log_end
        if active is None:  # no room for the next segment; all other segments are synced
            return end
        if active.dirty:
            with self._errors("fsync", fatal=True):
                active.datasync()
        self._note_synced(end)
        if active.segment.size_bytes - self._checkpoint_size >= self._config.checkpoint_bytes:
            with suppress(NoRoomError):  # the sync itself succeeded
                self.checkpoint()
        return end

    def find_room(self, size: int) -> None:
        """Do what a full disk had prevented, and reserve ``size`` bytes for the next records.

        Raises NoRoomError (call again) and LogFailedError (the log takes no more writes).
        """
        active = self._writable()
        if self._folder.files.free_bytes() < size:  # some file systems reserve nothing
            raise waits_for_room(self._folder.path, size)
        with self._errors("reserving"):
            active.reserve(min(size, self._config.segment_bytes_max - active.segment.size_bytes))

    def seal_active(self, now_us: int) -> bool:  # noqa: ARG002 - a parameter of the port
        """Seal the active segment and start the next; False when it holds no record."""
        self._check_healthy()
        if (active := self._active) is None or active.segment.empty:
            return False
        self._roll(active)
        return True

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the active segment if it is too old, and move the recovery point; call it often."""
        self._check_healthy()
        if self._active is None:
            return False
        segment = self._active.segment
        if not segment.empty and self._config.is_aged(segment.created_us, now_us):
            return self.seal_active(now_us)
        waited_us = now_us - self._checkpoint_us
        if not 0 <= waited_us < self._config.checkpoint_ms * 1000:  # a clock may go back
            self._checkpoint_us = now_us
            if segment.size_bytes != self._checkpoint_size:
                self.checkpoint()
        return False

    def free(self, base_offsets: Sequence[Offset]) -> None:
        """Remove the oldest segments, which are sealed; raises LogFailedError.

        The log start moves first.
        """
        self._check_healthy()
        if self._active is None and len(base_offsets) == len(self._state.segments):
            base_offsets = base_offsets[:-1]  # keep the last segment: it defines the log's end
        segments = self._state.segments
        count = len(base_offsets)
        bases = [segment.base_offset for segment in segments[:count]]
        assert list(base_offsets) == bases, f"{list(base_offsets)} are not the oldest: {bases}"
        assert all(one.sealed for one in segments[:count]), "the active segment must not be freed"
        if not count:
            return
        start = segments[count].base_offset
        with self._errors("free"):
            self._write_point(start)
            self._state.log_start = start
            self._note_synced(self._synced_end)
            self._state.segments = segments[count:]
            self._state.generation += 1
            remove_files(self._folder, self._handles, bases)

    def rewriter(self, base_offset: Offset, retried: Collection[int]) -> SegmentRewriter:
        """See ``CompactedLog.rewriter``."""
        segment = sealed_at(self._state, self._folder.path, base_offset)
        return SegmentRewriter(self._folder, segment, self._config.index_interval_bytes, retried)

    def replace_segment(self, replacement: Replacement) -> bool:
        """Put a rewritten segment in its place, durably; False if the segment is not there now.

        After a NoRoomError or LogFailedError readers have the old segment or the new one.
        """
        self._check_healthy()
        with self._errors("key compaction"):
            return exchange(self._folder, self._handles, self._state, replacement)

    def truncate(self, end: Offset) -> None:
        """Drop the batches from ``end`` on, durably; ``end`` is a batch's base or the log end.

        The caller decides which records may be dropped. An operator can use this on a damaged log:
        a truncation at or below the first damage makes the log writable again.

        Raises:
            NoRoomError: there is no room, or no descriptor: call again. A write meanwhile goes on
                with the truncation first, unless nothing was changed yet.
            LogFailedError: the disk failed.
        """
        self._cut(end, self._epochs.truncated(end))

    def _cut(self, end: Offset, epochs: EpochHistory) -> None:
        assert self.log_start <= end <= self.log_end, f"{end} is not within the log"
        if self._failure is not None:
            raise LogFailedError(self._failure, path=self._folder.path)
        # First the only step that needs a new file. The others write over present bytes, which a
        # copy-on-write file system may refuse: then the next call goes on with them.
        self._write_epochs(epochs)
        self._unfinished_cut = end, epochs
        self._state.log_end = end  # readers of dropped batches try again, and see the new end
        self._state.generation += 1
        self._synced_end = min(self._synced_end, end)
        with self._errors("a promise"):
            self._promise.lower(end, epochs)
        with self._errors("fsync", fatal=True):
            if self._active is not None and self._active.dirty:
                self._active.datasync()
        with self._errors("truncate"):
            assert self._point is not None, "an open log has a recovery point"
            truncate_files(
                self._folder, self._point, self._state.segments, log_start=self.log_start, end=end
            )
            self._reload()
        self._unfinished_cut = None

    def mark_suspect(self) -> None:
        """Make the next opening scan every byte: a read found damage that was not known.

        A scan without damage removes the mark. May be called again, also on a damaged log. Raises
        NoRoomError (no room for the mark's name) and LogFailedError (the disk failed).
        """
        with self._errors("marking"):
            self._folder.mark_suspect()

    def checkpoint(self) -> None:
        """Move the recovery point to the synced end, so that a restart scans from there."""
        self._check_healthy()
        if (active := self._active) is None:
            return
        if active.dirty:
            with self._errors("fsync", fatal=True):
                active.datasync()
            self._note_synced(self.log_end)
        self._checkpoint_size = active.segment.size_bytes
        with self._errors("checkpoint"):
            if not active.segment.empty:
                with ignoring_no_room():  # a cache: without it a restart scans a little more
                    write_index(self._folder, active.segment)
            self._write_point(self.log_start)

    def write_producer_state(
        self, state: bytes, *, end: Offset | None = None, twice: bool = False
    ) -> bool:
        """Store the producers' state of the log end, or of ``end``; ``twice`` against damage.

        Returns False when the disk is full: the older state stays.
        """
        with suppress(NoRoomError), self._errors("producer state"):
            self.sync()  # there may be no room for its promise
            at = self.log_end if end is None else end
            return producer_state.write_state(self._folder, at, state, twice=twice)
        return False

    def read_producer_states(self) -> producer_state.ProducerStates:
        """Return the producers' states that are on the disk, the newest first."""
        return producer_state.read_states(self._folder, self.log_end)

    def poison(self, reason: str) -> None:
        """Take no more writes: the writing thread has crashed, perhaps in a write. Any thread.

        :meth:`close` then leaves the files as they are; the next opening checks them.
        """
        self._failure = self._failure or reason

    def close(self) -> None:
        """Sync, move the recovery point to the end, close the files. A failed log only closes.

        On a full disk the recovery point may stay: the next opening scans a little more.
        """
        try:
            if self._failure is None and self._active is not None and not self._unfinished_cut:
                with suppress(NoRoomError), self._errors("close"):
                    self._active.trim()
                with suppress(NoRoomError):  # all records are durable nevertheless
                    self.sync()
                    self.checkpoint()
        finally:
            if self._active is not None:
                self._active.close()
            self._active = None
            self._failure = self._failure or f"{self._folder.path} is closed"
            self._handles.close()
            if self._point is not None:
                self._point.close()

    # ------------------------------------------------------------------ helpers, owner thread

    def _check_healthy(self) -> None:
        if self._failure is not None:
            raise LogFailedError(self._failure, path=self._folder.path)
        if self._state.damaged:
            raise takes_no_writes(self._folder.path, self._state.damaged[0])
        if self._unfinished_cut is not None:
            self._cut(*self._unfinished_cut)

    def _writable(self) -> ActiveSegment:
        """Return the segment to write to. First do the work that a full disk had prevented.

        Raises:
            NoRoomError: there is still no room for this work.
        """
        self._check_healthy()
        self._begin_promise()
        if self._active is None:
            return self._begin_segment()
        if self._synced_end < self.log_end and not self._active.dirty:
            self._note_synced(self.log_end)  # durable records whose promise had no room
        return self._active

    def _begin_promise(self) -> None:
        """Note in the promises that the replica is held, and its end, unless it is damaged."""
        if self._promise.begun or self._state.damaged:
            return
        self._promise.look_back(self._folder, self._state, self._config.index_interval_bytes)
        with self._errors("a promise"):
            self._promise.begin(self.log_start, self._synced_end, self._epochs)

    def _note_synced(self, end: Offset) -> None:
        """Promise the synced records, before they are acknowledged."""
        with self._errors("a promise"):
            self._promise.synced(self.log_start, end, self._epochs)
        self._synced_end = end

    def _errors(self, what: str, *, fatal: bool = False) -> DiskErrors:
        return DiskErrors(self._fail, self._folder.path, what, fatal=fatal)

    def _fail(self, reason: str) -> None:
        self._failure = reason

    def _open_active(self, segment: Segment) -> ActiveSegment:
        step = min(self._config.preallocate_bytes, self._config.segment_bytes_max)
        return ActiveSegment(self._folder, self._handles, segment, preallocate_bytes=step)

    def _begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Record a new leader epoch durably, before a record is written under it."""
        if leader_epoch < self._epochs.latest:
            raise stale_epoch(self._folder.path, self._epochs.latest, leader_epoch)
        self._write_epochs(self._epochs.begun(leader_epoch, self.log_end))

    def _write_epochs(self, history: EpochHistory) -> None:
        if history == self._epochs:
            return
        with self._errors("epoch history"):
            data = encode_epochs(self._folder.partition_id, history.starts)
            self._folder.replace(self._folder.file(EPOCHS_NAME), data)
            self._folder.sync()
        self._epochs = history

    def _roll_when_full(
        self, active: ActiveSegment, size: int, now_us: int, *, sparse: bool = False
    ) -> ActiveSegment:
        """Roll also between batches of key compaction and others: no segment has both."""
        segment = active.segment
        full = segment.size_bytes + size > self._config.segment_bytes_max
        due = full or sparse != segment.sparse or self._config.is_aged(segment.created_us, now_us)
        return self._roll(active) if due and not segment.empty else active

    def _roll(self, active: ActiveSegment) -> ActiveSegment:
        """Seal the active segment and start its successor, durably.

        The order matters: the sealed bytes are durable before the successor gets its name. So a
        segment that has a successor is whole. Its index may be missing: it is a cache.
        """
        sealed = active.segment
        base = sealed.end_offset
        with self._errors("trim"):
            active.trim()
        with self._errors("fsync", fatal=True):
            if active.dirty:
                active.datasync()
        self._note_synced(base)
        with self._errors("roll"):
            self._folder.create_segment(base)
        sealed.seal()
        self._active = None  # until its successor is open: `_begin_segment` may be done again
        active.close()
        self.sealed_count += 1
        with self._errors("roll", fatal=True), ignoring_no_room():
            write_index(self._folder, sealed)
        successor = self._begin_segment()
        with self._errors("roll", fatal=True), ignoring_no_room():
            self._write_point(self.log_start)
        return successor

    def _begin_segment(self) -> ActiveSegment:
        """Make the segment at the log's end active; its file may be there from an earlier try."""
        with self._errors("the next segment"):
            if not self._folder.files.exists(self._folder.segment_file(self.log_end, "log")):
                self._folder.create_segment(self.log_end)
            self._folder.sync()
            segment = Segment(self.log_end, SegmentIndex(self._config.index_interval_bytes))
            self._active = successor = self._open_active(segment)
            self._state.segments = (*self._state.segments, segment)
            self._checkpoint_size = 0
        return successor

    def _write_point(self, log_start: Offset) -> None:
        assert self._point is not None, "a log without its recovery point is damaged"
        active, last = self._active, self._state.segments[-1]
        at = (last.base_offset, last.size_bytes if active is None else active.synced_bytes)
        self._point.write(self._folder, at=at, log=(log_start, self._synced_end))

    def _reload(self) -> None:
        """Take over the result of recovery after the files were cut."""
        found = recover(self._folder, index_interval_bytes=self._config.index_interval_bytes)
        if self._active is not None:
            self._active.close()
        self._active = None
        if self._point is not None:
            self._point.close()
        for segment in self._state.segments:
            self._handles.drop(self._folder.segment_file(segment.base_offset, "log"))
        self._point, self._epochs, self.recovery = found.point, found.epochs, found.report
        self.copying = False
        self._synced_end = found.log_end
        self._checkpoint_size = found.segments[-1].size_bytes if found.segments else 0
        self._state.replace(*found.found)
        self._reader.forget_places()
        healthy = not found.report.damaged_ranges and not found.segments[-1].sealed
        self._active = self._open_active(found.segments[-1]) if healthy else None
        with suppress(NoRoomError):
            self._begin_promise()
        if not self._state.damaged:  # the cut also made unsynced records durable: promise them
            self._promise.look_back(self._folder, self._state, self._config.index_interval_bytes)
            self._note_synced(found.log_end)
