"""The controller's judgement over many partitions at once; the simulator has the rest."""

from __future__ import annotations

from broker.core.election import AskLogEnd, ElectionCore, ElectionEffect, ElectionTiming, Propose
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    Command,
    ConfirmLeader,
    CreateStream,
    FenceBroker,
    NameCandidate,
    RegisterBroker,
)
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.state import MetadataState
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig

A, B, C = (BrokerId(name) for name in "abc")
UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
COUNT = 200
AT_ONCE = 64


class Office:
    """A controller in office; what it proposes is applied when the test says so."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.core = ElectionCore(ElectionTiming())
        self.now_ms = 0
        for broker in (A, B, C):
            self.do(RegisterBroker(broker=broker, session=broker, features_max=2))
        stream = Stream(
            name="s",
            uuid=UUID,
            config=StreamConfig(subject="s", partitions=COUNT),
            created_us=1,
            table_name="s",
        )
        rows = ((A, B, C),) * COUNT
        self.do(CreateStream(stream=stream, leader=A, assignment=rows, min_isr=2))
        self.core.took_office(0)

    def do(self, command: Command) -> None:
        """Apply one command that has to succeed."""
        self.state, reply = apply(self.state, command)
        assert not isinstance(reply, Rejected), reply.error

    def changed(self) -> list[ElectionEffect]:
        """Show the core the state."""
        return self.core.state_changed(self.state, self.now_ms)

    def answer(self, effects: list[ElectionEffect]) -> list[NameCandidate]:
        """Let every candidate say how far it is; return who is named then."""
        named: list[NameCandidate] = []
        for effect in effects:
            if isinstance(effect, AskLogEnd):
                named += _named(
                    self.core.log_end_told(
                        effect.partition_id,
                        replica=effect.to,
                        last_epoch=LeaderEpoch(1),
                        log_end=Offset(10),
                        now_ms=self.now_ms,
                    )
                )
        return named


def _named(effects: list[ElectionEffect]) -> list[NameCandidate]:
    return [
        one.command
        for one in effects
        if isinstance(one, Propose) and isinstance(one.command, NameCandidate)
    ]


def test_a_dead_broker_s_partitions_are_elected_so_many_at_a_time() -> None:
    """However many wait, each election under way has its timers; the others come after it."""
    office = Office()
    office.do(FenceBroker(broker=A, broker_epoch=office.state.brokers[A].epoch))
    effects = office.changed()
    elected: list[int] = []
    while len(elected) < COUNT:
        asked = {one.partition_id.number for one in effects if isinstance(one, AskLogEnd)}
        assert 0 < len(asked) <= AT_ONCE
        named = office.answer(effects)
        assert {one.partition for one in named} == asked
        for one in named:
            office.do(one)
            office.do(
                ConfirmLeader(
                    stream_uuid=UUID,
                    partition=one.partition,
                    broker=one.candidate,
                    broker_epoch=one.candidate_epoch,
                    leader_epoch=LeaderEpoch(one.leader_epoch + 1),
                )
            )
            elected.append(one.partition)
        effects = office.changed()
    assert sorted(elected) == list(range(COUNT))


def test_reports_wait_while_others_have_no_leader_at_all() -> None:
    """A leader that is there, if slow, is not given up while the elections pile up."""
    office = Office()
    office.changed()

    def reported(number: int) -> list[ElectionEffect]:
        return [
            effect
            for reporter in (B, C)
            for effect in office.core.reported(
                PartitionId(UUID, PartitionNumber(number)),
                reporter=reporter,
                broker_epoch=office.state.brokers[reporter].epoch,
                leader_epoch=LeaderEpoch(1),
                now_ms=office.now_ms,
            )
        ]

    for number in range(AT_ONCE):
        (begun,) = reported(number)
        assert isinstance(begun, Propose)
        office.do(begun.command)
    office.changed()
    assert reported(AT_ONCE) == []
