"""The pumps of a member: registration, heartbeats with reports, and following the metadata."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.core.election import ElectionTiming
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import Command, CreateStream, RegisterBroker
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState
from broker.errors import (
    CommitTimeoutError,
    DiskFullError,
    HeadwaterError,
    NotLeaderError,
    ShuttingDownError,
    UnavailableError,
)
from broker.model.control_messages import ControlMessage, Heartbeat, HeartbeatAnswer, LeaderReport
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.ports.pumps import NEVER_MS
from broker.runtime.cluster.beats import MemberBeats
from broker.runtime.cluster.registration import Registration
from broker.runtime.ingest.sessions import note_clean_stop
from broker.runtime.metadata.follower import MetadataFollower
from simkit.disk.disk import SimDisk

A, B = BrokerId("a"), BrokerId("b")
ONE = BrokerEpoch(1)
UUID = StreamUuid("00000000-0000-4000-8000-000000000001")
PARTITION = PartitionId(UUID, PartitionNumber(0))
_Answered = Callable[[HeadwaterError | None], None]


class Metadata:
    """A metadata log whose proposals a test answers."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.applied_index = 0
        self.leader: str | None = "c"
        self.under_way: list[tuple[Command, _Answered]] = []

    def propose_soon(self, command: Command, answered: _Answered, *, timeout_ms: int) -> None:
        """Keep it for the test."""
        assert timeout_ms > 0
        self.under_way.append((command, answered))

    def apply(self, command: Command) -> None:
        """Apply a command."""
        self.state, _ = apply(self.state, command)
        self.applied_index += 1

    def answer(self, error: HeadwaterError | None = None, *, applied: bool = True) -> None:
        """Apply the oldest proposal, or not, and answer it."""
        command, answered = self.under_way.pop(0)
        if applied:
            self.apply(command)
        answered(error)


class Control:
    """A transport that keeps the messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[BrokerId, ControlMessage]] = []

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """Nobody sends here."""

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Keep it."""
        self.sent.append((to, message))

    def close(self) -> None:
        """Nothing to close."""


def _registered(broker: BrokerId) -> RegisterBroker:
    return RegisterBroker(broker=broker, session="other", features_max=FEATURE_LEVEL_MAX)


# ---------------------------------------------------------------------- registration


def _registration(
    disk: SimDisk,
    metadata: Metadata,
    woken: list[int],
    *,
    stop: list[bool] | None = None,
    told: list[tuple[str, BrokerEpoch]] | None = None,
) -> Registration:
    return Registration(
        me=A,
        addresses={},
        files=disk.files(),
        metadata=metadata,
        stop_asked=lambda: bool(stop),
        wake=lambda: woken.append(1),
        answered=lambda *answer: None if told is None else told.append(answer),
    )


def test_a_registration_is_proposed_again_until_it_is_taken() -> None:
    """The repeated proposal has the same session, so a lost answer makes no second registration."""
    disk, metadata, woken = SimDisk(random.Random(1)), Metadata(), list[int]()
    told: list[tuple[str, BrokerEpoch]] = []
    registration = _registration(disk, metadata, woken, told=told)
    assert registration.turn(0) == NEVER_MS
    assert registration.is_proposed
    metadata.answer(CommitTimeoutError("the answer was lost"))
    assert woken == [1]
    again_ms = registration.turn(10)
    assert 10 < again_ms < NEVER_MS
    assert registration.turn(again_ms - 1) == again_ms
    registration.turn(again_ms)
    metadata.answer()
    registration.turn(again_ms)
    registration.turn(again_ms + 1)
    assert registration.broker_epoch == ONE
    assert told == [(registration.session, ONE)], "it is answered once"
    assert metadata.state.brokers[A].session == registration.session


def test_a_refused_registration_says_why() -> None:
    """It is not proposed again, because that would not help."""
    metadata = Metadata()
    registration = _registration(SimDisk(random.Random(1)), metadata, [])
    registration.turn(0)
    metadata.answer(NotLeaderError("no", broker=A), applied=False)
    with pytest.raises(NotLeaderError, match="no"):
        registration.turn(1)


def test_a_process_that_was_replaced_meanwhile_is_not_registered() -> None:
    """The newer process owns the newer broker epoch, under which this one must not act."""
    metadata = Metadata()
    registration = _registration(SimDisk(random.Random(1)), metadata, [])
    registration.turn(0)
    command, answered = metadata.under_way.pop()
    metadata.apply(command)
    metadata.state, _ = apply(metadata.state, _registered(A))
    answered(None)
    with pytest.raises(NotLeaderError, match="another process"):
        registration.turn(1)


def test_a_start_that_is_given_up_leaves_the_note_of_a_clean_stop() -> None:
    """No log was opened, so the logs are unchanged since the clean stop."""
    disk, metadata = SimDisk(random.Random(1)), Metadata()
    first = _registration(disk, metadata, [])
    note_clean_stop(disk.files(), first.session)
    stop = list[bool]()
    second = _registration(disk, metadata, [], stop=stop)
    second.turn(0)
    stop.append(True)
    second.turn(1)  # the proposal may still be applied
    metadata.answer(UnavailableError("no majority"), applied=False)
    with pytest.raises(ShuttingDownError):
        second.turn(2)
    third = _registration(disk, metadata, [])
    third.turn(0)
    proposed = metadata.under_way.pop()[0]
    assert isinstance(proposed, RegisterBroker)
    assert proposed.clean


# ---------------------------------------------------------------------- heartbeats


def _beats(
    metadata: Metadata,
    control: Control,
    misses_leader: Callable[[PartitionId, LeaderEpoch], bool] = lambda _, __: True,
) -> MemberBeats:
    return MemberBeats(
        metadata=metadata,
        control=control,
        timing=ElectionTiming(session_ms=600),
        broker_epoch=lambda: ONE,
        misses_leader=misses_leader,
    )


def test_a_heartbeat_leaves_a_few_times_a_session() -> None:
    """A heartbeat carries its sending time, from which the lease counts."""
    control = Control()
    beats = _beats(Metadata(), control)
    assert beats.turn(1000) == 1100
    assert control.sent == [(B_C, Heartbeat(broker_epoch=ONE, sent_ms=1000, applied_index=0))]
    beats.take_lease(HeartbeatAnswer(broker_epoch=ONE, sent_ms=1000, granted=True), 1050)
    until_ms = beats.lease_until_ms
    assert until_ms == 1000 + ElectionTiming(session_ms=600).lease_ms()
    beats.take_lease(HeartbeatAnswer(broker_epoch=ONE, sent_ms=900, granted=True), 1050)
    beats.take_lease(HeartbeatAnswer(broker_epoch=BrokerEpoch(7), sent_ms=5000, granted=True), 1050)
    beats.take_lease(HeartbeatAnswer(broker_epoch=ONE, sent_ms=5000, granted=False), 1050)
    assert beats.lease_until_ms == until_ms, "no older, foreign or refused beat changes it"


B_C = BrokerId("c")


def _with_a_leader() -> tuple[Metadata, LeaderEpoch]:
    """Return metadata in which B leads the partition, and the leader epoch."""
    metadata = Metadata()
    metadata.state, _ = apply(metadata.state, _registered(B))
    stream = Stream(
        name="s", uuid=UUID, config=StreamConfig(subject="s"), created_us=1, table_name="s"
    )
    metadata.state, _ = apply(
        metadata.state, CreateStream(stream=stream, leader=B, assignment=((B,),), min_isr=1)
    )
    return metadata, metadata.state.partitions[UUID][0].leader_epoch


def _reports(control: Control) -> int:
    return sum(isinstance(one, LeaderReport) for _, one in control.sent)


def test_a_report_is_repeated_until_the_metadata_has_moved_on() -> None:
    """The active controller of the first try may be the broker that is gone."""
    (metadata, epoch), control = _with_a_leader(), Control()
    beats = _beats(metadata, control)
    beats.report(PARTITION, epoch)
    beats.turn(0)
    beats.turn(100)
    assert _reports(control) == 3
    beats.report(PARTITION, LeaderEpoch(epoch + 1))
    control.sent.clear()
    beats.turn(200)
    beats.turn(300)
    assert _reports(control) == 0


def test_a_report_ends_when_its_leader_is_heard_again() -> None:
    """Else a short silence counts, at any later time, together with another replica's report."""
    (metadata, epoch), control = _with_a_leader(), Control()
    missed = {(PARTITION, epoch)}
    beats = _beats(metadata, control, lambda *leader: leader in missed)
    beats.report(PARTITION, epoch)
    beats.turn(0)
    assert _reports(control) == 2
    missed.clear()
    beats.turn(100)
    missed.add((PARTITION, epoch))  # a new silence begins with a new report
    beats.turn(200)
    assert _reports(control) == 2
    beats.report(PARTITION, epoch)
    beats.turn(300)
    assert _reports(control) == 4


# ---------------------------------------------------------------------- following


class Followed:
    """A follower with a reconcile that the test controls."""

    def __init__(self) -> None:
        self.errors: list[HeadwaterError | None] = []
        self.calls = self.woken = 0
        self.follower = MetadataFollower(self._reconcile, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def _reconcile(self) -> None:
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


def test_many_changes_are_one_reconcile() -> None:
    """Without a change there is no reconcile."""
    one = Followed()
    assert one.follower.turn(0) == NEVER_MS
    one.follower.changed()
    one.follower.changed()
    assert one.woken == 2
    assert one.follower.turn(1) == NEVER_MS
    assert one.follower.turn(2) == NEVER_MS
    assert one.calls == 1


def test_a_full_disk_is_asked_again_a_second_later() -> None:
    """It is not tried at once, whatever else changes, because the disk is probably still full."""
    one = Followed()
    one.errors = [DiskFullError("no room")]
    one.follower.changed()
    again_ms = one.follower.turn(0)
    assert again_ms == 1000
    one.follower.changed()
    assert one.follower.turn(500) == again_ms
    assert one.calls == 1
    assert one.follower.turn(again_ms) == NEVER_MS
    assert one.calls == 2


def test_what_is_refused_for_good_ends_the_pump() -> None:
    """The refusal is that another process owns this folder's history."""
    one = Followed()
    one.errors = [NotLeaderError("another process has registered", broker=A)]
    one.follower.changed()
    with pytest.raises(NotLeaderError):
        one.follower.turn(0)


def test_metadata_that_does_not_answer_is_asked_again() -> None:
    """Marks of opened logs need a majority; without one a broker must wait, not end."""
    one = Followed()
    one.errors = [UnavailableError("no majority")]
    one.follower.changed()
    again_ms = one.follower.turn(0)
    assert 0 < again_ms <= 1000
    one.follower.turn(again_ms)
    assert one.calls == 2
