"""Reads the partitions of a table version from its transactions. Pure.

The table's properties have the number of partitions at the table's creation. Partitions that were
added to the stream since are known by their transactions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from broker.errors import TableMismatchError
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import PARTITIONS_MAX
from tiering.table.delta_log import Transactions
from tiering.table.table import SparsePrefix, TableKind

Bound = Literal["start", "end", "whole", "left"]


class TransactionNames:
    """Tells whose bound an application id of one table is."""

    def __init__(self, cluster: str, stream_uuid: StreamUuid, kind: TableKind) -> None:
        self._prefix = f"headwater/{cluster}/{stream_uuid}/"
        self._end = "" if kind == "history" else f"/{kind}"

    def parsed(self, app_id: object) -> tuple[int, Bound] | None:
        """Return partition and bound of one of our ids; None for any other id."""
        if not isinstance(app_id, str) or not app_id.startswith(self._prefix):
            return None
        number, slash, rest = app_id[len(self._prefix) :].partition("/")
        bounds: dict[str, Bound] = {
            self._end: "end",
            f"{self._end}/start": "start",
            f"{self._end}/whole": "whole",
            f"{self._end}/left": "left",
        }
        bound = bounds.get(slash + rest)
        if bound is None or len(number) > 4 or not (number.isascii() and number.isdecimal()):
            return None
        partition = int(number)
        return (
            (partition, bound) if partition < PARTITIONS_MAX and str(partition) == number else None
        )


def ranges_in(
    transactions: Transactions, names: TransactionNames, *, partitions_min: int, uri: str
) -> dict[int, OffsetRange]:
    """Return what a version's transactions state, by partition, ``partitions_min`` at least.

    Partitions below the highest one that is named are there, too, as empty.

    Raises:
        TableMismatchError: a range ends before it starts.
    """
    starts: dict[int, int] = {}
    ends: dict[int, int] = dict.fromkeys(range(partitions_min), 0)
    for app_id, bound in transactions.items():
        if (found := names.parsed(app_id)) is not None and found[1] in ("start", "end"):
            (starts if found[1] == "start" else ends)[found[0]] = bound
    ranges = {}
    for number in range(max([*starts, *ends], default=-1) + 1):
        start, end = starts.get(number, 0), ends.get(number, 0)
        if not 0 <= start <= end:
            raise TableMismatchError(
                f"{uri}: partition {number} starts at {start} and ends at {end}",
                uri=uri,
                partition=number,
            )
        ranges[number] = OffsetRange(Offset(start), Offset(end))
    return ranges


def sparse_in(
    transactions: Transactions,
    names: TransactionNames,
    ranges: Mapping[int, OffsetRange],
    *,
    uri: str,
) -> dict[int, SparsePrefix]:
    """Return what key compaction has left of each partition that it was at.

    Raises:
        TableMismatchError: a prefix is stated in part, or is not within its partition's range.
    """
    stated: dict[int, dict[str, int]] = {}
    for app_id, value in transactions.items():
        if (found := names.parsed(app_id)) is not None and found[1] in ("whole", "left"):
            stated.setdefault(found[0], {})[found[1]] = value
    sparse = {}
    for number, bounds in stated.items():
        held, whole, left = ranges.get(number), bounds.get("whole"), bounds.get("left")
        if (
            held is None or whole is None or left is None
            or not (0 < whole <= held.end and 0 <= left <= max(0, whole - held.start))
        ):  # fmt: skip
            raise TableMismatchError(
                f"{uri}: partition {number} holds {held}, and states {bounds} of the records that "
                "key compaction has left",
                uri=uri,
                partition=number,
            )
        sparse[number] = SparsePrefix(Offset(whole), left)
    return sparse
