"""Mistakes of what adds partitions to streams in use; lives with an operator who does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from broker.core.metadata import stream_alter
from broker.core.metadata.new_partitions import new_partitions
from broker.core.replacements import Replacements
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import Stream
from broker.runtime.api.leases import _HeldStream
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
    """Tell the network services of no partition that a stream did not have when it was first told.

    Nothing less is a mistake in a life: a replica takes its first view in a turn after its stream
    has changed, and whoever tells of the change alone tells of the leader next.
    """
    original = HostedPartitions._newly_led

    def newly_led(self: Any, uuid: Any, gone: Any) -> Any:
        found = original(self, uuid, gone)
        if found is None:
            return None
        first = vars(self).setdefault("_first_told", {})
        count = first.setdefault(uuid, found.stream.config.partitions)
        return replace(found, numbers=frozenset(one for one in found.numbers if one < count))

    return replaced(HostedPartitions, "_newly_led", newly_led)


def leases_hold_what_there_was() -> Any:
    """Free the records of partitions that are newer than a lease."""
    original = _HeldStream.floor

    def floor(self: Any, partition: int, now_us: int) -> Offset:
        found = original(self, partition, now_us)
        is_newer = self._floors is not None and partition >= len(self._floors)
        return Offset(OFFSET_MAX) if is_newer else found

    return replaced(_HeldStream, "floor", floor)


def table_knows_the_partitions_of_its_creation() -> Any:
    """Overlook the transactions of added partitions, so that each commit begins at 0 again."""
    original = TransactionNames.parsed

    def parsed(self: TransactionNames, app_id: object) -> Any:
        found = original(self, app_id)
        return found if found is None or found[0] < 1 else None

    return replaced(TransactionNames, "parsed", parsed)


def replaced_leaders_get_leases() -> Any:
    """Grant leases to brokers that have not heard that they were replaced.

    It stands here because it takes a long life: a broker hears the controller and not the metadata.
    """

    def index_due(_: Replacements, _broker: Any, _now_ms: int) -> int:
        return 0

    return replaced(Replacements, "index_due", index_due)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        old_partitions_begin_anew,
        added_partitions_are_not_served,
        leases_hold_what_there_was,
        table_knows_the_partitions_of_its_creation,
        replaced_leaders_get_leases,
    )
}
WITH_LAKE: Final = (
    "leases_hold_what_there_was",
    "table_knows_the_partitions_of_its_creation",
    "replaced_leaders_get_leases",
)
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final[dict[str, int]] = {
    "old_partitions_begin_anew": 6,
    "added_partitions_are_not_served": 18,
    "leases_hold_what_there_was": 17,
    "replaced_leaders_get_leases": 56,
}
