"""The promises: up to which offset a replica's records may have been acknowledged.

A log's own folder cannot prove how long the log once was: the folder may be gone, emptied, cut or
an older copy. So each replica has a slot in a second place, the file ``<data_dir>/promises``. The
slot says that this broker holds the replica, and up to which offset its records were promised. A
log that is absent, or shorter than its promise, is damaged. A log without a slot is new.

A promise is written to the page cache *before* a record is acknowledged. This takes microseconds,
and the promise is exact after a kill of the process. It becomes durable later
(:meth:`Promises.sync`): after a power cut the logs still hold all synced records, so a promise that
is too low only detects less. A promise is never above the synced end of its log, so it never raises
a false alarm. For the same reason a promise is lowered durably before its log is cut.

A slot has two copies; a write never goes to the copy that the last sync made durable. Each slot has
one owner who writes it. :meth:`Promises.sync` may run at the same time, on any thread.

A full disk may refuse the write of a slot, because some file systems need room also for a write
over present bytes. Then the slot keeps its values, and the owner writes it again when there is
room. (If a part was written, a restart before that may find the last synced values: it detects
less.) No other error is ever tried again.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from broker.codec.disk import promise_format as bytes_of
from broker.codec.disk.promise_format import SlotValues
from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.errors import LogFailedError, MetadataCorruptError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.ports.system import File, Files
from broker.storage.no_room import is_full
from broker.storage.whole_file import write_whole

PROMISES_NAME: Final = "promises"
NO_OWNER: Final = str(uuid.UUID(int=0))
_SIZE_MAX: Final = 1024 * 1024 * 1024
_NAME_SIZE: Final = 16
_NO_KEY: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class Promised:
    """The promise for a replica: the log holds ``[start, end)``; epoch of the last record."""

    start: Offset
    end: Offset
    last_epoch: LeaderEpoch
    mark: int = 0  # of the batch that ends at ``end``, see promised_batch.py; 0: not known
    renewing: bool = False  # the log is being replaced: an absent log is no loss then


# The metadata says that the replica is held, but no promise was found.
HELD: Final = Promised(Offset(0), Offset(0), LeaderEpoch(0))


class _Slot:
    """One slot, and which of its two copies may be written next."""

    __slots__ = ("copy", "durable", "index", "queued", "torn", "values")

    def __init__(self, index: int, values: SlotValues, copy: int, durable: int) -> None:
        self.index = index
        self.values = values
        self.copy = copy  # the copy that holds ``values``
        self.durable = durable  # the newest sequence that is known to be on the disk
        self.queued = False  # whether the next sync covers this slot
        self.torn = False  # the last write may have ended in its middle


class Promises:
    """All slots of one broker. Any thread may look up and make slots."""

    def __init__(self, files: Files, owner: str = NO_OWNER) -> None:
        """Load the file if it exists; it is created with the first slot. See :attr:`complaint`.

        A file that is not readable or belongs to another data folder is moved aside, and a new file
        is begun. At this start no log can be compared with a promise: each log counts as whole, and
        the metadata says which replicas this broker holds.

        Raises:
            OSError: the disk failed.
        """
        self._files = files
        self._owner = owner
        self._file: File | None = None
        self._slots: list[_Slot | None] = []  # None: no copy is readable; never used again
        self._free: list[_Slot] = []
        self._replicas: dict[PartitionId, _Slot] = {}
        self._counters: dict[bytes, _Slot] = {}
        self._written: deque[_Slot] = deque()
        self._lock = threading.Lock()  # guards the maps and the growth of the file
        self._sync_lock = threading.Lock()
        self._failure: str | None = None
        self.complaint: str | None = (
            None  # what was wrong with the file at its opening, for a log line
        )
        self.found = files.exists(PROMISES_NAME)  # False: the file was never made, or was lost
        if self.found:
            self._load()
        elif files.exists("streams"):
            self.complaint = (
                f"the file {PROMISES_NAME} is missing although there are logs: an older version "
                "wrote them, or the file was lost. This start cannot tell whether a log lost its "
                "newest records; the next start can"
            )

    # ------------------------------------------------------------------ replicas and counters

    def replica(self, partition_id: PartitionId) -> ReplicaPromise:
        """Return the promise of one replica, for the owner of its log; makes no slot."""
        return ReplicaPromise(self, partition_id)

    def replicas(self) -> list[PartitionId]:
        """Return the replicas that have a slot."""
        with self._lock:
            return sorted(self._replicas)

    def note(self, name: str, first: int, second: int = 0) -> None:
        """Note a counter's values, e.g. the end of a journal, before it is acknowledged. Cheap.

        Raises:
            OSError: the disk has no room.
            LogFailedError: the file has failed.
        """
        key = _counter_key(name)
        with self._lock:
            slot = self._counters.get(key) or self._taken(bytes_of.KIND_COUNTER, key, 0)
            self._counters[key] = slot
        self.write(slot, kind=bytes_of.KIND_COUNTER, key=key, first=first, second=second)

    def noted(self, name: str) -> tuple[int, int] | None:
        """Return a counter's values; None when it was never noted, or the file was lost."""
        slot = self._counters.get(_counter_key(name))
        return None if slot is None else (slot.values.first, slot.values.second)

    # ------------------------------------------------------------------ durability, any thread

    @property
    def dirty(self) -> bool:
        """Whether a written slot is not yet known to be durable."""
        return bool(self._written)

    def sync(self) -> None:
        """Make durable all slots that were written before this call. Blocks.

        Raises:
            LogFailedError: the disk did not confirm; no promise can be made any more.
        """
        with self._sync_lock:
            self._refuse_if_failed()
            if self._file is None or not self._written:
                return
            covered: list[tuple[_Slot, int]] = []
            for _ in range(len(self._written)):
                slot = self._written.popleft()
                slot.queued = False  # before its sequence is read: a later write queues it again
                covered.append((slot, slot.values.sequence))
            try:
                self._file.datasync()
            except OSError as cause:
                self._fail("fdatasync", cause)
            self._require_still_here(*covered[0])
            for slot, sequence in covered:
                if not slot.torn:
                    slot.durable = max(slot.durable, sequence)

    def _require_still_here(self, slot: _Slot, sequence: int) -> None:
        """Fail if the file with this name is no longer the file that is open.

        Then the data folder of this running broker was exchanged or removed. The broker
        must not go on: it would acknowledge records in files that no restart finds.
        """
        newest = -1
        try:
            file = self._files.open(PROMISES_NAME)
        except FileNotFoundError:
            pass
        except OSError:
            return  # for example no file descriptor is free: the next sync checks again
        else:
            try:
                for copy in range(2):
                    data = file.read_at(
                        bytes_of.slot_position(slot.index, copy), bytes_of.SLOT_SIZE
                    )
                    with suppress(MetadataCorruptError):
                        found = bytes_of.decode_slot(data)
                        newest = max(newest, -1 if found is None else found.sequence)
            except OSError:
                return
            finally:
                file.close()
        if newest < sequence and not slot.torn:
            self._failure = (
                f"the file {PROMISES_NAME}, and perhaps the whole data folder, was exchanged or "
                "removed while the broker runs. No restart would find records that are written "
                "now: put the folder back and start the broker again"
            )
            self._refuse_if_failed()

    def close(self) -> None:
        """Make everything durable and close the file."""
        try:
            if self._failure is None:
                self.sync()
        finally:
            with self._sync_lock, self._lock:
                self._failure = self._failure or f"{PROMISES_NAME} is closed"
                if self._file is not None:
                    self._file.close()
                    self._file = None

    # ------------------------------------------------------------------ for ReplicaPromise

    def slot_of(self, partition_id: PartitionId) -> _Slot | None:
        """Return a replica's slot."""
        return self._replicas.get(partition_id)

    def make_slot(self, partition_id: PartitionId) -> _Slot:
        """Return a replica's slot; make it if there is none. A new slot has no values yet."""
        number, key = pack_partition_id(partition_id)
        with self._lock:
            slot = self._replicas.get(partition_id)
            if slot is None:
                slot = self._taken(bytes_of.KIND_REPLICA, key, number)
                self._replicas[partition_id] = slot
            return slot

    def free_slot(self, partition_id: PartitionId) -> None:
        """Free a replica's slot; durable with the next sync."""
        with self._lock:
            slot = self._replicas.get(partition_id)
            if slot is not None:
                self.write(slot, kind=bytes_of.KIND_FREE, key=_NO_KEY)
                del self._replicas[partition_id]
                self._free.append(slot)

    def write(
        self, slot: _Slot, *, kind: int, key: bytes, number: int = 0, flags: int = 0,
        first: int = 0, second: int = 0, third: int = 0,
    ) -> None:  # fmt: skip
        """Write a slot's values into the copy that is not the durable one. Not durable yet.

        Raises:
            OSError: the disk has no room; the slot keeps its values.
            LogFailedError: the file has failed.
        """
        self._refuse_if_failed()
        file = self._file
        assert file is not None, "there is no slot before the file is made"
        before = slot.values.sequence
        copy = slot.copy ^ 1 if slot.durable == before else slot.copy
        values = SlotValues(
            kind=kind, sequence=before + 1, key=key, number=number, flags=flags, first=first,
            second=second, third=third,
        )  # fmt: skip
        slot.torn = True  # a sync meanwhile must not count on the copy that is written over
        try:
            file.write_at(bytes_of.slot_position(slot.index, copy), [bytes_of.encode_slot(values)])
        except OSError as cause:
            if is_full(cause):
                slot.torn = copy == slot.copy
                raise
            self._fail("a write", cause)
        slot.values, slot.copy, slot.torn = values, copy, False
        if not slot.queued:
            slot.queued = True
            self._written.append(slot)

    # ------------------------------------------------------------------ the file

    def _refuse_if_failed(self) -> None:
        if self._failure is not None:
            raise LogFailedError(self._failure, path=PROMISES_NAME)

    def _fail(self, what: str, cause: OSError) -> None:
        self._failure = f"{what} of {PROMISES_NAME} failed: {cause}"
        raise LogFailedError(self._failure, path=PROMISES_NAME) from cause

    def _load(self) -> None:
        file = self._files.open(PROMISES_NAME)
        try:
            data = file.read_at(0, min(file.size(), _SIZE_MAX))
            owner = bytes_of.decode_header(data)
            if owner != self._owner:
                raise MetadataCorruptError(f"it belongs to the data folder {owner}")
        except (MetadataCorruptError, OSError) as error:
            file.close()
            self._put_aside(str(error))
            return
        self._file = file
        pairs = max(0, len(data) - bytes_of.BLOCK_SIZE) // bytes_of.PAIR_SIZE
        damaged = 0
        for index in range(pairs * bytes_of.SLOTS_PER_BLOCK):
            slot, whole = _loaded(data, index)
            damaged += not whole
            self._slots.append(slot)
            if slot is None:
                continue
            if slot.values.sequence:
                slot.queued = True  # perhaps it is only in the page cache
                self._written.append(slot)
            if slot.values.kind == bytes_of.KIND_REPLICA:
                key = unpack_partition_id(slot.values.number, slot.values.key)
                self._replicas[key] = slot
            elif slot.values.kind == bytes_of.KIND_COUNTER:
                self._counters[slot.values.key] = slot
            else:
                self._free.append(slot)
        self._free.reverse()  # pop() then takes the first slots first
        if damaged:
            self.complaint = f"{damaged} slots of the file {PROMISES_NAME} have a damaged copy"

    def _put_aside(self, reason: str) -> None:
        aside = next(
            name
            for name in (f"{PROMISES_NAME}.aside-{number}" for number in range(1_000_000))
            if not self._files.exists(name)
        )
        self._files.replace(PROMISES_NAME, aside)
        self._files.sync_folder("")
        self.found = False
        self.complaint = (
            f"the file {PROMISES_NAME} cannot be used and was moved to {aside}: {reason}. This "
            "start cannot tell whether a log lost its newest records; the next start can"
        )

    def _taken(self, kind: int, key: bytes, number: int) -> _Slot:
        """Return a free slot for ``key``; the file grows by a pair of blocks if there is none."""
        self._refuse_if_failed()
        if not self._free:
            self._grow()
        slot = self._free.pop()
        slot.values = SlotValues(
            kind=kind, sequence=slot.values.sequence, key=key, number=number,
            flags=bytes_of.FLAG_RENEWING,
        )  # fmt: skip
        return slot

    def _grow(self) -> None:
        """Make room for more slots, durably, with real blocks: a promise must need no space."""
        count = len(self._slots)
        zeros = bytes(bytes_of.PAIR_SIZE)
        if self._file is None:
            header = bytes_of.encode_header(self._owner).ljust(bytes_of.BLOCK_SIZE, b"\0")
            write_whole(self._files, PROMISES_NAME, [header, zeros])
            self._file = self._files.open(PROMISES_NAME)
        else:
            self._file.write_at(bytes_of.slot_position(count, 0), [zeros])
            try:
                self._file.datasync()
            except OSError as cause:
                self._fail("fdatasync", cause)
        free = SlotValues(kind=bytes_of.KIND_FREE, sequence=0, key=_NO_KEY)
        made = [
            _Slot(index, free, 0, 0) for index in range(count, count + bytes_of.SLOTS_PER_BLOCK)
        ]
        self._slots += made
        self._free += reversed(made)


class ReplicaPromise:
    """The promise of one replica. Owner: the thread that writes the log."""

    def __init__(self, promises: Promises, partition_id: PartitionId) -> None:
        self._promises = promises
        self._partition_id = partition_id
        self._number, self._key = pack_partition_id(partition_id)
        self._slot = promises.slot_of(partition_id)

    @property
    def promised(self) -> Promised | None:
        """The last promise; None: this broker never held this replica."""
        if self._slot is None:
            return None
        values = self._slot.values
        return Promised(
            Offset(values.first),
            Offset(values.second),
            LeaderEpoch(values.third),
            bytes_of.mark_in(values.flags),
            bool(values.flags & bytes_of.FLAG_RENEWING),
        )

    def begin(self, start: Offset, end: Offset, last_epoch: LeaderEpoch, mark: int = 0) -> None:
        """Note that this broker holds the replica; durable once :meth:`Promises.sync` has returned.

        Raises:
            OSError: the disk has no room.
            LogFailedError: the file has failed.
        """
        if self._slot is None:
            self._slot = self._promises.make_slot(self._partition_id)
        self.promise(start, end, last_epoch, mark)

    def promise(self, start: Offset, end: Offset, last_epoch: LeaderEpoch, mark: int = 0) -> None:
        """Raise the promise, before a record is acknowledged. Cheap; durable with the next sync.

        Without a ``mark`` an earlier mark for the same end stays.

        Raises:
            OSError: the disk has no room: no record may be acknowledged before it has.
            LogFailedError: the file has failed: no more records may be acknowledged.
        """
        slot = self._slot
        assert slot is not None, "a replica is held before it promises"
        values = slot.values
        flags = bytes_of.flags_of(mark)
        same = values.second == end and values.third == last_epoch and values.sequence > 0
        if same and not mark:
            flags = values.flags & ~bytes_of.FLAG_RENEWING
        if same and values.first == start and values.flags == flags:
            return
        self._write(start, end, last_epoch, flags)

    def lower(self, end: Offset, last_epoch: LeaderEpoch) -> None:
        """Lower the promise to ``end``, durably, because the log is about to be cut. Blocks.

        Raises:
            OSError, LogFailedError: see :meth:`begin`.
        """
        slot = self._slot
        if slot is not None and slot.values.second > end:
            self._write(Offset(min(slot.values.first, end)), end, last_epoch)
            self._promises.sync()

    def renew(self) -> None:
        """Note durably that the log is about to be replaced or moved away. Blocks.

        Raises:
            OSError, LogFailedError: see :meth:`begin`.
        """
        if self._slot is None:
            self._slot = self._promises.make_slot(self._partition_id)
        self._write(Offset(0), Offset(0), LeaderEpoch(0), bytes_of.FLAG_RENEWING)
        self._promises.sync()

    def remove(self) -> None:
        """Note durably that this broker no longer holds the replica. Blocks.

        Raises:
            OSError, LogFailedError: see :meth:`begin`.
        """
        self._promises.free_slot(self._partition_id)
        self._slot = None
        self._promises.sync()

    def _write(self, start: Offset, end: Offset, last_epoch: LeaderEpoch, flags: int = 0) -> None:
        assert self._slot is not None, "a replica is held before it promises"
        self._promises.write(
            self._slot, kind=bytes_of.KIND_REPLICA, key=self._key, number=self._number,
            flags=flags, first=start, second=end, third=last_epoch,
        )  # fmt: skip


def _loaded(data: bytes, index: int) -> tuple[_Slot | None, bool]:
    """Return a slot with the values of its newer copy, and whether both copies are whole."""
    found: list[tuple[int, SlotValues]] = []
    damaged = 0
    for copy in range(2):
        at = bytes_of.slot_position(index, copy)
        try:
            values = bytes_of.decode_slot(data[at : at + bytes_of.SLOT_SIZE])
        except MetadataCorruptError:
            damaged += 1
            continue
        if values is not None:
            found.append((copy, values))
    if found:
        copy, newest = max(found, key=lambda one: one[1].sequence)
        return _Slot(index, newest, copy, -1), damaged == 0
    if damaged:
        return None, False
    return _Slot(index, SlotValues(kind=bytes_of.KIND_FREE, sequence=0, key=_NO_KEY), 0, 0), True


def _counter_key(name: str) -> bytes:
    key = name.encode()
    assert 0 < len(key) <= _NAME_SIZE, f"a counter's name has 1 to {_NAME_SIZE} bytes: {name!r}"
    return key.ljust(_NAME_SIZE, b"\0")
