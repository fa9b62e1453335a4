"""The log of one simulated replica, in two makes with one face.

``ModelLog`` keeps lists and forgets what was not synced; ``RealLog`` is the product's PartitionLog
on the simulated disk. Both hold the same batches, so everything above cannot tell them apart.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Any, Protocol

from broker.codec.checksum import crc32c
from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE
from broker.codec.record_batch import HEADER_SIZE, BatchHeader, PreparedBatch
from broker.core.dedup import ProducerTable
from broker.core.replication.effects import LogFacts
from broker.core.replication.runs import append_runs
from broker.errors import (
    DiskFullError,
    LogFailedError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
    StaleLeaderEpochError,
)
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER, ProducerId
from broker.model.offsets import Offset
from broker.ports.partition import StoredBatch
from broker.storage.log.partition_log import PartitionLog
from checkkit.readings import NO_TIME
from simkit.disk.disk import ROOMY, SimDisk
from simkit.log.batches import FOLDER, PARTITION, SMALL


class ReplicaLog(Protocol):
    """What the simulated broker needs of a log."""

    damaged: bool
    changes: int
    unreadable: bool  # the device refuses to read records, until it is another one
    interval: bool  # the stream syncs now and then: what is written counts as kept
    producers: bytes  # those of all records below the log's start; durable with the log

    def facts(self) -> LogFacts:
        """Return ends and epochs."""

    def append(self, batch: PreparedBatch, leader_epoch: LeaderEpoch) -> Offset:
        """Write as the leader; return the base offset."""

    def append_stored(self, batches: Sequence[StoredBatch]) -> None:
        """Write as a follower."""

    def sync(self) -> None:
        """Make everything durable."""

    def truncate(self, end: Offset) -> None:
        """Cut, durably."""

    def free(self, floor: Offset) -> None:
        """Free whole segments below ``floor``, not necessarily all of them."""

    def replace(self, start: Offset, epochs: EpochHistory) -> None:
        """Put an empty log at ``start`` in the place of this one; ``epochs`` are before it."""

    def read(self, start: Offset, count: int) -> list[StoredBatch]:
        """Return up to ``count`` batches from ``start`` on.

        Raises:
            OffsetOutOfRangeError: the log starts above ``start``.
        """

    def last_epoch(self, end: Offset) -> LeaderEpoch:
        """Return the epoch of the record before ``end``."""

    def end_process(self, *, power: bool) -> None:
        """Stop; with ``power`` the cache is gone as well."""

    def reopen(self) -> None:
        """Recover."""

    def wipe(self) -> None:
        """Lose the disk."""

    def copy(self) -> Any:
        """Return a copy of what the disk has now, taken while a process may write to it."""

    def put_back(self, copy: Any) -> None:
        """Be what such a copy of this log, or of another replica's, says; no process runs."""

    def mark_suspect(self) -> None:
        """Note that a read met damage, for the next opening."""

    def rot(self) -> bool:
        """Damage a synced record; False when there is none."""

    def set_full(self, *, full: bool) -> None:
        """Fill the disk, or make room."""

    def fail_next_sync(self) -> None:
        """Let the next fsync fail."""


NO_PRODUCERS = ProducerTable().to_state()


def sent_time_us(value: bytes) -> int:
    """Return the time that a record is sent with; half have none: the leader gives it."""
    drawn = crc32c(value)
    return drawn if drawn % 2 else NO_TIME


def prepared(value: bytes, producer: int, sequence: int, *, now_us: int) -> PreparedBatch:
    """Return a batch of one record whose body says what it is."""
    sent_us = sent_time_us(value)
    time_us = now_us if sent_us == NO_TIME else sent_us
    body = value.ljust(-(-len(value) // 8) * 8, b".")
    return PreparedBatch(
        body=body,
        body_crc=crc32c(body),
        records_count=1,
        first_timestamp_us=time_us,
        max_timestamp_us=time_us,
        columns=0,
        producer_id=ProducerId(producer),
        base_sequence=sequence,
    )


class ModelLog:
    """Batches in a list; everything below ``synced_end`` survives."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._full = self._fail_sync = False
        self.damaged = self.unreadable = self.interval = False
        self.changes = 0
        self._clear()

    def _clear(self) -> None:
        self._batches: list[StoredBatch] = []
        self._start = self._synced = 0
        self.producers = NO_PRODUCERS
        self._epochs = EpochHistory()
        self.damaged = self.unreadable = False
        self.changes += 1

    @property
    def _end(self) -> int:
        return self._start + len(self._batches)  # one record each

    def facts(self) -> LogFacts:
        """See ReplicaLog."""
        return LogFacts(
            log_start=Offset(self._start),
            log_end=Offset(self._end),
            synced_end=Offset(self._end if self.interval else self._synced),
            epochs=self._epochs,
        )

    def _begin(self, leader_epoch: LeaderEpoch) -> None:
        if leader_epoch < self._epochs.latest:
            raise StaleLeaderEpochError(f"{leader_epoch} is below {self._epochs.latest}")
        if leader_epoch > self._epochs.latest:
            self._epochs = self._epochs.begun(leader_epoch, Offset(self._end))

    def _check_writable(self) -> None:
        if self.damaged:
            raise LogFailedError("damaged")
        if self._full:
            raise DiskFullError("no room")

    def append(self, batch: PreparedBatch, leader_epoch: LeaderEpoch) -> Offset:
        """See ReplicaLog."""
        self._check_writable()
        self._begin(leader_epoch)
        base = Offset(self._end)
        header = BatchHeader(
            base_offset=base, leader_epoch=leader_epoch, synced_end=Offset(self._synced),
            first_timestamp_us=batch.first_timestamp_us, max_timestamp_us=batch.max_timestamp_us,
            producer_id=batch.producer_id, base_sequence=batch.base_sequence, records_count=1,
            offset_span=1,
            body_size=len(batch.body), body_crc=batch.body_crc, columns=0, codec="none",
            sparse=False,
        )  # fmt: skip
        self._batches.append(StoredBatch(header, batch.body))
        self.changes += 1
        return base

    def append_stored(self, batches: Sequence[StoredBatch]) -> None:
        """See ReplicaLog."""
        self._check_writable()
        for batch in batches:
            assert batch.header.base_offset == self._end, "a gap was written"
            self._begin(batch.header.leader_epoch)
            self._batches.append(batch)
        self.changes += 1

    def sync(self) -> None:
        """See ReplicaLog."""
        if self._fail_sync or self.damaged:
            self._fail_sync = False
            raise LogFailedError("fsync failed")
        self._synced = self._end
        self.changes += 1

    def truncate(self, end: Offset) -> None:
        """See ReplicaLog."""
        assert self._start <= end <= self._end, f"{end} is not within the log"
        del self._batches[end - self._start :]
        self._epochs = self._epochs.truncated(end)
        self._synced = self._end
        self.changes += 1

    def free(self, floor: Offset) -> None:
        """See ReplicaLog. Segments end anywhere."""
        most = min(floor, self._synced)
        if most > self._start:
            start = self._rng.randint(self._start, most)
            self.producers = _producers(self.producers, self._batches[: start - self._start])
            del self._batches[: start - self._start]
            self._start = start
            self.changes += 1

    def replace(self, start: Offset, epochs: EpochHistory) -> None:
        """See ReplicaLog."""
        if self._full:
            raise DiskFullError("no room")
        self._batches, self._epochs = [], epochs
        self._start = self._synced = start
        self.changes += 1

    def read(self, start: Offset, count: int) -> list[StoredBatch]:
        """See ReplicaLog."""
        if self.unreadable:
            raise SegmentCorruptError("the device cannot read this")
        first = start - self._start
        if first < 0:
            raise OffsetOutOfRangeError(f"the log starts at {self._start}, above {start}")
        return self._batches[first : first + count]

    def last_epoch(self, end: Offset) -> LeaderEpoch:
        """See ReplicaLog."""
        if end > self._start:
            return self._batches[end - 1 - self._start].header.leader_epoch
        return self._epochs.epoch_of(Offset(end - 1)) if end else LeaderEpoch(0)

    def end_process(self, *, power: bool) -> None:
        """See ReplicaLog. A torn tail ends at a batch; an fsync that failed lost its pages."""
        if power:
            kept = self._rng.randint(self._synced, self._end)
            del self._batches[kept - self._start :]
        self.changes += 1

    def reopen(self) -> None:
        """See ReplicaLog. What is found is made durable before it is served."""
        self._fail_sync = False
        self._synced = self._end
        self._epochs = self._epochs.cut(Offset(self._synced))
        self.changes += 1

    def wipe(self) -> None:
        """See ReplicaLog. The new disk is a good one."""
        self._fail_sync = False
        self._clear()

    def copy(self) -> Any:
        """See ReplicaLog."""
        return list(self._batches), self._epochs, self._start, self.producers

    def put_back(self, copy: Any) -> None:
        """See ReplicaLog."""
        self.wipe()
        batches, epochs, self._start, self.producers = copy
        self._batches = list(batches)
        self._synced = self._end
        self._epochs = epochs.cut(Offset(self._synced))

    def mark_suspect(self) -> None:
        """See ReplicaLog."""
        self.damaged = True

    def rot(self) -> bool:
        """See ReplicaLog."""
        if self._synced <= self._start:
            return False
        self.damaged = True
        self.changes += 1
        return True

    def set_full(self, *, full: bool) -> None:
        """See ReplicaLog."""
        self._full = full

    def fail_next_sync(self) -> None:
        """See ReplicaLog."""
        self._fail_sync = True


class RealLog:
    """The product's log on a disk that loses, tears and fails."""

    def __init__(self, rng: random.Random) -> None:
        self._disk = SimDisk(rng)
        self._disk.tear_sectors = False
        self.changes = 0
        self.damaged = self.unreadable = self._suspect = self.interval = False
        self.producers = NO_PRODUCERS
        self._open()

    def _open(self) -> None:
        self._log = PartitionLog.open(self._disk.files(), FOLDER, PARTITION, SMALL)
        # A log that is suspect is read whole when it is opened.
        self.damaged = bool(self._log.recovery.damaged) or (self.unreadable and self._suspect)
        self._suspect = False
        self.changes += 1

    def facts(self) -> LogFacts:
        """See ReplicaLog."""
        log = self._log
        return LogFacts(
            log_start=log.log_start,
            log_end=log.log_end,
            synced_end=log.log_end if self.interval else log.synced_end,
            epochs=log.epochs,
        )

    def append(self, batch: PreparedBatch, leader_epoch: LeaderEpoch) -> Offset:
        """See ReplicaLog."""
        self.changes += 1
        return self._log.append([batch], leader_epoch=leader_epoch, now_us=1)[0]

    def append_stored(self, batches: Sequence[StoredBatch]) -> None:
        """See ReplicaLog."""
        self.changes += 1
        by_base = {batch.header.base_offset: batch for batch in batches}
        runs = list(append_runs([batch.header for batch in batches], self._log.synced_end))
        for number, run in enumerate(runs):
            if number:
                self._log.sync()
            self._log.append_stored([by_base[header.base_offset] for header in run], now_us=1)

    def sync(self) -> None:
        """See ReplicaLog."""
        self._log.sync()
        self.changes += 1

    def truncate(self, end: Offset) -> None:
        """See ReplicaLog."""
        self._log.truncate(end)
        self.changes += 1

    def free(self, floor: Offset) -> None:
        """See ReplicaLog."""
        ends = [one.end_offset for one in self._log.segments() if one.sealed]
        start = max((one for one in ends if one <= floor), default=self._log.log_start)
        if start > self._log.log_start:
            freed = self.read(self._log.log_start, start - self._log.log_start)
            bases = [one.base_offset for one in self._log.segments() if one.base_offset < start]
            self.producers = _producers(self.producers, freed)  # a disk may refuse the rest
            self._log.free(bases)
            self.changes += 1

    def replace(self, start: Offset, epochs: EpochHistory) -> None:
        """See ReplicaLog."""
        self._log.close()
        PartitionLog.replace(self._disk.files(), FOLDER, PARTITION, start=start, epochs=epochs)
        self._open()

    def read(self, start: Offset, count: int) -> list[StoredBatch]:
        """See ReplicaLog."""
        if self.unreadable:
            raise SegmentCorruptError("the device cannot read this")
        if start < self._log.log_start:
            raise OffsetOutOfRangeError(f"the log starts at {self._log.log_start}")
        end = Offset(min(start + count, self._log.log_end))
        return self._log.read(start, end, bytes_max=1 << 20) if start < end else []

    def last_epoch(self, end: Offset) -> LeaderEpoch:
        """See ReplicaLog."""
        return self._log.epochs.epoch_of(Offset(end - 1)) if end else LeaderEpoch(0)

    def end_process(self, *, power: bool) -> None:
        """See ReplicaLog."""
        if power:
            self._disk.lose_power()
        else:
            self._disk.kill()
        self.changes += 1

    def reopen(self) -> None:
        """See ReplicaLog."""
        self._disk.datasync_failures = 0
        self._open()

    def wipe(self) -> None:
        """See ReplicaLog. The new disk is a good one."""
        self._disk.capacity_bytes, self._disk.datasync_failures = ROOMY, 0
        self.unreadable = False
        self.producers = NO_PRODUCERS
        self._disk.files().remove_folder(FOLDER)
        self._open()

    def copy(self) -> Any:
        """See ReplicaLog."""
        return self._disk.copy_of(FOLDER), self.producers

    def put_back(self, copy: Any) -> None:
        """See ReplicaLog."""
        self._disk.capacity_bytes, self._disk.datasync_failures = ROOMY, 0
        self.unreadable = False
        self._disk.files().remove_folder(FOLDER)
        files, self.producers = copy
        self._disk.put_back(files)
        self._open()

    def mark_suspect(self) -> None:
        """See ReplicaLog. A disk that refuses leaves the log as it is."""
        self._suspect = True
        with contextlib.suppress(DiskFullError, LogFailedError):
            self._log.mark_suspect()

    def rot(self) -> bool:
        """See ReplicaLog. Flips a bit in the first segment: a whole sector says that it is rot."""
        path = next(one for one in self._disk.paths() if one.endswith(".log"))
        size = len(self._disk.peek(path).rstrip(b"\0"))
        if size < SEGMENT_HEADER_SIZE + HEADER_SIZE or not self._log.synced_end:
            return False
        self._disk.flip_bit(path, SEGMENT_HEADER_SIZE + HEADER_SIZE // 2, 3)
        return True

    def set_full(self, *, full: bool) -> None:
        """See ReplicaLog."""
        self._disk.capacity_bytes = self._disk.used_bytes() if full else ROOMY

    def fail_next_sync(self) -> None:
        """See ReplicaLog."""
        self._disk.datasync_failures = 1


def _producers(state: bytes, batches: Sequence[StoredBatch]) -> bytes:
    """Return what is known of producers after these batches."""
    table = ProducerTable.from_state(state)
    remember(table, batches)
    return table.to_state()


def remember(table: ProducerTable, batches: Sequence[StoredBatch]) -> None:
    """Note whose batches these are."""
    for header in (batch.header for batch in batches):
        if header.producer_id != NO_PRODUCER:
            table.add(header.producer_id, header.base_sequence, 1, header.base_offset)
