"""The rules by which a table belongs to a history; whole stories are in test_history.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.codec.checksum import crc32c
from broker.errors import ForeignHistoryError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.lineage import LINEAGE_KEPT, Leadership, Lineage
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.hand_log import STREAM, body, entry, ours
from simkit.tier.lab import TierLab, read_table
from tiering.config import TieringConfig
from tiering.proof.history import ProvedEnds, newest_range, require_ours, require_rows_of_log
from tiering.ship.segment_writer import SegmentPlace
from tiering.store.location import StoreConfig
from tiering.store.opening import open_store
from tiering.table.commit_files import file_of
from tiering.table.delta_log import commits_between, log_key
from tiering.table.ledger import Ledger, LedgerEntry, encode_ranges
from tiering.table.table import RANGES, Commit, DataFile, TableSnapshot

PARTITION = PartitionId(STREAM.uuid, PartitionNumber(0))
UNKNOWN = "f" * 32


def leadership(epoch: int, start: int) -> Leadership:
    """Return a start of leadership; its id is made of its epoch."""
    return Leadership(leader_epoch=LeaderEpoch(epoch), lineage_id=_id(epoch), start=Offset(start))


def _id(epoch: int) -> str:
    return f"{epoch:032x}"


def snapshot(end: int, files: Sequence[DataFile] = ()) -> TableSnapshot:
    """Return a version whose partition 0 holds ``[0, end)``."""
    return TableSnapshot(
        uri="t", version=9, stream_uuid=STREAM.uuid, cluster="c", properties={},
        files=tuple(files), ranges={0: OffsetRange(Offset(0), Offset(end))},
    )  # fmt: skip


def test_what_is_proved_stays_proved() -> None:
    """Up to the highest end, per partition."""
    proved, other = ProvedEnds(), replace(PARTITION, number=PartitionNumber(1))
    assert not proved.covers(PARTITION, Offset(1))
    for end in (10, 5):
        proved.prove(PARTITION, Offset(end))
        assert proved.covers(PARTITION, Offset(10))
        assert not proved.covers(PARTITION, Offset(11))
    assert not proved.covers(other, Offset(1))


# ------------------------------------------------------------------------------ whose it is

LINEAGE: Lineage = (leadership(3, 0), leadership(5, 100), leadership(6, 200))
FULL: Lineage = tuple(leadership(10 + one, 100 + one) for one in range(LINEAGE_KEPT))


def shipped_by(lineage_id: str, end: int = 100, *, epoch: int = 1) -> LedgerEntry:
    """Return the newest range of a table."""
    one = entry(end - 10, end).of_lineage(lineage_id)
    return replace(one, first_leader_epoch=epoch, last_leader_epoch=epoch)


@pytest.mark.parametrize(
    ("newest", "lineage", "recorded", "is_ours"),
    [
        (shipped_by(_id(3), 100), LINEAGE, 0, True),
        (shipped_by(_id(3), 101), LINEAGE, 500, False),  # this leadership ended at 100
        (shipped_by(_id(5), 105), LINEAGE, 0, True),
        (shipped_by(_id(6), 900), LINEAGE, 0, True),
        (shipped_by(UNKNOWN), LINEAGE, 500, False),
        (shipped_by(""), LINEAGE, 100, True),
        (shipped_by(""), LINEAGE, 99, False),
        (shipped_by(""), (), 0, True),
        (None, LINEAGE, 100, True),
        (None, LINEAGE, 99, False),
        (None, (), 0, True),
        (shipped_by(UNKNOWN, epoch=9), FULL, 100, True),  # forgotten, and recorded
        (shipped_by(UNKNOWN, epoch=9), FULL, 99, False),
        (shipped_by(UNKNOWN, epoch=10), FULL, 100, False),  # not older than what is known
        (shipped_by(UNKNOWN, epoch=9), FULL[1:], 100, False),  # nothing was pushed out
    ],
)
def test_a_newest_range_is_ours_or_foreign(
    newest: LedgerEntry | None, lineage: Lineage, recorded: int, is_ours: bool
) -> None:
    """The leadership that shipped it decides; without one the recorded cold end does."""
    found = snapshot(100 if newest is None else newest.end)
    if is_ours:
        require_ours(found, 0, newest, lineage=lineage, recorded=Offset(recorded))
        return
    with pytest.raises(ForeignHistoryError, match="belongs to another history"):
        require_ours(found, 0, newest, lineage=lineage, recorded=Offset(recorded))


# ------------------------------------------------------------------------------ which it is


class HandTable:
    """Ledger and log of a table, written by hand; the part of ``Table`` that is used here."""

    def __init__(self, root: Path) -> None:
        self.store = open_store(StoreConfig.from_env(str(root)))
        self.versions = 0

    def note(self, *entries: LedgerEntry) -> None:
        """Put entries into the ledger."""
        for one in entries:
            Ledger(self.store).put(one)

    def commit(self, *entries: LedgerEntry) -> None:
        """Write a commit that tells these ranges."""
        self.versions += 1
        data = body([ours(**{RANGES: encode_ranges(entries)})])
        self.store.put_if_absent(log_key(self.versions), data, crc32c=crc32c(data))

    def commits(self, *, above: int) -> list[Commit]:
        """See ``Table.commits``."""
        return commits_between(self.store, above=above, up_to=self.versions)


FIRST, SECOND, THIRD = (entry(start, start + 20).at_version(1) for start in (0, 20, 40))


def newest(table: HandTable, found: TableSnapshot, number: int = 0) -> LedgerEntry | None:
    """Ask for the newest range."""
    known: Any = table
    return newest_range(known, found, number)


@pytest.fixture
def table(tmp_path: Path) -> HandTable:
    """A table without an entry."""
    return HandTable(tmp_path / "t")


def test_the_newest_range_is_the_one_that_ends_at_the_cold_end(table: HandTable) -> None:
    """It is found with our files, with joined files, and with files without statistics."""
    table.note(FIRST, SECOND)
    joined = replace(file_of(FIRST), max_offset=Offset(39), path="joined")
    unknown = replace(joined, min_offset=None, max_offset=None)
    for files in ((file_of(FIRST), file_of(SECOND)), (joined,), (unknown,), ()):
        assert newest(table, snapshot(40, files)) == SECOND


def test_a_rival_s_entry_above_the_cold_end_is_not_the_newest_range(table: HandTable) -> None:
    """The rival shipped a further range after this version was loaded."""
    table.note(FIRST, SECOND, THIRD)
    assert newest(table, snapshot(40)) == SECOND
    assert newest(table, snapshot(40, [file_of(SECOND)])) == SECOND


def test_the_newest_range_may_be_known_to_its_commit_alone(table: HandTable) -> None:
    """The process died before the ledger entry; another partition may end at the same offset."""
    other = entry(20, 40, partition=1)
    table.commit(FIRST)
    table.commit(other, SECOND)
    table.note(FIRST)
    assert newest(table, snapshot(40)) == SECOND.at_version(2)
    table.commit(THIRD)
    assert newest(table, snapshot(60)) == THIRD.at_version(3)


def test_a_newest_range_that_nobody_tells_is_none(table: HandTable) -> None:
    """An entry that ends below the cold end is another range."""
    table.note(FIRST)
    table.commit(entry(20, 40, partition=1))
    assert newest(table, snapshot(40)) is None
    assert newest(table, snapshot(40, [file_of(replace(FIRST, end=Offset(20)))])) is None


# ------------------------------------------------------------------------------ its rows


def compared(lab: TierLab, found: LedgerEntry | None, end: int) -> bool:
    """Compare the newest range with the log."""
    place = SegmentPlace(
        cluster="lab", partition=lab.source.partition_id, subject=lab.source.subject, path=""
    )
    return require_rows_of_log(lab.table, snapshot(end), lab.source, found, place)


def test_rows_are_the_log_s_or_foreign(tmp_path: Path) -> None:
    """The digest decides; a table that ends above the log has records that the log never had."""
    lab = TierLab(tmp_path)
    lab.source.fill(2, 20)
    own = lab.local_entry(20, 40)
    assert compared(lab, own, 40)
    with pytest.raises(ForeignHistoryError, match="have digest"):
        compared(lab, replace(own, digest="ab" * 32), 40)
    with pytest.raises(ForeignHistoryError, match="the local log at 40"):
        compared(lab, replace(own, end=Offset(41), records_count=21), 41)
    lab.source.record_cold_end(Offset(40))
    lab.source.free_local()
    assert not compared(lab, replace(own, digest="ab" * 32), 40)


def test_rows_that_the_log_has_in_part_are_compared_over_that_part(tmp_path: Path) -> None:
    """Two segments were shipped as one object, and the first is freed."""
    lab = TierLab(tmp_path)
    lab.source.fill(2, 20)
    shipper = lab.shipper(config=TieringConfig())
    assert lab.ship_all(shipper).files[0].records_count == 40
    lab.source._segments = lab.source._segments[1:]
    lab.source.fill(1, 20)
    lab.ship_all()
    assert read_table(lab.table, 0).equals(lab.source.truth())
