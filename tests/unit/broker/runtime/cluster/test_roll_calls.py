"""Roll calls between two brokers: what is sent, what is believed, who is woken."""

from __future__ import annotations

from broker.core.replication.standing import StandingFetch
from broker.model.control_messages import ControlMessage, RollAnswer, RollCall
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.runtime.cluster.roll_calls import RollCalls
from simkit.brokers.memory_broker import FakeClock

LEADER, FOLLOWER = BrokerId("leader"), BrokerId("follower")
P = PartitionId(StreamUuid("00000000-0000-4000-8000-000000000001"), PartitionNumber(0))


class Replica:
    """A replica that does nothing."""

    waiting_turn: int | None = None
    woken = 0

    def wake(self) -> None:
        """Count."""
        self.woken += 1


class Side:
    """One broker, and what it has sent."""

    def __init__(self, clock: FakeClock, *, peer: BrokerId, is_own: bool) -> None:
        self.sent: list[tuple[BrokerId, ControlMessage]] = []
        self.replica = Replica()
        self.fetch = StandingFetch(
            peer=peer,
            is_own=is_own,
            leader_epoch=LeaderEpoch(3),
            request_id=7,
            known_ms=clock.monotonic_ms(),
        )
        self.rolls = RollCalls(
            control=self,
            clock=clock,
            broker_epoch=lambda: BrokerEpoch(2),
            call_ms=100,
            own_kept_ms=175,
            kept_ms=250,
        )
        self.rolls.keep(P, self.replica, (self.fetch,))

    def start(self, deliver: object) -> None:
        """See ``ControlTransport``."""

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Keep it."""
        self.sent.append((to, message))

    def close(self) -> None:
        """See ``ControlTransport``."""


class Pair:
    """A follower's broker and a leader's, with a fetch that stands between them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.clock.advance(us=1_000_000)
        self.follower = Side(self.clock, peer=LEADER, is_own=True)
        self.leader = Side(self.clock, peer=FOLLOWER, is_own=False)

    @property
    def now_ms(self) -> int:
        """The time of both."""
        return self.clock.monotonic_ms()

    def call(self) -> RollCall:
        """Let the follower's broker call; return what it sent."""
        assert self.follower.rolls.turn(self.now_ms) == self.now_ms + 100
        to, call = self.follower.sent.pop()
        assert to == LEADER
        assert isinstance(call, RollCall)
        return call

    def answer(self, call: RollCall) -> RollAnswer:
        """Let the leader's broker answer; return what it sent."""
        self.leader.rolls.called(FOLLOWER, call)
        to, answer = self.leader.sent.pop()
        assert to == FOLLOWER
        assert isinstance(answer, RollAnswer)
        return answer


def test_one_message_and_its_answer_confirm_what_stands_on_both_sides() -> None:
    """The leader's broker confirms when the call comes, the follower's when the answer comes."""
    pair = Pair()
    began_ms = pair.now_ms
    pair.clock.advance(us=50_000)
    answer = pair.answer(pair.call())
    assert all(answer.equal)
    assert pair.leader.fetch.known_ms == pair.now_ms
    assert pair.follower.fetch.known_ms == began_ms
    pair.follower.rolls.answered(LEADER, answer)
    assert pair.follower.fetch.known_ms == pair.now_ms
    assert pair.leader.rolls.turn(pair.now_ms)
    assert pair.leader.sent == [], "a leader's broker calls no roll of its followers' fetches"


def test_late_messages_and_second_copies_prove_nothing() -> None:
    """A broker that is dead by now may have sent them."""
    pair = Pair()
    began_ms = pair.now_ms
    first = pair.call()
    second = pair.call()
    answer = pair.answer(second)
    pair.clock.advance(us=50_000)
    for late in (first, second):
        pair.leader.rolls.called(FOLLOWER, late)
        assert pair.leader.sent == []
    assert pair.leader.fetch.known_ms == pair.now_ms - 50
    pair.call()
    pair.follower.rolls.answered(LEADER, answer)
    assert pair.follower.fetch.known_ms == began_ms


def test_a_replica_whose_fetch_is_not_confirmed_is_woken_until_it_acts() -> None:
    """On either side, after that side's own patience."""
    pair = Pair()
    pair.follower.rolls.answered(LEADER, pair.answer(pair.call()))
    for _ in range(4):
        pair.clock.advance(us=100_000)
        for side in (pair.follower, pair.leader):
            side.rolls.turn(pair.now_ms)
    assert (pair.follower.replica.woken, pair.leader.replica.woken) == (3, 2)
    pair.follower.sent.clear()
    for side in (pair.follower, pair.leader):
        side.rolls.keep(P, side.replica, ())
        side.rolls.turn(pair.now_ms + 1_000)
        assert side.sent == [], "without standing fetches no roll is called"
    assert (pair.follower.replica.woken, pair.leader.replica.woken) == (3, 2)


def test_a_fetch_that_the_leader_s_broker_does_not_have_is_not_confirmed() -> None:
    """Records may have ended it, and the answer may be lost."""
    pair = Pair()
    call = pair.call()
    pair.leader.rolls.keep(P, pair.leader.replica, ())
    pair.clock.advance(us=50_000)
    answer = pair.answer(call)
    assert answer.equal.count(False) == 1
    pair.follower.rolls.answered(LEADER, answer)
    assert pair.follower.fetch.known_ms == pair.now_ms - 50
