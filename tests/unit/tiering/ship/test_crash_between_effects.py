"""The process may die between any two effects, or in the middle of one: nothing is lost or doubled.

The local log, the metadata's cold end, the object store and the table outlive the "crash"; the
shipper does not. Each test ships three segments, dying once at every possible point.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.errors import GapError, ObjectCorruptError
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.lab import DiedError, TierLab, cut_of, forget_proofs, read_table
from tiering.read.certify import certify_counts
from tiering.read.verify import verify_table
from tiering.ship import lifecycle as tier
from tiering.ship.shipper import PartitionShipper
from tiering.table.ledger import Ledger, ledger_key

pytestmark = pytest.mark.slow

SEGMENTS = 3
EFFECTS_MAX = 64


class DyingShipper:
    """Runs a shipper's cycles and dies at the k-th effect, before or after doing it."""

    def __init__(self, shipper: PartitionShipper, *, at: int, after: bool) -> None:
        self.shipper = shipper
        self.left = at
        self.after = after
        perform: Callable[[tier.Effect], tier.Event] = shipper.perform

        def dying(effect: tier.Effect) -> tier.Event:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise DiedError
            event = perform(effect)
            if self.left == 0:
                raise DiedError
            return event

        shipper.perform = dying  # type: ignore[method-assign]

    def run(self) -> bool:
        """Return whether everything was shipped; False when it died on the way."""
        try:
            while self.shipper.run_cycle():
                pass
        except DiedError:
            return False
        return True


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_every_crash_point_ends_exact(tmp_path: Path, after: bool) -> None:
    """Die at effect k, start again, for every k: table, ledger and cold end end up exact."""
    points = 0
    for at in range(1, EFFECTS_MAX):
        lab = TierLab(tmp_path / f"{after}-{at}")
        lab.source.fill(SEGMENTS, 20)
        died = not DyingShipper(lab.shipper(), at=at, after=after).run()
        if died:
            points += 1
            lab.source.free_local()  # retention may run before the restart
            assert DyingShipper(lab.shipper(), at=EFFECTS_MAX, after=after).run()
        _require_exact(lab)
        if not died:
            break
    assert points > 20, f"only {points} crash points were tried"


@pytest.mark.parametrize("first", [5, 7, 8, 9])
def test_two_crashes_in_a_row_end_exact(tmp_path: Path, first: int) -> None:
    """A repair that dies half way is completed by the next start."""
    for second in range(1, 14):
        lab = TierLab(tmp_path / f"{first}-{second}")
        lab.source.fill(2, 20)
        DyingShipper(lab.shipper(), at=first, after=True).run()
        DyingShipper(lab.shipper(), at=second, after=second % 2 == 0).run()
        assert DyingShipper(lab.shipper(), at=EFFECTS_MAX, after=True).run()
        _require_exact(lab, segments=2)


def test_nothing_is_recorded_before_table_and_ledger_have_it(tmp_path: Path) -> None:
    """At every effect boundary the recorded cold end is covered by the table and by the ledger."""
    lab = TierLab(tmp_path)
    lab.source.fill(SEGMENTS, 20)
    shipper = lab.shipper()
    perform = shipper.perform
    checked = 0

    def checking(effect: tier.Effect) -> tier.Event:
        nonlocal checked
        event = perform(effect)
        recorded = lab.source.cold_end
        snapshot = lab.table.find()
        assert (snapshot.cold_end(0) if snapshot else 0) >= recorded
        assert Ledger(lab.table.store).end(0) >= recorded
        checked += 1
        return event

    shipper.perform = checking  # type: ignore[method-assign]
    while shipper.run_cycle():
        pass
    assert lab.source.recorded == [20, 40, 60]
    assert checked > 20


@pytest.mark.parametrize("noted", [0, 2], ids=["first range", "later range"])
def test_what_is_committed_and_not_noted_yet_is_proved_by_its_commit(
    tmp_path: Path, noted: int
) -> None:
    """Between the commit and the ledger entry the full check and every read find a whole table."""
    lab = TierLab(tmp_path)
    lab.source.fill(noted + 1, 20)
    for _ in range(noted):
        lab.shipper().run_cycle()
    lab.commit_unnoted()
    forget_proofs()
    snapshot, end = lab.table.snapshot(), 20 * (noted + 1)
    assert Ledger(lab.table.store).end(0) == end - 20
    assert [proof.end for proof in verify_table(snapshot, lab.table.store)] == [end]
    certify_counts(snapshot, cut_of(snapshot, lab.stream), lab.table.store)
    assert read_table(lab.table, 0).equals(lab.source.truth())


def test_what_is_committed_and_not_noted_yet_is_compared_with_its_commit(tmp_path: Path) -> None:
    """Its rows are read, and its digest is the commit's own: a flipped bit is named."""
    lab = TierLab(tmp_path)
    lab.source.fill(2, 20)
    lab.shipper().run_cycle()
    lab.commit_unnoted()
    newest = max(lab.table.store.config.root.glob("partition=0/*.parquet"))
    body = bytearray(newest.read_bytes())
    body[len(body) // 2] ^= 4
    newest.write_bytes(body)
    with pytest.raises(ObjectCorruptError, match=newest.name):
        verify_table(lab.table.snapshot(), lab.table.store)


def test_a_lost_ledger_entry_below_others_is_still_named(tmp_path: Path) -> None:
    """No crash leaves such a hole: an uploader notes earlier ranges before it ships on."""
    lab = TierLab(tmp_path)
    lab.source.fill(2, 20)
    lab.ship_all()
    lab.source.fill(1, 20)
    lab.commit_unnoted()
    (lab.table.store.config.root / ledger_key(0, 0)).unlink()
    with pytest.raises(GapError, match="ledger"):
        verify_table(lab.table.snapshot(), lab.table.store)


def _require_exact(lab: TierLab, *, segments: int = SEGMENTS) -> None:
    end = segments * 20
    snapshot = lab.table.snapshot()
    assert snapshot.ranges[0] == OffsetRange(Offset(0), Offset(end))
    assert lab.source.cold_end == end
    rows = read_table(lab.table, 0)
    assert rows.equals(lab.source.truth())
    assert pa.schema(rows.schema) == ROW_SCHEMA
    entries = Ledger(lab.table.store).entries(0, snapshot.ranges[0])
    assert entries[0].start == 0
    assert entries[-1].end == end
    assert [proof.records_count for proof in verify_table(snapshot, lab.table.store)] == [end]
