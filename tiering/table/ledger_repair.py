"""Writes the ledger entries that a crash left out, each proved by the table's rows.

At a change of leaders two uploaders may repair the same ledger at the same time. So an entry that
the other uploader wrote meanwhile is accepted if the table's rows prove it. Only an entry that
contradicts the table's rows is an error.
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

_READ_BYTES_MAX: Final = 4 * 1024 * 1024  # of the log, while an object is packed


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
        """Prepare a repair; makes no request.

        ``last`` is the ledger's last entry at the time when the repair was decided. ``lineage_id``
        is the id of our leadership, for entries that are made from the local log.
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
        """Write entries until the ledger covers ``missing``; blocks.

        Entries come from the commits. If the table's log has lost such a commit, the entry is made
        from the local log, which is freed only after the ledger is written.

        Raises:
            GapError: neither the table's log nor the local log has an account of some offsets.
            ObjectCorruptError: the table's rows differ from the committed ones.
        """
        committed = {entry.start: entry for entry in self._committed_ranges(missing)}
        at = missing.start
        while at < missing.end:
            entry = self._noted(at) or committed.get(at) or self._local_entry(at, missing.end)
            at = self.put(entry).end

    def put(self, entry: LedgerEntry) -> LedgerEntry:
        """Prove and write an entry; return the entry that the ledger has then.

        That is the entry of another uploader if that one was first.
        """
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
        """Return the entries of ``missing`` from the commits after the ledger's last entry.

        This is the last entry at the time of the decision. A fresh one could be wrong: another
        uploader may have written entries above the missing range meanwhile.
        """
        above = NO_VERSION if self._last is None else self._last.version
        return [
            entry
            for commit in self._table.commits(above=max(above, 0))
            for entry in decode_ranges(commit.ranges_json, version=commit.version)
            if entry.partition == self._number and missing.start <= entry.start < missing.end
        ]

    def _local_entry(self, at: Offset, end: Offset) -> LedgerEntry:
        """Make an entry from the local log for the segment, or the rest of one, from ``at`` on."""
        if at < self._source.reads.whole_start:
            raise GapError(
                f"the ledger has no entry for [{at}, {self._source.reads.whole_start}) of "
                f"partition {self._number}, and neither the table's log nor the local log has "
                "these records any more",
                partition=self._number,
                start=int(at),
                end=int(self._source.reads.whole_start),
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
        """Compare an entry with the present rows of the table."""
        facts = RangeFacts()
        for rows in read_rows(
            self._snapshot, self._table.store, self._number, entry.range, FILE_SCHEMA
        ):
            facts.add(rows)
        if facts.digest != entry.digest:
            raise ObjectCorruptError(
                f"the table's rows {entry.range} of partition {self._number} have digest "
                f"{facts.digest}, but digest {entry.digest} was committed",
                key=entry.path,
                expected=entry.digest,
                found=facts.digest,
            )


def log_batches(source: TierSource, wanted: OffsetRange) -> Iterator[StoredBatch]:
    """Yield the log's batches over a range, a bounded number of bytes at a time."""
    at = wanted.start
    while at < wanted.end:
        for batch in source.reads.read(at, wanted.end, bytes_max=_READ_BYTES_MAX):
            yield batch
            at = batch.header.end_offset
