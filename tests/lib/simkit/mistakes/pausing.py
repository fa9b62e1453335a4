"""Mistakes of pauses and of read-only streams; lives with an operator who does both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from broker.core.replication.view import view_of
from broker.runtime import hosted_partitions
from broker.runtime.partition.writes import PartitionWrites
from simkit.replacing import Mutant, replaced


def stopped_partition_takes_records() -> Any:
    """Store what is published to a partition that is paused or read-only."""
    return replaced(PartitionWrites, "_stopped", lambda _: None)


def readonly_partition_takes_records() -> Any:
    """Store what is published to a partition that is read-only."""
    original: Any = PartitionWrites._stopped

    def stopped(self: Any) -> Any:
        view = self._replication.view
        return original(self) if view is not None and view.paused else None

    return replaced(PartitionWrites, "_stopped", stopped)


def replicas_do_not_hear_of_it() -> Any:
    """Leave out of a replica's view that its partition is paused."""
    original: Any = view_of

    def view(*of: Any) -> Any:
        found = original(*of)
        return None if found is None else replace(found, paused=False)

    return replaced(hosted_partitions, "view_of", view)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        stopped_partition_takes_records,
        readonly_partition_takes_records,
        replicas_do_not_hear_of_it,
    )
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final[dict[str, int]] = dict.fromkeys(MUTANTS, 5)
