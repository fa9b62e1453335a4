"""Full reads: what one reader found in every partition, from its start to its end.

A read of one replica, of the table, of both tiers at a cut, or of a copy of the stream. It may be
taken under load: it is judged by what was acknowledged before it began. Rows are a plain list, or
columns when there are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]  # half-open
NO_TIME: Final = -1  # of a record: sent without a timestamp; of a row: of a log without times


class Row(NamedTuple):
    """One row that a read returned."""

    offset: int
    fingerprint: bytes
    leader_epoch: int
    timestamp_us: int = NO_TIME


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Many rows: four columns of one length, in the order in which they were read."""

    offsets: Ints
    fingerprints: Sequence[bytes]
    leader_epochs: Ints
    timestamps_us: Ints

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> RowColumns:
        """Turn rows into columns."""
        known = list(rows)
        return cls(
            np.array([row.offset for row in known], np.int64),
            [row.fingerprint for row in known],
            np.array([row.leader_epoch for row in known], np.int64),
            np.array([row.timestamp_us for row in known], np.int64),
        )


Rows = Sequence[Row] | RowColumns


class Source(Enum):
    """The source of rows; it decides what a read may lack and what it is compared with."""

    UNIFIED = "both tiers at a cut"
    REPLICA = "one replica"  # its log may start later: what was before is in the table
    TABLE = "the table"  # it may end earlier: what comes after is in the log
    COPY = "a copy of the stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReading:
    """A read of one partition: the cold rows are those of the table, the hot ones of the log."""

    partition: int
    start: int
    cold_end: int
    hot_end: int
    cold_rows: Rows
    hot_rows: Rows
    holes: Sequence[Range] = ()  # ranges without records whose cause is recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One full read. ``began_ns`` is before its ends were taken."""

    name: str
    began_ns: int
    parts: Mapping[int, PartReading]
    sorted_by_offset: bool = True  # the reader promises this order (Spark does not)
    source: Source = Source.UNIFIED

    @classmethod
    def of(
        cls,
        name: str,
        began_ns: int,
        parts: Iterable[PartReading],
        source: Source = Source.UNIFIED,
        *,
        sorted_by_offset: bool = True,
    ) -> Reading:
        """Build a reading from its partitions."""
        return cls(
            name=name,
            began_ns=began_ns,
            parts={one.partition: one for one in parts},
            sorted_by_offset=sorted_by_offset,
            source=source,
        )


def of_log(partition: int, rows: Rows, *, start: int = 0, end: int | None = None) -> PartReading:
    """Return the read of one log without tiers; ``end`` is where the reader was told it ends."""
    if end is None:
        offsets = rows.offsets if isinstance(rows, RowColumns) else [row.offset for row in rows]
        end = int(max(offsets)) + 1 if len(rows) else start
    return PartReading(
        partition=partition, start=start, cold_end=start, hot_end=end, cold_rows=[], hot_rows=rows
    )
