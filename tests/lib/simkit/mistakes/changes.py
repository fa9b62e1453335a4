"""Mistakes of what changes and purges streams in use; lives with an operator who does both."""

from __future__ import annotations

from typing import Any, Final

from broker.core.metadata import stream_purge
from broker.runtime import hosted_partitions
from broker.runtime.api import streams
from broker.runtime.partition.queue import TurnQueue
from broker.runtime.partition.tier_source import LocalTierSource
from simkit.replacing import Mutant, replaced


def change_is_not_obeyed() -> Any:
    """Go on with the settings with which a replica was opened."""
    return replaced(hosted_partitions, "_is_altered", lambda *_: False)


def purge_is_heard_at_the_next_start() -> Any:
    """Show purged records for as long as the process lives."""
    return replaced(LocalTierSource, "learn_purged", lambda *_: None)


def uncommitted_records_are_purged() -> Any:
    """Purge whatever the leader has, so that a leader without these records cannot follow."""

    def purge_end(driver: Any, _name: str, before: Any, _before_us: Any) -> Any:
        return min(before, driver.reads.log_end)

    return replaced(streams, "_purge_end", purge_end)


def purge_does_not_ask_who_reads() -> Any:
    """Purge what a live lease holds."""
    return replaced(stream_purge, "refused_by_leases", lambda *_: None)


def unshipped_records_are_purged() -> Any:
    """Make a hole in the table of a tiered stream."""
    return replaced(stream_purge, "_refused_by_table", lambda *_: None)


def writes_are_taken_before_the_calls() -> Any:
    """Write a turn's records though one of its calls has begun to read the message ids."""
    original = TurnQueue.take_calls

    def take_calls(self: Any, work: Any, *, held: bool = False) -> None:
        original(self, work, held=held)
        if not held:
            self.take_writes(work)

    return replaced(TurnQueue, "take_calls", take_calls)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        change_is_not_obeyed,
        purge_is_heard_at_the_next_start,
        uncommitted_records_are_purged,
        purge_does_not_ask_who_reads,
        unshipped_records_are_purged,
        writes_are_taken_before_the_calls,
    )
}
WITH_LAKE: Final = (
    "purge_does_not_ask_who_reads",
    "unshipped_records_are_purged",
    "writes_are_taken_before_the_calls",
)
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final = {
    "uncommitted_records_are_purged": 228,
    "purge_does_not_ask_who_reads": 27,
    "purge_is_heard_at_the_next_start": 2,
    "change_is_not_obeyed": 5,
    "unshipped_records_are_purged": 1,
    "writes_are_taken_before_the_calls": 65,
}
