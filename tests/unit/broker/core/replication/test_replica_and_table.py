"""Logs that start above 0: what replicas know of records that are in the table alone."""

from __future__ import annotations

from typing import Any

from broker.core.dedup import ProducerTable
from broker.core.replication.effects import (
    AdvanceHighWatermark,
    Effect,
    LogFacts,
    ReportLostRecords,
    ResetLog,
    SendToReplica,
    StartLeading,
    TruncateLog,
)
from broker.core.replication.events import LogTruncated, MessageCame, ViewChanged
from broker.core.replication.replica import PartitionReplica
from broker.core.replication.view import PartitionView
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchRequest,
    LogPrefix,
)

ME, OTHER = BrokerId("a"), BrokerId("b")
ONE = BrokerEpoch(1)


class Log:
    """The log's facts as a replica gets them; the log may change between two looks."""

    def __init__(self, start: int, end: int, *epochs: tuple[int, int]) -> None:
        self.start, self.end = start, end
        self.epochs = EpochHistory.of([(LeaderEpoch(one), Offset(at)) for one, at in epochs])

    def facts(self) -> LogFacts:
        """Look."""
        return LogFacts(
            log_start=Offset(self.start),
            log_end=Offset(self.end),
            synced_end=Offset(self.end),
            epochs=self.epochs,
        )


def _replica(log: Log) -> PartitionReplica:
    return PartitionReplica(
        me=ME,
        broker_epoch=ONE,
        facts=log.facts,
        lease_until_ms=1_000_000,
        known_high_watermark=log.facts().log_start,
    )


def _view(leader: BrokerId, **changes: Any) -> PartitionView:
    facts: dict[str, Any] = {
        "status": "online",
        "leader": leader,
        "candidate": None,
        "leader_epoch": LeaderEpoch(5),
        "partition_epoch": PartitionEpoch(7),
        "replicas": (ME, OTHER),
        "isr": frozenset({leader}),
        "min_isr": 1,
        "broker_epochs": {ME: ONE, OTHER: ONE},
        "joinable": frozenset({ME, OTHER}),
        "cold_end": Offset(20),
    }
    return PartitionView(**{**facts, **changes})


def _answered(replica: PartitionReplica, effects: list[Effect], known: int, end: int) -> list[Any]:
    (send,) = effects
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, EpochEndRequest)
    answer = EpochEndAnswer(
        leader_epoch=LeaderEpoch(5),
        request_id=send.message.request_id,
        epoch=send.message.epoch,
        known_epoch=LeaderEpoch(known),
        end=Offset(end),
    )
    return replica.step(MessageCame(answer, 1))


def test_a_log_without_anything_of_the_leader_s_is_given_up() -> None:
    """Its freed records were never the leader's. Cut at its start, it would be refused for ever.

    Its old leader had written 24 records alone; the table's first 24 are others'.
    """
    log = Log(24, 24, (1, 0), (2, 10))
    replica = _replica(log)
    effects = _answered(replica, replica.step(ViewChanged(_view(OTHER), 0)), known=1, end=24)
    nothing = LogPrefix(epochs=(), producers=ProducerTable().to_state())
    assert effects == [ResetLog(Offset(0), nothing)]
    log.__init__(0, 0)  # type: ignore[misc]
    (send,) = replica.step(LogTruncated(2))
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchRequest)
    assert (send.message.fetch_from, send.message.last_epoch) == (0, 0)


def test_records_that_are_freed_while_the_leader_is_asked_are_not_cut() -> None:
    """The log start moves by itself; a cut below it would be outside of the log."""
    log = Log(0, 30, (1, 0), (2, 10))
    replica = _replica(log)
    effects = replica.step(ViewChanged(_view(OTHER), 0))
    log.start = 12
    assert isinstance(_answered(replica, effects, known=1, end=24)[0], ResetLog)


def test_a_log_that_is_cut_further_than_it_was_told_hears_again_what_is_committed() -> None:
    """A batch that key compaction had joined is cut whole, and comes again from the leader."""
    log = Log(0, 30, (1, 0))
    replica = _replica(log)
    replica._known = Offset(24)
    effects = _answered(replica, replica.step(ViewChanged(_view(OTHER), 0)), known=1, end=24)
    assert effects == [TruncateLog(Offset(24))]
    log.end = 18
    (send,) = replica.step(LogTruncated(2))
    assert replica.high_watermark == 18
    assert isinstance(send, SendToReplica)
    assert isinstance(send.message, FetchRequest)
    assert send.message.fetch_from == 18


def test_a_follower_that_meets_an_interrupted_cut_hears_again_what_is_committed() -> None:
    """The log ends lower by then, and the view of another leader was first."""
    log = Log(0, 18, (1, 0))
    replica = _replica(log)
    replica._known = Offset(24)
    replica.step(ViewChanged(_view(OTHER), 0))
    assert replica.high_watermark == 18


def test_that_the_table_reaches_further_says_nothing_of_a_tail_that_nobody_followed() -> None:
    """A replaced leader comes back; cutting its own records below the cold end is no loss."""
    replica = _replica(Log(0, 30, (1, 0)))
    effects = _answered(replica, replica.step(ViewChanged(_view(OTHER), 0)), known=1, end=15)
    assert effects == [TruncateLog(Offset(15))]
    assert not any(isinstance(one, ReportLostRecords) for one in effects)


def test_a_leader_knows_that_what_is_in_the_table_was_committed() -> None:
    """It was elected with every committed record, so with every record of the table."""
    replica = _replica(Log(5, 30, (1, 0)))
    effects = replica.step(ViewChanged(_view(ME, isr=frozenset({ME, OTHER}), min_isr=2), 0))
    assert effects == [StartLeading(LeaderEpoch(5)), AdvanceHighWatermark(Offset(20))]
    assert replica.high_watermark == 20
