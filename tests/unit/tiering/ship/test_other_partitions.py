"""What one partition of a stream must not ship on top of, because of another partition.

Every partition of a stream commits to one table, at times of its own. So a partition that ships may
meet a table that lost commits of another one, or that somebody changed, before that one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from broker.errors import TableMismatchError, TableRolledBackError
from broker.model.offsets import Offset
from simkit.tier.lab import TierLab, read_table
from simkit.tier.source import MemoryTierSource, make_stream
from tiering.ship.shipper import PartitionShipper
from tiering.table.delta_table import DeltaStreamTable

EACH = 5


class TwoPartitions:
    """Two partitions of one stream, one lake, and the cold ends that the metadata has."""

    def __init__(self, folder: Path) -> None:
        self.lab = TierLab(folder, stream=make_stream(partitions=2))
        self.sources = [MemoryTierSource(self.lab.stream, number) for number in (0, 1)]

    def recorded(self) -> Mapping[int, Offset]:
        """Return what the metadata of every broker has."""
        return {number: source.cold_end for number, source in enumerate(self.sources)}

    def table(self) -> DeltaStreamTable:
        """Return the table as another process has it."""
        return self.lab.lake.table(self.lab.stream, recorded=self.recorded)

    def shipper(self, number: int, table: DeltaStreamTable | None = None) -> PartitionShipper:
        """Return a shipper of one partition, by default in a process of its own."""
        return self.lab.shipper(source=self.sources[number], table=table or self.table())

    def ship(self, number: int) -> None:
        """Fill a segment of a partition and ship it, in a process of its own."""
        self.sources[number].fill(1, EACH)
        ship_all(self.shipper(number))

    def log(self) -> list[Path]:
        """Return the commits, oldest first."""
        return sorted(self.lab.table.store.config.root.glob("_delta_log/*.json"))


def ship_all(shipper: PartitionShipper) -> None:
    """Run cycles until nothing is left to ship."""
    while shipper.run_cycle():
        pass


@pytest.fixture
def two(tmp_path: Path) -> TwoPartitions:
    """A table whose versions 1, 2 and 3 are commits of partition 0, 1 and 0."""
    two = TwoPartitions(tmp_path / "lake")
    for number in (0, 1, 0):
        two.ship(number)
    return two


def test_after_a_lost_commit_of_another_partition_a_restarted_one_ships_nothing(
    two: TwoPartitions,
) -> None:
    """The name of the lost commit stays free, so that the commit can be put back."""
    lost = two.log()[-1]
    kept = lost.read_bytes()
    lost.unlink()
    two.sources[1].fill(1, EACH)
    for number in (0, 1):
        with pytest.raises(TableRolledBackError):
            two.shipper(number).run_cycle()
    assert not lost.exists()
    lost.write_bytes(kept)
    ship_all(two.shipper(1))
    for number, source in enumerate(two.sources):
        assert read_table(two.table(), number).equals(source.truth())


def test_a_broker_that_never_saw_the_lost_commit_ships_nothing(two: TwoPartitions) -> None:
    """It leads the other partition and has run all the time, with a version from before."""
    shipper = two.shipper(1)
    two.sources[1].fill(1, EACH)
    ship_all(shipper)  # version 4
    two.ship(0)  # version 5, by another broker
    two.log()[-1].unlink()
    two.sources[1].fill(1, EACH)
    with pytest.raises(TableRolledBackError):
        shipper.run_cycle()
    assert len(two.log()) == 5
    assert shipper.source.cold_end == 2 * EACH


def test_commits_of_another_partition_since_the_last_one_do_not_stop_a_broker(
    two: TwoPartitions,
) -> None:
    """The version that it has is below a recorded end, and the newest one is not."""
    shipper = two.shipper(1)
    for _ in range(3):
        two.sources[1].fill(1, EACH)
        ship_all(shipper)
        two.ship(0)
    for number, source in enumerate(two.sources):
        assert read_table(two.table(), number).equals(source.truth())


def test_a_partition_that_ships_for_the_first_time_proves_the_table(tmp_path: Path) -> None:
    """It began before there was a table; another partition made it, and somebody changed it."""
    two = TwoPartitions(tmp_path / "lake")
    late = two.shipper(1)
    ship_all(late)  # nothing is sealed, and there is no table
    two.ship(0)
    two.ship(0)
    newest = DeltaTable(two.lab.table.uri)
    newest.delete("offset < 2")
    versions = len(two.log())
    two.sources[1].fill(1, EACH)
    with pytest.raises(TableMismatchError):
        late.run_cycle()
    assert len(two.log()) == versions
    assert two.sources[1].cold_end == 0
    newest.restore(versions - 2)
    ship_all(late)
    for number, source in enumerate(two.sources):
        assert read_table(two.table(), number).equals(source.truth())
