"""Elections at the edges: one instant, one report, one process more or less.

`make plant` moves these edges, and each test here is the one that notices.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.core.election import ElectionCore, ElectionTiming
from broker.core.election_events import (
    AskLogEnd,
    ElectionEffect,
    HeartbeatCame,
    LeaderReported,
    LogEndAnswered,
    MetadataChanged,
    OfficeLost,
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
    StartElection,
    StopBroker,
    UnfenceBroker,
)
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.placement import balance, hand_overs
from broker.core.metadata.state import MetadataState, PartitionState, PartitionStatus
from broker.core.replacements import replaced_leaders
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from simkit.brokers.metadata_rig import MetadataRig

A, B, C = (BrokerId(name) for name in "abc")
UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
P = PartitionId(UUID, PartitionNumber(0))
TIMING = ElectionTiming()


def _state(partitions: int = 1) -> MetadataState:
    """Three brokers, and partitions that A leads."""
    state = MetadataState()
    config = StreamConfig(subject="s", partitions=partitions)
    stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
    rows = ((A, B, C),) * partitions
    commands: list[Command] = [
        *(RegisterBroker(broker=one, session=one, features_max=2) for one in (A, B, C)),
        CreateStream(stream=stream, leader=A, assignment=rows, min_isr=2),
    ]
    for command in commands:
        state, reply = apply(state, command)
        assert not isinstance(reply, Rejected)
    return state


class Room:
    """A controller in office."""

    def __init__(self, partitions: int = 1) -> None:
        self.state = _state(partitions)
        self.core = ElectionCore(TIMING)
        self.now_ms = self.index = 0
        self.core.step(OfficeTaken(0))
        self.changed()

    def do(self, command: Command) -> list[ElectionEffect]:
        """Apply a command and show the core the state."""
        self.state, reply = apply(self.state, command)
        assert not isinstance(reply, Rejected), reply.error
        return self.changed()

    def changed(self) -> list[ElectionEffect]:
        """Show the core the state."""
        self.index += 1
        return self.core.step(MetadataChanged(self.state, self.index, self.now_ms))

    def epoch(self, broker: BrokerId) -> BrokerEpoch:
        """Return a broker's newest epoch."""
        return self.state.brokers[broker].epoch

    def beat(self, *brokers: BrokerId) -> None:
        """Let brokers say that they live."""
        for broker in brokers:
            self.core.step(HeartbeatCame(broker, self.epoch(broker), self.index, self.now_ms))

    def pass_ms(self, more_ms: int, *alive: BrokerId, step_ms: int = 50) -> list[Command]:
        """Let time pass in the controller's steps; return its proposals."""
        found: list[Command] = []
        for _ in range(more_ms // step_ms):
            self.now_ms += step_ms
            self.beat(*alive)
            found += _commands(self.core.step(TickElapsed(self.now_ms)))
        return found

    def report(
        self, reporter: BrokerId, at_ms: int, *, leader_epoch: int = 1, former: int = 0
    ) -> list[Command]:
        """Let a replica say that its leader is silent."""
        return _commands(
            self.core.step(
                LeaderReported(
                    partition_id=P,
                    reporter=reporter,
                    broker_epoch=BrokerEpoch(self.epoch(reporter) - former),
                    leader_epoch=LeaderEpoch(leader_epoch),
                    now_ms=at_ms,
                )
            )
        )

    def told(self, broker: BrokerId, end: int, number: int = 0) -> list[Command]:
        """Let a replica say how long its log is."""
        answer = LogAnswer(
            broker=broker,
            broker_epoch=self.epoch(broker),
            last_epoch=LeaderEpoch(1),
            log_end=Offset(end),
        )
        known = self.state.partitions[UUID][number].leader_epoch
        told = LogEndAnswered(
            partition_id=PartitionId(UUID, PartitionNumber(number)),
            answer=answer,
            leader_epoch=known,
            now_ms=self.now_ms,
        )
        return _commands(self.core.step(told))


def _commands(effects: list[ElectionEffect]) -> list[Command]:
    return [one.command for one in effects if isinstance(one, ProposeCommand)]


# ---------------------------------------------------------------------------- leases, sessions


@pytest.mark.parametrize("session_ms", [600, 1_500, 30_000])
def test_a_lease_ends_before_the_session_even_on_a_slower_clock(session_ms: int) -> None:
    """A quarter slower: then the leader stops before another is elected."""
    assert ElectionTiming(session_ms=session_ms).lease_ms() * 5 // 4 < session_ms


def test_who_gets_a_lease() -> None:
    """The newest process of a broker that is not fenced, from the controller in office."""
    room = Room()
    assert room.core.step(HeartbeatCame(B, room.epoch(B), room.index, 10))
    assert not room.core.step(HeartbeatCame(B, BrokerEpoch(room.epoch(B) - 1), room.index, 10))
    room.do(FenceBroker(broker=B, broker_epoch=room.epoch(B)))
    assert not room.core.step(HeartbeatCame(B, room.epoch(B), room.index, 20))
    assert room.core.step(HeartbeatCame(C, room.epoch(C), room.index, 20))
    room.core.step(OfficeLost())
    assert not room.core.step(HeartbeatCame(C, room.epoch(C), room.index, 30))


def test_a_heartbeat_of_a_former_process_renews_no_session() -> None:
    """Otherwise a broker whose new process hangs would never be fenced."""
    room = Room()
    for _ in range(40):
        room.now_ms += 50
        room.beat(A, C)
        room.core.step(HeartbeatCame(B, BrokerEpoch(room.epoch(B) - 1), room.index, room.now_ms))
        if _commands(room.core.step(TickElapsed(room.now_ms))):
            break
    assert room.now_ms == TIMING.session_ms


def test_a_silent_broker_is_fenced_when_its_session_is_over_and_again_after_a_pause() -> None:
    """At the very instant, and again only if the proposal had no effect for a while."""
    room = Room()
    assert room.pass_ms(TIMING.session_ms - 50, A, C) == []
    fence = FenceBroker(broker=B, broker_epoch=room.epoch(B))
    assert room.pass_ms(50, A, C) == [fence]
    assert room.pass_ms(TIMING.retry_ms - 50, A, C) == []
    assert room.pass_ms(50, A, C) == [fence]


def test_a_broker_gets_no_lease_while_its_fence_is_under_way() -> None:
    """The fence would cut that lease short, and another leader serve while it lasts."""
    room = Room()
    fence = FenceBroker(broker=B, broker_epoch=room.epoch(B))
    assert room.pass_ms(TIMING.session_ms, A, C) == [fence]
    came = HeartbeatCame(B, room.epoch(B), room.index, room.now_ms)
    assert not room.core.step(came), "it was silent for a whole session: the fence is proposed"
    assert room.core.step(HeartbeatCame(A, room.epoch(A), room.index, room.now_ms))
    assert room.pass_ms(TIMING.retry_ms, A, B, C) == [fence], "a lost proposal is made again"
    room.do(fence)
    unfence = UnfenceBroker(broker=B, broker_epoch=room.epoch(B))
    assert room.pass_ms(TIMING.retry_ms, A, B, C) == [unfence]
    room.do(unfence)
    assert room.core.step(HeartbeatCame(B, room.epoch(B), room.index, room.now_ms))


def test_a_fence_of_a_former_process_or_office_withholds_no_lease() -> None:
    """Such a fence cannot be committed any more, so nothing would end the wait for it."""
    room = Room()
    room.pass_ms(TIMING.session_ms, A, C)
    room.do(RegisterBroker(broker=B, session="next", known_sessions=(B,), features_max=2))
    assert room.core.step(HeartbeatCame(B, room.epoch(B), room.index, room.now_ms))
    room.pass_ms(TIMING.session_ms, A, C)
    assert not room.core.step(HeartbeatCame(B, room.epoch(B), room.index, room.now_ms))
    room.core.step(OfficeLost())
    room.core.step(OfficeTaken(room.now_ms))
    assert room.core.step(HeartbeatCame(B, room.epoch(B), room.index, room.now_ms))


def test_after_a_stall_of_the_controller_nobody_is_fenced() -> None:
    """The controller heard nobody because it was suspended itself, so all sessions start anew."""
    room = Room()
    room.now_ms = 60_000
    assert _commands(room.core.step(TickElapsed(room.now_ms))) == []
    assert room.pass_ms(TIMING.session_ms - 50) == []
    fenced = room.pass_ms(50)
    assert len([one for one in fenced if isinstance(one, FenceBroker)]) == 3


def test_a_new_controller_counts_silence_from_its_office() -> None:
    """Heartbeats went to its predecessor; a fenced broker has to send one first."""
    state = _state()
    state, _ = apply(state, FenceBroker(broker=C, broker_epoch=state.brokers[C].epoch))
    core = ElectionCore(TIMING)
    core.step(MetadataChanged(state, 1, 0))
    core.step(OfficeTaken(60_000))
    assert _commands(core.step(TickElapsed(60_050))) == []
    core.step(HeartbeatCame(C, state.brokers[C].epoch, 1, 60_060))
    unfence = UnfenceBroker(broker=C, broker_epoch=state.brokers[C].epoch)
    assert _commands(core.step(TickElapsed(60_100))) == [unfence]


# ---------------------------------------------------------------------------- replacements


def _replace_leader(room: Room, number: int = 0) -> None:
    row = room.state.partitions[UUID][number]
    room.do(
        StartElection(
            stream_uuid=UUID,
            partition=PartitionNumber(number),
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            suspect=row.leader,
        )
    )


def test_a_broker_that_does_not_know_that_it_was_replaced_gets_no_lease() -> None:
    """With a new lease it would go on as the leader: acknowledge, and say what is the newest."""
    room = Room()
    known = room.index
    _replace_leader(room)
    just_before = room.now_ms + TIMING.hear_ms() - 1
    assert room.core.step(HeartbeatCame(A, room.epoch(A), known, just_before))
    assert not room.core.step(HeartbeatCame(A, room.epoch(A), known, just_before + 1))
    assert room.core.step(HeartbeatCame(A, room.epoch(A), known + 1, just_before + 1))
    assert room.core.step(HeartbeatCame(B, room.epoch(B), 0, just_before + 1)), "it lost nothing"


def test_a_broker_that_does_not_know_that_it_was_replaced_is_fenced() -> None:
    """Without a lease it serves none of its partitions, so they need other leaders."""
    room = Room()
    known = room.index
    _replace_leader(room)
    while room.now_ms < TIMING.hear_ms() + TIMING.session_ms:
        room.now_ms += 50
        room.beat(B, C)
        room.core.step(HeartbeatCame(A, room.epoch(A), known, room.now_ms))
        for command in _commands(room.core.step(TickElapsed(room.now_ms))):
            if isinstance(command, FenceBroker):
                room.do(command)
    assert room.state.brokers[A].fenced


def test_a_broker_that_hands_over_partition_after_partition_keeps_its_lease() -> None:
    """It applies each change a moment later than the controller, never all of them."""
    room = Room(partitions=20)
    for number in range(20):
        known = room.index
        _replace_leader(room, number)
        assert room.core.step(HeartbeatCame(A, room.epoch(A), known, room.now_ms)), number
        room.now_ms += TIMING.hear_ms() // 2


def test_a_controller_that_did_not_see_who_was_replaced_asks_it_of_everybody() -> None:
    """It began with a later state, or a state that came late hides a leader."""
    room = Room()
    _replace_leader(room)
    core = ElectionCore(TIMING)
    core.step(MetadataChanged(room.state, 9, 0))
    core.step(OfficeTaken(TIMING.hear_ms()))
    for broker in (A, B, C):
        assert not core.step(HeartbeatCame(broker, room.epoch(broker), 8, TIMING.hear_ms()))
        assert core.step(HeartbeatCame(broker, room.epoch(broker), 9, TIMING.hear_ms()))


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        (None, (1, A), ""),  # created
        (None, (3, B), "abc"),
        ((1, A), (1, A), ""),
        ((1, A), (2, None), "a"),
        ((1, A), (3, A), "a"),  # elected again, in another epoch
        ((1, A), (4, None), "abc"),  # who led in epoch 3?
        ((2, None), (3, B), ""),
        ((2, None), (4, None), "abc"),
        ((3, B), None, ""),  # deleted
    ],
)
def test_who_was_replaced_between_two_states(
    before: tuple[int, BrokerId | None] | None,
    after: tuple[int, BrokerId | None] | None,
    replaced: str,
) -> None:
    """The leader before; anybody, if there may have been another one between."""
    row = _state().partitions[UUID][0]

    def at(told: tuple[int, BrokerId | None] | None) -> PartitionState | None:
        if told is None:
            return None
        epoch, leader = told
        status: PartitionStatus = "election" if leader is None else "online"
        return replace(row, leader_epoch=LeaderEpoch(epoch), leader=leader, status=status)

    assert "".join(replaced_leaders(at(before), at(after), (A, B, C))) == replaced


# ---------------------------------------------------------------------------- reports


def test_reports_count_together_within_the_window_only() -> None:
    """Two reports an hour apart do not show that the leader is silent now."""
    room = Room()
    assert room.report(B, 0) == []
    assert room.report(C, TIMING.report_window_ms) == []
    (begun,) = room.report(B, TIMING.report_window_ms + 1)
    assert isinstance(begun, StartElection)
    assert begun.suspect == A


@pytest.mark.parametrize("wrong", [{"leader_epoch": 0}, {"leader_epoch": 2}, {"former": 1}])
def test_a_report_is_of_this_epoch_and_of_a_registered_process(wrong: dict[str, int]) -> None:
    """A broker that does not know the present leader cannot report it as silent."""
    room = Room()
    assert room.report(B, 1, **wrong) == []
    assert room.report(C, 2, **wrong) == []
    assert room.report(C, 3) == []


def test_reports_about_an_earlier_leader_are_forgotten() -> None:
    """They can never count again; a controller keeps its office for months."""
    room = Room()
    assert room.report(B, 0) == []
    assert room.core._reports
    room.do(FenceBroker(broker=A, broker_epoch=room.epoch(A)))
    assert not room.core._reports


# ---------------------------------------------------------------------------- candidates


def test_a_candidate_has_its_time_and_is_not_named_twice() -> None:
    """The longest log that does not confirm is passed over for the next one."""
    room = Room()
    effects = room.do(FenceBroker(broker=A, broker_epoch=room.epoch(A)))
    assert sorted(one.to for one in effects if isinstance(one, AskLogEnd)) == [B, C]
    assert room.told(B, 10) == []
    (named,) = room.told(C, 9)
    assert isinstance(named, NameCandidate)
    assert named.candidate == B
    room.do(named)
    assert _named(room.pass_ms(TIMING.confirm_ms - 50, B, C)) == []
    assert [one.candidate for one in _named(room.pass_ms(100, B, C))] == [C]


def test_a_candidate_whose_broker_confirms_others_is_given_up_later() -> None:
    """A broker that works through a thousand leaderships is not passed over in the middle."""
    room = Room(partitions=2)
    room.do(FenceBroker(broker=A, broker_epoch=room.epoch(A)))
    for number in (0, 1):
        room.told(B, 10, number)
        (named,) = _named(room.told(C, 9, number))
        room.do(named)
    assert _named(room.pass_ms(TIMING.confirm_ms - 50, B, C)) == []
    room.do(
        ConfirmLeader(
            stream_uuid=UUID,
            partition=1,
            broker=B,
            broker_epoch=room.epoch(B),
            leader_epoch=room.state.partitions[UUID][1].leader_epoch,
        )
    )
    assert _named(room.pass_ms(TIMING.confirm_ms - 50, B, C)) == []
    assert [one.candidate for one in _named(room.pass_ms(50, B, C))] == [C]


def test_a_candidate_that_never_confirms_is_given_up_although_others_do() -> None:
    """One hanging disk must not keep its partition without a leader as long as others are busy."""
    room = Room(partitions=40)
    room.do(FenceBroker(broker=A, broker_epoch=room.epoch(A)))
    named: list[NameCandidate] = []
    for number in range(40):
        room.told(B, 10, number)
        named += _named(room.told(C, 9, number))
    for one in named:
        room.do(one)
    again: list[NameCandidate] = []
    for number in range(1, 40):
        again += _named(room.pass_ms(TIMING.confirm_ms // 2, B, C))
        if again:
            break
        room.do(
            ConfirmLeader(
                stream_uuid=UUID,
                partition=number,
                broker=B,
                broker_epoch=room.epoch(B),
                leader_epoch=room.state.partitions[UUID][number].leader_epoch,
            )
        )
    assert (again[0].partition, again[0].candidate) == (0, C)


def _named(commands: list[Command]) -> list[NameCandidate]:
    return [one for one in commands if isinstance(one, NameCandidate)]


# ---------------------------------------------------------------------------- handing over


def test_leadership_goes_to_another_member_that_is_in_sync() -> None:
    """The stopping broker and a broker outside the ISR are not chosen."""
    cluster = MetadataRig()
    cluster.do(StopBroker(broker=A, broker_epoch=cluster.epoch(A)))
    assert [one.candidate for one in hand_overs(cluster.state, A)] == [B]
    cluster.do(cluster.isr(A, C))
    assert [one.candidate for one in hand_overs(cluster.state, A)] == [C]
    cluster.do(cluster.isr(A))
    assert hand_overs(cluster.state, A) == []


def test_the_preferred_leader_takes_over_once_it_is_in_sync() -> None:
    """A was fenced and comes back: it leads again when it has everything."""
    cluster = MetadataRig()
    cluster.fence(A)
    cluster.elect(B)
    cluster.do(UnfenceBroker(broker=A, broker_epoch=cluster.epoch(A)))
    assert balance(cluster.state) == []
    cluster.do(cluster.isr(A, B, C))
    assert [one.candidate for one in balance(cluster.state)] == [A]
