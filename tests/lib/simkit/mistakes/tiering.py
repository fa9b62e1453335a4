"""Known ways to get tiering, retention and cuts wrong; a house with a lake has to notice each.

A mutant replaces one step of the product's code for the length of a ``with``. Its docstring is the
bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from broker.core.dedup import ProducerTable
from broker.core.replication.events import LogTruncated
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_messages import LogPrefix
from broker.runtime.api.cold_tier import ColdTier
from broker.runtime.partition.local_log import LocalLog
from broker.runtime.partition.replica_shell import ReplicaShell
from broker.runtime.upkeep import Upkeep
from simkit.replacing import replaced
from tiering.ship import lifecycle as tier
from tiering.ship.shipper import PartitionShipper
from tiering.tiering import Tiering

Mutant = Callable[[], Any]  # a context manager


def _performing(kind: type[Any], instead: Callable[[Any, Any, Any], Any]) -> Any:
    """Perform one kind of effect in another way."""
    original: Any = PartitionShipper.perform

    def perform(self: Any, effect: Any) -> Any:
        if isinstance(effect, kind):
            return instead(self, effect, original)
        return original(self, effect)

    return replaced(PartitionShipper, "perform", perform)


def object_is_not_read_back() -> Any:
    """Commit an object on the word of the PUT."""
    return _performing(tier.CheckObject, lambda *_: tier.ObjectChecked())


def uncommitted_records_are_shipped() -> Any:
    """Take the log end for the high watermark."""

    def listed(self: Any, *_: Any) -> Any:
        return tier.LogListed(self.source.segments(), self.source.reads.log_end)

    return _performing(tier.ListLog, listed)


def cold_end_is_recorded_before_the_commit() -> Any:
    """Tell the metadata of rows that are about to be in the table."""

    def commit(self: Any, effect: Any, original: Any) -> Any:
        self.source.record_cold_end(effect.range.end)
        return original(self, effect)

    return _performing(tier.CommitObject, commit)


def ledger_is_not_repaired() -> Any:
    """Go on above a commit whose ledger entry was never written."""
    return _performing(tier.RepairLedger, lambda *_: tier.LedgerRepaired())


def lease_is_not_asked() -> Any:
    """Free segments that a live lease holds."""
    return replaced(Upkeep, "_lease_floor", lambda *_: Offset(OFFSET_MAX))


def unshipped_segments_are_freed() -> Any:
    """Free sealed segments that are not in the table."""

    def plan(self: Any, _lease_floor: Any) -> Any:
        segments = self.log.segments()
        return [one for one in segments if one.sealed][:-1]

    return replaced(LocalLog, "plan_frees", plan)


def table_is_looked_at_before_the_lease() -> Any:
    """Take the lease of a cut after the table was looked at."""
    original: Any = ColdTier.table_state
    seen: WeakKeyDictionary[ColdTier, dict[str, Any]] = WeakKeyDictionary()

    def state(self: Any, stream: Any) -> Any:
        states = seen.setdefault(self, {})
        before = states.get(stream.uuid)
        states[stream.uuid] = original(self, stream)
        return before or states[stream.uuid]

    return replaced(ColdTier, "table_state", state)


def successor_is_taken_for_a_copy() -> Any:
    """Fence a leader for good when its successor's records are in the table."""
    return replaced(Tiering, "_is_replaced", lambda *_: False)


def cold_end_learned_after_the_election() -> Any:
    """Elect by the cold end that was noted, and look at the table later."""
    return replaced(ColdTier, "learn_end", lambda *_: None)


def epochs_of_a_log_without_the_records() -> Any:
    """Begin at the cold end with the epochs of a log that never had the records of the table."""

    def begin_at(self: Any, start: Any) -> None:
        starts = self._local.log.epochs.starts
        epochs = tuple((one.leader_epoch, min(one.start_offset, start)) for one in starts)
        producers = self._local.producers_before(self._local.log.log_end)
        self._replace(start, LogPrefix(epochs=epochs, producers=producers))

    return replaced(ReplicaShell, "_begin_at", begin_at)


def log_is_not_replaced() -> Any:
    """Keep the old records where a log has to begin anew at its leader's start."""

    def reset(self: Any, start: Any, _prefix: Any) -> None:
        kept = self._local.log
        end = min(max(start, kept.log_start), kept.log_end)
        kept.truncate(end)
        self._local.shrunk()
        self._do(self._replica.step(LogTruncated(self._now_ms())))

    return replaced(ReplicaShell, "_reset", reset)


def reset_to_the_log_end() -> Any:
    """Let a follower begin at the leader's end: what lies between is in no table."""

    def below_start(self: Any, request: Any) -> Any:
        answer = original(self, request)
        return replace(answer, start=answer.log_end)

    original: Any = ReplicaShell._below_start
    return replaced(ReplicaShell, "_below_start", below_start)


def reset_forgets_producers() -> Any:
    """Begin a log anew without the retry table of the earlier records (A24)."""

    def below_start(self: Any, request: Any) -> Any:
        answer = original(self, request)
        none = ProducerTable().to_state()
        return replace(answer, prefix=replace(answer.prefix, producers=none))

    original: Any = ReplicaShell._below_start
    return replaced(ReplicaShell, "_below_start", below_start)


def _cold_end_alone(local: LocalLog, _lineage: Any = ()) -> Offset:
    log = local.log
    return min(max(local.tier.floor, log.log_start), log.log_end)


def cold_end_vouches_for_the_own_log() -> Any:
    """Take a restarted replica's records below the cold end for committed, before it aligns."""

    def take_lease(self: Any, view: Any) -> None:
        if self._replica.view is None:
            self._replica._known = _cold_end_alone(self._local)
        original(self, view)

    original: Any = ReplicaShell._take_lease
    return replaced(ReplicaShell, "_take_lease", take_lease)


def cold_end_vouches_to_readers() -> Any:
    """Show readers a restarted replica's records below the cold end, before it aligns."""
    return replaced(LocalLog, "committed_for_certain", _cold_end_alone)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        object_is_not_read_back,
        uncommitted_records_are_shipped,
        cold_end_is_recorded_before_the_commit,
        ledger_is_not_repaired,
        lease_is_not_asked,
        unshipped_segments_are_freed,
        table_is_looked_at_before_the_lease,
        successor_is_taken_for_a_copy,
    )
}
# They need an operator who accepts a loss, or logs that begin anew: lives that are mixed.
MIXED_MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        cold_end_learned_after_the_election,
        epochs_of_a_log_without_the_records,
        log_is_not_replaced,
        reset_to_the_log_end,
        reset_forgets_producers,
        cold_end_vouches_for_the_own_log,
        cold_end_vouches_to_readers,
    )
}
# In mixed lives with a lake; what is left of the others dies in unit tests and a script: README.md.
FIRST_MIXED_SEEDS: Final = {
    "log_is_not_replaced": 5,
    "reset_to_the_log_end": 40,
    "cold_end_vouches_for_the_own_log": 29,
    "cold_end_vouches_to_readers": 25,
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final = {
    "object_is_not_read_back": 22,
    "uncommitted_records_are_shipped": 8,
    "cold_end_is_recorded_before_the_commit": 3,
    "ledger_is_not_repaired": 3,
    "lease_is_not_asked": 56,
    "unshipped_segments_are_freed": 1,
    "table_is_looked_at_before_the_lease": 1,
    "successor_is_taken_for_a_copy": 73,
}
QUICK: Final = ("object_is_not_read_back", "lease_is_not_asked", "successor_is_taken_for_a_copy")
