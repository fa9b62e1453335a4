"""Files expire: decided, removed, noted; the process may die between any two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import (
    ForeignHistoryError,
    HistoryClaimedError,
    OffsetOutOfRangeError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.certificate import Hole
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from simkit.tier.lab import (
    DiedError,
    TickingClock,
    TierLab,
    certify,
    cut_of,
    forget_proofs,
    read_table,
)
from tiering.proof.proofs import prove
from tiering.read.certify import certify_counts
from tiering.read.verify import verify_table
from tiering.ship import expiry
from tiering.ship.compaction import plan_bins, rewrite
from tiering.ship.shipper import PartitionShipper
from tiering.table.expiries import Expiries, expiry_key
from tiering.table.table import TableSnapshot

EFFECTS_MAX = 32


def a_lab(root: Path, *, segments: int = 4, keep: int | None = 40) -> TierLab:
    """Return a lab with segments of 20 records that are shipped, and a bound of records."""
    lab = TierLab(root)
    lab.source.fill(segments, 20)
    lab.ship_all()
    retain(lab, keep)
    return lab


def retain(lab: TierLab, keep: int | None) -> None:
    """Change the stream's setting."""
    lab.source.starts.config = StreamConfig(subject="orders", remote_retention_records=keep)


def run(lab: TierLab, shipper: PartitionShipper | None = None) -> TableSnapshot:
    """Run cycles until nothing is left to do; return the table."""
    lab.ship_all(shipper)
    return lab.table.snapshot()


def require_exact(lab: TierLab, start: int, end: int) -> None:
    """Check table, expiries, metadata and every byte: exactly ``[start, end)`` is there."""
    forget_proofs()
    table = lab.lake.table(lab.stream)
    snapshot = table.snapshot()
    assert snapshot.ranges[0] == OffsetRange(Offset(start), Offset(end))
    assert lab.source.remote_start == start
    prove(snapshot, table.store)
    assert certify(lab) == [end - start]
    [proof] = verify_table(snapshot, table.store)
    assert (proof.start, proof.end, proof.records_count) == (start, end, end - start)
    assert read_table(table, 0).equals(lab.source.truth(start))
    noted = Expiries(table.store).entries(0, Offset(start))
    assert sum(one.records_count for one in noted) == start


def test_the_oldest_files_leave_the_table_and_say_why(tmp_path: Path) -> None:
    """Table, entry and metadata agree; the certificate has the hole; the cold end stays."""
    lab = a_lab(tmp_path)
    snapshot = run(lab)
    require_exact(lab, 40, 80)
    assert lab.source.starts.decided == [(40, False)]
    assert lab.source.learned == 40, "its own replica shows no record below, at once"
    [entry] = Expiries(lab.table.store).entries(0, Offset(40))
    assert (entry.range, len(entry.paths)) == (OffsetRange(Offset(0), Offset(40)), 2)
    assert (entry.reason, entry.version) == ("retention", snapshot.version)
    assert entry.lineage_id == lab.source.lineage[-1].lineage_id
    certificates, _, _ = certify_counts(snapshot, cut_of(snapshot, lab.stream), lab.table.store)
    assert certificates[0].holes == (Hole(Offset(0), Offset(40), "retention"),)
    with pytest.raises(OffsetOutOfRangeError):
        read_table(lab.table, 0, OffsetRange(Offset(39), Offset(60)))


def test_an_expiry_goes_on_as_records_come(tmp_path: Path) -> None:
    """The start follows the cold end, commit by commit, and what expired is never shipped again."""
    lab = a_lab(tmp_path)
    shipper = lab.shipper()
    run(lab, shipper)
    lab.source.fill(3, 20)
    run(lab, shipper)
    require_exact(lab, 100, 140)
    assert shipper.expirer is not None
    assert shipper.expirer.counters.files_total == 5
    assert [one.range.end for one in Expiries(lab.table.store).entries(0, Offset(100))] == [40, 100]
    run(lab)  # a new leader looks at all of it again
    require_exact(lab, 100, 140)


def test_without_a_bound_nothing_expires(tmp_path: Path) -> None:
    """The default is the promise: the whole history."""
    lab = a_lab(tmp_path, keep=None)
    version = lab.table.snapshot().version
    assert run(lab).version == version
    require_exact(lab, 0, 80)


def test_all_of_a_table_may_expire(tmp_path: Path) -> None:
    """By age nothing is left of an old stream; it goes on at its cold end."""
    lab = a_lab(tmp_path)
    lab.source.starts.config = StreamConfig(subject="orders", remote_retention_ms=1)
    shipper = lab.shipper()
    assert shipper.expirer is not None
    shipper.expirer._clock = later = TickingClock()
    later._ms += 10**9
    run(lab, shipper)
    require_exact(lab, 80, 80)
    lab.source.free_local()
    retain(lab, 1000)
    lab.source.fill(1, 20)
    run(lab)
    require_exact(lab, 80, 100)


def test_nothing_expires_under_a_lease(tmp_path: Path) -> None:
    """The bound would let 40 records go; a lease holds from 30 on: one file goes."""
    lab = a_lab(tmp_path)
    lab.source.starts.held_at = 30
    run(lab)
    require_exact(lab, 20, 80)
    lab.source.starts.held_at = None
    run(lab)
    require_exact(lab, 40, 80)


def test_a_lease_that_comes_between_plan_and_decision_wins(tmp_path: Path) -> None:
    """The metadata refuses; nothing has happened, and the next look tries again."""
    lab = a_lab(tmp_path)
    shipper = lab.shipper()
    assert shipper.expirer is not None
    perform = shipper.expirer.perform

    def late(effect: expiry.Effect) -> expiry.Event:
        event = perform(effect)
        if isinstance(event, expiry.Planned):
            lab.source.starts.held_at = 0
        return event

    shipper.expirer.perform = late  # type: ignore[method-assign]
    run(lab, shipper)
    require_exact(lab, 0, 80)
    assert lab.source.starts.decided == []


def test_a_cut_from_before_stays_exact(tmp_path: Path) -> None:
    """Its version is proved and read as before: the objects are still there."""
    lab = a_lab(tmp_path)
    before = lab.table.snapshot()
    run(lab)
    forget_proofs()
    assert certify(lab, before.version) == [80]
    assert [one.records_count for one in verify_table(before, lab.table.store)] == [80]


class Dying:
    """Dies at the k-th effect of expiries, before or after doing it."""

    def __init__(self, shipper: PartitionShipper, *, at: int, after: bool) -> None:
        assert shipper.expirer is not None
        self.shipper, self.left = shipper, at
        perform: Callable[[expiry.Effect], expiry.Event] = shipper.expirer.perform

        def dying(effect: expiry.Effect) -> expiry.Event:
            self.left -= 1
            if self.left == 0 and not after:
                raise DiedError
            event = perform(effect)
            if self.left == 0:
                raise DiedError
            return event

        shipper.expirer.perform = dying  # type: ignore[method-assign]

    def run(self) -> bool:
        """Return whether all was done; False if it died."""
        try:
            while self.shipper.run_cycle():
                pass
        except DiedError:
            return False
        return True


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_every_crash_point_ends_exact(tmp_path: Path, after: bool) -> None:
    """Die at effect k, start again: what was decided is carried out, and noted once."""
    points = 0
    for at in range(1, EFFECTS_MAX):
        lab = a_lab(tmp_path / f"{at}")
        if Dying(lab.shipper(), at=at, after=after).run():
            break
        points += 1
        lab.source.free_local()
        lab.source.lead_again()
        lab.source.fill(1, 20)
        run(lab)
        require_exact(lab, 60, 100)
    assert points == 6


@pytest.mark.slow
def test_two_crashes_in_a_row_end_exact(tmp_path: Path) -> None:
    """A start that dies in the rest of an expiry is continued by the one after it."""
    for first in range(3, 7):
        for second in range(1, 7):
            lab = a_lab(tmp_path / f"{first}-{second}")
            Dying(lab.shipper(), at=first, after=True).run()
            Dying(lab.shipper(), at=second, after=second % 2 == 0).run()
            run(lab)
            require_exact(lab, 40, 80)


def test_what_was_decided_is_carried_out_though_the_bound_is_gone(tmp_path: Path) -> None:
    """Readers were told already that the records have expired."""
    lab = a_lab(tmp_path)
    assert not Dying(lab.shipper(), at=4, after=True).run()
    assert lab.source.starts.decided == [(40, False)]
    retain(lab, None)
    run(lab)
    require_exact(lab, 40, 80)


def test_an_old_copy_of_the_metadata_learns_the_start(tmp_path: Path) -> None:
    """A table that begins later was proved to be ours: no lease can bring the records back."""
    lab = a_lab(tmp_path)
    run(lab)
    lab.source.starts.remote_start = Offset(0)
    lab.source.starts.held_at = 0
    retain(lab, None)
    run(lab)
    require_exact(lab, 40, 80)
    assert lab.source.starts.decided[-1] == (40, True)


def test_a_compaction_in_between_wins_and_the_rest_expires_later(tmp_path: Path) -> None:
    """The decided start is inside a joined file: the table keeps that file, exactly."""
    lab = a_lab(tmp_path)
    assert not Dying(lab.shipper(), at=4, after=True).run()  # decided: 40
    snapshot = lab.table.snapshot()
    first = [one for one in snapshot.files if (one.min_offset or 0) >= 20]
    bins = plan_bins(snapshot)
    assert len(bins) == 1
    one = type(bins[0])(partition=0, range=OffsetRange(Offset(20), Offset(80)), files=tuple(first))
    joined = rewrite(snapshot, lab.table.store, one, modified_us=1)
    lab.table.replace_files(
        snapshot, removed=one.files, added=[joined], moves={}, data_change=False, commit_id="join"
    )
    run(lab)
    forget_proofs()
    assert lab.table.snapshot().ranges[0] == OffsetRange(Offset(20), Offset(80))
    assert lab.source.remote_start == 40
    lab.source.fill(2, 20)
    run(lab)
    require_exact(lab, 80, 120)


def test_files_that_are_rewritten_while_they_expire_are_looked_at_again(tmp_path: Path) -> None:
    """The compare-and-set is about exactly these files; the next look finds the new ones."""
    lab = a_lab(tmp_path)
    shipper = lab.shipper()
    assert shipper.expirer is not None
    perform, once = shipper.expirer.perform, [True]

    def joined_first(effect: expiry.Effect) -> expiry.Event:
        if isinstance(effect, expiry.Remove) and once.pop():
            snapshot = lab.table.snapshot()
            one = plan_bins(snapshot, target_bytes=1 + 2 * snapshot.files[0].size_bytes)[0]
            lab.table.replace_files(
                snapshot,
                removed=one.files,
                added=[rewrite(snapshot, lab.table.store, one, modified_us=1)],
                moves={},
                data_change=False,
                commit_id="join",
            )
        once[:] = once or [False]
        return perform(effect)

    shipper.expirer.perform = joined_first  # type: ignore[method-assign]
    run(lab, shipper)
    run(lab)
    require_exact(lab, 40, 80)


def test_a_table_that_lost_its_expiry_is_named(tmp_path: Path) -> None:
    """The entry beside it says that the records had expired: an older copy of the log is here."""
    lab = a_lab(tmp_path)
    snapshot = run(lab)
    (tmp_path / f"default/orders/_delta_log/{snapshot.version:020}.json").unlink()
    lab.source.starts.remote_start = Offset(0)
    retain(lab, 20)
    forget_proofs()
    with pytest.raises(TableRolledBackError, match="had expired"):
        run(lab)


def test_an_expiry_of_another_history_is_not_believed(tmp_path: Path) -> None:
    """A copy of the broker let files expire; its leadership is not in our lineage."""
    lab = a_lab(tmp_path)
    twin = lab.source.copied()
    twin.lead_again()
    shipper = lab.shipper(source=twin)
    assert not Dying(shipper, at=5, after=True).run()  # removed, not noted
    with pytest.raises(ForeignHistoryError, match="expire"):
        run(lab)
    assert lab.source.remote_start == 0


def test_a_removal_without_an_account_is_foreign(tmp_path: Path) -> None:
    """Only an expiry removes rows: a plain replacement by our own code does not pass for one."""
    lab = a_lab(tmp_path)
    snapshot = lab.table.snapshot()
    lab.table.replace_files(
        snapshot,
        removed=snapshot.files[:1],
        added=[],
        moves={0: OffsetRange(Offset(20), Offset(80))},
        data_change=True,
        commit_id="x",
    )
    forget_proofs()
    with pytest.raises(TableMismatchError, match="no account"):
        prove(lab.lake.table(lab.stream).snapshot(), lab.table.store)


def test_a_lost_entry_is_written_again_from_the_commit(tmp_path: Path) -> None:
    """The commit has the same account."""
    lab = a_lab(tmp_path)
    run(lab)
    entry = tmp_path / "default/orders" / expiry_key(0, 0)
    body = entry.read_bytes()
    entry.unlink()
    retain(lab, 20)
    run(lab)
    require_exact(lab, 60, 80)
    assert entry.read_bytes() == body


def test_a_lost_leadership_lets_nothing_expire(tmp_path: Path) -> None:
    """Another process has claimed the history: no decision, no commit."""
    lab = a_lab(tmp_path)
    shipper = lab.shipper()

    class Lost:
        def error_of(self, _: object) -> HistoryClaimedError:
            return HistoryClaimedError("claimed")

    shipper._claimant = Lost()  # type: ignore[assignment]
    with pytest.raises(HistoryClaimedError):
        run(lab, shipper)
    assert lab.source.starts.decided == []
    assert lab.table.snapshot().ranges[0].start == 0
