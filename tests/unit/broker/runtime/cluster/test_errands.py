"""A member's errands: give up damaged replicas, hand over, ask what is committed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from broker.adapters.clock import SystemClock
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    NameCandidate,
    RegisterBroker,
    StopBroker,
    WithdrawReplica,
)
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState
from broker.errors import CommitTimeoutError, ForeignHistoryError, HeadwaterError, NotLeaderError
from broker.model.control_messages import (
    ControlMessage,
    HeartbeatAnswer,
    NewestAsked,
    NewestTold,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports.pumps import NEVER_MS
from broker.runtime.cluster.errands import AskingNewest, GivingUp, HandingOver
from broker.runtime.cluster.member import ClusterMember, MemberSetting
from simkit.disk.disk import SimDisk

A, B, C = (BrokerId(name) for name in "abc")
ONE = BrokerEpoch(1)
UUID = StreamUuid("00000000-0000-4000-8000-000000000001")
P0, P1 = (PartitionId(UUID, PartitionNumber(number)) for number in range(2))


class Metadata:
    """Metadata whose proposals a test applies when it wants to."""

    def __init__(self, *rows: tuple[BrokerId, ...], min_isr: int = 1) -> None:
        self.state = MetadataState()
        self.wanted: list[Command] = []  # withdrawals
        self.under_way: list[tuple[Command, Callable[[HeadwaterError | None], None]]] = []
        for broker in (A, B, C):
            self.apply(RegisterBroker(broker=broker, features_max=FEATURE_LEVEL_MAX))
        stream = Stream(
            name="s",
            uuid=UUID,
            config=StreamConfig(subject="s", partitions=len(rows), replication_factor=len(rows[0])),
            created_us=1,
            table_name="s",
        )
        self.apply(CreateStream(stream=stream, leader=A, assignment=rows, min_isr=min_isr))

    def apply(self, command: Command) -> None:
        """Apply a command."""
        self.state, _ = apply(self.state, command)

    def propose_soon(
        self,
        command: Command,
        answered: Callable[[HeadwaterError | None], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Keep it for the test."""
        assert timeout_ms > 0
        self.under_way.append((command, answered))

    def lead(self, leader: BrokerId) -> None:
        """Let a broker lead the first partition."""
        first, *others = self.state.partitions[UUID]
        rows = (replace(first, leader=leader), *others)
        self.state = replace(self.state, partitions={UUID: rows})

    def withdraw(self, partition_id: PartitionId) -> None:
        """Propose as a member does."""
        command = WithdrawReplica(
            stream_uuid=UUID, partition=partition_id.number, broker=A, broker_epoch=ONE
        )
        self.wanted.append(command)


class Control:
    """A transport that keeps every sent message."""

    def __init__(self) -> None:
        self.sent: list[tuple[BrokerId, ControlMessage]] = []

    def start(self, deliver: Callable[..., None]) -> None:
        """Nobody sends here."""

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Keep it."""
        self.sent.append((to, message))

    def close(self) -> None:
        """Nothing to close."""


# ---------------------------------------------------------------------- giving up


def _giving_up(
    metadata: Metadata, *damaged: PartitionId
) -> tuple[GivingUp, list[list[PartitionId]]]:
    answers: list[list[PartitionId]] = []
    pump = GivingUp(
        damaged, me=A, metadata=metadata, withdraw=metadata.withdraw, answered=answers.append
    )
    return pump, answers


def test_a_damaged_replica_is_withdrawn_again_until_the_metadata_shows_it() -> None:
    """A proposal may be lost; one replica after the other, and one answer for all."""
    metadata = Metadata((A, B, C), (A, B, C))
    pump, answers = _giving_up(metadata, P0, P1)
    again_ms = pump.turn(0)
    assert pump.turn(again_ms - 1) == again_ms
    assert len(metadata.wanted) == 1, "not at every wake"
    pump.turn(again_ms)
    assert len(metadata.wanted) == 2, "the first proposal was lost"
    metadata.apply(metadata.wanted.pop())
    metadata.wanted.clear()
    pump.turn(again_ms + 1)
    assert [one.partition for one in metadata.wanted if isinstance(one, WithdrawReplica)] == [1]
    metadata.apply(metadata.wanted.pop())
    assert not answers
    assert pump.turn(again_ms + 2) == NEVER_MS
    assert pump.turn(again_ms + 3) == NEVER_MS
    assert answers == [[P0, P1]]


def test_the_last_replica_is_not_given_up() -> None:
    """Its remaining records exist nowhere else."""
    metadata = Metadata((A,))
    pump, answers = _giving_up(metadata, P0)
    assert pump.turn(0) == NEVER_MS
    assert answers == [[]]
    assert metadata.wanted == []


def test_a_replica_of_a_deleted_stream_is_nobody_s_to_give_up() -> None:
    """The stream was deleted meanwhile; the start must go on."""
    metadata = Metadata((A, B, C))
    pump, answers = _giving_up(metadata, P0)
    pump.turn(0)
    metadata.apply(DeleteStream(name="s", expected_uuid=UUID))
    assert pump.turn(1) == NEVER_MS
    assert answers == [[]]


def test_giving_up_ends_when_the_metadata_does_not_answer() -> None:
    """The replica is kept as damaged, and the next start tries again."""
    metadata = Metadata((A, B, C))
    pump, answers = _giving_up(metadata, P0)
    now_ms = 0
    while not answers:
        now_ms = pump.turn(now_ms)
    assert now_ms == NEVER_MS
    assert answers == [[]]
    assert 90 <= len(metadata.wanted) <= 101


def test_without_damage_the_answer_comes_at_once() -> None:
    """Nothing is proposed."""
    pump, answers = _giving_up(Metadata((A, B, C)))
    assert pump.turn(0) == NEVER_MS
    assert answers == [[]]


# ---------------------------------------------------------------------- handing over


def _handing_over(metadata: Metadata, woken: list[int]) -> tuple[HandingOver, list[bool]]:
    answers: list[bool] = []
    pump = HandingOver(
        me=A,
        broker_epoch=ONE,
        metadata=metadata,
        wake=lambda: woken.append(1),
        answered=answers.append,
    )
    return pump, answers


def test_leaderships_are_given_away_before_a_stop() -> None:
    """The broker says that it stops, and waits until nothing is left that others could lead."""
    metadata, woken = Metadata((A, B, C)), list[int]()
    pump, answers = _handing_over(metadata, woken)
    assert pump.turn(0) == NEVER_MS
    command, heard = metadata.under_way.pop()
    assert isinstance(command, StopBroker)
    metadata.apply(command)
    heard(None)
    assert woken == [1]
    later_ms = pump.turn(10)
    assert 10 < later_ms < 100
    assert not answers
    one = metadata.state.partitions[UUID][0]
    metadata.apply(
        NameCandidate(
            stream_uuid=UUID,
            partition=0,
            leader_epoch=one.leader_epoch,
            partition_epoch=one.partition_epoch,
            candidate=B,
            candidate_epoch=ONE,
        )
    )
    assert pump.turn(later_ms) == NEVER_MS
    assert answers == [True]


def test_a_stop_that_nobody_decides_is_not_waited_for() -> None:
    """Without a majority no broker can take over."""
    metadata = Metadata((A, B, C))
    pump, answers = _handing_over(metadata, [])
    pump.turn(0)
    metadata.under_way.pop()[1](CommitTimeoutError("no majority"))
    assert pump.turn(1) == NEVER_MS
    assert pump.turn(2) == NEVER_MS
    assert answers == [False]


def test_leaderships_that_nobody_takes_are_waited_for_so_long() -> None:
    """A stop ends after a bounded time, even if the controllers are too busy to take over."""
    metadata = Metadata((A, B, C))
    pump, answers = _handing_over(metadata, [])
    pump.turn(0)
    command, heard = metadata.under_way.pop()
    metadata.apply(command)
    heard(None)
    now_ms = 1
    while not answers:
        assert now_ms < 20_000
        now_ms = pump.turn(now_ms)
    assert answers == [False]


# ---------------------------------------------------------------------- what is committed


class Asked:
    """An errand that asks leaders, with answers by the test."""

    def __init__(self, *rows: tuple[BrokerId, ...]) -> None:
        self.metadata = Metadata(*(rows or ((A, B, C),)))
        self.questions: list[tuple[BrokerId, Callable[[NewestTold], None]]] = []
        self.dropped = self.woken = 0
        self.answers: list[NewestTold | HeadwaterError] = []
        self.pump = AskingNewest(
            P0,
            "s/0",
            metadata=self.metadata,
            ask=self._ask,
            wake=self._wake,
            answered=self.answers.append,
        )

    def _ask(self, leader: BrokerId, told: Callable[[NewestTold], None]) -> Callable[[], None]:
        self.questions.append((leader, told))
        return self._drop

    def _drop(self) -> None:
        self.dropped += 1

    def _wake(self) -> None:
        self.woken += 1


def _told(high_watermark: int | None, leader_epoch: int = 1) -> NewestTold:
    return NewestTold(
        partition_id=P0,
        request_id=1,
        leader_epoch=LeaderEpoch(leader_epoch),
        log_start=Offset(0),
        high_watermark=None if high_watermark is None else Offset(high_watermark),
    )


def test_a_leader_that_is_mute_or_does_not_know_is_asked_again() -> None:
    """It is asked until a leader reports its end; only an answer to the present question counts."""
    asked = Asked()
    again_ms = asked.pump.turn(0)
    assert [leader for leader, _ in asked.questions] == [A]
    again_ms = asked.pump.turn(again_ms)
    assert asked.dropped == 1, "the leader did not answer"
    asked.pump.turn(again_ms)
    assert len(asked.questions) == 2
    asked.questions[-1][1](_told(None, leader_epoch=0))
    assert asked.woken == 1
    again_ms = asked.pump.turn(again_ms + 1)
    assert not asked.answers
    asked.pump.turn(again_ms)
    asked.questions[-1][1](_told(7))
    assert asked.pump.turn(again_ms + 1) == NEVER_MS
    assert asked.pump.turn(again_ms + 2) == NEVER_MS
    assert asked.answers == [_told(7)]
    assert asked.dropped == 3


def test_a_leader_that_was_refused_its_history_is_an_answer() -> None:
    """Waiting would not help: it leads, but its claim was refused, so its history is unknown."""
    asked = Asked()
    asked.pump.turn(0)
    asked.questions[-1][1](_told(None))
    asked.pump.turn(1)
    assert isinstance(asked.answers[0], ForeignHistoryError)


def test_a_partition_that_nobody_leads_is_told_so_after_a_while() -> None:
    """It waits three seconds first, which is enough for an election."""
    asked = Asked()
    asked.metadata.apply(DeleteStream(name="s", expected_uuid=UUID))
    now_ms, turns = 0, 0
    while not asked.answers:
        now_ms, turns = asked.pump.turn(now_ms), turns + 1
        assert now_ms == NEVER_MS or now_ms <= 3_000
    assert isinstance(asked.answers[0], NotLeaderError)
    assert turns > 50
    assert asked.questions == []


def test_an_answer_about_another_partition_is_none() -> None:
    """It does not count, whatever its question number."""
    asked = Asked()
    asked.pump.turn(0)
    asked.questions[-1][1](replace(_told(7), partition_id=P1))
    asked.pump.turn(1)
    assert not asked.answers


def _member(metadata: Metadata, control: Control) -> ClusterMember:
    return ClusterMember(
        setting=MemberSetting(me=A),
        files=SimDisk(random.Random(1)).files(),
        metadata=cast(Any, metadata),
        control=control,
        replicas=cast(Any, control),
        controller=None,
        clock=SystemClock(),
        on_crash=lambda _: None,
        stop_asked=threading.Event(),
    )


def test_a_leadership_that_the_metadata_has_ended_gets_no_lease() -> None:
    """Its replica may hear of the end later: its view is behind a log that is being opened."""
    metadata, control = Metadata((A, B)), Control()
    member = _member(metadata, control)
    member._beats.take_lease(
        HeartbeatAnswer(broker_epoch=BrokerEpoch(0), sent_ms=100, granted=True), now_ms=101
    )
    row = metadata.state.partition(P0)
    assert row is not None
    links, first = member.make_links(metadata.state.streams["s"], P0), row.leader_epoch
    assert links.lease_until_ms(first) == member.lease_until_ms > 100
    metadata.apply(
        NameCandidate(
            stream_uuid=UUID,
            partition=0,
            leader_epoch=first,
            partition_epoch=row.partition_epoch,
            candidate=B,
            candidate_epoch=metadata.state.brokers[B].epoch,
        )
    )
    assert links.lease_until_ms(first) == 0
    assert links.lease_until_ms(LeaderEpoch(first + 1)) == member.lease_until_ms


def test_no_two_processes_of_a_broker_share_the_number_of_a_question() -> None:
    """A late answer to the former process would report an old end."""
    numbers = []
    for epoch in (1, 2):
        metadata, control = Metadata((B, C)), Control()
        member = _member(metadata, control)
        registering = member.registering(lambda: None, lambda _: None)
        registering.turn(0)
        for _ in range(epoch):
            metadata.apply(RegisterBroker(broker=A, features_max=FEATURE_LEVEL_MAX))
        command, answered = metadata.under_way.pop()
        metadata.apply(command)
        answered(None)
        registering.turn(0)
        metadata.lead(C)
        member.asking_newest(P0, "s/0", lambda: None, lambda _: None).turn(0)
        ((to, message),) = control.sent
        assert to == C
        assert isinstance(message, NewestAsked)
        numbers.append(message.request_id)
    assert len(set(numbers)) == 2
