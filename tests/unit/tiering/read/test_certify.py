"""A cut is certified over exactly the table version that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.errors import (
    ForeignHistoryError,
    InvalidCutError,
    ObjectCorruptError,
    ObjectMissingError,
    StreamRecreatedError,
    TableRolledBackError,
)
from broker.model.cut import Cut
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.faulty_store import Fault
from simkit.tier.lab import TierLab, cut_of, forget_proofs
from simkit.tier.source import MemoryTierSource, make_stream
from tiering.read.certify import certify_counts
from tiering.read.reader import read_rows
from tiering.read.verify import verify_table
from tiering.ship.compaction import only, plan_bins, rewrite
from tiering.table.delta_log import commit_digest


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A stream of two partitions, of which one has two files."""
    lab = TierLab(tmp_path / "lake", stream=make_stream(partitions=2))
    lab.source.fill(2, 20)
    lab.ship_all()
    return lab


def cut_with(lab: TierLab, **values: Any) -> Cut:
    """Return the cut of the newest version, with another first part."""
    cut = cut_of(lab.table.snapshot(), lab.stream)
    return replace(cut, partitions=(replace(cut.partitions[0], **values), *cut.partitions[1:]))


def certify(lab: TierLab, cut: Cut, *, version: int | None = None) -> list[int]:
    """Certify a cut over a version; return the records of each partition."""
    proofs, _, _ = certify_counts(lab.table.snapshot(version), cut, lab.table.store)
    return [one.cold_count for one in proofs]


def test_a_cut_is_certified_over_its_own_version_alone(lab: TierLab) -> None:
    """An older version, or none, is refused."""
    cut = cut_with(lab)
    assert certify(lab, cut) == [40, 0]
    with pytest.raises(InvalidCutError, match="but version 1 was loaded"):
        certify(lab, cut, version=1)
    with pytest.raises(InvalidCutError, match="but version None was loaded"):
        certify_counts(None, cut, lab.table.store)


def test_a_cut_names_every_partition_of_its_stream(lab: TierLab) -> None:
    """Partitions of another stream are refused."""
    cut = cut_with(lab)
    with pytest.raises(InvalidCutError, match="names 1 partitions"):
        certify(lab, replace(cut, partitions=cut.partitions[:1]))
    other = StreamUuid("00000000-0000-0000-0000-000000000009")
    with pytest.raises(StreamRecreatedError):
        certify(lab, replace(cut, stream_uuid=other))


@pytest.mark.parametrize("label", [{"stream": "another"}, {"cluster": "another"}])
def test_a_cut_with_another_label_is_refused(lab: TierLab, label: dict[str, str]) -> None:
    """Else the rows of one stream would be certified as another's."""
    with pytest.raises(InvalidCutError, match="the table is that of stream"):
        certify(lab, replace(cut_with(lab), **label))  # type: ignore[arg-type]


def test_a_cut_may_name_partitions_that_the_table_does_not_know_yet(lab: TierLab) -> None:
    """They were added to the stream, and none of their records is in this version."""
    cut = cut_with(lab)
    added = replace(cut.partitions[1], partition=2, hot_end=Offset(7))
    assert certify(lab, replace(cut, partitions=(*cut.partitions, added))) == [40, 0, 0]
    lied = replace(added, cold_end=Offset(7))
    with pytest.raises(TableRolledBackError):
        certify(lab, replace(cut, partitions=(*cut.partitions, lied)))


def test_a_table_learns_of_added_partitions_by_their_first_commit(tmp_path: Path) -> None:
    """Every reader of the newest version finds them, an old cut is of its own version as ever."""
    lab = TierLab(tmp_path / "lake", stream=make_stream(partitions=1))
    lab.source.fill(1, 20)
    lab.ship_all()
    before = cut_of(lab.table.snapshot(), lab.stream)
    lab.stream = lab.stream.grown(4)
    added = MemoryTierSource(lab.stream, 2)
    added.fill(2, 10)
    lab.ship_all(lab.shipper(source=added))
    anew = lab.lake.table_at(lab.table.uri)  # a reader that knows nothing of the stream
    assert {n: len(held) for n, held in anew.snapshot().ranges.items()} == {0: 20, 1: 0, 2: 20}
    after = cut_of(anew.snapshot(), lab.stream)
    forget_proofs()
    assert certify(lab, after) == [20, 0, 20]
    assert [one.end for one in verify_table(anew.snapshot(), anew.store)] == [20, 0, 20]
    rows = read_rows(anew.snapshot(), anew.store, 2, OffsetRange(Offset(5), Offset(20)))
    assert sum(batch.num_rows for batch in rows) == 15
    assert certify(lab, before, version=before.table_version) == [20]
    with pytest.raises(InvalidCutError, match="names 2 partitions, but the table has 3"):
        certify(lab, replace(after, partitions=after.partitions[:2]))


@pytest.mark.parametrize("values", [{"start": 5}, {"cold_end": 39}, {"cold_end": 20}])
def test_a_version_has_the_ranges_that_the_cut_names(lab: TierLab, values: dict[str, int]) -> None:
    """Start and cold end of each partition are compared."""
    with pytest.raises(TableRolledBackError):
        certify(lab, cut_with(lab, **values))


def test_a_version_is_the_commit_that_the_cut_names(lab: TierLab) -> None:
    """A table that was put back and written to has other commits under the same numbers."""
    cut = cut_with(lab)
    digest = commit_digest(lab.table.store, lab.table.snapshot().version)
    assert certify(lab, replace(cut, table_digest=digest)) == [40, 0]
    with pytest.raises(ForeignHistoryError, match="is not the commit that the cut"):
        certify(lab, replace(cut, table_digest="0" * 64))


@pytest.mark.parametrize("change", [b"", b"x"])
def test_every_file_of_the_version_has_its_size_also_one_that_is_not_read(
    lab: TierLab, change: bytes
) -> None:
    """A cut that was narrowed to the first file is certified over the whole version."""
    path = lab.table.store.config.root / lab.table.snapshot().files[1].path
    path.write_bytes(path.read_bytes() + change if change else path.read_bytes()[:-1])
    with pytest.raises(ObjectCorruptError, match="but the table's log says"):
        certify(lab, cut_with(lab, until=Offset(20)))
    path.unlink()
    with pytest.raises(ObjectMissingError):
        certify(lab, cut_with(lab, until=Offset(20)))


# ------------------------------------------------------------------------------ joined files


def test_a_joined_object_is_read_back(lab: TierLab) -> None:
    """The store may acknowledge an object and lose it, or store other bytes."""
    snapshot = lab.table.snapshot()
    (wanted,) = plan_bins(snapshot)
    store = lab.lake.table(lab.stream).store
    lab.store.faults["put"].append(Fault.HIDDEN)
    with pytest.raises(ObjectMissingError):
        rewrite(only(snapshot, wanted), store, wanted, modified_us=1)
    assert rewrite(only(snapshot, wanted), store, wanted, modified_us=1).partition == 0


def test_a_partition_with_a_file_without_statistics_is_left_alone(lab: TierLab) -> None:
    """The rows between the other files are unknown."""
    snapshot = lab.table.snapshot()
    for at in range(2):
        files = list(snapshot.files)
        files[at] = replace(files[at], min_offset=None, max_offset=None)
        assert plan_bins(replace(snapshot, files=tuple(files))) == []
