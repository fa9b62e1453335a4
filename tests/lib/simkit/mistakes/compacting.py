"""Mistakes of key compaction of tables; lives with a lake and an operator who sets it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from broker.ports.tiering import ColdRows
from simkit.replacing import Mutant, replaced
from tiering.ship.key_compaction.table_pass import KeyCompactionPass
from tiering.table.delta_table import DeltaStreamTable
from tiering.tiering import Tiering


def a_newest_record_goes() -> Any:
    """Leave out one record that no later one supersedes, in each batch."""
    original: Any = KeyCompactionPass._stays

    def stays(self: Any, rows: Any, at: int) -> Any:
        keep = original(self, rows, at)
        some = np.flatnonzero(keep)
        keep[some[: len(some) > 1]] = False
        return keep

    return replaced(KeyCompactionPass, "_stays", stays)


def superseded_records_stay() -> Any:
    """Leave all records of the last batches, and say that the range is compacted."""
    original: Any = KeyCompactionPass._stays

    def stays(self: Any, rows: Any, at: int) -> Any:
        return original(self, rows, at) | (at > 0)

    return replaced(KeyCompactionPass, "_stays", stays)


def another_number_is_stated() -> Any:
    """State one row more than is left."""
    original: Any = DeltaStreamTable._commit

    def commit(self: Any, expected: Any, *, transactions: Any, **rest: Any) -> Any:
        stated = {
            name: count + name.endswith("/left") for name, count in dict(transactions).items()
        }
        return original(self, expected, transactions=stated, **rest)

    return replaced(DeltaStreamTable, "_commit", commit)


def readers_are_not_told() -> Any:
    """Give what is left of a range as if it were all of it."""
    original: Any = Tiering.read

    def read(self: Any, *where: Any, **rest: Any) -> Any:
        return ColdRows(original(self, *where, **rest).rows)

    return replaced(Tiering, "read", read)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        a_newest_record_goes,
        superseded_records_stay,
        another_number_is_stated,
        readers_are_not_told,
    )
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final[dict[str, int]] = {}
