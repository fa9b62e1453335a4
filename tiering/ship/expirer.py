"""The shell of one partition's expiry: performs the effects of expiry.py, one at a time."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, cast

from broker.errors import (
    FeatureLevelError,
    FilesReplacedError,
    HeldByLeaseError,
    HeldByPositionError,
    StaleRemoteStartError,
    TableRolledBackError,
)
from broker.model.lineage import LINEAGE_KEPT, holds
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from broker.ports.tiering import RetentionStanding
from tiering.proof.history import foreign
from tiering.proof.proofs import prove
from tiering.ship import expired_objects, expiry
from tiering.ship.expiry_plan import RemoteRetention, plan_expiry, plan_removal
from tiering.ship.lifecycle import Failed, Rest, Woken
from tiering.ship.table_upkeep import TableUpkeep
from tiering.store.object_store import ErasableStore
from tiering.table.expiries import Expiries, ExpiryEntry, noted_expiry
from tiering.table.table import DataFile, TableSnapshot

_HELD: Final = (HeldByLeaseError, HeldByPositionError, FeatureLevelError)


@dataclass(slots=True)
class ExpiryCounters:
    """Counters of one partition's retention since the process began."""

    records_total: int = 0
    files_total: int = 0
    bytes_total: int = 0
    deleted_total: int = 0  # objects


class PartitionExpirer:
    """One partition's expiry, and the code for its effects. Owner: the worker of its shipper.

    It runs after the shipper has proved that the table is of our history.
    """

    def __init__(self, upkeep: TableUpkeep) -> None:
        """Bind to a partition; makes no request."""
        self.counters = ExpiryCounters()
        self.machine = expiry.PartitionExpiry()
        self._upkeep = upkeep
        self._source = upkeep.source
        self._table = upkeep.table
        self._clock = upkeep.clock
        self._config = upkeep.config
        self._number = upkeep.number
        self._snapshot: TableSnapshot | None = None
        self._effect: expiry.Effect = Rest()
        self._committed: ExpiryEntry | None = None  # not noted yet
        self._noted_end = Offset(0)  # the entries beside the table reach up to here
        self._config_seen: StreamConfig | None = None  # a changed setting is obeyed at once
        self._sweep_ms = 0  # no sweep before this time
        self._next_ms = 0  # no look before this time

    def begin_if_due(self, known: TableSnapshot | None) -> bool:
        """Begin an expiry if there may be something to do; costs no request.

        ``known`` is a version of the table, perhaps an old one.
        """
        standing = None if known is None else self._upkeep.standing()
        if known is None or standing is None:
            return False
        changed, self._config_seen = standing.config != self._config_seen, standing.config
        if not changed and self._clock.monotonic_ms() < self._next_ms:
            return False
        self._next_ms = self._clock.monotonic_ms() + self._config.expiry_interval_ms
        held = known.range_of(self._number)
        agreed = standing.remote_start == held.start == self._noted_end
        if agreed and self._keep_from(known, standing) <= held.start and not self._is_sweep_due():
            return False
        self._effect = self.machine.step(Woken())
        return True

    def take_step(self) -> bool:
        """Perform one effect; return whether the expiry goes on. Blocks; raises HeadwaterError."""
        try:
            if isinstance(self._effect, Rest):
                self._sweep()
                return False
            self._effect = self.machine.step(self.perform(self._effect))
        except BaseException:
            self.machine.step(Failed())
            self._committed = None
            self._next_ms = 0
            raise
        return not isinstance(self._effect, Rest) or self._is_sweep_due()

    def perform(self, effect: expiry.Effect) -> expiry.Event:
        """Perform one effect and return its event. Blocks; raises HeadwaterError."""
        match effect:
            case expiry.LoadRange(start_min):
                return expiry.RangeLoaded(self._load(start_min))
            case expiry.ReadExpiries():
                last = Expiries(self._table.store).last(self._number)
                self._noted_end = Offset(0) if last is None else last.end
                return expiry.ExpiriesRead(self._noted_end)
            case expiry.MakePlan():
                return self._plan()
            case expiry.Decide(before, is_done):
                return self._decide(before, is_done=is_done)
            case expiry.Remove(upto):
                return self._remove(upto)
            case _:
                assert isinstance(effect, expiry.NoteExpiries), f"no code for {effect}"
                self._note(effect.range)
                return expiry.ExpiriesNoted()

    # ------------------------------------------------------------------------------ effects

    def _load(self, start_min: Offset) -> OffsetRange | None:
        least = {self._number: int(self._source.cold_end)}
        snapshot = self._table.find(cold_end_min=least)
        if snapshot is None:
            return None
        held = snapshot.range_of(self._number)
        if held.start < start_min:
            raise TableRolledBackError(
                f"partition {self._number} of {snapshot.uri} begins at {held.start}, but its "
                f"records below {start_min} had expired: its log was cut, or restored from an "
                "older copy",
                uri=snapshot.uri,
                partition=self._number,
                expected=int(start_min),
                found=int(held.start),
            )
        prove(snapshot, self._table.store)
        self._keep(snapshot)
        return held

    def _plan(self) -> expiry.Event:
        snapshot = self._loaded_version()
        standing = self._upkeep.standing()
        if standing is None:  # the stream was deleted meanwhile
            start = snapshot.range_of(self._number).start
            return expiry.Planned(start, start)
        self._source.learn_expired(standing.remote_start)
        keep_from = self._keep_from(snapshot, standing)
        return expiry.Planned(standing.remote_start, keep_from)

    def _decide(self, before: Offset, *, is_done: bool) -> expiry.Event:
        partition, epoch = self._source.partition_id, self._source.reads.leader_epoch
        try:
            start = self._upkeep.starts.expire(partition, before, epoch, is_done=is_done)
        except _HELD as held:
            facts = {"error": type(held).__name__, "reason": held.message}
            self._upkeep.tell("expiry_held", before=int(before), **facts)
            standing = self._upkeep.standing()
            start = Offset(0) if standing is None else standing.remote_start
        self._source.learn_expired(start)
        return expiry.Decided(start)

    def _remove(self, upto: Offset) -> expiry.Event:
        snapshot = self._loaded_version()
        held = snapshot.range_of(self._number)
        whole = snapshot.whole_start(self._number)
        start, removed = plan_removal(self._files(snapshot), held, upto=upto, whole=whole)
        if not removed:
            return expiry.RemovalLost()
        entry = self._entry(OffsetRange(held.start, start), held.end, removed)
        try:
            version = self._table.expire(snapshot, removed, entry)
        except (FilesReplacedError, StaleRemoteStartError):
            self._next_ms = 0
            return expiry.RemovalLost()
        found = self._table.find(cold_end_min={self._number: int(held.end)})
        assert found is not None, "the commit was written to this table"
        prove(found, self._table.store)
        self._keep(found)
        self._committed = entry.at_version(version)
        self.counters.records_total += sum(file.records_count or 0 for file in removed)
        self.counters.files_total += len(removed)
        self.counters.bytes_total += entry.size_bytes
        facts = {"start": int(entry.start), "end": int(entry.end), "files": len(removed)}
        self._upkeep.tell("files_expired", **facts, bytes=entry.size_bytes)
        return expiry.Removed(start)

    def _note(self, missing: OffsetRange) -> None:
        """Create the entries over a range, from the accounts in the commits."""
        expiries, at = Expiries(self._table.store), missing.start
        while at < missing.end:
            done, self._committed = self._committed, None
            if done is None or done.start != at:  # a crash left it out
                last = expiries.last(self._number)
                commits = self._table.commits(above=0 if last is None else max(last.version, 0))
                done = noted_expiry(self._table.store, commits, at, self._number)
            entry = done
            self._require_ours(entry)
            expiries.put(entry)
            at = self._noted_end = entry.end

    # ------------------------------------------------------------------------------ objects

    def _is_sweep_due(self) -> bool:
        return self._noted_end > 0 and self._clock.monotonic_ms() >= self._sweep_ms

    def _sweep(self) -> None:
        """Delete objects of expired ranges that no version needs which may be read."""
        self._sweep_ms = self._clock.monotonic_ms() + self._config.sweep_interval_ms
        standing = self._upkeep.standing()
        snapshot = self._table.find(cold_end_min={self._number: int(self._source.cold_end)})
        if standing is None or snapshot is None:
            return
        store = cast("ErasableStore", self._table.store)
        found = expired_objects.candidates(store, snapshot, self._number)
        if not found:
            return
        prove(snapshot, store)
        first = Offset(int(found[0][0].rpartition("/")[2][:20]))
        end = expired_objects.deletable_end(
            expired_objects.entries_from(Expiries(store), self._number, first),
            grace_us=standing.config.remote_delete_grace_ms * 1000,
            now_us=self._clock.now_us(),
            lease_us=self._upkeep.starts.oldest_lease_us(self._source.partition_id),
        )
        if count := expired_objects.erase(store, found, end):
            self.counters.deleted_total += count
            self._upkeep.tell("objects_deleted", objects=count, below=int(end))

    # ------------------------------------------------------------------------------ inside

    def _require_ours(self, entry: ExpiryEntry) -> None:
        """Refuse an expiry of another history."""
        lineage = self._source.lineage
        forgotten = len(lineage) == LINEAGE_KEPT and entry.cold_end <= lineage[0].start
        if lineage and not forgotten and not holds(lineage, entry.lineage_id, entry.cold_end):
            reason = f"leadership {entry.lineage_id} let {entry.range} expire"
            raise foreign(self._loaded_version(), self._number, reason)

    def _entry(self, gone: OffsetRange, cold_end: Offset, removed: list[DataFile]) -> ExpiryEntry:
        return ExpiryEntry(
            partition=self._number,
            start=gone.start,
            end=gone.end,
            cold_end=cold_end,
            paths=tuple(file.path for file in removed),
            size_bytes=sum(file.size_bytes for file in removed),
            expired_us=self._clock.now_us(),
            lineage_id=self._upkeep.lineage_id,
            commit_id=f"expiry/{self._number}/{gone.start}-{gone.end}-{secrets.token_hex(8)}",
        )

    def _keep_from(self, snapshot: TableSnapshot, standing: RetentionStanding) -> Offset:
        held = snapshot.range_of(self._number)
        retention = RemoteRetention.of(standing.config)
        if retention.keeps_all:
            return held.start
        return plan_expiry(
            self._files(snapshot),
            held,
            retention=retention,
            limit=standing.limit,
            now_us=self._clock.now_us(),
            whole=snapshot.whole_start(self._number),
        )

    def _files(self, snapshot: TableSnapshot) -> list[DataFile]:
        return [file for file in snapshot.files if file.partition == self._number]

    def _keep(self, snapshot: TableSnapshot) -> None:
        self._snapshot = snapshot
        self._upkeep.loaded(snapshot)

    def _loaded_version(self) -> TableSnapshot:
        assert self._snapshot is not None, "the table is loaded before anything else"
        return self._snapshot
