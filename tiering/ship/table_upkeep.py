"""What keeps up one partition's part of a table: what expiry and key compaction work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.model.ids import PartitionId
from broker.ports.system import Clock
from broker.ports.tiering import RemoteStarts, RetentionStanding, TierSource
from tiering.config import Observer, TieringConfig
from tiering.table.table import Table, TableSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpkeep:
    """The means of both. ``loaded`` gets each version of the table that was loaded."""

    source: TierSource
    table: Table
    starts: RemoteStarts
    clock: Clock
    config: TieringConfig
    observer: Observer
    loaded: Callable[[TableSnapshot], None]

    @property
    def partition_id(self) -> PartitionId:
        """Identity of the partition."""
        return self.source.partition_id

    @property
    def number(self) -> int:
        """Number of the partition, by which the table knows it."""
        return int(self.source.partition_id.number)

    @property
    def lineage_id(self) -> str:
        """The leadership that does the work; empty in a log without lineage."""
        lineage = self.source.lineage
        return lineage[-1].lineage_id if lineage else ""

    def standing(self) -> RetentionStanding | None:
        """Return what the metadata says of the partition; None if the stream is gone. Quick."""
        return self.starts.standing(self.partition_id)

    def tell(self, event: str, **facts: object) -> None:
        """Tell the observer of an event of this partition."""
        self.observer(event, {"partition": str(self.partition_id), **facts})
