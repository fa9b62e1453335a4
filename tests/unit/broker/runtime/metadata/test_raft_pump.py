"""The turns of a Raft member and of its way into the group, driven by hand, without a thread."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from broker.core.metadata.commands import RegisterBroker
from broker.core.raft.config import RaftConfig
from broker.errors import HeadwaterError, LogFailedError, ShuttingDownError
from broker.model.control_messages import ControlMessage, MemberAsked, MemberTold
from broker.model.ids import BrokerId
from broker.model.raft import Floor, NodeId, Standing
from broker.model.raft_messages import Message
from broker.ports.pumps import NEVER_MS, PumpTurn
from broker.runtime.metadata.raft.rejoin import ControlDesk, TakingPart
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.raft.journal import RaftJournal
from simkit.disk.disk import ROOMY, SimDisk

B1 = BrokerId("b1")
REGISTER = RegisterBroker(broker=B1)
ME, B, C = NodeId("a"), NodeId("b"), NodeId("c")


class ByHand:
    """A ``Drive`` whose turns a test takes, and the clock of that test."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.turn: PumpTurn = lambda _: NEVER_MS
        self.wakes = 0
        self.stopped = False

    def __call__(self, name: str, turn: PumpTurn) -> ByHand:
        """See ``Drive``."""
        assert name == "raft"
        self.turn = turn
        return self

    def start(self) -> None:
        """See ``Driven``."""

    def wake(self) -> None:
        """See ``Driven``."""
        self.wakes += 1

    def stop(self, timeout_s: float | None = None) -> None:
        """See ``Driven``."""
        self.stopped = True

    def monotonic_ms(self) -> int:
        """See ``Clock``."""
        return self.now_ms

    def now_us(self) -> int:
        """See ``Clock``."""
        return self.now_ms * 1000

    def settle(self) -> int:
        """Take turns until none is due at once; return when the next one is."""
        while (next_ms := self.turn(self.now_ms)) <= self.now_ms:
            pass
        return next_ms


def _lone(disk: SimDisk, by_hand: ByHand) -> RaftMetadataLog:
    return RaftMetadataLog(
        disk.files(),
        RaftConfig(members=(ME,)),
        cluster="test",
        me=ME,
        clock=by_hand,
        on_crash=mock.Mock(side_effect=AssertionError("nobody hears of a crash by hand")),
        drive=by_hand,
        random=random.Random(1).randint,
    )


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one for each save of a journal."""
    found: list[int] = []
    save = RaftJournal.save

    def counted(self: RaftJournal, **what: Any) -> None:
        save(self, **what)
        found.append(len(what["entries"]))

    monkeypatch.setattr(RaftJournal, "save", counted)
    return found


def test_a_proposal_is_answered_in_the_turn_after_its_save(saves: list[int]) -> None:
    """The turn of the save answers nobody, so an answered command survives a power cut."""
    disk, by_hand = SimDisk(random.Random(1)), ByHand()
    log = _lone(disk, by_hand)
    idle_ms = by_hand.settle()
    assert by_hand.now_ms < idle_ms < by_hand.now_ms + 1_000
    answers: list[HeadwaterError | None] = []
    log.propose_soon(REGISTER, answers.append)
    assert by_hand.wakes == 1
    while not answers:
        state, before = log.state, len(saves)
        assert by_hand.turn(by_hand.now_ms) == by_hand.now_ms or answers
        if len(saves) > before:
            assert log.state is state, "a command was applied in the turn that saves it"
            assert answers == []
    assert answers == [None]
    assert log.state.broker_epochs[B1] == 1
    disk.lose_power()
    again = _lone(disk, by_hand)
    by_hand.settle()
    assert again.state.broker_epochs[B1] == 1


def test_what_waits_in_the_mailbox_shares_a_save(saves: list[int]) -> None:
    """Many proposals cost one sync, or two."""
    by_hand = ByHand()
    log = _lone(SimDisk(random.Random(1)), by_hand)
    by_hand.settle()  # it leads
    answers: list[HeadwaterError | None] = []
    log.propose_soon(REGISTER, answers.append)
    by_hand.settle()  # the session is open
    before = len(saves)
    for _ in range(32):
        log.propose_soon(REGISTER, answers.append)
    by_hand.settle()
    assert answers == [None] * 33
    assert len(saves) - before <= 2


def test_a_turn_that_raises_is_the_last_and_the_log_refuses() -> None:
    """The driver and the callers get the error; waiting callers get it at the end."""
    disk, by_hand = SimDisk(random.Random(1)), ByHand()
    log = _lone(disk, by_hand)
    by_hand.settle()
    answers: list[HeadwaterError | None] = []
    log.propose_soon(REGISTER, answers.append)
    disk.datasync_failures = 1
    with pytest.raises(LogFailedError):
        by_hand.settle()
    assert isinstance(log.failure, LogFailedError)
    with pytest.raises(LogFailedError):
        log.propose(REGISTER)
    log.barrier_soon(answers.append)
    assert len(answers) == 1
    log.close()
    assert len(answers) == 2
    assert all(isinstance(one, LogFailedError) for one in answers)


def test_a_closed_log_answers_whoever_waits_in_its_mailbox() -> None:
    """No further turn will take these."""
    by_hand = ByHand()
    log = _lone(SimDisk(random.Random(1)), by_hand)
    answers: list[HeadwaterError | None] = []
    log.propose_soon(REGISTER, answers.append)
    log.barrier_soon(answers.append)
    log.close()
    assert by_hand.stopped
    assert [type(one) for one in answers] == [ShuttingDownError] * 2
    log.propose_soon(REGISTER, answers.append)
    assert len(answers) == 3
    log.close()


# ---------------------------------------------------------------------- a group


class Joined:
    """Implements ``RaftTransport``: gives each message to the other member at once."""

    def __init__(self, me: NodeId, all_of_them: dict[NodeId, Joined]) -> None:
        self._me, self._all = me, all_of_them
        self.deliver: Callable[[NodeId, Message], None] = lambda *_: None
        all_of_them[me] = self

    def start(self, deliver: Callable[[NodeId, Message], None]) -> None:
        """See ``RaftTransport``."""
        self.deliver = deliver

    def send(self, target: NodeId, message: Message) -> None:
        """See ``RaftTransport``."""
        if target in self._all:
            self._all[target].deliver(self._me, message)

    def close(self) -> None:
        """See ``RaftTransport``."""


class Group:
    """Three members on disks of their own, whose turns a test takes."""

    def __init__(self) -> None:
        joined: dict[NodeId, Joined] = {}
        self.disks = {one: SimDisk(random.Random(1)) for one in (ME, B, C)}
        self.hands = {one: ByHand() for one in self.disks}
        self.logs = {
            one: RaftMetadataLog(
                disk.files(), RaftConfig(members=(ME, B, C)), cluster="test", me=one,
                clock=self.hands[one], transport=Joined(one, joined), drive=self.hands[one],
                on_crash=mock.Mock(side_effect=AssertionError("crashed")),
                random=random.Random(one).randint,
            )
            for one, disk in self.disks.items()
        }  # fmt: skip

    def run_until(self, reached: Callable[[], object]) -> None:
        """Let time pass until something is so."""
        for _ in range(100_000):
            if reached():
                return
            for hand in self.hands.values():
                hand.turn(hand.now_ms)
                hand.now_ms += 5
        raise AssertionError("never reached")

    def leader(self) -> NodeId | None:
        """Return the member that leads, once all agree on it."""
        (first, *others) = {log.leader for log in self.logs.values()}
        leads = first is not None and self.logs[first].office is not None
        return first if leads and not others else None


def test_a_proposal_that_other_members_have_is_not_refused_for_want_of_room() -> None:
    """A refusal says that nothing was changed. The leader's disk had room for the check alone."""
    group = Group()
    group.run_until(group.leader)
    leader = group.leader()
    assert leader is not None
    log, disk, answers = group.logs[leader], group.disks[leader], list[HeadwaterError | None]()
    log.propose_soon(REGISTER, answers.append)
    group.run_until(lambda: answers)
    disk.capacity_bytes, disk.copies_on_write = 0, True
    log.propose_soon(REGISTER, answers.append)
    others = [one for name, one in group.logs.items() if name != leader]
    group.run_until(lambda: all(one.state.broker_epochs.get(B1) == 2 for one in others))
    assert disk.seen["write did not fit"]
    group.run_until(lambda: group.leader() not in (leader, None))
    assert answers == [None], "the outcome is not known here yet"
    disk.capacity_bytes = ROOMY
    group.run_until(lambda: len(answers) > 1)
    assert answers == [None, None]
    assert log.state.broker_epochs[B1] == 2


# ---------------------------------------------------------------------- the way in


class Wire:
    """Implements ``ControlTransport``: keeps the sent messages; a test gives the received ones."""

    def __init__(self) -> None:
        self.sent: list[tuple[BrokerId, ControlMessage]] = []
        self.deliver: Callable[[BrokerId, ControlMessage], None] = lambda *_: None

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """Hear."""
        self.deliver = deliver

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Keep it."""
        self.sent.append((to, message))

    def close(self) -> None:
        """Nothing to close."""

    def tell(self, name: NodeId, standing: Standing) -> None:
        """Answer the newest question to a member, if there is one."""
        asked = [
            one for to, one in self.sent if NodeId(to) == name and isinstance(one, MemberAsked)
        ]
        told = MemberTold(request_id=asked[-1].request_id, life=1, standing=standing)
        self.deliver(BrokerId(name), told)


def test_a_wiped_member_asks_in_turns_until_all_have_answered_twice() -> None:
    """A turn returns the time of the next question; an answer wakes it; its result is a journal."""
    wire, found, wakes = Wire(), list[RaftJournal](), list[int]()
    pump = TakingPart(
        SimDisk(random.Random(1)).files(),
        RaftConfig(members=(ME, B, C)),
        ControlDesk(wire, random=random.Random(1).randint),
        cluster="test",
        me=ME,
        stop_asked=lambda: False,
        wake=lambda: wakes.append(1),
        answered=found.append,
        random=random.Random(1).randint,
    )
    assert pump.turn(0) == 30
    assert [NodeId(to) for to, _ in wire.sent] == [B, C]
    assert pump.turn(10) == 30
    assert len(wire.sent) == 2, "asked again too early"
    pump.turn(30)
    assert len(wire.sent) == 4
    for at_ms in (40, 50):
        for one in (B, C):
            wire.tell(one, Standing(term=7, last=Floor(6, 40)))
        pump.turn(at_ms)
    assert len(wakes) == 4
    assert [one.stored.floor for one in found] == [Floor(6, 40)]
    assert pump.turn(60) == NEVER_MS


def test_the_way_in_ends_when_the_process_is_to_stop() -> None:
    """Nobody answers; the next turn after the stop raises."""
    stop: list[bool] = []
    pump = TakingPart(
        SimDisk(random.Random(1)).files(),
        RaftConfig(members=(ME, B, C)),
        ControlDesk(Wire()),
        cluster="test",
        me=ME,
        stop_asked=lambda: bool(stop),
        wake=lambda: None,
        answered=lambda _: None,
    )
    pump.turn(0)
    stop.append(True)
    with pytest.raises(ShuttingDownError):
        pump.turn(1)
