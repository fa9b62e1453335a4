"""An operator who lets the tables of a house expire, and what is known of the records that went.

It changes the remote retention of streams under all the faults of the life, with draws of its own:
a life without it is not another one. Nothing deletes objects here, so the judge reads what expired
from the objects as they were shipped, and finds each acknowledged record there or in the table.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from broker.errors import ExpiredError
from broker.model.ids import PartitionId
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from checkkit.readings import Row
from simkit.house.altering import Altering

if TYPE_CHECKING:
    from simkit.house.house import House

_LIMITS: Final[tuple[dict[str, int | None], ...]] = (
    {"remote_retention_records": 1},
    {"remote_retention_records": 5},
    {"remote_retention_records": 30},
    {"remote_retention_records": None},
    {"remote_retention_ms": 1},
    {"remote_retention_ms": 1},
    {"remote_retention_ms": None},
)


class Expiring(Altering):
    """Acts on one house, and looks at what became of its tables."""

    def __init__(self, house: House, seed: int) -> None:
        super().__init__(house, random.Random(f"expiring {seed}"), _LIMITS)

    def instead(self, partition_id: PartitionId, position: int, error: ExpiredError) -> list[Row]:
        """Return what a reader at ``position`` has missed: it was told from where on to read."""
        start = self._house.row(partition_id).remote_start
        assert position < error.start <= start, f"{error.start} of {start}"
        self.counts["reader told"] += 1
        return self.below(partition_id, error.start, start=position)

    def below(self, partition_id: PartitionId, end: int, *, start: int = 0) -> list[Row]:
        """Return the records ``[start, end)`` as they were shipped."""
        lake = self._house.lake
        assert lake is not None, "only a table expires"
        wanted = OffsetRange(Offset(start), Offset(end))
        return lake.shipped_rows(self._stream(partition_id), partition_id.number, wanted)

    def is_done(self, partition_id: PartitionId) -> bool:
        """Tell whether table, entries and replicas have what the metadata decided."""
        lake, stream, number = self._house.lake, self._stream(partition_id), partition_id.number
        assert lake is not None
        snapshot = lake.snapshot(stream)
        start = self._house.row(partition_id).remote_start
        begins = 0 if snapshot is None else snapshot.range_of(number).start
        drivers = (one.replica(partition_id) for one in self._house.nodes.values())
        heard = all(one is None or one.reads.remote_start == start for one in drivers)
        return heard and start == begins == lake.noted_end(stream, number)

    def look(self) -> None:
        """Look at every replica, and at every expiry, in the end."""
        house = self._house
        assert house.lake is not None
        for partition_id in house.partitions:
            row = house.row(partition_id)
            house.lake.require_expiries(
                self._stream(partition_id), partition_id.number, row.remote_start
            )
            self.counts["expired"] += row.remote_start > 0
            for name in row.replicas:
                driver = house.nodes[name].replica(partition_id)
                if driver is not None:
                    assert driver.reads.remote_start == row.remote_start, f"{name} has not heard"
                    assert driver.reads.log_start >= row.remote_start

    def _stream(self, partition_id: PartitionId) -> Stream:
        return next(one for one in self._house.streams if one.uuid == partition_id.stream_uuid)
