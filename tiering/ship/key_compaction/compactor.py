"""The shell of one partition's key compaction: when a pass begins, its commit and its account.

A pass may take long, so it is done in turns, and the partition ships in between. Its commit
exchanges exactly the files that it read; if these have changed, nothing is committed. What fails
here never keeps records from being shipped: it is reported, and tried again later.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from broker.errors import FilesReplacedError, HeadwaterError, StaleRemoteStartError
from broker.model.offsets import Offset
from broker.ports.tiering import RetentionStanding
from tiering.proof.proofs import prove
from tiering.read.certify import require_sound
from tiering.ship.key_compaction.compaction_plan import (
    KeyCompactionPlan,
    is_wanted,
    plan_key_compaction,
)
from tiering.ship.key_compaction.table_pass import KeyCompactionPass
from tiering.ship.table_upkeep import TableUpkeep
from tiering.table.accounts import accounts
from tiering.table.key_compactions import KeyCompactionEntry, KeyCompactions
from tiering.table.table import NewFile, TableSnapshot

STEPS_OF_A_TURN: Final = 64  # a step reads a batch of rows


@dataclass(slots=True)
class KeyCompactionCounters:
    """Counters of one partition's key compaction of the table since the process began."""

    passes_total: int = 0  # that were committed
    records_total: int = 0  # that left the table
    bytes_total: int = 0  # by which the table's files have become smaller
    failures_total: int = 0
    last_us: int = 0  # when the newest pass was committed; 0: never


class PartitionKeyCompactor:
    """Owner: the worker of the partition's shipper, which has proved the table to be ours."""

    def __init__(
        self, upkeep: TableUpkeep, *, key_snapshot_end: Callable[[], Offset | None] = lambda: None
    ) -> None:
        """Bind to a partition; makes no request.

        ``key_snapshot_end`` tells up to where the stream's key snapshot covers the partition; None:
        there is no key snapshot.
        """
        self.counters = KeyCompactionCounters()
        self._upkeep = upkeep
        self._source = upkeep.source
        self._table = upkeep.table
        self._clock = upkeep.clock
        self._config = upkeep.config
        self._key_snapshot_end = key_snapshot_end
        self._number = upkeep.number
        self._noted_end = Offset(0)  # the account of the compaction up to here is noted
        self._fruitless_end = Offset(0)  # a pass up to here would remove nothing
        self._next_ms = 0  # no look before this time
        self._work: Generator[None] | None = None  # the pass under way

    def begin_if_due(self, known: TableSnapshot | None) -> bool:
        """Begin or continue a pass if there may be something to do; costs no request."""
        if self._work is not None:
            return True
        if known is None or self._clock.monotonic_ms() < self._next_ms:
            return False
        self._next_ms = self._clock.monotonic_ms() + self._config.expiry_interval_ms
        sparse = known.sparse.get(self._number)
        unnoted = sparse is not None and sparse.end > self._noted_end
        if not unnoted and self._plan(known) is None:
            return False
        self._work = self._turns()
        return True

    def take_turn(self) -> bool:
        """Do some of the work; return whether there is more. Blocks."""
        assert self._work is not None, "a pass has begun"
        try:
            for _ in range(STEPS_OF_A_TURN):
                if next(self._work, self) is self:
                    self._work = None
                    return False
        except HeadwaterError as error:
            self._work = None
            self.counters.failures_total += 1
            facts = {"error": type(error).__name__, "reason": error.message}
            self._upkeep.tell("key_compaction_failed", **facts)
            return False
        return True

    def stop(self) -> None:
        """Give the pass under way up; what it has stored is never committed."""
        if self._work is not None:
            self._work.close()
            self._work = None

    # ------------------------------------------------------------------------------ inside

    def _turns(self) -> Generator[None]:
        snapshot = self._newest()
        if snapshot.sparse_range(self._number):
            self._note(KeyCompactions(self._table.store).of(snapshot, self._number))
        plan = self._plan(snapshot)
        if plan is None:
            return
        entries = accounts(snapshot, self._table.store, self._number, plan.range)
        if entries[-1].end != plan.range.end:
            return  # another writer's file ends within a committed range, which has one digest
        # The plan counts rows by statistics, and another writer's may be false.
        require_sound(snapshot, self._table.store, self._number, plan.range)
        now_us = self._clock.now_us()
        work = KeyCompactionPass(
            snapshot,
            self._table.store,
            plan,
            tombstones_end=self._tombstones_end(now_us),
            object_bytes=self._config.object_bytes_max,
        )
        yield from work.steps()
        if not work.written or work.left_count == plan.rows_count:
            self._fruitless_end = plan.range.end
            return
        yield None
        self._commit(work, now_us)

    def _plan(self, snapshot: TableSnapshot) -> KeyCompactionPlan | None:
        standing = self._upkeep.standing()
        if (
            standing is None
            or not is_wanted(standing.config)
            or not self._agrees(snapshot, standing)
        ):
            return None
        plan = plan_key_compaction(
            snapshot,
            self._number,
            limit=standing.limit,
            dirty_percent=standing.config.compact_dirty_percent,
        )
        return None if plan is None or plan.range.end <= self._fruitless_end else plan

    def _agrees(self, snapshot: TableSnapshot, standing: RetentionStanding) -> bool:
        """Tell whether no expiry is under way: the table begins where the metadata says."""
        return snapshot.range_of(self._number).start == standing.remote_start

    def _tombstones_end(self, now_us: int) -> Offset:
        """Return the offset below which tombstones have been compacted long enough to go.

        A tombstone stays for the delay after the first pass over it, and until the key snapshot
        covers it: an advance of the key snapshot must see that its key is gone.
        """
        standing = self._upkeep.standing()
        keys_from = self._source.stream.keys_from
        if standing is None or (keys_from is not None and self._number >= keys_from):
            return Offset(0)  # they hide older records of their keys in lower partitions
        old_us = now_us - standing.config.tombstone_delay_ms * 1000
        end = KeyCompactions(self._table.store).end_before(self._number, old_us)
        covered = self._key_snapshot_end() if end else None
        return end if covered is None else min(end, covered)

    def _commit(self, work: KeyCompactionPass, now_us: int) -> None:
        newest = self._plan(self._newest())
        if newest is None or newest.range.end < work.plan.range.end:
            return  # the settings have changed, or the files, or what readers hold
        gone = work.plan.range
        entry = KeyCompactionEntry(
            partition=self._number,
            start=gone.start,
            end=gone.end,
            cold_end=work.snapshot.cold_end(self._number),
            files=tuple(one.entry for one in work.written),
            compacted_us=now_us,
            lineage_id=self._upkeep.lineage_id,
            commit_id=f"keys/{self._number}/{gone.start}-{gone.end}-{secrets.token_hex(8)}",
        )
        added = [
            NewFile(
                path=one.entry.path,
                size_bytes=one.entry.size_bytes,
                partition=self._number,
                modified_us=now_us,
                stats_json=one.stats_json,
                crc32c=one.entry.crc32c,
                digest=one.entry.digest,
                etag=one.etag,
            )
            for one in work.written
        ]
        try:
            version = self._table.compact_keys(work.snapshot, work.plan.files, added, entry)
        except (FilesReplacedError, StaleRemoteStartError):
            self._next_ms = 0  # another process has changed the files: look again
            return
        self._newest()
        self._note(entry.at_version(version))
        removed = work.plan.rows_count - work.left_count
        self.counters.passes_total += 1
        self.counters.records_total += removed
        before = sum(file.size_bytes for file in work.plan.files)
        self.counters.bytes_total += max(0, before - sum(file.size_bytes for file in added))
        self.counters.last_us = now_us
        facts = {"start": int(gone.start), "end": int(gone.end), "removed": removed}
        self._upkeep.tell("keys_compacted", **facts, left=work.left_count)

    def _note(self, entry: KeyCompactionEntry) -> None:
        """Create the entry beside the table, unless this process knows that it is there."""
        if entry.end > self._noted_end:
            KeyCompactions(self._table.store).put(entry)
            self._noted_end = entry.end

    def _newest(self) -> TableSnapshot:
        found = self._table.find(cold_end_min={self._number: int(self._source.cold_end)})
        assert found is not None, "a table was loaded before"
        prove(found, self._table.store)
        self._upkeep.loaded(found)
        return found
