"""Mistakes of remote retention; lives with a lake and an operator who lets tables expire."""

from __future__ import annotations

from typing import Any, Final

from broker.core.metadata import stream_expiry
from broker.model.offsets import OFFSET_MAX, Offset
from broker.runtime.partition.tier_source import LocalTierSource
from simkit.replacing import Mutant, replaced, together
from tiering.ship import expirer, expiry
from tiering.ship.expirer import PartitionExpirer
from tiering.ship.expiry_plan import plan_removal
from tiering.table.delta_table import DeltaStreamTable


def _performing(kind: type[Any], instead: Any) -> Any:
    """Perform one kind of effect of an expiry in another way."""
    original: Any = PartitionExpirer.perform

    def perform(self: Any, effect: Any) -> Any:
        return instead(self, effect) if isinstance(effect, kind) else original(self, effect)

    return replaced(PartitionExpirer, "perform", perform)


def leases_do_not_hold_an_expiry() -> Any:
    """Let records of the tail of a live cut expire."""
    return together(  # the upkeep asks first, and the metadata refuses
        replaced(stream_expiry, "lease_limit", lambda *_: Offset(OFFSET_MAX)),
        replaced(stream_expiry, "refused_by_leases", lambda *_: None),
    )


def expiry_is_out_of_order() -> Any:
    """Remove the newest of the files that may go, and leave the oldest."""
    original: Any = plan_removal

    def removal(files: Any, held: Any, **bounds: Any) -> Any:
        start, removed = original(files, held, **bounds)
        return (removed[0].end_offset, removed[-1:]) if len(removed) > 1 else (start, removed)

    return replaced(expirer, "plan_removal", removal)


def expiry_is_not_noted() -> Any:
    """Leave no entry beside the table."""
    return _performing(expiry.NoteExpiries, lambda *_: expiry.ExpiriesNoted())


def expired_range_is_shipped_again() -> Any:
    """Move the cold end back to the new start, so that what follows is shipped once more."""
    original: Any = DeltaStreamTable._commit

    def commit(self: Any, expected: Any, *, transactions: Any, **rest: Any) -> Any:
        moved = dict(transactions)
        for name, bound in transactions.items():
            if name.endswith("/start"):
                moved[name.removesuffix("/start")] = bound
        return original(self, expected, transactions=moved, **rest)

    return replaced(DeltaStreamTable, "_commit", commit)


def decision_is_not_carried_out() -> Any:
    """Tell readers that records expired, and keep them in the table for ever."""
    return _performing(expiry.Remove, lambda *_: expiry.RemovalLost())


def replicas_do_not_hear_of_it() -> Any:
    """Show expired records at a broker for as long as its process lives."""
    return replaced(LocalTierSource, "learn_expired", lambda *_: None)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        leases_do_not_hold_an_expiry,
        expiry_is_out_of_order,
        expiry_is_not_noted,
        expired_range_is_shipped_again,
        decision_is_not_carried_out,
        replicas_do_not_hear_of_it,
    )
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final[dict[str, int]] = {
    "leases_do_not_hold_an_expiry": 23,
    "expiry_is_out_of_order": 3,
}
