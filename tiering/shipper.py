"""The shell of one partition's tiering: performs what lifecycle.py decides, one effect at a time.

It keeps nothing that a crash may not take: an object that is being built, and the table version
that the next commit is based on. Every call that leaves the process has a deadline.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from broker.codec.schema import FILE_SCHEMA
from broker.errors import (
    GapError,
    HeadwaterError,
    ObjectCorruptError,
    RemoteTierUnavailableError,
    StaleColdEndError,
)
from broker.model.offsets import Offset, OffsetRange
from broker.ports import Clock, StoredBatch, TierSource
from tiering import lifecycle as tier
from tiering.config import TieringConfig
from tiering.deadline import call_with_deadline
from tiering.ledger import NO_VERSION, Ledger, LedgerEntry, decode_ranges, encode_ranges
from tiering.reader import read_rows
from tiering.segment_writer import (
    RangeFacts,
    SegmentPlace,
    WrittenSegment,
    check_segment,
    log_rows,
    write_segment,
)
from tiering.table import NewFile, Table, TableSnapshot

_READ_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class ShipCounters:
    """What one partition's tiering has done since the process began."""

    segments_total: int = 0
    bytes_total: int = 0  # of objects
    failures_total: int = 0
    conflicts_total: int = 0
    last_shipped_us: int = 0  # 0: never


class PartitionShipper:
    """One partition's machine and its hands. Owner: one worker at a time."""

    def __init__(
        self, *, cluster: str, source: TierSource, table: Table, clock: Clock, config: TieringConfig
    ) -> None:
        """Bind to a partition and its stream's table; makes no request."""
        self.source = source
        self.counters = ShipCounters()
        self.snapshot: TableSnapshot | None = None
        self._cluster = cluster
        self._table = table
        self._ledger = Ledger(table.store)
        self._clock = clock
        self._config = config
        self._number = source.partition_id.number
        self._segments_count = 0
        self._object: WrittenSegment | None = None
        self._committed: LedgerEntry | None = None
        self.machine = tier.PartitionTier(
            self._number, object_bytes_max=config.object_bytes_max, recorded=source.cold_end
        )

    def run_cycle(self, objects_max: int = 1) -> bool:
        """Ship at most so many objects; return whether there are more to ship. Blocks.

        Raises:
            HeadwaterError: the cycle stopped; nothing is lost, the next one begins at the table.
        """
        try:
            effect = self.machine.step(tier.Woken())
            while not isinstance(effect, tier.Rest):
                if isinstance(effect, tier.PackSegments):
                    if objects_max == 0:
                        self.machine.step(tier.Postponed())
                        return True
                    objects_max -= 1
                effect = self.machine.step(self.perform(effect))
        except BaseException as error:
            self._forget()
            self.machine.step(tier.Failed())
            if isinstance(error, HeadwaterError):
                self.counters.failures_total += 1
            raise
        return False

    def perform(self, effect: tier.Effect) -> tier.Event:
        """Do one effect and say what came of it. Blocks; raises HeadwaterError."""
        match effect:
            case tier.LoadTable(cold_end_min):
                self.snapshot = self._table.find(cold_end_min={self._number: cold_end_min})
                held = self.snapshot
                return tier.TableLoaded(held.cold_end(self._number) if held else Offset(0))
            case tier.ReadLedger():
                return tier.LedgerRead(self._ledger.end(self._number))
            case tier.RepairLedger(missing):
                self._repair(missing)
                return tier.LedgerRepaired()
            case tier.RecordColdEnd(cold_end):
                if cold_end > self.source.cold_end:  # another process may have been quicker
                    self.source.record_cold_end(cold_end)
                return tier.ColdEndRecorded()
            case tier.ListLog():
                # The segments first: the high watermark may only be newer than they are.
                segments = self.source.segments()
                return tier.LogListed(segments, self.source.high_watermark)
            case tier.PackSegments(wanted, count):
                self._segments_count = count
                self._object = write_segment(self._log(wanted), wanted, self._place(wanted))
                return tier.SegmentsPacked()
            case tier.StoreObject():
                self._store()
                return tier.ObjectStored()
            case tier.CheckObject():
                self._check()
                return tier.ObjectChecked()
            case tier.CommitObject(moved):
                return self._commit(moved)
            case _:
                assert isinstance(effect, tier.WriteLedger), f"no hand for {effect}"
                self._write_ledger()
                return tier.LedgerWritten()

    # ------------------------------------------------------------------------------ one object

    def _place(self, wanted: OffsetRange) -> SegmentPlace:
        name = (
            f"{wanted.start:020}-{wanted.end:020}-{self.source.leader_epoch}-"
            f"{secrets.token_hex(8)}.parquet"
        )
        return SegmentPlace(
            cluster=self._cluster,
            partition=self.source.partition_id,
            subject=self.source.subject,
            path=f"partition={self._number}/{name}",
        )

    def _log(self, wanted: OffsetRange) -> Iterator[StoredBatch]:
        """Yield the log's batches over a range, a bounded number of bytes at a time."""
        at = wanted.start
        while at < wanted.end:
            for batch in self.source.read(at, wanted.end, bytes_max=_READ_BYTES_MAX):
                yield batch
                at = batch.header.end_offset

    def _store(self) -> None:
        built = self._taken_object()
        entry = built.entry
        if not self._table.store.put_if_absent(entry.path, built.body, crc32c=entry.crc32c):
            raise RemoteTierUnavailableError(  # the next cycle takes another random name
                f"{entry.path} is taken by another object", key=entry.path
            )
        # From here on only what comes back from the store counts; the memory is needed for it.
        self._object = WrittenSegment(body=b"", entry=entry, stats_json=built.stats_json)

    def _check(self) -> None:
        entry = self._taken_object().entry
        check_segment(self._fetched(entry.path), entry)

    def _commit(self, moved: OffsetRange) -> tier.Event:
        built = self._taken_object()
        entry = built.entry
        base = self.snapshot if self.snapshot is not None else self._table.create()
        try:
            version = self._table.commit(
                base,
                [
                    NewFile(
                        path=entry.path,
                        size_bytes=entry.size_bytes,
                        partition=self._number,
                        modified_us=self._clock.now_us(),
                        stats_json=built.stats_json,
                    )
                ],
                {self._number: moved},
                commit_id=entry.path,
                ranges_json=encode_ranges([entry]),
            )
        except StaleColdEndError as lost:
            self.counters.conflicts_total += 1
            self._forget()
            return tier.CommitLost(Offset(int(lost.facts["found"])))
        # Believed only once a fresh look at the table's log shows it.
        self.snapshot = self._table.find(cold_end_min={self._number: moved.end})
        self._committed = entry.at_version(version)
        return tier.Committed()

    def _write_ledger(self) -> None:
        assert self._committed is not None, "the ledger follows the commit"
        entry, self._committed, self._object = self._committed, None, None
        self._ledger.put(entry)
        self.counters.segments_total += self._segments_count
        self.counters.bytes_total += entry.size_bytes
        self.counters.last_shipped_us = self._clock.now_us()
        if entry.version % self._config.checkpoint_interval_commits == 0:
            self._table.checkpoint()

    def _fetched(self, path: str) -> Any:
        return call_with_deadline(
            lambda: self._table.store.get(path),
            seconds=self._config.upload_timeout_ms / 1000,
            what=f"read back {path}",
        )

    def _taken_object(self) -> WrittenSegment:
        assert self._object is not None, "an object is packed before it is stored"
        return self._object

    def _forget(self) -> None:
        self._object = self._committed = None

    # ------------------------------------------------------------------------------ repair

    def _repair(self, missing: OffsetRange) -> None:
        """Write the ledger entries that a crash left out, each proved against the table's rows.

        The commits say what they held. Where their part of the log is gone, the local log, which
        is only freed after the ledger is written, says it again.
        """
        assert self.snapshot is not None, "only a table can be ahead of its ledger"
        at = missing.start
        for entry in self._committed_ranges(missing):
            if entry.start == at:
                self._prove(entry)
                self._ledger.put(entry)
                at = entry.end
        for segment in self.source.segments():
            end = Offset(min(segment.end_offset, missing.end))
            if end > at:
                self._require_local(at)
                entry = self._local_entry(OffsetRange(at, end))
                self._prove(entry)
                self._ledger.put(entry)
                at = end
        if at < missing.end:
            self._require_local(at)

    def _committed_ranges(self, missing: OffsetRange) -> list[LedgerEntry]:
        starts = self._ledger.starts(self._number)
        above = self._ledger.get(self._number, starts[-1]).version if starts else NO_VERSION
        found = [
            entry
            for commit in self._table.commits(above=max(above, 0))
            for entry in decode_ranges(commit.ranges_json, version=commit.version)
            if entry.partition == self._number and missing.start <= entry.start < missing.end
        ]
        return sorted(found, key=lambda entry: entry.start)

    def _local_entry(self, wanted: OffsetRange) -> LedgerEntry:
        assert self.snapshot is not None
        facts = RangeFacts()
        for rows in log_rows(self._log(wanted), wanted, self._place(wanted)):
            facts.add(rows)
        return facts.entry(self._number).at_version(self.snapshot.version)

    def _prove(self, entry: LedgerEntry) -> None:
        """Compare an entry with the rows that the table gives now."""
        assert self.snapshot is not None
        facts = RangeFacts()
        for rows in read_rows(
            self.snapshot, self._table.store, self._number, entry.range, FILE_SCHEMA
        ):
            facts.add(rows)
        if facts.digest != entry.digest:
            raise ObjectCorruptError(
                f"the table's rows {entry.range} of partition {self._number} have digest "
                f"{facts.digest}, {entry.digest} was committed",
                key=entry.path,
                expected=entry.digest,
                found=facts.digest,
            )

    def _require_local(self, at: Offset) -> None:
        if at < self.source.log_start:
            raise GapError(
                f"the ledger lacks [{at}, {self.source.log_start}) of partition {self._number}, "
                "and neither the table's log nor the local log can tell what it was",
                partition=self._number,
                start=int(at),
                end=int(self.source.log_start),
            )
