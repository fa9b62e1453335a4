"""Bugs of the shells, one switch each, and the fast check that has to die of each.

A mutant replaces one step of the product for the length of a `with`; its docstring is the bug.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from broker.adapters.disk import files as disk_files
from broker.adapters.disk.files import DiskFile, DiskFiles
from broker.core.dedup import ProducerPlan, ProducerTable
from broker.core.message_ids import Digest, IdPlan
from broker.core.retention import LocalRetention, plan_local_frees
from broker.model.offsets import Offset
from broker.runtime.api.cuts import Cuts
from broker.runtime.partition import retry_tables
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.groups import CommitGroup
from broker.runtime.partition.maintenance import Maintenance
from broker.runtime.partition.reads import PartitionReads
from broker.runtime.partition.replica_shell import ReplicaShell
from broker.runtime.partition.tier_view import TierView
from broker.runtime.upkeep import Upkeep
from broker.storage.log_folder import LogFolder
from broker.storage.raft.raft_folder import RaftFolder
from simkit.brokers import shell_checks as checks
from simkit.replacing import Mutant, replaced, together
from tiering.store import local_store


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def fdatasync_is_nothing() -> Any:
    """The disk adapter never asks the kernel to make anything durable."""
    return replaced(DiskFile, "datasync", _nothing)


def folders_are_not_synced() -> Any:
    """Names are left to the file system."""
    return together(
        replaced(disk_files, "_sync_folder", _nothing),
        replaced(DiskFiles, "sync_folder", _nothing),
    )


def whole_files_are_named_first() -> Any:
    """A file takes another's place before its bytes are durable."""

    def replace(self: LogFolder, path: str, data: bytes) -> None:
        file = self.files.open(path + ".tmp", create=True)
        file.write_at(0, [data])
        file.close()
        self.files.replace(path + ".tmp", path)

    return replaced(LogFolder, "replace", replace)


def journal_is_not_synced() -> Any:
    """The metadata of a single broker is answered from the page cache."""
    return replaced(RaftFolder, "datasync", _nothing)


def objects_are_not_synced() -> Any:
    """An object of the local store is named before its bytes are durable."""

    def unsynced(path: Any, body: Any) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(descriptor, body)
        os.close(descriptor)

    return replaced(local_store, "_write_synced", unsynced)


def object_folders_are_not_synced() -> Any:
    """An object of the local store is there until the power goes."""
    return replaced(local_store, "_sync_folder", _nothing)


def ack_before_sync() -> Any:
    """The sync is for the followers, the ack does not wait for it."""

    def sync(self: ReplicaShell) -> None:
        self._local.log._synced_end = self._local.log.log_end
        self.written()

    return replaced(ReplicaShell, "sync", sync)


def intervals_never_end() -> Any:
    """``flush=interval`` never syncs by itself."""

    def maintain(self: Maintenance) -> None:
        self._queued = False
        self._local.log.roll_if_due(self._clock.now_us())

    return replaced(Maintenance, "_maintain", maintain)


def retention_ignores_leases() -> Any:
    """The cold end alone says what may go."""

    def plan(self: TierView, segments: Any, _floor: Any, now_us: int) -> Any:
        return plan_local_frees(
            segments(),
            floor=self.cold_end,
            now_us=now_us,
            retention=LocalRetention.of(self._config),
        )

    return replaced(TierView, "plan_frees", plan)


def floor_before_cold_end() -> Any:
    """Leases are looked at first; one that comes then is not seen."""

    def plan(self: TierView, segments: Any, floor: Any, now_us: int) -> Any:
        least = floor()
        return plan_local_frees(
            segments(),
            floor=min(least, self.cold_end),
            now_us=now_us,
            retention=LocalRetention.of(self._config),
        )

    return replaced(TierView, "plan_frees", plan)


def broker_forgets_leases() -> Any:
    """The broker tells retention of no lease."""
    return replaced(Upkeep, "_lease_floor", lambda *_: Offset(2**63 - 1))


def table_before_lease() -> Any:
    """A cut looks at the table, then takes its lease."""

    def take(self: Cuts, name: str, *, owner: str, ttl_ms: int) -> Any:
        self._cold.table_state(self._streams.get(name))
        return original(self, name, owner=owner, ttl_ms=ttl_ms)

    original = Cuts.take_lease
    return replaced(Cuts, "take_lease", take)


def cold_end_before_metadata() -> Any:
    """The cold end moves before the metadata has it."""

    def record(self: TierView, cold_end: Offset) -> None:
        self.cold_end = max(self.cold_end, cold_end)
        self._record(self._partition_id, cold_end)

    return replaced(TierView, "record", record)


def duplicates_are_acked_at_once() -> Any:
    """A retry is answered from the table, whether its record is committed or not."""

    def needed(self: CommitGroup, outcome: Any) -> Offset:
        if isinstance(outcome, list) and all(getattr(one, "duplicate", False) for one in outcome):
            return Offset(0)
        return original(self, outcome)

    original = CommitGroup._needed_end
    return replaced(CommitGroup, "_needed_end", needed)


def readers_see_the_log_end() -> Any:
    """Readers get records as soon as they are written."""
    return replaced(
        PartitionReads, "high_watermark", property(lambda self: self._local.log.log_end)
    )


def tail_is_not_read() -> Any:
    """The producer table is only the newest stored state, without the log behind it."""

    def rebuild(log: Any) -> Any:
        stored = log.read_producer_states().newest
        table = ProducerTable()
        return table if stored is None else table.from_state(stored[0])

    return replaced(retry_tables, "rebuild_producers", rebuild)


def plans_are_remembered_at_once() -> Any:
    """The retry tables know of a write before it is in the log."""

    def add(self: ProducerPlan, *batch: Any) -> None:
        self._table.add(*batch)

    def add_ids(self: IdPlan, ids: Iterable[tuple[Digest | None, Offset]]) -> None:
        for digest, offset in ids:
            if digest is not None:
                self._window.add(digest, offset, 1_700_000_000_000_000)

    return together(replaced(ProducerPlan, "add", add), replaced(IdPlan, "add_all", add_ids))


def crashes_poison_nothing() -> Any:
    """After a bug in a turn the partition goes on, with tables of records not in the log."""

    def goes_on(self: PartitionDriver, work: Any) -> None:
        self._queue.end_turn()

    return together(plans_are_remembered_at_once(), replaced(PartitionDriver, "_poison", goes_on))


PLANTED: Final[Sequence[tuple[Mutant, checks.Check]]] = (
    (fdatasync_is_nothing, checks.acks_stand_on_syncs),
    (fdatasync_is_nothing, checks.interval_streams_sync_in_time),
    (fdatasync_is_nothing, checks.whole_files_are_durable),
    (fdatasync_is_nothing, checks.metadata_is_durable),
    (folders_are_not_synced, checks.acks_stand_on_syncs),
    (folders_are_not_synced, checks.whole_files_are_durable),
    (whole_files_are_named_first, checks.whole_files_are_durable),
    (journal_is_not_synced, checks.metadata_is_durable),
    (objects_are_not_synced, checks.objects_are_durable),
    (object_folders_are_not_synced, checks.objects_are_durable),
    (ack_before_sync, checks.acks_stand_on_syncs),
    (intervals_never_end, checks.interval_streams_sync_in_time),
    (retention_ignores_leases, checks.leases_hold_local_segments),
    (floor_before_cold_end, checks.leases_hold_local_segments),
    (broker_forgets_leases, checks.live_leases_are_the_floor),
    (table_before_lease, checks.cuts_lease_before_they_look),
    (cold_end_before_metadata, checks.cold_ends_are_recorded_first),
    (duplicates_are_acked_at_once, checks.duplicates_wait_like_the_first),
    (readers_see_the_log_end, checks.uncommitted_records_are_not_shown),
    (tail_is_not_read, checks.retries_are_known_after_a_crash),
    (plans_are_remembered_at_once, checks.failed_writes_are_not_remembered),
    (crashes_poison_nothing, checks.a_crash_persists_nothing),
)
