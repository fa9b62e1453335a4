"""The shell of one partition's tiering: performs the effects of lifecycle.py, one at a time.

Its memory (an object that is being built, the table version that the next commit is based on) may
be lost in a crash without harm. Every call that leaves the process has a deadline.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from broker.errors import (
    ForeignHistoryError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    StaleColdEndError,
    UnknownStreamError,
)
from broker.model.offsets import Offset, OffsetRange
from broker.ports.system import Clock
from broker.ports.tiering import RemoteStarts, TierSource
from tiering.config import Observer, TieringConfig
from tiering.proof.history import ProvedEnds, newest_range, require_ours, require_rows_of_log
from tiering.proof.proofs import prove
from tiering.ship import lifecycle as tier
from tiering.ship.claimant import Claimant
from tiering.ship.expirer import ExpiryCounters, PartitionExpirer
from tiering.ship.key_compaction.compactor import KeyCompactionCounters, PartitionKeyCompactor
from tiering.ship.segment_writer import SegmentPlace, WrittenSegment, check_segment, write_segment
from tiering.ship.table_upkeep import TableUpkeep
from tiering.store.deadline import call_with_deadline
from tiering.store.object_store import ObjectInfo
from tiering.store.table_keys import encryption_of, keys_at
from tiering.table.ledger import Ledger, LedgerEntry, encode_lineage, encode_ranges
from tiering.table.ledger_repair import LedgerRepair, log_batches
from tiering.table.table import NewFile, Table, TableSnapshot


class CycleProgress(Enum):
    """Where a cycle is after one of its steps."""

    UNDER_WAY = auto()
    MORE_TO_SHIP = auto()  # the cycle is over; another one has something to do at once
    DONE = auto()  # the cycle is over, and everything sealed is in the table


@dataclass(slots=True)
class ShipCounters:
    """Counters of one partition's tiering since the process began."""

    segments_total: int = 0
    bytes_total: int = 0  # size of the objects
    failures_total: int = 0
    conflicts_total: int = 0
    last_shipped_us: int = 0  # 0: never


class PartitionShipper:
    """One partition's state machine, and the code for its effects. Owner: one worker at a time."""

    def __init__(
        self,
        *,
        cluster: str,
        source: TierSource,
        table: Table,
        clock: Clock,
        config: TieringConfig,
        proved: ProvedEnds | None = None,
        claimant: Claimant | None = None,
        fence: Callable[[], None] = lambda: None,
        starts: RemoteStarts | None = None,
        key_snapshot_end: Callable[[], Offset | None] = lambda: None,
        observer: Observer = lambda _event, _facts: None,
    ) -> None:
        """Bind to a partition and its stream's table; makes no request.

        ``fence`` is called before each cycle: it raises while nothing may be written. Without
        ``starts`` nothing expires. ``key_snapshot_end``: see PartitionKeyCompactor.
        """
        self._fence = fence
        self._observer = observer
        self.source = source
        self.counters = ShipCounters()
        self.snapshot: TableSnapshot | None = None
        self._cluster = cluster
        self._table = table
        self._ledger = Ledger(table.store)
        self._proved = proved if proved is not None else ProvedEnds()
        self._claimant = claimant
        self._clock = clock
        self._config = config
        self._keys = keys_at(table.store.config)
        self._number = source.partition_id.number
        self._segments_count = 0
        self._object: WrittenSegment | None = None
        self._committed: LedgerEntry | None = None
        # The cycle under way has shipped; what keeps up the files of the table now.
        self._keeper: PartitionExpirer | PartitionKeyCompactor | None = None
        self.expirer: PartitionExpirer | None = None
        self.key_compactor: PartitionKeyCompactor | None = None
        self._starts = starts
        if starts is not None:
            upkeep = TableUpkeep(
                source=source, table=table, starts=starts, clock=clock, config=config,
                observer=observer, loaded=self._loaded,
            )  # fmt: skip
            self.expirer = PartitionExpirer(upkeep)
            self.key_compactor = PartitionKeyCompactor(upkeep, key_snapshot_end=key_snapshot_end)
        self._effect: tier.Effect | None = None  # the next effect of the cycle under way
        self._objects_left = 0  # how many objects the cycle under way may still ship
        self._noted: LedgerEntry | None = None  # the ledger's last entry when it was last read
        self.machine = tier.PartitionTier(
            self._number, object_bytes_max=config.object_bytes_max, recorded=source.cold_end
        )

    def run_cycle(self, objects_max: int = 1) -> bool:
        """Ship at most ``objects_max`` objects; return whether there are more to ship. Blocks.

        Raises:
            HeadwaterError: see :meth:`take_step`.
        """
        while (progress := self.take_step(objects_max)) is CycleProgress.UNDER_WAY:
            pass
        return progress is CycleProgress.MORE_TO_SHIP

    def take_step(self, objects_max: int = 1) -> CycleProgress:
        """Perform one effect of a cycle; the first step begins the cycle. Blocks.

        Raises:
            HeadwaterError: the cycle stopped; nothing is lost, the next one reads the table anew.
        """
        try:
            self._require_stream()
            if self._keeper is not None:
                return self._keep_up(self._keeper)
            if self._effect is None:
                self._require_leadership()
                self._fence()
                self._objects_left = objects_max
                self._effect = self.machine.step(tier.Woken())
            effect, self._effect = self._effect, None
            if isinstance(effect, tier.Rest):
                return self._after_shipping()
            if isinstance(effect, tier.PackSegments):
                if self._objects_left == 0:
                    self.machine.step(tier.Postponed())
                    return CycleProgress.MORE_TO_SHIP
                self._objects_left -= 1
            self._effect = self.machine.step(self.perform(effect))
        except BaseException as error:
            self._forget()
            self._keeper = None
            if self.key_compactor is not None:
                self.key_compactor.stop()
            self.machine.step(tier.Failed())
            if isinstance(error, Exception):  # a bug, too: the alert must fire
                self.counters.failures_total += 1
            if isinstance(error, ForeignHistoryError) and self._claimant is not None:
                self._claimant.lose(self.source.partition_id, error)
            raise
        return CycleProgress.UNDER_WAY

    @property
    def expired(self) -> ExpiryCounters:
        """What expired since the process began."""
        return ExpiryCounters() if self.expirer is None else self.expirer.counters

    @property
    def compacted(self) -> KeyCompactionCounters:
        """What key compaction removed since the process began."""
        found = self.key_compactor
        return KeyCompactionCounters() if found is None else found.counters

    def _after_shipping(self) -> CycleProgress:
        """Let files expire if it is time; the table was proved to be of our history before."""
        if self.expirer is None or not self.expirer.begin_if_due(self.snapshot):
            return self._after_expiry()
        self._keeper = self.expirer
        return CycleProgress.UNDER_WAY

    def _after_expiry(self) -> CycleProgress:
        """Let superseded records go if it is time."""
        self._keeper = None
        if self.key_compactor is None or not self.key_compactor.begin_if_due(self.snapshot):
            return CycleProgress.DONE
        self._keeper = self.key_compactor
        return CycleProgress.UNDER_WAY

    def _keep_up(self, part: PartitionExpirer | PartitionKeyCompactor) -> CycleProgress:
        self._require_leadership()
        if isinstance(part, PartitionExpirer):
            return CycleProgress.UNDER_WAY if part.take_step() else self._after_expiry()
        self._keeper = None
        return CycleProgress.MORE_TO_SHIP if part.take_turn() else CycleProgress.DONE

    def _loaded(self, snapshot: TableSnapshot) -> None:
        self.snapshot = snapshot

    def _require_stream(self) -> None:
        """Begin nothing for a deleted stream: its table may be deleted, and would come back."""
        partition = self.source.partition_id
        if self._starts is not None and not self._starts.is_there(partition):
            raise UnknownStreamError(f"the stream of partition {partition} was deleted")

    def _require_leadership(self) -> None:
        """Raise the reason if the leadership is lost: then nothing is shipped."""
        partition = self.source.partition_id
        lost = None if self._claimant is None else self._claimant.error_of(partition)
        if lost is not None:
            raise lost

    def perform(self, effect: tier.Effect) -> tier.Event:
        """Perform one effect and return its event. Blocks; raises HeadwaterError."""
        match effect:
            case tier.LoadTable(cold_end_min):
                self.snapshot = self._table.find(cold_end_min={self._number: cold_end_min})
                held = self.snapshot
                return tier.TableLoaded(held.cold_end(self._number) if held else Offset(0))
            case tier.ReadLedger():
                self._noted = self._ledger.last(self._number)
                return tier.LedgerRead(Offset(0) if self._noted is None else self._noted.end)
            case tier.ProveHistory():
                self._prove_history()
                return tier.HistoryProved()
            case tier.RepairLedger(missing):
                self._repair().run(missing)
                return tier.LedgerRepaired()
            case tier.TellColdEnd(cold_end):
                if cold_end > self.source.cold_end:  # another process may have recorded it already
                    self.source.record_cold_end(cold_end)
                return tier.ColdEndRecorded()
            case tier.ListLog():
                # Segments first: then the high watermark is as new as the segments, or newer.
                segments = self.source.segments()
                return tier.LogListed(segments, self.source.reads.high_watermark)
            case tier.PackSegments(wanted, count):
                self._require_ours()
                self._segments_count = count
                batches = log_batches(self.source, wanted)
                built = write_segment(batches, wanted, self._place(wanted))
                self._object = replace(built, entry=built.entry.of_lineage(self._lineage_id()))
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
                assert isinstance(effect, tier.WriteLedger), f"no code for {effect}"
                self._write_ledger()
                return tier.LedgerWritten()

    def _require_ours(self) -> None:
        """Refuse a table with a foreign change: nothing is shipped on top of it."""
        if self.snapshot is None:
            return
        try:
            prove(self.snapshot, self._table.store)
        except ObjectMissingError:  # if the table was rolled back, find() raises the better error
            self._table.find(cold_end_min={self._number: self.snapshot.cold_end(self._number)})
            raise

    # ------------------------------------------------------------------------------ one object

    def _place(self, wanted: OffsetRange) -> SegmentPlace:
        name = (
            f"{wanted.start:020}-{wanted.end:020}-{self.source.reads.leader_epoch}-"
            f"{secrets.token_hex(8)}.parquet"
        )
        return SegmentPlace(
            cluster=self._cluster,
            partition=self.source.partition_id,
            subject=self.source.subject,
            path=f"partition={self._number}/{name}",
            encryption=encryption_of(self.source.stream, self._table.store.config),
        )

    def _lineage_id(self) -> str:
        lineage = self.source.lineage
        return lineage[-1].lineage_id if lineage else ""

    def _store(self) -> None:
        built = self._taken_object()
        entry = built.entry
        stored = self._table.store.put_if_absent(entry.path, built.body, crc32c=entry.crc32c)
        if stored is None:
            raise RemoteTierUnavailableError(  # the next cycle takes another random name
                f"{entry.path} exists already as another object", key=entry.path
            )
        # From here on only the bytes in the store count; their read-back needs the memory.
        self._object = replace(built, body=b"", etag=stored.etag)

    def _check(self) -> None:
        built = self._taken_object()
        body = self._fetched(built.entry.path)
        check_segment(body, built.entry, self._keys)
        self._object = replace(built, body=body)  # until its commit is known to have the object

    def _keep_stored(self) -> None:
        """Put a committed object again if other software deleted it before its commit.

        To a VACUUM without retention an object is an orphan until its commit. After the commit only
        this process has the bytes, because the local log may be freed.
        """
        built = self._taken_object()
        entry = built.entry
        found: ObjectInfo | None
        try:
            found = self._table.store.head(entry.path)
        except ObjectMissingError:
            found = self._table.store.put_if_absent(entry.path, built.body, crc32c=entry.crc32c)
            facts = {"partition": str(self.source.partition_id), "key": entry.path}
            self._observer("object_put_again", facts)
        if found is None or found.size_bytes != entry.size_bytes:
            raise ObjectCorruptError(
                f"{entry.path} was exchanged for another object while it was committed",
                key=entry.path,
            )

    def _commit(self, moved: OffsetRange) -> tier.Event:
        self._require_leadership()
        built = self._taken_object()
        entry = built.entry
        base = self.snapshot
        if base is None:
            base = self._table.create()
            if base.version > 0:  # another partition has made the table, perhaps long ago
                prove(base, self._table.store)
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
                        etag=built.etag,
                    )
                ],
                {self._number: moved},
                commit_id=entry.path,
                ranges_json=encode_ranges([entry]),
                lineage_json=encode_lineage([entry]),
            )
        except StaleColdEndError as lost:
            self.counters.conflicts_total += 1
            self._forget()
            return tier.CommitLost(Offset(int(lost.facts["found"])))
        # The commit counts only after a fresh read of the table's log shows it.
        self.snapshot = self._table.find(cold_end_min={self._number: moved.end})
        self._keep_stored()
        self._committed = entry.at_version(version)
        self._proved.prove(self.source.partition_id, moved.end)
        return tier.Committed()

    def _write_ledger(self) -> None:
        assert self._committed is not None, "the ledger follows the commit"
        entry, self._committed, self._object = self._committed, None, None
        try:
            self._ledger.put(entry)
        except ObjectCorruptError:  # another uploader wrote an entry: repair compares the two
            entry = self._repair().put(entry)
        self._noted = entry
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

    # ------------------------------------------------------------------------------ the ledger

    def _prove_history(self) -> None:
        """Refuse a table of another history; rows are compared with the log once per cold end."""
        snapshot, partition = self.snapshot, self.source.partition_id
        assert snapshot is not None, "only a table has a history"
        cold_end = snapshot.cold_end(self._number)
        newest = self._noted
        if newest is None or newest.end != cold_end:
            newest = newest_range(self._table, snapshot, self._number)
        recorded = self.source.cold_end
        if not self._proved.covers(partition, cold_end):
            place = self._place(OffsetRange(Offset(0), Offset(0)))
            if require_rows_of_log(self._table, snapshot, self.source, newest, place):
                recorded = max(recorded, cold_end)
        require_ours(snapshot, self._number, newest, lineage=self.source.lineage, recorded=recorded)
        self._proved.prove(partition, cold_end)

    def _repair(self) -> LedgerRepair:
        assert self.snapshot is not None, "only a table can be ahead of its ledger"
        return LedgerRepair(
            table=self._table,
            snapshot=self.snapshot,
            source=self.source,
            place=self._place(OffsetRange(Offset(0), Offset(0))),
            last=self._noted,
            lineage_id=self._lineage_id(),
        )
