"""Writes the ledger entries that a crash left out, each proved against the table's rows.

Two uploaders may do it at the same time, at any change of leaders. So what a rival has noted since
the ledger was looked at is taken over, once the table's rows have proved it; an alarm is only what
the table's rows contradict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.codec.schema import FILE_SCHEMA
from broker.errors import GapError, ObjectCorruptError, ObjectMissingError
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import StoredBatch
from broker.ports.tiering import TierSource
from tiering.read.reader import read_rows
from tiering.ship.segment_writer import RangeFacts, SegmentPlace, log_rows
from tiering.table.ledger import NO_VERSION, Ledger, LedgerEntry, decode_ranges
from tiering.table.table import Table, TableSnapshot

_READ_BYTES_MAX: Final = 16 * 1024 * 1024


class LedgerRepair:
    """One repair of one partition's ledger, over a table version that is ahead of it."""

    def __init__(
        self,
        *,
        table: Table,
        snapshot: TableSnapshot,
        source: TierSource,
        place: SegmentPlace,
        last: LedgerEntry | None,
        lineage_id: str,
    ) -> None:
        """``last`` is the ledger's last entry as it was when the repair was decided on.

        ``lineage_id`` is our leadership's: whose history the local log is.
        """
        self._lineage_id = lineage_id
        self._table = table
        self._snapshot = snapshot
        self._source = source
        self._place = place
        self._last = last
        self._ledger = Ledger(table.store)
        self._number = int(source.partition_id.number)

    def run(self, missing: OffsetRange) -> None:
        """Cover ``missing``; blocks.

        The commits say what they held. Where their part of the log is gone, the local log, which
        is only freed after the ledger is written, says it again.

        Raises:
            GapError: nobody can say what a part of it was.
            ObjectCorruptError: the table's rows are not what was committed.
        """
        committed = {entry.start: entry for entry in self._committed_ranges(missing)}
        at = missing.start
        while at < missing.end:
            entry = self._noted(at) or committed.get(at) or self._local_entry(at, missing.end)
            at = self.put(entry).end

    def put(self, entry: LedgerEntry) -> LedgerEntry:
        """Prove an entry and note it; return it, or the one of a rival who was first."""
        self._prove(entry)
        try:
            self._ledger.put(entry)
        except ObjectCorruptError:
            rival = self._ledger.get(self._number, entry.start)
            if rival != entry:
                self._prove(rival)
            return rival
        return entry

    def _noted(self, at: Offset) -> LedgerEntry | None:
        try:
            return self._ledger.get(self._number, at)
        except ObjectMissingError:
            return None

    def _committed_ranges(self, missing: OffsetRange) -> list[LedgerEntry]:
        """Return what the commits after the ledger's last entry say; nobody's later ones hide any.

        The last entry is the one that the repair was decided on: a rival may have noted commits
        above the missing range since.
        """
        above = NO_VERSION if self._last is None else self._last.version
        return [
            entry
            for commit in self._table.commits(above=max(above, 0))
            for entry in decode_ranges(commit.ranges_json, version=commit.version)
            if entry.partition == self._number and missing.start <= entry.start < missing.end
        ]

    def _local_entry(self, at: Offset, end: Offset) -> LedgerEntry:
        """Return what the local log says of the segment that begins at ``at``, or of its rest."""
        if at < self._source.log_start:
            raise GapError(
                f"the ledger lacks [{at}, {self._source.log_start}) of partition {self._number}, "
                "and neither the table's log nor the local log can tell what it was",
                partition=self._number,
                start=int(at),
                end=int(self._source.log_start),
            )
        bounds = [at, *(one.end_offset for one in self._source.segments() if one.end_offset > at)]
        noted = [start for start in self._ledger.starts(self._number) if start > at]
        wanted = OffsetRange(at, Offset(min([*bounds[1:2], *noted[:1], end])))
        facts = RangeFacts()
        for rows in log_rows(log_batches(self._source, wanted), wanted, self._place):
            facts.add(rows)
        entry = facts.entry(self._number).at_version(self._snapshot.version)
        return entry.of_lineage(self._lineage_id)

    def _prove(self, entry: LedgerEntry) -> None:
        """Compare an entry with the rows that the table gives now."""
        facts = RangeFacts()
        for rows in read_rows(
            self._snapshot, self._table.store, self._number, entry.range, FILE_SCHEMA
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


def log_batches(source: TierSource, wanted: OffsetRange) -> Iterator[StoredBatch]:
    """Yield the log's batches over a range, a bounded number of bytes at a time."""
    at = wanted.start
    while at < wanted.end:
        for batch in source.read(at, wanted.end, bytes_max=_READ_BYTES_MAX):
            yield batch
            at = batch.header.end_offset
