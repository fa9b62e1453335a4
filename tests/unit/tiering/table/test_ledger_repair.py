"""The entries of a ledger's repair: from commits or the log, each proved by the table's rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import GapError, ObjectCorruptError, ObjectMissingError
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.lab import CLUSTER, TierLab
from tiering.ship.segment_writer import SegmentPlace
from tiering.table.accounts import accounts
from tiering.table.ledger import Ledger, LedgerEntry, ledger_key
from tiering.table.ledger_repair import LedgerRepair

LINEAGE_ID = "c" * 32


class Repairs:
    """A table of three ranges of twenty records, and its ledger."""

    def __init__(self, root: Path) -> None:
        self.lab = TierLab(root)
        self.lab.source.fill(3, 20)
        self.snapshot = self.lab.ship_all()
        self.ledger = Ledger(self.lab.table.store)
        self.shipped = [self.ledger.get(0, Offset(start)) for start in (0, 20, 40)]

    def lose(self, *starts: int) -> None:
        """Remove entries from the ledger."""
        for start in starts:
            (self.lab.table.store.config.root / ledger_key(0, start)).unlink()

    def forget_commits(self) -> None:
        """Let the commits tell no ranges any more, as if they had been cleaned up."""
        for path in (self.lab.table.store.config.root / "_delta_log").glob("*.json"):
            path.write_text(path.read_text().replace("headwater.ranges", "headwater.other"))

    def repair(self, last: LedgerEntry | None = None) -> LedgerRepair:
        """Return a repair; ``last`` was the ledger's last entry when it was decided."""
        source = self.lab.source
        place = SegmentPlace(
            cluster=CLUSTER, partition=source.partition_id, subject=source.subject, path=""
        )
        return LedgerRepair(
            table=self.lab.table, snapshot=self.snapshot, source=source, place=place, last=last,
            lineage_id=LINEAGE_ID,
        )  # fmt: skip

    def entries(self) -> list[LedgerEntry]:
        """Return the ledger."""
        return [self.ledger.get(0, start) for start in self.ledger.starts(0)]


@pytest.fixture
def repairs(tmp_path: Path) -> Repairs:
    """A whole ledger, still."""
    return Repairs(tmp_path / "lake")


def span(start: int, end: int) -> OffsetRange:
    """Return a range of offsets."""
    return OffsetRange(Offset(start), Offset(end))


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_what_commits_tell_is_written_as_it_was(repairs: Repairs, kept: int) -> None:
    """Every entry has its bytes again: version, path and leadership are those of the commit."""
    repairs.lose(*(0, 20, 40)[kept:])
    last = repairs.shipped[kept - 1] if kept else None
    repairs.repair(last).run(span(20 * kept, 60))
    assert repairs.entries() == repairs.shipped


def test_what_no_commit_tells_is_made_from_the_log(repairs: Repairs) -> None:
    """One entry for each segment, with this leadership and the version that has the rows."""
    repairs.lose(0, 20, 40)
    repairs.forget_commits()
    repairs.repair().run(span(0, 60))
    found = repairs.entries()
    assert [one.range for one in found] == [span(0, 20), span(20, 40), span(40, 60)]
    assert {one.lineage_id for one in found} == {LINEAGE_ID}
    assert {one.version for one in found} == {repairs.snapshot.version}
    assert [one.digest for one in found] == [one.digest for one in repairs.shipped]


def test_an_entry_from_the_log_ends_where_the_next_one_begins(repairs: Repairs) -> None:
    """A rival has noted a part of the segment in the meantime."""
    repairs.lose(0, 20, 40)
    repairs.forget_commits()
    rival = repairs.lab.local_entry(10, 20)
    repairs.ledger.put(rival)
    repairs.repair().run(span(0, 20))
    assert [one.range for one in repairs.entries()] == [span(0, 10), span(10, 20)]


def test_a_log_that_begins_at_the_missing_range_still_has_it(repairs: Repairs) -> None:
    """A log that begins above it lacks records, so no entry is written."""
    source = repairs.lab.source
    repairs.lose(20, 40)
    repairs.forget_commits()
    source._segments = source._segments[1:]
    repairs.repair(repairs.shipped[0]).run(span(20, 40))
    source._segments = source._segments[2:]
    with pytest.raises(GapError) as caught:
        repairs.repair(repairs.shipped[0]).run(span(40, 60))
    assert (caught.value.start, caught.value.end) == (40, 60)


def test_an_entry_that_the_rows_contradict_is_not_written(repairs: Repairs) -> None:
    """This holds for an entry of a commit and for one of a differing log."""
    repairs.lose(20, 40)
    with pytest.raises(ObjectCorruptError, match="but digest"):
        repairs.repair().put(replace(repairs.shipped[1], digest="ab" * 32))
    with pytest.raises(ObjectMissingError):
        repairs.ledger.get(0, Offset(20))


def test_an_entry_that_a_rival_wrote_first_is_taken_if_the_rows_prove_it(repairs: Repairs) -> None:
    """The repair goes on after it; an entry that the rows contradict is an error."""
    repairs.lose(20, 40)
    rival = repairs.lab.local_entry(20, 30)
    repairs.ledger.put(rival)
    repairs.ledger.put(repairs.lab.local_entry(30, 60))
    assert repairs.repair(repairs.shipped[0]).put(repairs.shipped[1]) == rival
    repairs.lose(20, 30)
    repairs.ledger.put(replace(rival, digest="ab" * 32))
    with pytest.raises(ObjectCorruptError, match="but digest"):
        repairs.repair(repairs.shipped[0]).put(repairs.shipped[1])


# ------------------------------------------------------------------------------ readers


def test_a_reader_takes_what_a_crash_left_out_from_the_commit(repairs: Repairs) -> None:
    """It takes ranges of its own partition, from the ledger's end up to its version."""
    store = repairs.lab.table.store
    assert accounts(repairs.snapshot, store, 0, span(5, 60)) == repairs.shipped
    repairs.lose(40)
    assert accounts(repairs.snapshot, store, 0, span(5, 60)) == repairs.shipped
    assert accounts(repairs.snapshot, store, 0, span(41, 42)) == repairs.shipped[2:]
    older = repairs.lab.table.snapshot(repairs.shipped[1].version)
    with pytest.raises(GapError):
        accounts(older, store, 0, span(0, 60))
    commit = store.config.root / f"_delta_log/{repairs.shipped[2].version:020}.json"
    commit.write_text(commit.read_text().replace('\\"partition\\": 0', '\\"partition\\": 1'))
    with pytest.raises(GapError):
        accounts(repairs.snapshot, store, 0, span(0, 60))
