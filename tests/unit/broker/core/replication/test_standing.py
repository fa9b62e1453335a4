"""Fetches that stand: when one may, what ends it, and what a roll call confirms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.core.events import TickElapsed
from broker.core.replication.effects import LogFacts, ProposeIsr, ReportLeader, SendRecords
from broker.core.replication.events import (
    LogAppended,
    LogSynced,
    MessageCame,
    RequestCame,
    ViewChanged,
)
from broker.core.replication.follower import FollowerTiming, PartitionFollower
from broker.core.replication.isr import LagLimits
from broker.core.replication.leader import PartitionLeader
from broker.core.replication.standing import Roll, StandingFetch
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, EpochStart, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchAnswer, FetchRequest, NewDataNotice
from simkit.brokers.driver_rig import view_of_three

A, B, C = (BrokerId(name) for name in "abc")
ONE = BrokerEpoch(1)
EPOCH = LeaderEpoch(3)
STAND_MS = 300_000
KEPT_MS = 250  # of the leader below
TIMING = FollowerTiming(
    request_ms=100, idle_ms=100, leader_ms=400, stand_ms=STAND_MS, call_ms=100
)  # keeps an own fetch for 175 ms
P = PartitionId(StreamUuid("00000000-0000-4000-8000-000000000001"), PartitionNumber(0))


# ---------------------------------------------------------------------------- the follower


class Scene:
    """A follower with ten records, and what it has sent."""

    def __init__(self, *, committed: int = 10) -> None:
        history = EpochHistory((EpochStart(LeaderEpoch(1), Offset(0)),))
        end = Offset(10)
        facts = LogFacts(log_start=Offset(0), log_end=end, synced_end=end, epochs=history)
        self.follower = PartitionFollower(
            me=B,
            broker_epoch=ONE,
            leader=A,
            leader_epoch=EPOCH,
            facts=lambda: facts,
            high_watermark=Offset(0),
            now_ms=0,
            timing=TIMING,
        )
        self.sent: list[Any] = list(self.follower._fetch(0))  # as if aligned
        self.answer(1, committed)

    def answer(self, now_ms: int, committed: int = 10) -> None:
        """Answer its last request: nothing new."""
        answer = FetchAnswer(
            leader_epoch=EPOCH,
            request_id=self.request.request_id,
            start=Offset(10),
            high_watermark=Offset(committed),
            log_end=Offset(10),
        )
        self.sent += self.follower.step(MessageCame(answer, now_ms))

    def tick(self, now_ms: int) -> list[Any]:
        """Let time pass; return what the follower asks for."""
        effects = list(self.follower.step(TickElapsed(now_ms)))
        self.sent += effects
        return effects

    @property
    def request(self) -> FetchRequest:
        """Its last request."""
        found: FetchRequest = [one.message for one in self.sent if hasattr(one, "message")][-1]
        return found


def test_a_fetch_stands_once_there_is_nothing_to_fetch_and_nothing_to_be_told() -> None:
    """The follower is idle first, as without roll calls; then it sends one fetch, and no more."""
    scene = Scene()
    assert scene.tick(99) == []
    assert len(scene.tick(101)) == 1
    assert scene.request.wait_ms == STAND_MS
    assert scene.request.stands
    standing = scene.follower.standing
    assert standing is not None
    assert (standing.peer, standing.is_own, standing.request_id) == (A, True, 2)
    for now_ms in range(200, 10_000, 100):
        standing.known_ms = now_ms
        assert scene.tick(now_ms) == []


def test_a_follower_that_has_not_heard_of_the_last_commit_goes_on_asking() -> None:
    """Readers of this follower would not see the last record otherwise."""
    scene = Scene(committed=9)
    scene.tick(101)
    assert scene.request.wait_ms == 0
    scene.answer(102, committed=10)
    scene.tick(202)
    assert scene.request.stands


@pytest.mark.parametrize("confirmed_ms", [101, 1_000])
def test_without_roll_calls_it_fetches_again_and_reports_its_leader_in_time(
    confirmed_ms: int,
) -> None:
    """The bound for a silent leader is the one of fetches: counted from the last word of it."""
    scene = Scene()
    scene.tick(101)
    standing = scene.follower.standing
    assert standing is not None
    standing.known_ms = confirmed_ms
    assert scene.follower.due_ms == confirmed_ms + TIMING.kept_ms
    assert scene.tick(confirmed_ms + TIMING.kept_ms - 1) == []
    scene.tick(confirmed_ms + TIMING.kept_ms)
    assert scene.follower.standing is None
    assert not scene.request.stands
    assert scene.tick(confirmed_ms + TIMING.kept_ms + 1) == []
    heard_ms = max(1, confirmed_ms)
    assert not any(isinstance(one, ReportLeader) for one in scene.tick(heard_ms + 399))
    assert any(isinstance(one, ReportLeader) for one in scene.tick(heard_ms + 400))


def test_a_leader_that_knows_no_roll_calls_is_asked_as_before() -> None:
    """A fetch that was never confirmed is not tried again for some seconds."""
    scene = Scene()
    scene.tick(101)
    scene.tick(101 + TIMING.kept_ms)
    scene.answer(300)
    stood = []
    for now_ms in range(400, 12_000, 100):
        scene.tick(now_ms)
        stood.append(scene.request.stands)
        if stood[-1]:
            break
        scene.answer(now_ms)
    assert now_ms > 10_000, "it stood again too soon"


def test_a_notice_ends_a_standing_fetch() -> None:
    """A leader that answers at once tells of new records by a notice."""
    scene = Scene()
    scene.tick(101)
    scene.sent += scene.follower.step(MessageCame(NewDataNotice(leader_epoch=EPOCH), 150))
    assert scene.follower.standing is None
    assert not scene.request.stands


# ---------------------------------------------------------------------------- the leader


def _leader(**view: Any) -> PartitionLeader:
    leader = PartitionLeader(
        A,
        EPOCH,
        Offset(10),
        view=view_of_three(**({"isr": frozenset({A, B, C})} | view)),
        epochs=EpochHistory((EpochStart(LeaderEpoch(1), Offset(0)),)),
        limits=LagLimits(time_ms_max=4 * KEPT_MS),
    )
    leader.step(LogSynced(Offset(10)))
    return leader


def _stand(follower: BrokerId, now_ms: int = 1, at: int = 10) -> RequestCame:
    request = FetchRequest(
        follower=follower,
        broker_epoch=ONE,
        leader_epoch=EPOCH,
        request_id=7,
        fetch_from=Offset(at),
        last_epoch=LeaderEpoch(1),
        synced_end=Offset(at),
        wait_ms=STAND_MS,
    )
    return RequestCame(request, now_ms)


def _answered(effects: list[Any]) -> list[BrokerId]:
    return [one.to for one in effects if isinstance(one, SendRecords)]


def test_a_leader_whose_followers_stand_rests_and_drops_nobody() -> None:
    """While roll calls confirm the fetches no time that passes counts as lag."""
    leader = _leader()
    rests = [leader.rests]
    for follower in (B, C):
        assert _answered(leader.step(_stand(follower))) == []
        rests.append(leader.rests)
    assert rests == [False, False, True]
    for now_ms in range(0, 60_000, 200):
        for fetch in leader.standing.values():
            fetch.known_ms = now_ms
        assert leader.step(TickElapsed(now_ms)) == []
    assert leader.rests


def test_records_end_what_stands() -> None:
    """Both followers get them, in the answer that they wait for."""
    leader = _leader()
    for follower in (B, C):
        leader.step(_stand(follower))
    assert _answered(list(leader.step(LogAppended(Offset(11))))) == [B, C]
    assert not leader.standing
    assert not leader.rests


def test_a_silent_follower_leaves_the_isr_as_late_as_without_roll_calls() -> None:
    """It counts as caught up until its fetch was last confirmed, and not a moment longer."""
    leader = _leader()
    for follower in (B, C):
        leader.step(_stand(follower))
    leader.standing[B].known_ms = 50_000
    proposals = []
    for now_ms in range(50_000, 52_000, 50):
        if C in leader.standing:
            leader.standing[C].known_ms = now_ms
        effects = leader.step(TickElapsed(now_ms))
        assert _answered(effects) == ([B] if now_ms == 50_000 + KEPT_MS else [])
        proposals += [(now_ms, set(one.isr)) for one in effects if isinstance(one, ProposeIsr)]
    assert proposals[0] == (50_000 + 4 * KEPT_MS + 50, {A, C})


def test_a_follower_that_dies_just_before_records_come_has_no_more_time() -> None:
    """The records do not make it look alive."""
    leader = _leader()
    leader.step(_stand(B))
    leader.standing[B].known_ms = 9_000
    leader.step(LogAppended(Offset(11)))
    assert leader.progress()[B].caught_up_ms == 9_000


@pytest.mark.parametrize(
    "view", [{"isr": frozenset({A, C})}, {"restarted": frozenset({B})}], ids=["outside", "marked"]
)
def test_a_follower_from_which_more_is_needed_is_answered_at_once(view: dict[str, Any]) -> None:
    """Who has to join, or to be proved, has to fetch again: a proposal may get lost."""
    assert _answered(_leader(**view).step(_stand(B))) == [B]
    leader = _leader()
    for follower in (B, C):
        leader.step(_stand(follower))
    newer = view_of_three(
        **({"isr": frozenset({A, B, C}), "partition_epoch": PartitionEpoch(9)} | view)
    )
    assert _answered(leader.step(ViewChanged(newer, 100))) == [B]
    assert set(leader.standing) == {C}


# ---------------------------------------------------------------------------- the roll


class Replica:
    """A replica whose turns a test decides."""

    def __init__(self) -> None:
        self.waiting_turn: int | None = None
        self.woken = 0

    def wake(self) -> None:
        """Count."""
        self.woken += 1


def _standing(request_id: int = 7, *, is_own: bool = True, epoch: int = 3) -> StandingFetch:
    return StandingFetch(
        peer=A if is_own else B,
        is_own=is_own,
        leader_epoch=LeaderEpoch(epoch),
        request_id=request_id,
        known_ms=0,
    )


def _called(own: Roll, other: Roll, number: int, now_ms: int) -> None:
    """Call one roll and compare it with the other, as two brokers do."""
    theirs = own.call(number)
    equal = [one == two for one, two in zip(other.call(number), theirs, strict=True)]
    other.confirm(number, equal, now_ms)
    own.confirm(number, equal, now_ms)


def test_a_fetch_is_confirmed_on_both_sides_only_if_both_have_it() -> None:
    """Many fetches of which the leader lacks one: only the fetches of its group go without."""
    own, other = Roll(), Roll()
    fetches = {}
    for number in range(1_000):
        partition = replace(P, number=PartitionNumber(number))
        fetches[number] = mine, theirs = _standing(), _standing(is_own=False)
        own.add(partition, mine, Replica())
        if number != 5:
            other.add(partition, theirs, Replica())
    _called(own, other, 1, 100)
    assert fetches[5][0].known_ms == 0
    confirmed = [number for number, (mine, _) in fetches.items() if mine.known_ms == 100]
    assert 950 < len(confirmed) < 1_000
    assert confirmed == [n for n, (_, theirs) in fetches.items() if theirs.known_ms == 100]
    own.remove(fetches[5][0])
    _called(own, other, 2, 200)
    assert all(mine.known_ms == 200 for n, (mine, _) in fetches.items() if n != 5)


@pytest.mark.parametrize("other", [_standing(8, is_own=False), _standing(is_own=False, epoch=2)])
def test_the_fetch_of_another_process_or_epoch_is_another_fetch(other: StandingFetch) -> None:
    """The request id names the process: what an earlier life left behind confirms nothing."""
    mine = _standing()
    here, there = Roll(), Roll()
    here.add(P, mine, Replica())
    there.add(P, other, Replica())
    _called(here, there, 1, 100)
    assert mine.known_ms == other.known_ms == 0


def test_what_stands_since_the_call_was_sent_is_not_confirmed_by_its_answer() -> None:
    """The answer is about the fetches that were called."""
    roll, early, late = Roll(), _standing(7), _standing(8)
    roll.add(P, early, Replica())
    sums = roll.call(1)
    roll.add(replace(P, number=PartitionNumber(1)), late, Replica())
    roll.confirm(1, [True] * len(sums), 100)
    assert (early.known_ms, late.known_ms) == (100, 0)


def test_a_replica_that_does_not_finish_a_turn_is_left_out() -> None:
    """A leader whose disk hangs must not look alive to its followers, nor they to it."""
    roll, replica, fetch = Roll(), Replica(), _standing()
    roll.add(P, fetch, replica)
    replica.waiting_turn = 4
    whole = roll.call(1)
    assert roll.call(2) != whole
    roll.confirm(2, [True] * len(whole), 100)
    assert fetch.known_ms == 0
    replica.waiting_turn = 5
    assert roll.call(3) == whole
    roll.confirm(3, [True] * len(whole), 200)
    assert fetch.known_ms == 200
    assert roll.silent(300, 101) == []
    assert roll.silent(301, 101) == [replica]
