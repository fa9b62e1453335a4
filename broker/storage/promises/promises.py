"""What this node last promised of every replica, in a second place: ``<data_dir>/promises``.

Nothing in a log's own folder says how far the log once was: the folder may be gone, emptied, cut or
an older copy. So each replica has a slot here, which says that it is held and how far its records
were promised. A log that is absent, or shorter, is damaged; without a slot it is new.

A promise is a store into the page cache *before* the word is given: microseconds, and exact after a
kill. It is durable later (:meth:`Promises.sync`), for after a power cut the logs themselves hold
what was synced, and a promise that lags is only weaker. It never exceeds what the log has synced,
so it never cries wolf. Lowering one is durable before the log is cut, for the same reason.

The slot that is written is never the copy that the last sync made durable. Each slot has one owner
who writes it; :meth:`Promises.sync` may run beside, on any thread.
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
from broker.storage.whole_file import write_whole

PROMISES_NAME: Final = "promises"
NO_OWNER: Final = str(uuid.UUID(int=0))
_SIZE_MAX: Final = 1024 * 1024 * 1024
_NAME_SIZE: Final = 16
_NO_KEY: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class Promised:
    """How far a replica was promised: ``[start, end)`` is here, and who wrote the last record."""

    start: Offset
    end: Offset
    last_epoch: LeaderEpoch
    mark: int = 0  # of the batch that ends at ``end``, see promised_batch.py; 0: not known
    renewing: bool = False  # the log is being replaced: that it is absent is no loss


HELD: Final = Promised(Offset(0), Offset(0), LeaderEpoch(0))  # by the metadata's word alone


class _Slot:
    """One slot, and which of its copies may be written next."""

    __slots__ = ("copy", "durable", "index", "queued", "values")

    def __init__(self, index: int, values: SlotValues, copy: int, durable: int) -> None:
        self.index = index
        self.values = values
        self.copy = copy  # that holds ``values``
        self.durable = durable  # the newest sequence that is known to be on the disk
        self.queued = False  # for the next sync


class Promises:
    """All slots of one node. Slots are looked up and made by any thread."""

    def __init__(self, files: Files, owner: str = NO_OWNER) -> None:
        """Load what is there; the file is made when the first slot is. See :attr:`complaint`.

        A file that is not legible, or another folder's, is moved aside and begun anew: the logs
        say again how far they reach, and the metadata which replicas are held.

        Raises:
            OSError: the disk refuses.
        """
        self._files = files
        self._owner = owner
        self._file: File | None = None
        self._slots: list[_Slot | None] = []  # None: neither copy is legible, and it is let alone
        self._free: list[_Slot] = []
        self._replicas: dict[PartitionId, _Slot] = {}
        self._counters: dict[bytes, _Slot] = {}
        self._written: deque[_Slot] = deque()
        self._lock = threading.Lock()  # of the maps and the growth
        self._sync_lock = threading.Lock()
        self._failure: str | None = None
        self.complaint: str | None = None  # what opening found wrong, for a log line
        self.found = files.exists(PROMISES_NAME)  # else this folder has none yet, or lost them
        if self.found:
            self._load()
        elif files.exists("streams"):
            self.complaint = (
                f"{PROMISES_NAME} is missing beside logs: they were written by an older version, "
                "or it was lost; how far they reach is believed once"
            )

    # ------------------------------------------------------------------ replicas and counters

    def replica(self, partition_id: PartitionId) -> ReplicaPromise:
        """Return what a log's owner promises by; makes nothing."""
        return ReplicaPromise(self, partition_id)

    def replicas(self) -> list[PartitionId]:
        """Return the replicas that have a slot."""
        with self._lock:
            return sorted(self._replicas)

    def note(self, name: str, first: int, second: int = 0) -> None:
        """Note a counter's values, e.g. how far a journal is, before anybody is told. Cheap.

        Raises:
            OSError: the first time, there is no room for it.
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
        """Whether something is not known to be durable."""
        return bool(self._written)

    def sync(self) -> None:
        """Make what was written before this call durable. Blocks.

        Raises:
            LogFailedError: the disk did not confirm; nobody can promise anything any more.
        """
        with self._sync_lock:
            self._refuse_if_failed()
            if self._file is None or not self._written:
                return
            covered: list[tuple[_Slot, int]] = []
            for _ in range(len(self._written)):
                slot = self._written.popleft()
                slot.queued = False  # before the look: who writes later queues it again
                covered.append((slot, slot.values.sequence))
            try:
                self._file.datasync()
            except OSError as cause:
                self._fail("fdatasync", cause)
            self._require_still_here(*covered[0])
            for slot, sequence in covered:
                slot.durable = max(slot.durable, sequence)

    def _require_still_here(self, slot: _Slot, sequence: int) -> None:
        """Refuse to go on when the file of this name is another one than the file that is open.

        Somebody has exchanged or removed the data folder below a running broker, which would go on
        acknowledging into files that no restart finds.
        """
        newest = -1
        try:
            file = self._files.open(PROMISES_NAME)
        except FileNotFoundError:
            pass
        except OSError:
            return  # no descriptor, say: it is looked at again
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
        if newest < sequence:
            self._failure = (
                f"{PROMISES_NAME} was exchanged or removed while the broker runs, and perhaps all "
                "of the data folder: what is written now may be in files that no restart finds; "
                "put the folder back and start the broker again"
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
        """Return a replica's slot, made if it has none; says nothing before it is written."""
        number, key = pack_partition_id(partition_id)
        with self._lock:
            slot = self._replicas.get(partition_id)
            if slot is None:
                slot = self._taken(bytes_of.KIND_REPLICA, key, number)
                self._replicas[partition_id] = slot
            return slot

    def free_slot(self, partition_id: PartitionId) -> None:
        """Let go of a replica's slot; durable with the next sync."""
        with self._lock:
            slot = self._replicas.pop(partition_id, None)
            if slot is not None:
                self.write(slot, kind=bytes_of.KIND_FREE, key=_NO_KEY)
                self._free.append(slot)

    def write(
        self, slot: _Slot, *, kind: int, key: bytes, number: int = 0, flags: int = 0,
        first: int = 0, second: int = 0, third: int = 0,
    ) -> None:  # fmt: skip
        """Write a slot's values into the copy that is not the durable one. Not durable yet."""
        self._refuse_if_failed()
        file = self._file
        assert file is not None, "a slot is made with its file"
        before = slot.values.sequence
        copy = slot.copy ^ 1 if slot.durable == before else slot.copy
        values = SlotValues(
            kind=kind, sequence=before + 1, key=key, number=number, flags=flags, first=first,
            second=second, third=third,
        )  # fmt: skip
        try:
            file.write_at(bytes_of.slot_position(slot.index, copy), [bytes_of.encode_slot(values)])
        except OSError as cause:
            self._fail("a write", cause)
        slot.values, slot.copy = values, copy
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
                raise MetadataCorruptError(f"it is the one of the data folder {owner}")
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
                slot.queued = True  # perhaps only the page cache has it
                self._written.append(slot)
            if slot.values.kind == bytes_of.KIND_REPLICA:
                key = unpack_partition_id(slot.values.number, slot.values.key)
                self._replicas[key] = slot
            elif slot.values.kind == bytes_of.KIND_COUNTER:
                self._counters[slot.values.key] = slot
            else:
                self._free.append(slot)
        self._free.reverse()  # the first ones first
        if damaged:
            self.complaint = f"{damaged} slots of {PROMISES_NAME} have a damaged copy"

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
            f"{PROMISES_NAME} cannot be used and was moved to {aside}: {reason}; how far the logs "
            "reach is believed once"
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
        """Make room for more slots, with real blocks: no promise may need room. Durable."""
        count = len(self._slots)
        zeros = bytes(bytes_of.PAIR_SIZE)
        if self._file is None:
            header = bytes_of.encode_header(self._owner).ljust(bytes_of.BLOCK_SIZE, b"\0")
            write_whole(self._files, PROMISES_NAME, [header, zeros])
            self._file = self._files.open(PROMISES_NAME)
        else:
            self._file.write_at(bytes_of.slot_position(count, 0), [zeros])
            self._file.datasync()
        free = SlotValues(kind=bytes_of.KIND_FREE, sequence=0, key=_NO_KEY)
        made = [
            _Slot(index, free, 0, 0) for index in range(count, count + bytes_of.SLOTS_PER_BLOCK)
        ]
        self._slots += made
        self._free += reversed(made)


class ReplicaPromise:
    """What one replica promises. Owner: who writes the log."""

    def __init__(self, promises: Promises, partition_id: PartitionId) -> None:
        self._promises = promises
        self._partition_id = partition_id
        self._number, self._key = pack_partition_id(partition_id)
        self._slot = promises.slot_of(partition_id)

    @property
    def promised(self) -> Promised | None:
        """What was promised last; None: this replica was never held here."""
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
        """Say that the replica is held; it counts once :meth:`Promises.sync` has returned.

        Raises:
            OSError: there is no room for one more slot.
            LogFailedError: the file has failed.
        """
        if self._slot is None:
            self._slot = self._promises.make_slot(self._partition_id)
        self.promise(start, end, last_epoch, mark)

    def promise(self, start: Offset, end: Offset, last_epoch: LeaderEpoch, mark: int = 0) -> None:
        """Raise the promise, before anybody is told. Cheap; the next sync makes it durable.

        Without a ``mark`` the one that was noted for the same end stays.

        Raises:
            LogFailedError: the file has failed: nothing more may be told.
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
        """Take back what is above ``end``, durably: the log is about to be cut. Blocks."""
        slot = self._slot
        if slot is not None and slot.values.second > end:
            self._write(Offset(min(slot.values.first, end)), end, last_epoch)
            self._promises.sync()

    def renew(self) -> None:
        """Take everything back, durably: the log is about to be replaced, or is moved away.

        Raises:
            OSError, LogFailedError: see :meth:`begin`.
        """
        if self._slot is None:
            self._slot = self._promises.make_slot(self._partition_id)
        self._write(Offset(0), Offset(0), LeaderEpoch(0), bytes_of.FLAG_RENEWING)
        self._promises.sync()

    def remove(self) -> None:
        """The replica is not held any more, durably. Blocks."""
        self._slot = None
        self._promises.free_slot(self._partition_id)
        self._promises.sync()

    def _write(self, start: Offset, end: Offset, last_epoch: LeaderEpoch, flags: int = 0) -> None:
        assert self._slot is not None, "a replica is held before it promises"
        self._promises.write(
            self._slot, kind=bytes_of.KIND_REPLICA, key=self._key, number=self._number,
            flags=flags, first=start, second=end, third=last_epoch,
        )  # fmt: skip


def _loaded(data: bytes, index: int) -> tuple[_Slot | None, bool]:
    """Return a slot as its newer copy says, and whether both copies are whole."""
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
