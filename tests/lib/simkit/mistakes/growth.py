"""Mistakes of what adds partitions to streams in use; lives with an operator who does."""

from __future__ import annotations

from typing import Any, Final

from broker.core.metadata import stream_alter
from broker.core.metadata.new_partitions import new_partitions
from broker.core.metadata.state import LeaseState
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import Stream
from broker.runtime.hosted_partitions import HostedPartitions
from simkit.replacing import Mutant, replaced
from tiering.table.transactions import TransactionNames


def old_partitions_begin_anew() -> Any:
    """Make all rows of the stream, as at its creation, when only some are new."""

    def rows(state: Any, command: Any, present: Stream) -> Any:
        old = state.partitions[present.uuid]
        if not hasattr(command, "assignment"):
            return old
        everyone = [one.replicas for one in old] + list(command.assignment)
        return new_partitions(
            state,
            present,
            range(len(everyone)),
            leader=command.leader,
            assignment=everyone,
            min_isr=old[0].min_isr,
        )

    return replaced(stream_alter, "_rows", rows)


def added_partitions_are_not_served() -> Any:
    """Tell the network services only of streams that are new, or whose leaders change."""
    original = HostedPartitions._newly_led

    def newly_led(self: Any, uuid: Any, gone: Any) -> Any:
        known = self._led.get(uuid)
        found = original(self, uuid, gone)
        if known is None or found is None or not known.numbers < found.numbers:
            return found
        return None if known.stream != found.stream else found

    return replaced(HostedPartitions, "_newly_led", newly_led)


def leases_hold_what_there_was() -> Any:
    """Free the records of partitions that are newer than a lease."""

    def floor(self: LeaseState, partition: int) -> Offset:
        return self.floors[partition] if partition < len(self.floors) else Offset(OFFSET_MAX)

    return replaced(LeaseState, "floor", floor)


def table_knows_the_partitions_of_its_creation() -> Any:
    """Overlook the transactions of added partitions, so that each commit begins at 0 again."""
    original = TransactionNames.parsed

    def parsed(self: TransactionNames, app_id: object) -> Any:
        found = original(self, app_id)
        return found if found is None or found[0] < 1 else None

    return replaced(TransactionNames, "parsed", parsed)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        old_partitions_begin_anew,
        added_partitions_are_not_served,
        leases_hold_what_there_was,
        table_knows_the_partitions_of_its_creation,
    )
}
WITH_LAKE: Final = ("leases_hold_what_there_was", "table_knows_the_partitions_of_its_creation")
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final[dict[str, int]] = {
    "old_partitions_begin_anew": 2,
    "added_partitions_are_not_served": 53,
    "leases_hold_what_there_was": 43,
}
