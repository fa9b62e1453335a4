"""One seed of the life of a log that is compacted by keys, on a failing disk, against a model.

The life is that of ``sim.py``, with batches of keyed records, some of idempotent producers, and
with passes of key compaction between. The model knows which records may be missing, and no other
may: a record that a later one superseded below the line of a pass that has begun, and a tombstone
whose time was over by then. A record that is there is there bit for bit; no key has a value that a
tombstone took away; epochs, offsets and what a producer may send again are as if nothing was gone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from broker.codec.record_batch import PreparedBatch, decode_body, offsets_of
from broker.core.dedup import ProducerTable
from broker.core.key_compaction import (
    CompactedSoFar,
    CompactionPlan,
    CompactionRule,
    compaction_line,
    plan_compaction,
)
from broker.errors import (
    HeadwaterError,
    LogFailedError,
    OffsetOutOfRangeError,
    SegmentCorruptError,
)
from broker.model.ids import ProducerId
from broker.model.offsets import OFFSET_MAX, Offset
from broker.runtime.partition.dedup_recovery import rebuild_producers
from broker.storage.key_compaction.compaction_pass import ChosenSegment, CompactionPass
from broker.storage.log.partition_log import PartitionLog
from broker.storage.no_room import is_full
from simkit.log.keyed import Row, keyed_batch, rows_of, some_pairs
from simkit.log.sim import LogSim, Written

Pair = tuple[bytes | None, bytes | None]


class CompactionSim(LogSim):
    """Runs one seed; :attr:`seen` counts the situations that it reached."""

    def __init__(self, seed: int) -> None:
        drawn = random.Random(f"compaction {seed}")
        self.keys = drawn.choice((1, 3, 8))
        self.rule = CompactionRule(
            tombstone_us=drawn.choice((0, 5_000, 40_000)), dirty_percent_min=1
        )
        self.codec = drawn.choice(("none", "none", "zstd"))
        self.pairs: dict[bytes, list[Pair]] = {}
        self.made: list[PreparedBatch] = []  # of the group that is appended
        self.senders: dict[int, PreparedBatch] = {}  # base offset -> a batch with a producer
        self.next_sequence: dict[int, int] = {}
        self.begun_us: dict[int, int] = {}  # base offset of a batch -> when it was written
        self.committed = 0
        self.may_be_gone: set[int] = set()
        super().__init__(seed)
        self.steps += 20
        self.faults -= {"rot", "lost", "unreadable"}  # the bodies of a log that is not compacted

    # ------------------------------------------------------------------ records

    def _batch(self) -> PreparedBatch:
        producer, sequence = -1, -1
        if self.rng.random() < 0.3:
            producer = self.rng.randrange(3)
            sequence = self.next_sequence.get(producer, 0)
        pairs = some_pairs(self.rng, self.keys)
        stamp_us = self.now_us + self.rng.randrange(-3000, 3000)
        made = keyed_batch(
            pairs,
            stamp_us=stamp_us,
            codec=self.codec,
            producer=producer,
            sequence=sequence,
        )
        made = replace(made, body=bytes(made.body))
        self.pairs[made.body] = pairs  # equal bodies have equal pairs
        if producer >= 0:
            self.next_sequence[producer] = sequence + made.records_count
        self.made.append(made)
        return made

    def _append(self) -> None:
        self.made = []
        base = int(self.log.log_end)
        try:
            super()._append()
        finally:
            bodies = {int(one.base): one.body for one in self.history}
            for one in self.made:
                self.begun_us[base] = self.now_us
                if bodies.get(base) == one.body:  # it was not refused before a waiting cut was done
                    self.senders.pop(base, None)
                    if one.producer_id >= 0:
                        self.senders[base] = one
                base += one.records_count
            self._recount()

    def _write_anything(self, log: PartitionLog) -> None:
        """The model ignores it."""
        before = dict(self.next_sequence)
        try:
            super()._write_anything(log)
        finally:
            self.next_sequence = before

    def _forget_from(self, end: int) -> None:
        super()._forget_from(end)
        self.senders = {base: one for base, one in self.senders.items() if base < end}
        self._recount()

    def _recount(self) -> None:
        """Let each producer go on behind its newest batch that is still in the model."""
        bodies = {int(one.base): one.body for one in self.history}
        self.senders = {
            base: one for base, one in self.senders.items() if bodies.get(base) == one.body
        }
        self.next_sequence = {
            one.producer_id: one.base_sequence + one.records_count
            for _, one in sorted(self.senders.items())
        }

    # ------------------------------------------------------------------ steps

    def _draw(self) -> Callable[[], None]:
        self.committed = max(
            self.committed, self.rng.choice((self.committed, int(self.log.synced_end)))
        )
        return self._compact if self.rng.random() < 0.15 else super()._draw()

    def _truncate(self) -> None:
        """Only what is not committed is ever cut."""
        kept, self.history = (
            self.history,
            [one for one in self.history if one.base >= self.committed],
        )
        try:
            bases = [one.base for one in self.history if one.base < self.log.log_end]
        finally:
            self.history = kept
        if bases:
            end = self.rng.choice(bases[-4:])
            self.promised_end = min(self.promised_end, end)
            self.log.truncate(end)
            self._forget_from(end)
            self.older = None
            assert self.log.log_end == end, "a truncated log ends elsewhere"
            self.seen["truncated above a compacted range"] += bool(self.may_be_gone)

    def _compact(self) -> None:
        """Do a pass as the broker does, or a part of it."""
        line = compaction_line(
            high_watermark=Offset(self.committed),
            cold_end=None,
            copied_end=Offset(OFFSET_MAX),
            lease_floor=Offset(OFFSET_MAX),
        )
        plan = plan_compaction(
            self.log.segments(),
            line=line,
            so_far=CompactedSoFar(),
            rule=self.rule,
            now_us=self.now_us,
            forced=True,
        )
        if plan is None:
            return
        self._allow()
        retried = self._table().offsets_below(plan.end)
        work = CompactionPass(self.log, _chosen(plan), retried=retried)
        steps = work.steps()
        stop_at = self.rng.choice((None, None, self.rng.randrange(60)))
        try:
            for at, made in enumerate(steps):
                if at == stop_at:
                    self.seen["pass given up"] += 1
                    break
                if made is not None:
                    assert self.log.replace_segment(made), "nothing happened to it meanwhile"
                    self.seen["segment compacted"] += 1
                    self.seen["emptied segment"] += made.segment.max_timestamp_us == 0
            else:
                self.seen["pass finished"] += 1
        except OffsetOutOfRangeError:  # of a segment whose removal waits for room
            assert self.log.segments()[0].base_offset < self.log.log_start, "nothing was freed"
            self.seen["pass met a full disk"] += 1
        except OSError as error:
            if is_full(error):
                self.seen["pass met a full disk"] += 1
                return
            self.log.poison(f"key compaction failed: {error}")
            raise LogFailedError(str(error)) from error
        finally:
            steps.close()

    def _allow(self) -> None:
        """Note what a pass that begins now may remove: worked out apart from the plan."""
        sealed = [one for one in self.log.segments() if one.sealed]
        below = [one for one in sealed if one.end_offset <= self.committed]
        if not below:
            return
        line = below[-1].end_offset
        last: dict[bytes, Row] = {}
        for row in self._rows(self.history):
            if row.offset >= line:
                break
            if row.key is not None:
                if row.key in last:
                    self.may_be_gone.add(last[row.key].offset)
                last[row.key] = row
        for row in last.values():
            within = [one for one in below if one.base_offset <= row.offset < one.end_offset]
            if not within or row.value is not None:
                continue
            begun_us = self.begun_us.get(within[0].end_offset)  # the batch that began the next one
            delay_us = self.rule.tombstone_us
            if begun_us is None or delay_us is None or self.now_us - begun_us < delay_us:
                continue
            self.may_be_gone.add(row.offset)

    # ------------------------------------------------------------------ the model

    def _rows(self, history: Iterable[Written]) -> list[Row]:
        """Return the records of batches as they were appended."""
        found = []
        for one in history:
            for at, (key, value) in enumerate(self.pairs[one.body]):
                found.append(Row(one.base + at, key, value, one.leader_epoch, one.timestamp_us))
        return found

    def _table(self) -> ProducerTable:
        table = ProducerTable()
        for base, one in sorted(self.senders.items()):
            table.add(
                ProducerId(one.producer_id), one.base_sequence, one.records_count, Offset(base)
            )
        return table

    def _read_some(self) -> None:
        log = self.log
        start = self.rng.randrange(log.log_start, log.log_end + 1)
        self._check_rows(rows_of(log, start), start, log.log_end)

    def _check_rows(self, found: list[Row], start: int, end: int) -> None:
        """Compare with the model, up to the log's end: a cut that waits for room moves it first."""
        wanted = [row for row in self._rows(self.history) if start <= row.offset < end]
        by_offset = {row.offset: row for row in wanted}
        offsets = [row.offset for row in found]
        assert offsets == sorted(set(offsets)), "offsets do not ascend"
        for row in found:
            assert by_offset.get(row.offset) == row, f"{row} was never written"
        gone = {row.offset for row in wanted} - set(offsets)
        assert gone <= self.may_be_gone, f"{sorted(gone - self.may_be_gone)} are missing"
        self.seen["records gone"] += bool(gone)
        self._check_tombstones(wanted, gone)

    def _check_tombstones(self, wanted: list[Row], gone: set[int]) -> None:
        """While a superseded value is there, so is a record after it that says so."""
        newest: dict[bytes, Row] = {}
        there: dict[bytes, int] = {}
        for row in wanted:
            if row.key is None:
                continue
            newest[row.key] = row
            if row.offset not in gone:
                there[row.key] = row.offset
        for key, row in newest.items():
            if key in there and there[key] != row.offset:
                raise AssertionError(
                    f"{key!r} rose from the dead: {there[key]} without {row.offset}"
                )
            self.seen["tombstone gone"] += key not in there

    def _check_named(self, log: PartitionLog, *, unreadable_max: int) -> None:
        """A torn sector ended this log: what it still serves was written like that."""
        del unreadable_max
        by_offset = {row.offset: row for row in self._rows(self.history)}
        for one in self.history:
            with suppress(SegmentCorruptError, OffsetOutOfRangeError):
                for batch in log.read(one.base, Offset(one.end), bytes_max=1):
                    body = decode_body(batch.header, batch.body)
                    for at, value in zip(
                        offsets_of(batch.header, body).tolist(), _values(body), strict=True
                    ):
                        assert by_offset[at].value == value, "damaged bytes were served"

    def _check_all(self, log: PartitionLog) -> None:
        start = log.log_start
        self.history = [one for one in self.history if one.base < log.log_end]
        self._recount()
        self._check_rows(rows_of(log), start, log.log_end)
        for one in self.history:
            if one.base >= start:
                assert log.epochs.epoch_of(one.base) == one.leader_epoch, "epochs were changed"
        self._check_time(log)
        if start == 0:
            found, known = rebuild_producers(log), self._table()
            # A state on the disk may know batches that are older than those that may come again.
            same = found.to_state() == known.to_state()
            assert same or log.read_producer_states().newest is not None, "producers were forgotten"
        self.seen["reopened compacted"] += any(one.sparse for one in log.segments())

    def _check_time(self, log: PartitionLog) -> None:
        stamp = self.now_us - self.rng.randrange(60_000)
        found = log.offset_at(stamp)
        reaching = [row.offset for row in rows_of(log) if row.timestamp_us >= stamp]
        if not reaching:
            assert found == log.log_end, "time leads elsewhere"
            return
        assert found <= reaching[0], "a record that reaches the time was passed over"
        first = log.read(found, Offset(found + 1), bytes_max=1)[0].header
        assert first.base_offset <= reaching[0] < first.end_offset, "time leads too far back"

    def _producer_state(self) -> None:
        """Not written here: the tables are read from the log."""


def _values(body: pa.RecordBatch) -> list[bytes | None]:
    index = body.schema.get_field_index("value")
    return [None] * body.num_rows if index < 0 else body.column(index).to_pylist()


def _chosen(plan: CompactionPlan) -> list[ChosenSegment]:
    return [
        ChosenSegment(one.base_offset, one.end_offset, one.drops_tombstones)
        for one in plan.segments
    ]


def run_compaction_seed(seed: int) -> Counter[str]:
    """Run one seed; raise AssertionError, with the seed in it, when a promise was broken."""
    try:
        sim = CompactionSim(seed)
        sim.run()
    except (AssertionError, HeadwaterError, OSError, LookupError) as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return sim.seen
