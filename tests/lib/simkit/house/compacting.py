"""An operator who lets superseded records leave the tables of a house, and what is left there.

It sets ``history`` and ``compact_dirty_percent`` of streams under all the faults of the life, with
draws of its own: a life without it is not another one. Nothing deletes objects here, so the judge
reads what has left a table from the objects as they were shipped (``HouseLake.completed``), and
checks of each row whether it had to stay or to go.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from simkit.house.altering import Altering

if TYPE_CHECKING:
    from simkit.house.house import House

_SETTINGS: Final[tuple[dict[str, str | int], ...]] = (
    {"history": "compact", "compact_dirty_percent": 1},
    {"history": "compact", "compact_dirty_percent": 1},
    {"history": "compact", "compact_dirty_percent": 60},
    {"history": "keep"},
)


class Compacting(Altering):
    """Acts on one house, and looks at what became of its tables."""

    def __init__(self, house: House, seed: int) -> None:
        super().__init__(house, random.Random(f"compacting {seed}"), _SETTINGS)

    def look(self) -> None:
        """Read each table from its first record on, as its leader serves it; count what is gone."""
        house = self._house
        assert house.lake is not None, "only a table is compacted"
        for partition_id in house.partitions:
            stream = next(one for one in house.streams if one.uuid == partition_id.stream_uuid)
            snapshot, number = house.lake.snapshot(stream), partition_id.number
            leader = house.nodes[house.row(partition_id).leader or ""]
            if snapshot is None or leader.tiering is None or not snapshot.ranges.get(number):
                continue
            held = snapshot.range_of(number)
            rows = house.lake.served(leader.tiering, stream, number, held)
            assert [row.offset for row in rows] == [*range(held.start, held.end)]
            self.counts["compacted"] += bool(snapshot.sparse_range(number))
            self.counts["gone"] += snapshot.gone_count(number)
