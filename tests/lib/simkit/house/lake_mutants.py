"""Known ways to get tiering, retention and cuts wrong; a house with a lake has to notice each.

A mutant replaces one step of the product's code for the length of a ``with``. Its docstring is the
bug.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.model.offsets import OFFSET_MAX, Offset
from broker.runtime.broker import Broker
from broker.runtime.partition.local_log import LocalLog
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
    """Take the log's end for what is committed."""

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
    """Free what a live lease holds."""
    return replaced(Broker, "_lease_floor", lambda *_: Offset(OFFSET_MAX))


def unshipped_segments_are_freed() -> Any:
    """Free what is sealed, whether or not it is in the table."""

    def plan(self: Any, _lease_floor: Any) -> Any:
        segments = self.log.segments()
        return [one for one in segments if one.sealed][:-1]

    return replaced(LocalLog, "plan_frees", plan)


def table_is_looked_at_before_the_lease() -> Any:
    """Take the lease of a cut after the table was looked at."""
    original: Any = Broker._table_state
    seen: dict[tuple[int, str], Any] = {}

    def state(self: Any, stream: Any) -> Any:
        key = (id(self), stream.uuid)
        before = seen.get(key)
        seen[key] = original(self, stream)
        return before or seen[key]

    return replaced(Broker, "_table_state", state)


def successor_is_taken_for_a_copy() -> Any:
    """Fence a leader for good when its successor's records are in the table."""
    return replaced(Tiering, "_is_replaced", lambda *_: False)


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
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final = {
    "object_is_not_read_back": 2,
    "uncommitted_records_are_shipped": 13,
    "cold_end_is_recorded_before_the_commit": 1,
    "ledger_is_not_repaired": 2,
    "lease_is_not_asked": 1,
    "unshipped_segments_are_freed": 1,
    "table_is_looked_at_before_the_lease": 1,
    "successor_is_taken_for_a_copy": 64,
}
QUICK: Final = ("object_is_not_read_back", "lease_is_not_asked", "successor_is_taken_for_a_copy")
