"""A table that a copy of this data feeds is not ours, whatever offsets it reaches.

Each story has two logs that share a beginning and then hold different records at the same offsets.
The mutants at the end are holes in the check; every one is seen by a story.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ForeignHistoryError
from broker.model.epochs import LeaderEpoch
from broker.model.lineage import LINEAGE_KEPT
from broker.model.offsets import Offset
from simkit.tier.lab import TierLab, read_table
from simkit.tier.source import MemoryTierSource
from tiering.proof import history
from tiering.read.verify import verify_table
from tiering.ship import shipper as shipper_module
from tiering.table.ledger import Ledger, ledger_key

SHARED = 40


def a_pair(root: Path) -> tuple[TierLab, MemoryTierSource]:
    """Return a lab whose first 40 records are cold, and a copy of its log; both lead anew."""
    lab = TierLab(root)
    lab.source.fill(2, 20)
    lab.ship_all()
    twin = lab.source.copied()
    lab.source.lead_again()
    twin.lead_again()
    return lab, twin


def require_refused(lab: TierLab, source: MemoryTierSource) -> None:
    """A fresh process over this log ships nothing, believes nothing, frees nothing; each time."""
    before, recorded = lab.table.snapshot(), list(source.recorded)
    shipper = lab.shipper(source=source)
    for _ in range(2):
        with pytest.raises(ForeignHistoryError):
            shipper.run_cycle()
    assert source.recorded == recorded
    assert lab.table.snapshot().version == before.version


def require_exact(lab: TierLab, source: MemoryTierSource) -> None:
    """The table is this log's, bit for bit."""
    snapshot = lab.table.snapshot()
    assert snapshot.cold_end(0) == source.cold_end == source.log_end
    assert read_table(lab.table, 0).equals(source.truth())
    verify_table(snapshot, lab.table.store)


# ----------------------------------------------------------------------------------- stories


def story_of_a_twin(root: Path) -> None:
    """The twin ships first; the original, with as many records, does not take them for its own."""
    lab, twin = a_pair(root)
    twin.fill(1, 20)
    lab.ship_all(lab.shipper(source=twin))
    lab.source.fill(1, 20)
    require_refused(lab, lab.source)
    require_exact(lab, twin)


def story_of_a_running_original(root: Path) -> None:
    """The original's uploader goes on with its cached state until it loses a commit."""
    lab, twin = a_pair(root)
    original = lab.shipper()
    lab.ship_all(original)
    twin.fill(1, 20)
    lab.ship_all(lab.shipper(source=twin))
    lab.source.fill(1, 20)
    for _ in range(2):
        with pytest.raises(ForeignHistoryError):
            original.run_cycle()
    assert lab.source.cold_end == SHARED
    require_exact(lab, twin)


def story_of_an_older_copy(root: Path) -> None:
    """A copy of the log from before the last shipment: same lineage ids, but a lower end."""
    lab = TierLab(root)
    lab.source.fill(1, 20)
    lab.ship_all()
    older = lab.source.copied()
    lab.source.fill(1, 20)
    lab.ship_all()
    older.lead_again()
    older.fill(2, 20)
    require_refused(lab, older)
    require_exact(lab, lab.source)


def story_of_rows_from_before_lineages(root: Path) -> None:
    """Two logs without lineage ids: a range that is not recorded has to equal the log's rows."""
    lab = TierLab(root)
    lab.source.lineage = ()
    twin = lab.source.copied()
    twin.fill(1, 20)
    lab.ship_all(lab.shipper(source=twin))
    lab.source.fill(1, 20)
    lab.source.lead_again()
    require_refused(lab, lab.source)
    require_exact(lab, twin)


def story_of_exchanged_rows(root: Path) -> None:
    """The lineage id is ours and the rows are not: they are compared with the log's."""
    lab, twin = a_pair(root)
    twin.lineage = lab.source.lineage
    twin.fill(1, 20)
    lab.ship_all(lab.shipper(source=twin))
    lab.source.fill(1, 20)
    require_refused(lab, lab.source)


def story_of_what_both_have(root: Path) -> None:
    """The twin ships rows that both have: they equal the log's, but another history leads."""
    lab = TierLab(root)
    lab.source.fill(2, 20)
    twin = lab.source.copied()
    lab.source.lead_again()
    twin.lead_again()
    lab.ship_all(lab.shipper(source=twin))
    require_refused(lab, lab.source)


def story_of_positions(root: Path) -> None:
    """A leadership that ended at 40 here did not ship [40, 60) in this history."""
    lab = TierLab(root)
    lab.source.fill(2, 20)
    older = lab.source.copied()
    older.lead_again()
    lab.source.fill(1, 20)
    snapshot = lab.ship_all()
    newest = history.newest_range(lab.table, snapshot, 0)
    assert newest is not None
    history.require_ours(snapshot, 0, newest, lineage=lab.source.lineage, recorded=Offset(0))
    with pytest.raises(ForeignHistoryError):
        history.require_ours(snapshot, 0, newest, lineage=older.lineage, recorded=Offset(60))


STORIES = [
    story_of_what_both_have,
    story_of_positions,
    story_of_a_twin,
    story_of_a_running_original,
    story_of_an_older_copy,
    story_of_rows_from_before_lineages,
    story_of_exchanged_rows,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__[9:])
def test_two_histories_never_mix(tmp_path: Path, story: Callable[[Path], None]) -> None:
    """The second broker is refused by name; the first one's data stays exact."""
    story(tmp_path)


# ----------------------------------------------------------------------------------- mutants


def ids_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Lineage ids are not compared."""
    patch.setattr(history, "holds", lambda *_: True)


def next_start_ignored(patch: pytest.MonkeyPatch) -> None:
    """The start of the next leadership is not compared."""

    def known(lineage: Any, lineage_id: str, end: int) -> bool:
        return any(one.lineage_id == lineage_id for one in lineage)

    patch.setattr(history, "holds", known)


def digests_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Digests are not compared."""
    patch.setattr(shipper_module, "require_rows_of_log", lambda *_: True)


def nothing_is_proved(patch: pytest.MonkeyPatch) -> None:
    """The cold end of any table is recorded."""
    patch.setattr(shipper_module.PartitionShipper, "_prove_history", lambda _: None)


@pytest.mark.parametrize(
    ("plant", "story"),
    [
        (ids_not_compared, story_of_what_both_have),
        (next_start_ignored, story_of_positions),
        (digests_not_compared, story_of_exchanged_rows),
        (nothing_is_proved, story_of_a_twin),
    ],
    ids=lambda one: one.__name__,
)
def test_a_hole_in_the_check_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    story: Callable[[Path], None],
) -> None:
    """A story fails on each planted bug."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        story(tmp_path)


# ----------------------------------------------------------------------------------- no alarm


def test_a_history_that_goes_on_is_ours(tmp_path: Path) -> None:
    """New leaderships, a zombie of an older one, local segments gone: no alarm."""
    lab = TierLab(tmp_path)
    for _ in range(3):
        lab.source.fill(2, 20)
        lab.ship_all()
        lab.source.free_local()
        lab.source.lead_again()
    require_exact(lab, lab.source)
    lab.source.fill(1, 20)
    lab.ship_all()
    require_exact(lab, lab.source)


def test_what_was_shipped_says_whose_it_is(tmp_path: Path) -> None:
    """Commit and ledger carry the leadership's id; a repaired entry is the same object."""
    lab = TierLab(tmp_path)
    lab.source.fill(1, 20)
    lab.ship_all()
    lineage_id = lab.source.lineage[-1].lineage_id
    root = lab.table.store.config.root
    assert Ledger(lab.table.store).get(0, Offset(0)).lineage_id == lineage_id
    newest = max((root / "_delta_log").glob("*.json")).read_text()
    assert f'"headwater.lineage":"{{\\"0\\": \\"{lineage_id}\\"}}"' in newest
    entry = root / ledger_key(0, 0)
    before = entry.read_bytes()
    entry.unlink()
    lab.source.lead_again()
    lab.ship_all()
    assert entry.read_bytes() == before


def test_ranges_from_before_lineages_are_ours_below_what_was_recorded(tmp_path: Path) -> None:
    """An upgrade: entries of format 1, read and written as they were; also one not yet recorded."""
    lab = TierLab(tmp_path)
    lineage, lab.source.lineage = lab.source.lineage, ()
    lab.source.fill(2, 20)
    lab.ship_all()
    assert Ledger(lab.table.store).get(0, Offset(20)).to_dict()["v"] == 1
    lab.source.lineage = lineage
    lab.source.lead_again()
    lab.source.recorded.pop()
    lab.source.fill(1, 20)
    lab.ship_all()
    require_exact(lab, lab.source)
    assert Ledger(lab.table.store).get(0, Offset(40)).to_dict()["v"] == 2


def test_a_stream_that_rested_over_many_leaderships_is_ours(tmp_path: Path) -> None:
    """The lineage has forgotten the shipping leadership; only recorded ranges are trusted."""
    lab = TierLab(tmp_path)
    lab.source.fill(1, 20)
    lab.source.lead_again()
    lab.ship_all()
    older = lab.source.copied()
    for _ in range(LINEAGE_KEPT + 5):
        lab.source.lead_again()
    lab.source.free_local()
    lab.source.fill(1, 20)
    lab.ship_all()
    require_exact(lab, lab.source)
    older.lineage = tuple(
        replace(one, leader_epoch=LeaderEpoch(one.leader_epoch + 900)) for one in lab.source.lineage
    )
    older.recorded.clear()
    with pytest.raises(ForeignHistoryError):
        lab.shipper(source=older).run_cycle()
