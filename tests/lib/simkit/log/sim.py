"""One seed of a partition log's life on a failing disk, checked against the promises.

The model is a list of the batches that were appended, and the end below which the log has promised
durability. After every restart each promised batch must be there bit for bit, or, where the seed
damaged the disk, be reported by name. A seed draws its own sizes, its own mix of operations and
its own subset of faults, so that rare windows are common in some seed.

The file is not split: operations, faults and checks share the model of the promises.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.codec.checksum import crc32c
from broker.codec.disk.index_format import decode_index_summary
from broker.codec.record_batch import PreparedBatch, decode_header, encode_header
from broker.errors import (
    DiskFullError,
    HeadwaterError,
    IndexCorruptError,
    LogFailedError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.ports.partition import StoredBatch
from broker.ports.system import Files
from broker.storage.cached_files import CachedFiles
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log_folder import CUT_NAME
from broker.storage.promises.promises import Promises
from broker.storage.segments.damage import RotProof
from simkit.disk.disk import ROOMY, SECTOR, PowerLostError, SimDisk
from simkit.log.rot import LogRot

FOLDER = "streams/s/0"
PARTITION = PartitionId(StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(0))
_PROOFS = {proof: f"rot proved: {proof.name}" for proof in RotProof}


@dataclass(frozen=True, slots=True)
class Written:
    """One batch as it was appended."""

    base: Offset
    count: int
    leader_epoch: LeaderEpoch
    timestamp_us: int
    body: bytes

    @property
    def end(self) -> int:
        """First offset after it."""
        return self.base + self.count


class LogSim:
    """Runs one seed; :attr:`seen` counts the situations that it reached.

    The class is not split: each operation and each fault is a method, from which a seed draws, and
    all of them keep the one model up to date.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.disk = SimDisk(rng)
        self.disk.thin = rng.random() < 0.3
        # By a generator of its own, so that the known seeds of other mistakes stay as they are.
        self.disk.copies_on_write = random.Random(~seed).random() < 0.3
        # None: a leader's log. Else a follower's: what its leader had synced batch by batch.
        follows = random.Random(f"follows {seed}")
        self.follows = follows if follows.random() < 0.2 else None
        self.seen: Counter[str] = self.disk.seen
        self.steps = rng.randrange(10, 60)
        self.body_bytes_max = rng.choice((64, 400, 1500))
        self.config = LogConfig(
            segment_bytes_max=rng.choice((600, 2000, 6000, 20_000)),
            segment_age_ms_max=rng.choice((5, 1000)),
            index_interval_bytes=rng.choice((1, 300, 2000)),
            preallocate_bytes=rng.choice((512, 4096, 16_384)),
            checkpoint_bytes=rng.choice((500, 3000, ROOMY)),
        )
        self.stop_chance = rng.choice((0.0, 0.05, 0.3))
        names = ("fsync", "full", "tear", "rot", "lost", "unreadable")
        self.faults = {name for name in names if rng.random() < 0.4}
        self.promising = "lost" in self.faults or rng.random() < 0.5
        self.promises: Promises | None = None
        self.older: dict[str, bytes] | None = None  # a copy of the folder, of the same session
        self._last_end = ""
        self.now_us = 1_000_000
        self.leader_epoch = LeaderEpoch(1)
        self.history: list[Written] = []
        self.promised_end = 0
        self.log_starts = {0}  # two of them while it is unknown whether a free took effect
        self.log: PartitionLog = self._reopened()

    def run(self) -> None:
        """Live, then check once more; with the fault "rot", damage something and check that."""
        for _ in range(self.steps):
            self._guarded(self._draw())
            if self.log.recovery.damaged:
                return  # a torn sector ended this log: it was reported, and takes no writes
            self.now_us += self.rng.randrange(4000)
        self._end_process()
        if self.disk.copies_on_write:
            self.disk.capacity_bytes = ROOMY  # damage is looked at with room
        last = {"lost": self._lose_files, "unreadable": self._meet_bad_sector, "rot": self._rot}
        drawn = [last[name] for name in last if name in self.faults]
        if self._last_end == "power" or not drawn:
            self.log = self._reopened()
        else:
            self.rng.choice(drawn)()

    # ------------------------------------------------------------------ steps

    def _draw(self) -> Callable[[], None]:
        steps: list[tuple[int, Callable[[], None]]] = [
            (30, self._append),
            (15, self._sync),
            (6, self._commits),
            (4, self._seal),
            (6, lambda: self._note(self.log.roll_if_due(self.now_us), "rolled by age")),
            (4, self.log.checkpoint),
            (5, self._free),
            (2, self._truncate),
            (3, self._producer_state),
            (8, self._read_some),
            (2, self._new_epoch),
            (5, self._restart),
            (3, self._copy),
        ]
        if self.promises is not None:
            steps += [(4, self._sync_promises)]
        if "full" in self.faults:
            steps += [(6, self._squeeze), (4, self._relax)]
        if "fsync" in self.faults:
            steps += [(3, self._break_fsync)]
        weights = [weight for weight, _ in steps]
        return self.rng.choices([step for _, step in steps], weights)[0]

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; handle errors of the disk as the broker does."""
        if self.rng.random() < self.stop_chance:
            self.disk.stop_after = self.rng.randrange(14)
        try:
            step()
            self.promised_end = max(self.promised_end, self.log.synced_end)
        except PowerLostError:
            self._lose_power()
            self.log = self._reopened()
        except DiskFullError:
            self.seen["disk full, refused"] += 1
            assert self.disk.capacity_bytes < ROOMY, "refused although there is room"
        except LogFailedError:
            self._meet_failed_log()
        self.disk.stop_after = None

    def _append(self) -> None:
        batches = [self._batch() for _ in range(self.rng.choice((1, 1, 2, 5)))]
        before = self.log.log_end
        planned: list[Written] = []
        base = before
        for batch in batches:
            planned.append(
                Written(
                    base, batch.records_count, self.leader_epoch, batch.max_timestamp_us, batch.body
                )
            )
            base = Offset(base + batch.records_count)
        if self.history and self.history[-1].base >= before:
            self.log.find_room(0)  # finishes a cut; before that a restart may find its records
        self._forget_from(before)
        self.history += planned
        try:
            offsets = self._write(batches)
        except DiskFullError:
            left = self.follows is not None  # a follower keeps the batches that it has room for
            assert self.log.log_end == before or left, "a refused append left something behind"
            if self.log._unfinished_cut is None:  # else a restart may find what is to be cut
                self._forget_from(self.log.log_end)
            raise
        assert offsets == [one.base for one in planned], "not the offsets that come next"
        assert self.log.log_end == base, "the log end does not follow the append"

    def _write(self, batches: Sequence[PreparedBatch]) -> list[Offset]:
        """Append as a leader, or as a follower of one that has synced each batch by itself."""
        log, epoch = self.log, self.leader_epoch
        if self.follows is None:
            return log.append(batches, leader_epoch=epoch, now_us=self.now_us)
        (log.begin_copying if self.follows.random() < 0.7 else log.end_copying)()
        stored, base = list[StoredBatch](), log.log_end
        for batch in batches:
            raw = encode_header(batch, base_offset=base, leader_epoch=epoch, synced_end=base)
            stored.append(StoredBatch(decode_header(raw), memoryview(batch.body)))
            base = stored[-1].header.end_offset
        for group in [stored] if log.copying else [[one] for one in stored]:
            if not log.copying:
                log.sync()
            log.append_stored(group, now_us=self.now_us)
        self.seen["copied in groups"] += log.copying and len(stored) > 1
        return [one.header.base_offset for one in stored]

    def _batch(self) -> PreparedBatch:
        size = self.rng.randrange(8, self.body_bytes_max + 8) & -8
        body = self.rng.randbytes(size).replace(b"\0", b"\1")  # no sector of it is all zero
        stamp = self.now_us + self.rng.randrange(-3000, 3000)
        return PreparedBatch(
            body=body,
            body_crc=crc32c(body),
            records_count=self.rng.randrange(1, 5),
            first_timestamp_us=stamp,
            max_timestamp_us=stamp,
            columns=0,
        )

    def _sync(self) -> None:
        end = self.log.log_end
        assert self.log.sync() == end, "sync promises less than was written"
        self.promised_end = max(self.promised_end, end)

    def _commits(self) -> None:
        """Append, sync and read as a broker does."""
        for _ in range(self.rng.randrange(2, 6)):
            self._append()
            self._sync()

    def _seal(self) -> None:
        self._note(self.log.seal_active(self.now_us), "sealed on demand")

    def _note(self, happened: bool, what: str) -> None:
        self.seen[what] += happened

    def _free(self) -> None:
        end = self.log.log_end  # no segment is freed of which a cut, which waits for room, is left
        sealed = [one for one in self.log.segments() if one.sealed and one.end_offset <= end]
        count = self.rng.randrange(len(sealed) + 1)
        if count == 0:
            return
        self.log_starts.add(sealed[count - 1].end_offset)
        self.log.free([one.base_offset for one in sealed[:count]])
        self.log_starts = {sealed[count - 1].end_offset}
        self.seen["freed"] += 1

    def _truncate(self) -> None:
        log = self.log
        ends = [one.base for one in self.history if log.log_start <= one.base < log.log_end]
        if ends:
            end = self.rng.choice(ends[-4:])
            self.promised_end = min(self.promised_end, end)
            self.log.truncate(end)
            self._forget_from(end)
            self.older = None  # here the same epoch goes on, with other records
            assert self.log.log_end == end, "a truncated log ends elsewhere"
            self.seen["truncated"] += 1

    def _producer_state(self) -> None:
        self.log.write_producer_state(repr(self.log.log_end).encode())

    def _new_epoch(self) -> None:
        self.leader_epoch = LeaderEpoch(self.leader_epoch + 1)

    def _squeeze(self) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes() + self.rng.choice((0, 100, 1000, 5000))

    def _relax(self) -> None:
        if self.disk.capacity_bytes == ROOMY:
            return
        self.disk.capacity_bytes = ROOMY
        self._append()
        self.seen["disk full, healed"] += 1

    def _break_fsync(self) -> None:
        self.disk.datasync_failures = self.rng.choice((1, 1, -1))
        self._append()
        self._sync()

    def _meet_failed_log(self) -> None:
        """After a failed fsync the log stays closed to writes until it is opened again."""
        assert self.seen["datasync failed"], "the log failed on a healthy disk"
        self.seen["log failed by fsync"] += 1
        for refused in (lambda: self._write_anything(self.log), self.log.sync):
            try:
                refused()
            except LogFailedError:
                continue
            raise AssertionError("a log whose fsync failed went on")
        if self.rng.random() < 0.5:
            self._lose_power()
        else:
            self.disk.kill()
        self.log = self._reopened()

    def _write_anything(self, log: PartitionLog) -> None:
        """Try a write that has to be refused; the model ignores it."""
        log.append([self._batch()], leader_epoch=LeaderEpoch(1 << 40), now_us=self.now_us)

    def _restart(self) -> None:
        self._end_process()
        self.log = self._reopened()

    def _end_process(self) -> None:
        """End the process in one of three ways; a clean stop promises every written record."""
        way = self.rng.choice(("close", "kill", "power"))
        self.seen[f"ended by {way}"] += 1
        self._last_end = way
        if way == "close":
            try:
                self.log.close()
                if self.promises is not None:
                    self.promises.close()
                self.promised_end = max(self.promised_end, self.log.log_end)
            except PowerLostError:
                self._last_end = "power"
                self._lose_power()
            except DiskFullError:
                pass
            except LogFailedError:
                assert self.seen["datasync failed"], "the log failed on a healthy disk"
            self.disk.kill()
        elif way == "kill":
            self.disk.kill()
        else:
            self._lose_power()

    def _lose_power(self) -> None:
        self.older = None
        self.disk.tear_sectors = "tear" in self.faults
        self.disk.lose_power()

    # ------------------------------------------------------------------ opening and checking

    def _open(self) -> PartitionLog:
        """Open the log; the power may go in the middle of that, too, and the disk may be full."""
        while True:
            files = CachedFiles(self.disk.files(), open_max=1, below="streams")
            self._count_torn_roll()
            self.seen["cut interrupted"] += files.exists(f"{FOLDER}/{CUT_NAME}")
            if self.rng.random() < self.stop_chance:
                self.disk.stop_after = self.rng.randrange(10)
            try:
                log = self._open_once(files)
            except PowerLostError:
                self.seen["stopped in recovery"] += 1
                self._lose_power()
            except DiskFullError:
                assert self.disk.capacity_bytes < ROOMY, "cannot open although there is room"
                self.seen["disk full, cannot open"] += 1
                self.disk.capacity_bytes = ROOMY
            except LogFailedError:
                assert self.disk.datasync_failures or self.seen["datasync failed"], "cannot open"
                self.seen["failed in recovery"] += 1
                self.disk.datasync_failures = 0
                self.disk.kill()
            else:
                self.disk.stop_after = None
                self._count(log)
                return log

    def _open_once(self, files: Files) -> PartitionLog:
        if not self.promising:
            return PartitionLog.open(files, FOLDER, PARTITION, self.config)
        self.promises = Promises(files)
        promise = self.promises.replica(PARTITION)
        log = PartitionLog.open(files, FOLDER, PARTITION, self.config, promise=promise)
        self.promises.sync()
        return log

    def _sync_promises(self) -> None:
        """Sync the promises, as the broker does once a second."""
        assert self.promises is not None, "only drawn with promises"
        try:
            self.promises.sync()
        except LogFailedError:
            self.seen["promises failed"] += 1
            self.disk.kill()
            self.log = self._reopened()

    def _copy(self) -> None:
        self.older = self.disk.copy_of(FOLDER)

    # ------------------------------------------------------------------ lost and unreadable files

    def _lose_files(self) -> None:
        """Lose or exchange files after a stop: lost promised records are reported by name."""
        self.stop_chance = (
            0.0  # a power cut as well, before the promise is durable, is a second fault
        )
        paths = sorted(self.disk.copy_of(FOLDER))
        active = [path for path in paths if path.endswith(".log")][-1:]
        point = [f"{FOLDER}/recovery"]
        way = self.rng.choice(("folder", "older", "active", "cut"))
        if way == "folder":
            self.disk.exchange(FOLDER, {})
        elif way == "older" and self.older is not None:
            self.disk.exchange(FOLDER, self.older)
        elif way == "active":
            for path in active + point:
                self.disk.delete(path)
        else:
            size = len(self.disk.peek(active[0]))
            self.disk.cut(active[0], self.rng.randrange(size + 1))
            self.disk.delete(point[0])
        self.seen[f"lost: {way}"] += 1
        for _ in range(2):  # and so it stays
            self.log = log = self._open()
            self._check_lost(log)
            self.disk.kill()

    def _check_lost(self, log: PartitionLog, *, read_errors: bool = False) -> None:
        assert log.log_end >= self.promised_end or not self.promising, (
            f"{self.promised_end} was promised, and the log says that it ends at {log.log_end}"
        )
        missing = 0
        for one in self.history:
            if one.end > self.promised_end or one.base < max(self.log_starts):
                continue
            try:
                found = log.read(one.base, Offset(one.end), bytes_max=1)
            except (SegmentCorruptError, OffsetOutOfRangeError):
                missing += 1
            else:
                assert found, f"the batch at {one.base} is gone, and a read of it names nothing"
                assert bytes(found[0].body) == one.body, "other bytes were served"
        self.seen["loss named"] += missing > 0
        if missing and not read_errors:  # a reader may be the first to meet a bad sector
            assert log.recovery.damaged, f"{missing} batches are gone, and nobody says so"
        if log.recovery.damaged:
            try:
                self._write_anything(log)
            except LogFailedError:
                return
            raise AssertionError("a damaged log took a write")

    def _meet_bad_sector(self) -> None:
        """Make one sector unreadable: it is met by name or not needed; later all is there again."""
        path = self.rng.choice(sorted(self.disk.copy_of(FOLDER)))
        size = len(self.disk.peek(path))
        self.disk.bad_sectors = {(path, self.rng.randrange(size // SECTOR + 1))}
        files = CachedFiles(self.disk.files(), open_max=1, below="streams")
        try:
            log = self._open_once(files)
        except LogFailedError:
            self.seen["unreadable: the log cannot be opened"] += 1
        else:
            self._count(log)
            self._check_lost(log, read_errors=True)
        self.disk.kill()
        self.disk.bad_sectors = set()
        self.log = self._reopened()

    def _reopened(self) -> PartitionLog:
        """Open and check that every promise was kept."""
        log = self._open()
        if log.recovery.damaged:
            assert self.seen["sector torn"], f"damage from nowhere: {log.recovery.damaged[0]}"
            self.log = log
            self._check_named(log, unreadable_max=len(self.history))
            return log
        assert log.log_start in self.log_starts, f"starts at {log.log_start}: {self.log_starts}"
        assert log.log_end >= self.promised_end, (
            f"{self.promised_end} was promised, the log ends at {log.log_end}: {log.recovery}"
        )
        assert log.synced_end == log.log_end, "an opened log serves what it has"
        self.log_starts = {log.log_start}
        self._forget_from(log.log_end)
        self.promised_end = log.log_end
        self.leader_epoch = max(self.leader_epoch, log.epochs.latest)
        self._check_all(log)
        return log

    def _check_all(self, log: PartitionLog) -> None:
        expected = [one for one in self.history if one.base >= log.log_start]
        assert self._read(log, log.log_start, log.log_end) == expected, "the log was changed"
        for one in expected:
            assert log.epochs.epoch_of(one.base) == one.leader_epoch, "epochs were changed"
        stamp = self.now_us - self.rng.randrange(60_000)
        reaching = (one.base for one in expected if one.timestamp_us >= stamp)
        assert log.offset_at(stamp) == next(reaching, log.log_end), "time leads elsewhere"
        state = log.read_producer_states().newest
        if state is not None:
            assert state[0] == repr(state[1]).encode(), "the state of another offset"
            assert state[1] <= log.log_end, "state of records that are gone"

    def _read(self, log: PartitionLog, start: Offset, end: Offset) -> list[Written]:
        found: list[Written] = []
        while start < end:
            batches = log.read(start, end, bytes_max=self.rng.choice((1, 500, 5000)))
            for batch in batches:
                header = batch.header
                found.append(
                    Written(
                        header.base_offset,
                        header.records_count,
                        header.leader_epoch,
                        header.max_timestamp_us,
                        bytes(batch.body),
                    )
                )
            start = batches[-1].header.end_offset
        return found

    def _read_some(self) -> None:
        log_end = self.log.log_end
        ends = sorted({one.base for one in self.history if one.base < log_end} | {log_end})
        ends = [end for end in ends if end >= self.log.log_start]
        start, end = sorted(self.rng.choices(ends, k=2))
        expected = [one for one in self.history if start <= one.base < end]
        assert self._read(self.log, Offset(start), Offset(end)) == expected, "read something else"

    def _forget_from(self, end: int) -> None:
        self.history = [one for one in self.history if one.base < end]

    def _count_torn_roll(self) -> None:
        """Count the states that a power cut leaves in the middle of a roll."""
        names = self.disk.names_in(FOLDER)
        logs = [name for name in names if name.endswith(".log")]
        sealed = [name for name in logs if self._says_sealed(name)]
        self.seen["torn roll: successor lost"] += bool(logs) and logs[-1] in sealed
        before_last = logs[-2:-1]
        self.seen["torn roll: index lost"] += bool(before_last) and before_last != sealed[-1:]

    def _says_sealed(self, name: str) -> bool:
        path = f"{FOLDER}/{name.removesuffix('.log')}.index"
        if not self.disk.has_file(path):
            return False
        try:
            return decode_index_summary(self.disk.peek(path)).sealed
        except IndexCorruptError:
            return False

    def _count(self, log: PartitionLog) -> None:
        report = log.recovery
        self.seen["torn tail cut"] += report.torn is not None and not report.damaged
        self.seen["tail written again"] += report.rewritten_bytes > 0
        for name in report.rebuilt:
            self.seen[f"rebuilt {name.rpartition('/')[2].rpartition('.')[2]}"] += 1
        for damage in report.damaged_ranges:
            self.seen[_PROOFS[damage.proof]] += 1

    # ------------------------------------------------------------------ rot

    def _rot(self) -> None:
        """Damage one thing; it is met by name or does not matter; undone, all is there again."""
        undo = LogRot(self.disk, FOLDER, self.promised_end, self.log_starts).strike()
        if undo is None:
            self.log = self._reopened()
            return
        log = self._open()
        one_batch = self.seen["bit flipped"] and not self.seen["flipped in header"]
        self._check_named(log, unreadable_max=1 if one_batch else len(self.history))
        if self.seen["sector torn"]:
            return
        self.disk.kill()
        undo()
        self.log = self._reopened()

    def _check_named(self, log: PartitionLog, *, unreadable_max: int) -> None:
        """Each promised batch is there, or its loss is an error that names it; nothing is cut."""
        unreadable = 0
        lost_point = any(name.endswith("/recovery") for name in log.recovery.rebuilt)
        assert log.log_start in self.log_starts or lost_point, "the front vanished silently"
        for one in self.history:
            if one.end > self.promised_end or one.base < max(self.log_starts):
                continue
            try:
                found = log.read(one.base, Offset(one.end), bytes_max=1)
            except SegmentCorruptError as error:
                self.seen["damage met by name"] += error.path.startswith(FOLDER)
                unreadable += 1
            except OffsetOutOfRangeError:
                assert log.recovery.damaged, f"{one.base} was cut silently: {log.recovery}"
                unreadable += 1
            else:
                assert bytes(found[0].body) == one.body, "damaged bytes were served"
        assert unreadable <= unreadable_max, f"{unreadable} batches lost by one fault"
        if log.recovery.damaged:
            try:
                self._write_anything(log)
            except LogFailedError:
                self.seen["damaged log refused writes"] += 1
            else:
                raise AssertionError("a damaged log took a write")


def run_seed(seed: int) -> Counter[str]:
    """Run one seed; raise AssertionError, with the seed in it, when a promise was broken."""
    try:
        sim = LogSim(seed)
        sim.run()
    except (AssertionError, HeadwaterError, OSError, LookupError) as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return sim.seen
