"""Shipping at the edges: one record ahead, a leadership that ends meanwhile, a name in use.

`make plant` takes these checks away one by one, and each test here is the one that notices.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.codec.checksum import crc32c
from broker.errors import (
    HeadwaterError,
    HistoryClaimedError,
    RemoteTierUnavailableError,
    TableMismatchError,
)
from broker.model.offsets import Offset
from simkit.tier.lab import CLUSTER, TickingClock, TierLab
from tiering.config import TieringConfig
from tiering.ship import lifecycle as tier
from tiering.ship import shipper as shipping
from tiering.ship.shipper import PartitionShipper


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A lake with a stream of 40 records in two segments."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(2, 20)
    return lab


def shipper_of(lab: TierLab, lost: list[HeadwaterError]) -> PartitionShipper:
    """Return a shipper whose leadership is lost as soon as ``lost`` has the reason."""
    claimant: Any = SimpleNamespace(
        error_of=lambda _: lost[0] if lost else None, lose=lambda *_: None
    )
    return PartitionShipper(
        cluster=CLUSTER,
        source=lab.source,
        table=lab.lake.table(lab.stream),
        clock=TickingClock(),
        config=TieringConfig(object_bytes_max=1),
        claimant=claimant,
    )


def test_a_table_that_is_one_record_ahead_of_the_log_is_an_error() -> None:
    """Other software appends to it, or the log was replaced."""
    it = tier.PartitionTier(0, object_bytes_max=10, recorded=Offset(6))
    for event in (
        tier.Woken(),
        tier.TableLoaded(Offset(6)),
        tier.LedgerRead(Offset(6)),
        tier.HistoryProved(),
    ):
        it.step(event)
    with pytest.raises(TableMismatchError, match="ends at 6"):
        it.step(tier.LogListed([], Offset(5)))


def test_who_does_not_lead_any_more_ships_nothing(lab: TierLab) -> None:
    """It does not even store an object, because its successor ships the same records."""
    lost = [HistoryClaimedError("another broker leads")]
    with pytest.raises(HistoryClaimedError):
        shipper_of(lab, [*lost]).run_cycle()
    assert list(lab.table.store.list("partition=")) == []


def test_a_leadership_that_ends_before_the_commit_commits_nothing(lab: TierLab) -> None:
    """The object may be there; no table names it."""
    lost: list[HeadwaterError] = []
    shipper = shipper_of(lab, lost)
    effect = shipper.machine.step(tier.Woken())
    while not isinstance(effect, tier.CommitObject):
        effect = shipper.machine.step(shipper.perform(effect))
    lost.append(HistoryClaimedError("another broker leads"))
    with pytest.raises(HistoryClaimedError):
        shipper.perform(effect)
    assert len(list(lab.table.store.list("partition="))) == 1
    assert lab.table.find() is None


def test_an_object_is_stored_under_a_name_that_nobody_has_used(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same name with other bytes is refused, and the next cycle takes another name."""
    names = iter(["0" * 16, "1" * 16, "2" * 16])
    monkeypatch.setattr(shipping, "secrets", SimpleNamespace(token_hex=lambda _: next(names)))
    taken = f"partition=0/{0:020}-{20:020}-{lab.source.leader_epoch}-{'0' * 16}.parquet"
    assert lab.table.store.put_if_absent(taken, b"other", crc32c=crc32c(b"other"))
    shipper = lab.shipper()
    with pytest.raises(RemoteTierUnavailableError, match="exists already"):
        shipper.run_cycle()
    assert lab.table.find() is None
    assert shipper.run_cycle()
    assert lab.table.snapshot().cold_end(0) == 20


def test_nothing_is_written_while_the_store_is_not_known_to_fence(lab: TierLab) -> None:
    """Not even the table is loaded."""

    def refuse() -> None:
        raise RemoteTierUnavailableError("not known to fence")

    lab.source.fill(1, 20)
    shipper = PartitionShipper(
        cluster=CLUSTER, source=lab.source, table=lab.table, clock=TickingClock(),
        config=TieringConfig(object_bytes_max=1), fence=refuse,
    )  # fmt: skip
    lab.store.calls.clear()
    for failures in (1, 2):
        with pytest.raises(RemoteTierUnavailableError, match="not known to fence"):
            shipper.run_cycle()
        assert shipper.counters.failures_total == failures
    assert dict(lab.store.calls) == {}


@pytest.mark.parametrize("objects_max", [1, 2])
def test_a_cycle_ships_as_many_objects_as_it_may(lab: TierLab, objects_max: int) -> None:
    """The cycle's result says that there is more."""
    lab.source.fill(4, 20)
    shipper = lab.shipper()
    assert shipper.run_cycle(objects_max)
    assert shipper.counters.segments_total == objects_max
    assert len(lab.table.snapshot().files) == objects_max


def test_a_table_gets_a_checkpoint_from_time_to_time(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is written at each multiple of the interval."""
    versions: list[int] = []
    table = lab.lake.table(lab.stream)
    monkeypatch.setattr(table, "checkpoint", lambda: versions.append(table.snapshot().version))
    lab.source.fill(5, 20)
    config = TieringConfig(object_bytes_max=1, checkpoint_interval_commits=2)
    lab.ship_all(lab.shipper(config=config, table=table))
    assert versions == [2, 4, 6]
