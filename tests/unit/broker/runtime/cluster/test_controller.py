"""The controller's shell: it grants leases only after a barrier of its own term."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from broker.adapters.clock import SystemClock
from broker.core.election import ElectionTiming
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import Command, RegisterBroker
from broker.core.metadata.state import MetadataState, PartitionState
from broker.errors import HeadwaterError, UnavailableError
from broker.model.control_messages import ControlMessage, Heartbeat, HeartbeatAnswer, LeaderReport
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.runtime.cluster.controller import Controller, ControllerPump

B, C = BrokerId("b"), BrokerId("c")
STREAM = StreamUuid(str(UUID(int=1)))
ONE = BrokerEpoch(1)
_Passed = Callable[[HeadwaterError | None], None]


class Metadata:
    """A metadata log whose office and barriers a test decides on."""

    def __init__(self) -> None:
        self.office: int | None = 1
        self.barriers: queue.SimpleQueue[_Passed] = queue.SimpleQueue()
        self.proposed: queue.SimpleQueue[tuple[str, int | None]] = queue.SimpleQueue()
        self.answers: list[_Passed] = []
        self.answers_at_once = True
        self.state, _ = apply(MetadataState(), RegisterBroker(broker=B, session="s"))

    def barrier_soon(self, passed: _Passed, *, timeout_ms: int) -> None:
        """Begin a barrier that the test ends."""
        self.barriers.put(passed)

    def propose_soon(
        self, command: Command, answered: _Passed, *, timeout_ms: int, office: int | None
    ) -> None:
        """Keep the decisions and their senders; answer at once, or when the test does."""
        assert timeout_ms > 0
        self.answers.append(answered)
        if self.answers_at_once:
            answered(UnavailableError("nothing is decided here"))
        self.proposed.put((type(command).__name__, office))

    def subscribe(self, subscriber: Callable[[int, MetadataState], None]) -> None:
        """Give the only state."""
        subscriber(1, self.state)


class Control:
    """A transport that keeps the answers."""

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[ControlMessage] = queue.SimpleQueue()

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """Nobody sends here."""

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Keep it."""
        assert to == B
        self.sent.put(message)

    def close(self) -> None:
        """Nothing to close."""


class Rig:
    """A controller between the two."""

    def __init__(self, session_ms: int) -> None:
        self.metadata = Metadata()
        self.control = Control()
        self.crashes: list[BaseException] = []
        self.controller = Controller(
            metadata=self.metadata,
            control=self.control,
            clock=SystemClock(),
            timing=ElectionTiming(session_ms=session_ms),
            on_crash=self.crashes.append,
        )
        self.controller.start()

    def beat(self, sent_ms: int) -> None:
        """Let the broker's heartbeat arrive."""
        self.controller.deliver(B, Heartbeat(broker_epoch=ONE, sent_ms=sent_ms))

    def barrier(self) -> _Passed:
        """Return the next barrier that was begun."""
        return self.metadata.barriers.get(timeout=60)

    def answer(self) -> ControlMessage:
        """Return the next answer."""
        return self.control.sent.get(timeout=60)


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Return a running controller whose member leads Raft in term 1."""
    found = Rig(getattr(request, "param", 60_000))
    yield found
    found.controller.stop()
    assert not found.crashes


def _in_office(rig: Rig) -> None:
    rig.barrier()(None)
    rig.beat(1)
    rig.barrier()(None)
    assert rig.answer() == HeartbeatAnswer(broker_epoch=ONE, sent_ms=1, granted=True)


def test_a_lease_waits_for_a_barrier_that_began_after_the_heartbeat(rig: Rig) -> None:
    """Otherwise a controller that was suspended and replaced meanwhile would extend a lease."""
    _in_office(rig)
    rig.beat(7)
    passed = rig.barrier()
    assert rig.control.sent.empty(), "nothing is granted before"
    rig.beat(8)  # came after the barrier began: it waits for the next one
    passed(None)
    assert rig.answer() == HeartbeatAnswer(broker_epoch=ONE, sent_ms=7, granted=True)
    assert rig.control.sent.empty()
    rig.barrier()(None)
    assert rig.answer() == HeartbeatAnswer(broker_epoch=ONE, sent_ms=8, granted=True)


def test_a_barrier_that_fails_grants_nothing(rig: Rig) -> None:
    """Without a majority another controller may be active."""
    _in_office(rig)
    rig.beat(7)
    rig.barrier()(UnavailableError("no majority"))
    rig.beat(8)
    rig.barrier()(None)
    assert rig.answer() == HeartbeatAnswer(broker_epoch=ONE, sent_ms=8, granted=True)


def test_a_barrier_of_another_term_grants_nothing(rig: Rig) -> None:
    """Between two terms of this member another controller may have been active."""
    _in_office(rig)
    rig.beat(7)
    passed = rig.barrier()
    rig.metadata.office = 3
    passed(None)
    rig.barrier()(None)  # takes office anew
    rig.beat(9)
    rig.barrier()(None)
    assert rig.answer() == HeartbeatAnswer(broker_epoch=ONE, sent_ms=9, granted=True)


@pytest.mark.parametrize("rig", [300], indirect=True)
def test_what_a_controller_decides_is_bound_to_its_term(rig: Rig) -> None:
    """If a successor committed its fence, that would end a lease that the successor has granted."""
    rig.barrier()(None)
    assert rig.metadata.proposed.get(timeout=60) == ("FenceBroker", 1)


def test_a_decision_is_not_proposed_again_before_its_proposal_is_answered() -> None:
    """Repeats would queue behind the first one, and make it later still."""
    metadata, control = Metadata(), Control()
    metadata.answers_at_once = False
    pump = ControllerPump(
        metadata=metadata, control=control, timing=ElectionTiming(), wake=lambda: None
    )
    pump.changed(1, metadata.state)
    now_ms = 0
    pump.turn(now_ms)
    metadata.barriers.get_nowait()(None)

    def pass_s(seconds: int) -> int:
        nonlocal now_ms
        before = len(metadata.answers)
        for _ in range(seconds * 20):
            now_ms += 50
            pump.turn(now_ms)
        return len(metadata.answers) - before

    assert pass_s(10) == 1, "the silent broker is fenced by one command"
    metadata.answers[0](UnavailableError("it was lost"))
    assert pass_s(1) == 1


def test_one_turn_takes_all_that_has_come() -> None:
    """A heartbeat must not wait for a turn of each of a thousand reports before it."""
    metadata, control = Metadata(), Control()
    pump = ControllerPump(
        metadata=metadata, control=control, timing=ElectionTiming(), wake=lambda: None
    )
    pump.changed(1, metadata.state)
    pump.turn(0)
    metadata.barriers.get_nowait()(None)
    pump.turn(1)
    for number in range(100):
        partition_id = PartitionId(STREAM, PartitionNumber(number))
        report = LeaderReport(
            partition_id=partition_id, broker_epoch=ONE, leader_epoch=LeaderEpoch(1)
        )
        pump.deliver(B, report)
    pump.deliver(B, Heartbeat(broker_epoch=ONE, sent_ms=7))
    pump.turn(2)
    metadata.barriers.get_nowait()(None)
    pump.turn(3)
    assert control.sent.get_nowait() == HeartbeatAnswer(broker_epoch=ONE, sent_ms=7, granted=True)


def test_a_heartbeat_says_whether_its_broker_knows_that_it_was_replaced() -> None:
    """A broker that has not applied it gets no lease, and the index of a state is its entry's."""
    metadata, control = Metadata(), Control()
    timing = ElectionTiming()
    pump = ControllerPump(metadata=metadata, control=control, timing=timing, wake=lambda: None)
    for index, leader, epoch in ((5, B, 1), (6, C, 3)):
        row = PartitionState(
            leader=leader,
            leader_epoch=LeaderEpoch(epoch),
            cold_end=Offset(0),
            replicas=(B, C),
            isr=(B, C),
        )
        pump.changed(index, replace(metadata.state, partitions={STREAM: (row,)}))
        pump.turn(0)
    metadata.barriers.get_nowait()(None)
    for sent_ms, applied_index in enumerate((5, 6)):
        beat = Heartbeat(broker_epoch=ONE, sent_ms=sent_ms, applied_index=applied_index)
        pump.deliver(B, beat)
        pump.turn(timing.hear_ms())
        metadata.barriers.get_nowait()(None)
        pump.turn(timing.hear_ms())
        answer = control.sent.get_nowait()
        assert answer == HeartbeatAnswer(
            broker_epoch=ONE, sent_ms=sent_ms, granted=applied_index == 6
        )
