"""The machine and its planner: order, refusals, conflicts. No I/O."""

from __future__ import annotations

import random

import pytest

from broker.errors import GapError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from broker.ports.partition import SegmentInfo
from cases import seeds
from tiering.ship import lifecycle as tier

COMMIT_CHAIN: list[tuple[tier.Event, tier.Effect]] = [
    (tier.SegmentsPacked(), tier.StoreObject()),
    (tier.ObjectStored(), tier.CheckObject()),
]


def segment(base: int, end: int, *, sealed: bool = True, size: int = 10) -> SegmentInfo:
    """Return a segment of the local log."""
    return SegmentInfo(Offset(base), Offset(end), size, 0, sealed)


def machine(*, recorded: int = 0, bytes_max: int = 10) -> tier.PartitionTier:
    """Return a machine as after a start."""
    return tier.PartitionTier(0, object_bytes_max=bytes_max, recorded=Offset(recorded))


def plan(segments: list[SegmentInfo], *, cold_end: int, hw: int, bytes_max: int = 25) -> list[int]:
    """Return the chosen segments' ends."""
    chosen = tier.plan_shipment(
        segments, cold_end=Offset(cold_end), high_watermark=Offset(hw), bytes_max=bytes_max,
        partition=0,
    )  # fmt: skip
    return [int(one.end_offset) for one in chosen]


def test_a_first_shipment_takes_every_step_in_order() -> None:
    """Table, ledger, log, pack, store, check, commit, ledger, record: nothing earlier."""
    it = machine()
    log = tier.LogListed([segment(0, 5), segment(5, 5, sealed=False)], Offset(5))
    script: list[tuple[tier.Event, tier.Effect]] = [
        (tier.Woken(), tier.LoadTable(Offset(0))),
        (tier.TableLoaded(Offset(0)), tier.ReadLedger()),
        (tier.LedgerRead(Offset(0)), tier.ListLog()),
        (log, tier.PackSegments(OffsetRange(Offset(0), Offset(5)), 1)),
        *COMMIT_CHAIN,
        (tier.ObjectChecked(), tier.CommitObject(OffsetRange(Offset(0), Offset(5)))),
        (tier.Committed(), tier.WriteLedger()),
        (tier.LedgerWritten(), tier.TellColdEnd(Offset(5))),
        (tier.ColdEndRecorded(), tier.ListLog()),
        (log, tier.Rest()),
        (tier.Woken(), tier.ListLog()),  # trusted now: the table is not loaded again
    ]
    for event, effect in script:
        assert it.step(event) == effect


def test_after_a_failure_table_and_ledger_are_asked_again() -> None:
    """Whatever failed, its outcome is unknown."""
    it = machine()
    for event in (tier.Woken(), tier.TableLoaded(Offset(0)), tier.LedgerRead(Offset(0))):
        it.step(event)
    assert it.step(tier.Failed()) == tier.Rest()
    assert it.step(tier.Woken()) == tier.LoadTable(Offset(0))


def test_a_commit_without_ledger_is_repaired_before_anything_else() -> None:
    """The table is ahead of the ledger: prove its history, repair, record, and only then ship."""
    it = machine(recorded=3)
    assert it.step(tier.Woken()) == tier.LoadTable(Offset(3))
    it.step(tier.TableLoaded(Offset(9)))
    missing = OffsetRange(Offset(5), Offset(9))
    assert it.step(tier.LedgerRead(Offset(5))) == tier.ProveHistory()
    assert it.step(tier.HistoryProved()) == tier.RepairLedger(missing)
    assert it.step(tier.LedgerRepaired()) == tier.TellColdEnd(Offset(9))
    assert it.step(tier.ColdEndRecorded()) == tier.ListLog()


def test_a_ledger_ahead_of_the_table_asks_the_table_for_what_it_proves() -> None:
    """Another process committed in between, or commits vanished: loading the table tells which."""
    it = machine()
    it.step(tier.Woken())
    it.step(tier.TableLoaded(Offset(5)))
    assert it.step(tier.LedgerRead(Offset(9))) == tier.LoadTable(Offset(9))
    it.step(tier.TableLoaded(Offset(9)))
    assert it.step(tier.LedgerRead(Offset(9))) == tier.ProveHistory()
    assert it.step(tier.HistoryProved()) == tier.TellColdEnd(Offset(9))


def test_what_is_not_proved_is_not_recorded() -> None:
    """A table of another history: the proof raises, and every cycle begins with it again."""
    it = machine()
    for _ in range(3):
        assert it.step(tier.Woken()) == tier.LoadTable(Offset(0))
        it.step(tier.TableLoaded(Offset(9)))
        assert it.step(tier.LedgerRead(Offset(9))) == tier.ProveHistory()
        assert it.step(tier.Failed()) == tier.Rest()
    assert it.recorded == 0


def test_a_table_with_one_record_is_proved_like_any_other() -> None:
    """Only an empty table has no history to prove."""
    for cold_end, effect in ((0, tier.ListLog()), (1, tier.ProveHistory())):
        it = machine()
        it.step(tier.Woken())
        it.step(tier.TableLoaded(Offset(cold_end)))
        assert it.step(tier.LedgerRead(Offset(cold_end))) == effect


def test_a_plan_that_fails_is_made_again_from_the_table_on() -> None:
    """The plan begins at the table, because an operator may have repaired the cause."""
    for listed, error in (
        (tier.LogListed([segment(3, 5)], Offset(5)), GapError),
        (tier.LogListed([], Offset(-1)), TableMismatchError),
    ):
        it = machine()
        for event in (tier.Woken(), tier.TableLoaded(Offset(0)), tier.LedgerRead(Offset(0))):
            it.step(event)
        with pytest.raises(error):
            it.step(listed)
        assert it.step(tier.Woken()) == tier.LoadTable(Offset(0))


def test_a_table_ahead_of_the_log_is_refused() -> None:
    """Rows in the table that our log never committed: another writer, or a replaced disk."""
    it = machine()
    for event in (
        tier.Woken(), tier.TableLoaded(Offset(9)), tier.LedgerRead(Offset(9)),
        tier.HistoryProved(), tier.ColdEndRecorded(),
    ):  # fmt: skip
        it.step(event)
    with pytest.raises(TableMismatchError):
        it.step(tier.LogListed([segment(0, 5)], Offset(5)))


def test_a_new_leader_waits_until_it_hears_that_its_records_are_committed() -> None:
    """The table has them, so they are; the followers' next fetches say so."""
    it = machine()
    for event in (
        tier.Woken(), tier.TableLoaded(Offset(7)), tier.LedgerRead(Offset(7)),
        tier.HistoryProved(), tier.ColdEndRecorded(),
    ):  # fmt: skip
        it.step(event)
    segments = [segment(0, 7), segment(7, 9, sealed=False)]
    assert it.step(tier.LogListed(segments, Offset(5))) == tier.Rest()
    assert it.step(tier.Woken()) == tier.ListLog()
    assert it.step(tier.LogListed([*segments[:1], segment(7, 9)], Offset(9))) == tier.PackSegments(
        OffsetRange(Offset(7), Offset(9)), 1
    )


def test_a_lost_commit_begins_at_the_table_again() -> None:
    """The table decides whether the object is dropped, cut or committed again."""
    it = machine()
    for event in (
        tier.Woken(), tier.TableLoaded(Offset(0)), tier.LedgerRead(Offset(0)),
        tier.LogListed([segment(0, 5), segment(5, 9)], Offset(9)), tier.SegmentsPacked(),
        tier.ObjectStored(), tier.ObjectChecked(),
    ):  # fmt: skip
        it.step(event)
    assert it.step(tier.CommitLost(Offset(3))) == tier.LoadTable(Offset(0))
    it.step(tier.TableLoaded(Offset(3)))
    it.step(tier.LedgerRead(Offset(3)))
    it.step(tier.HistoryProved())
    it.step(tier.ColdEndRecorded())
    effect = it.step(tier.LogListed([segment(0, 5), segment(5, 9)], Offset(9)))
    assert effect == tier.PackSegments(OffsetRange(Offset(3), Offset(5)), 1)


def test_an_unexpected_event_is_a_bug() -> None:
    """The machine does not guess."""
    with pytest.raises(AssertionError):
        machine().step(tier.Committed())


def test_only_sealed_committed_segments_are_planned() -> None:
    """The active segment, and one that ends above the high watermark, stay."""
    log = [segment(0, 5), segment(5, 9), segment(9, 12, sealed=False)]
    assert plan(log, cold_end=0, hw=12) == [5, 9]
    assert plan(log, cold_end=0, hw=8) == [5]
    assert plan(log, cold_end=0, hw=4) == []
    assert plan(log, cold_end=9, hw=12) == []
    assert plan([], cold_end=0, hw=0) == []


def test_an_object_joins_segments_up_to_its_limit() -> None:
    """At least one segment, also a large one; then as many as fit."""
    log = [segment(at, at + 1) for at in range(5)]
    assert plan(log, cold_end=0, hw=5, bytes_max=25) == [1, 2]
    assert plan(log, cold_end=2, hw=5, bytes_max=1000) == [3, 4, 5]
    assert plan([segment(0, 9, size=999)], cold_end=0, hw=9) == [9]


def test_a_hole_between_table_and_log_is_an_error() -> None:
    """Records that are in neither tier are never skipped."""
    with pytest.raises(GapError) as caught:
        plan([segment(7, 9)], cold_end=5, hw=9)
    assert (caught.value.start, caught.value.end) == (5, 7)
    with pytest.raises(GapError):
        plan([segment(0, 5), segment(6, 9)], cold_end=0, hw=9)


@pytest.mark.parametrize("seed", seeds(20))
def test_any_log_is_shipped_whole_and_once(seed: int) -> None:
    """Random segments, cuts and limits: planned ranges join without gap or overlap."""
    dice = random.Random(seed)
    bounds = sorted({0, 100, *(dice.randrange(101) for _ in range(8))})
    log = [
        segment(low, high, size=dice.randrange(1, 30))
        for low, high in zip(bounds, bounds[1:], strict=False)  # noqa: RUF007 - reads better
    ]
    cold_end = dice.randrange(101)
    shipped = []
    while ends := plan(log, cold_end=cold_end, hw=100, bytes_max=dice.randrange(1, 60)):
        assert ends == sorted(set(ends)), f"seed {seed}"
        shipped.append((cold_end, ends[-1]))
        cold_end = ends[-1]
    assert cold_end == 100, f"seed {seed}: {shipped}"


def test_a_postponed_machine_goes_on_where_it_was() -> None:
    """After other partitions' turns the table is not loaded again."""
    it = machine()
    log = tier.LogListed([segment(0, 5)], Offset(5))
    for event in (tier.Woken(), tier.TableLoaded(Offset(0)), tier.LedgerRead(Offset(0)), log):
        it.step(event)
    assert it.step(tier.Postponed()) == tier.Rest()
    assert it.step(tier.Woken()) == tier.ListLog()
    assert it.step(log) == tier.PackSegments(OffsetRange(Offset(0), Offset(5)), 1)


def test_every_state_has_its_events() -> None:
    """The table of states is complete."""
    assert set(tier.EXPECTED) == set(tier.TierState)
