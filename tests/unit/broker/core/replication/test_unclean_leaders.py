"""A leader whose log lacks committed records, as of an operator's choice: which records it keeps.

The case of most tests: A led epoch 3 and wrote [100, 160) alone. B, elected in epoch 5 at 100,
wrote other records there. B is gone for good.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.core.events import TickElapsed
from broker.core.replication.effects import (
    AdvanceHighWatermark,
    BeginLogAt,
    LogFacts,
    ProposeLeadership,
    ReportLostRecords,
    StartLeading,
    TruncateLog,
)
from broker.core.replication.events import LogTruncated, ViewChanged
from broker.core.replication.replica import PartitionReplica
from broker.core.replication.view import PartitionView
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.lineage import Leadership, Lineage
from broker.model.offsets import Offset
from simkit.brokers.driver_rig import view_of_three

A = BrokerId("a")
CONFIRM = ProposeLeadership(LeaderEpoch(3))


def _lineage(*starts: tuple[int, int]) -> Lineage:
    return tuple(
        Leadership(leader_epoch=LeaderEpoch(epoch), lineage_id=f"{epoch:032x}", start=Offset(start))
        for epoch, start in starts
    )


def _view(floor: int = 0, *, lineage: Lineage | None = None) -> PartitionView:
    return view_of_three(
        status="candidate_found", leader=None, candidate=A, isr=frozenset(),
        cold_end=Offset(floor), lineage=_lineage((3, 0), (5, 100)) if lineage is None else lineage,
    )  # fmt: skip


def _facts(
    end: int, *, start: int = 0, epochs: tuple[tuple[int, int], ...] = ((3, 0),)
) -> LogFacts:
    history = EpochHistory.of((LeaderEpoch(epoch), Offset(at)) for epoch, at in epochs)
    return LogFacts(
        log_start=Offset(start), log_end=Offset(end), synced_end=Offset(end), epochs=history
    )


class Candidate:
    """The replica A, and its log as of the newest facts."""

    def __init__(self, facts: LogFacts, *, high_watermark: int = 100) -> None:
        self.facts = facts
        self.replica = PartitionReplica(
            me=A, broker_epoch=BrokerEpoch(1), facts=lambda: self.facts, lease_until_ms=1_000_000,
            known_high_watermark=Offset(high_watermark),
        )  # fmt: skip

    def named(self, view: PartitionView) -> list[Any]:
        """Name A the candidate; return the effects."""
        return self.replica.step(ViewChanged(view, 1))

    def changed(self, facts: LogFacts) -> list[Any]:
        """Report that the log was cut or replaced; return the effects."""
        self.facts = facts
        return self.replica.step(LogTruncated(2))


def test_records_that_another_leader_replaced_are_cut_before_the_candidate_confirms() -> None:
    """They were never committed, and what was committed at their offsets has other readers."""
    candidate = Candidate(_facts(160))
    assert candidate.named(_view()) == [TruncateLog(Offset(100))]
    assert candidate.replica.step(TickElapsed(400)) == [TruncateLog(Offset(100))], "not confirmed"
    assert candidate.changed(_facts(100)) == [AdvanceHighWatermark(Offset(100)), CONFIRM]
    led = replace(_view(), leader=A, candidate=None, partition_epoch=PartitionEpoch(9))
    effects = candidate.replica.step(ViewChanged(replace(led, status="online"), 3))
    assert effects[0] == StartLeading(LeaderEpoch(3))
    assert candidate.replica.high_watermark == 100


def test_a_log_that_left_the_history_below_the_table_begins_at_the_tables_end() -> None:
    """Its end alone says nothing: [100, 150) of the table has other records than the log."""
    candidate = Candidate(_facts(160))
    assert Candidate(_facts(160)).named(_view(101)) == [BeginLogAt(Offset(101), Offset(100))]
    assert candidate.named(_view(150)) == [BeginLogAt(Offset(150), Offset(100))]
    assert candidate.replica.high_watermark == 100, "the old log is there, with other records"
    begun = candidate.changed(_facts(150, start=150, epochs=()))
    assert begun == [AdvanceHighWatermark(Offset(150)), CONFIRM]
    assert candidate.replica.step(TickElapsed(400)) == [CONFIRM], "the new log is kept"


def test_what_an_earlier_loss_took_is_shown_no_more() -> None:
    """A had committed [100, 160); an earlier operator gave that up for B, who wrote others."""
    candidate = Candidate(_facts(160), high_watermark=160)
    lost = ReportLostRecords(Offset(100), Offset(160))
    assert candidate.named(_view()) == [lost, TruncateLog(Offset(100))]
    assert candidate.replica.high_watermark == 100
    candidate = Candidate(_facts(160), high_watermark=160)
    assert candidate.named(_view(150)) == [lost, BeginLogAt(Offset(150), Offset(100))]
    candidate.changed(_facts(150, start=150, epochs=()))
    assert candidate.replica.high_watermark == 150


def test_a_cut_that_took_more_than_it_was_asked_to_is_looked_at_again() -> None:
    """A batch that key compaction joined is cut whole, perhaps below the table's end."""
    candidate = Candidate(_facts(160), high_watermark=90)
    assert candidate.named(_view(95)) == [TruncateLog(Offset(100))]
    assert candidate.changed(_facts(93)) == [
        AdvanceHighWatermark(Offset(90)),
        BeginLogAt(Offset(95), Offset(93)),
    ]


@pytest.mark.parametrize(
    ("facts", "lineage"),
    [
        (_facts(160), ()),
        (_facts(160), _lineage((5, 160))),
        (_facts(160, epochs=((3, 0), (5, 100))), _lineage((3, 0), (5, 100))),
        (_facts(160, start=160, epochs=()), _lineage((3, 0), (5, 100))),
    ],
    ids=["no lineage", "forgotten", "the history's newest records", "all freed"],
)
def test_no_record_is_cut_that_may_be_the_historys(facts: LogFacts, lineage: Lineage) -> None:
    """A lineage that has forgotten the leaderships of a log says nothing against its records."""
    assert Candidate(facts).named(_view(lineage=lineage)) == [CONFIRM]


def test_only_an_unclean_candidate_is_measured_by_the_lineage() -> None:
    """Any other candidate has all committed records, and followers align with its log."""
    clean = replace(_view(), isr=frozenset((A,)))
    assert Candidate(_facts(160)).named(clean) == [CONFIRM]
