"""The controller's decisions about many partitions at once; the simulator tests the rest."""

from __future__ import annotations

from broker.core.election import ElectionCore, ElectionTiming
from broker.core.election_events import (
    AskLogEnd,
    ElectionEffect,
    HeartbeatCame,
    LeaderReported,
    LogEndAnswered,
    MetadataChanged,
    OfficeTaken,
    ProposeCommand,
)
from broker.core.events import TickElapsed
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    Command,
    ConfirmLeader,
    CreateStream,
    FenceBroker,
    LogAnswer,
    NameCandidate,
    RegisterBroker,
    TakeOffline,
    UnfenceBroker,
)
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.state import MetadataState
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig

A, B, C = (BrokerId(name) for name in "abc")
UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
COUNT = 200
AT_ONCE = 64


class Office:
    """An active controller; its proposals are applied when the test says so."""

    PARTITIONS = COUNT

    def __init__(self) -> None:
        self.state = MetadataState()
        self.core = ElectionCore(ElectionTiming())
        self.now_ms = 0
        for broker in (A, B, C):
            self.do(RegisterBroker(broker=broker, session=broker, features_max=2))
        stream = Stream(
            name="s",
            uuid=UUID,
            config=StreamConfig(subject="s", partitions=self.PARTITIONS),
            created_us=1,
            table_name="s",
        )
        rows = ((A, B, C),) * self.PARTITIONS
        self.do(CreateStream(stream=stream, leader=A, assignment=rows, min_isr=2))
        self.core.step(OfficeTaken(0))

    def do(self, command: Command) -> None:
        """Apply one command that has to succeed."""
        self.state, reply = apply(self.state, command)
        assert not isinstance(reply, Rejected), reply.error

    def changed(self) -> list[ElectionEffect]:
        """Show the core the state."""
        return self.core.step(MetadataChanged(self.state, 1, self.now_ms))

    def answer(self, effects: list[ElectionEffect]) -> list[NameCandidate]:
        """Let every candidate report its log end; return the brokers named then."""
        named: list[NameCandidate] = []
        for effect in effects:
            if isinstance(effect, AskLogEnd):
                named += _named(
                    self.core.step(
                        LogEndAnswered(
                            partition_id=effect.partition_id,
                            answer=LogAnswer(
                                broker=effect.to,
                                broker_epoch=self.state.brokers[effect.to].epoch,
                                last_epoch=LeaderEpoch(1),
                                log_end=Offset(10),
                            ),
                            leader_epoch=effect.leader_epoch,
                            now_ms=self.now_ms,
                        )
                    )
                )
        return named


def _named(effects: list[ElectionEffect]) -> list[NameCandidate]:
    return [
        one.command
        for one in effects
        if isinstance(one, ProposeCommand) and isinstance(one.command, NameCandidate)
    ]


def test_a_dead_broker_s_partitions_are_elected_so_many_at_a_time() -> None:
    """Every running election has its timers; further partitions wait until one has ended."""
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
            for effect in office.core.step(
                LeaderReported(
                    partition_id=PartitionId(UUID, PartitionNumber(number)),
                    reporter=reporter,
                    broker_epoch=office.state.brokers[reporter].epoch,
                    leader_epoch=LeaderEpoch(1),
                    now_ms=office.now_ms,
                )
            )
        ]

    for number in range(AT_ONCE):
        (begun,) = reported(number)
        assert isinstance(begun, ProposeCommand)
        office.do(begun.command)
    office.changed()
    assert reported(AT_ONCE) == []


P = PartitionId(UUID, PartitionNumber(0))


class Room(Office):
    """One partition, with brokers whose answers a test gives."""

    PARTITIONS = 1

    def told(
        self, broker: BrokerId, end: int, *, known: int | None = None, former: int = 0
    ) -> list[NameCandidate]:
        """Let a process answer that knows the present epoch, or the epoch ``known``."""
        registered = self.state.brokers[broker].epoch
        answer = LogAnswer(
            broker=broker,
            broker_epoch=BrokerEpoch(registered - former),
            last_epoch=LeaderEpoch(1),
            log_end=Offset(end),
        )
        present = self.state.partitions[UUID][0].leader_epoch
        epoch = present if known is None else LeaderEpoch(known)
        return _named(
            self.core.step(
                LogEndAnswered(
                    partition_id=P, answer=answer, leader_epoch=epoch, now_ms=self.now_ms
                )
            )
        )

    def restart(self, broker: BrokerId) -> list[ElectionEffect]:
        """Register a broker's next process, and show it to the core."""
        before = self.state.brokers[broker]
        number = before.epoch + 1
        self.do(
            RegisterBroker(
                broker=broker,
                session=f"{broker}{number}",
                known_sessions=(before.session,),
                features_max=2,
            )
        )
        return self.changed()

    def later(self, more_ms: int) -> list[ElectionEffect]:
        """Let time pass; all brokers send heartbeats."""
        self.now_ms += more_ms
        for broker, registered in self.state.brokers.items():
            self.core.step(HeartbeatCame(broker, registered.epoch, 1, self.now_ms))
        return self.core.step(TickElapsed(self.now_ms))


def _asked(effects: list[ElectionEffect]) -> list[BrokerId]:
    return sorted(one.to for one in effects if isinstance(one, AskLogEnd))


def test_a_leader_that_restarted_is_compared_with_all_and_named_if_it_is_longest() -> None:
    """All candidates are asked, and it is preferred if it lacks no record."""
    room = Room()
    assert _asked(room.restart(A)) == [A, B, C]
    assert room.told(A, 10) == []
    assert room.told(B, 10) == []
    (named,) = room.told(C, 10)
    assert (named.candidate, len(named.answers)) == (A, 3)
    room.do(named)


def test_a_leader_that_forgot_is_not_waited_for_longer_than_the_others_take() -> None:
    """A proved member is named without the answers of others."""
    room = Room()
    room.restart(A)
    room.told(A, 5)
    room.told(B, 10)
    (named,) = room.told(C, 9)
    assert (named.candidate, named.answers) == (B, ())


def test_answers_of_who_still_follows_or_has_ended_compare_nobody() -> None:
    """The former leader may commit with a follower; an ended process's disk may have changed."""
    room = Room()
    for broker in (A, B, C):
        room.restart(broker)
    first = room.state.partitions[UUID][0].leader_epoch
    assert room.told(A, 10) == []
    assert room.told(B, 10, known=first - 1) == []
    assert room.told(C, 10, former=1) == []
    assert _named(room.later(100)) == []
    (named,) = room.told(B, 10)
    room.do(named)
    assert {one.broker for one in named.answers} == {A, B}


def test_a_partition_without_enough_answers_goes_offline_and_comes_back_with_them() -> None:
    """No uncompared log leads it, and it costs no command while it waits."""
    room = Room()
    room.restart(A)
    for broker in (B, C):
        room.do(FenceBroker(broker=broker, broker_epoch=room.state.brokers[broker].epoch))
    room.changed()
    assert room.told(A, 10) == []
    (offline,) = _about_the_partition(_ticks(room, 12))
    assert isinstance(offline, TakeOffline)
    room.do(offline)
    room.changed()
    assert _about_the_partition(_ticks(room, 50)) == []
    room.restart(B)
    assert B in _asked(_ticks(room, 1))
    begun = room.core.step(
        LogEndAnswered(
            partition_id=P,
            answer=LogAnswer(
                broker=B,
                broker_epoch=room.state.brokers[B].epoch,
                last_epoch=LeaderEpoch(1),
                log_end=Offset(7),
            ),
            leader_epoch=room.state.partitions[UUID][0].leader_epoch,
            now_ms=room.now_ms,
        )
    )
    (start,) = [one.command for one in begun if isinstance(one, ProposeCommand)]
    room.do(start)
    (named,) = _named(room.changed())
    room.do(named)
    assert named.candidate == A


def _about_the_partition(effects: list[ElectionEffect]) -> list[Command]:
    commands = [one.command for one in effects if isinstance(one, ProposeCommand)]
    return [one for one in commands if not isinstance(one, FenceBroker | UnfenceBroker)]


def _ticks(room: Room, count: int) -> list[ElectionEffect]:
    """Let time pass in the controller's steps; only A sends heartbeats."""
    effects: list[ElectionEffect] = []
    for _ in range(count):
        room.now_ms += 50
        for broker, registered in room.state.brokers.items():
            if not registered.fenced:
                room.core.step(HeartbeatCame(broker, registered.epoch, 1, room.now_ms))
        effects += room.core.step(TickElapsed(room.now_ms))
    return effects
