"""Replicas whose logs have failed leave ISR and eligible, whatever becomes of a proposal."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.adapters.clock import SystemClock
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    RegisterBroker,
    WithdrawReplica,
)
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState
from broker.errors import (
    CommitTimeoutError,
    CorruptDataError,
    HeadwaterError,
    LogFailedError,
    OverloadedError,
    StaleBrokerEpochError,
    UnavailableError,
)
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.ports.pumps import NEVER_MS, Driven, PumpTurn
from broker.runtime.cluster.member import ClusterMember, MemberSetting
from broker.runtime.metadata.metadata_log import Answered
from simkit.disk.disk import SimDisk

A, B, C = (BrokerId(name) for name in "abc")
UUID = StreamUuid("00000000-0000-4000-8000-000000000001")
P = PartitionId(UUID, PartitionNumber(0))
LOST = CommitTimeoutError("the leader of the controllers changed")


@dataclass
class Health:
    """What a driver says of its log."""

    failure: HeadwaterError | None
    is_damaged: bool = False


@dataclass
class Replica:
    """A replica whose log has failed."""

    health: Health


@dataclass
class Pumped:
    """A pump that only the test runs."""

    turn: PumpTurn
    woken: int = 0

    def start(self) -> None:
        """Nothing runs by itself."""

    def wake(self) -> None:
        """Count."""
        self.woken += 1

    def stop(self, timeout_s: float | None = None) -> None:
        """Nothing runs."""


class Lane:
    """A transport to nobody."""

    def start(self, deliver: Callable[..., None]) -> None:
        """Nobody sends."""

    def send(self, *_: Any) -> None:
        """Nobody hears."""

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Withdrawing:
    """A member whose metadata, replicas and pumps are the test's; it is its own broker."""

    rows: tuple[BrokerId, ...] = (A, B, C)
    state: MetadataState = field(default_factory=MetadataState)
    under_way: list[tuple[Command, Answered]] = field(default_factory=list)
    found: dict[PartitionId, Replica] = field(default_factory=dict)
    aside: list[PartitionId] = field(default_factory=list)
    pumps: dict[str, Pumped] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for broker in (A, B, C):
            self.apply(RegisterBroker(broker=broker, features_max=FEATURE_LEVEL_MAX))
        config = StreamConfig(subject="s", replication_factor=len(self.rows))
        stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
        self.apply(CreateStream(stream=stream, leader=A, assignment=(self.rows,), min_isr=1))
        self.member = ClusterMember(
            setting=MemberSetting(me=A),
            files=SimDisk(random.Random(1)).files(),
            metadata=cast(Any, self),
            control=Lane(),
            replicas=cast(Any, Lane()),
            controller=None,
            clock=SystemClock(),
            on_crash=lambda _: None,
            stop_asked=threading.Event(),
            drive=self._drive,
        )
        self.member.attach(cast(Any, self))
        self.member.proposals.registered(BrokerEpoch(1))
        self.links = self.member.make_links(stream, P)

    def _drive(self, name: str, turn: PumpTurn) -> Driven:
        return self.pumps.setdefault(name, Pumped(turn))

    @property
    def replicas(self) -> Withdrawing:
        """See ``ClusterBroker``."""
        return self

    def find(self, partition_id: PartitionId) -> Replica | None:
        """See ``HostedPartitions``."""
        return self.found.get(partition_id)

    def begin_set_aside(self, partition_id: PartitionId) -> None:
        """See ``HostedPartitions``."""
        self.aside.append(partition_id)

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """Keep it for the test."""
        assert timeout_ms > 0
        self.under_way.append((command, answered))

    def apply(self, command: Command) -> None:
        """Apply a command."""
        self.state, _ = apply(self.state, command)

    def fail(self, error: HeadwaterError, *, is_damaged: bool = False) -> None:
        """Let the log fail, or be opened damaged."""
        self.links.withdraw(error)
        self.found[P] = Replica(Health(error, is_damaged))

    def turn(self, now_ms: int) -> int:
        """Run the pump once."""
        return self.pumps["withdrawals"].turn(now_ms)

    def answer(self, error: HeadwaterError | None = None) -> None:
        """Apply the only proposal, or lose it."""
        ((command, answered),) = self.under_way
        self.under_way.clear()
        assert isinstance(command, WithdrawReplica)
        assert (command.partition, command.broker, command.broker_epoch) == (0, A, 1)
        if error is None:
            self.apply(command)
        answered(error)

    def members(self) -> set[BrokerId]:
        """Return ISR and eligible."""
        row = self.state.partitions[UUID][0]
        return {*row.isr, *row.eligible}


@pytest.mark.parametrize("lost", [LOST, UnavailableError("no majority"), OverloadedError("busy")])
def test_a_withdrawal_is_proposed_again_until_the_metadata_shows_it(lost: HeadwaterError) -> None:
    """A lost proposal would leave a replica that can vouch for nothing in the ISR."""
    one = Withdrawing()
    one.fail(LogFailedError("fdatasync failed"))
    assert one.pumps["withdrawals"].woken == 1
    now_ms = 0
    for _ in range(3):
        one.turn(now_ms)
        one.turn(now_ms + 500)  # fails unless exactly one is under way: a repeat would queue
        woken = one.pumps["withdrawals"].woken
        one.answer(lost)
        assert one.pumps["withdrawals"].woken == woken + 1
        assert A in one.members()
        now_ms += 1000
    one.turn(now_ms)
    one.answer()
    assert one.members() == {B, C}
    one.turn(now_ms + 1000)
    assert one.under_way == []
    assert one.aside == [], "it was in use: a start sets it aside, under a new broker epoch"


def test_a_log_that_is_opened_damaged_is_withdrawn_and_then_set_aside_once() -> None:
    """As at a start: else the partition stays without this replica for ever."""
    one = Withdrawing()
    one.links.withdraw(CorruptDataError("rot"))
    soon_ms = one.turn(0)
    assert 0 < soon_ms < 1000, "the driver is only being made"
    one.fail(CorruptDataError("rot"), is_damaged=True)
    one.turn(soon_ms)
    assert one.aside == [], "the metadata still counts it"
    one.answer()
    again_ms = one.turn(soon_ms + 1)
    assert one.aside == [P]
    one.turn(again_ms)
    assert one.aside == [P], "a disk that damages the next log, too, is not filled with logs"
    one.found[P] = Replica(Health(None))
    assert one.turn(again_ms + 1000) == NEVER_MS, "another log has taken its place"


@pytest.mark.parametrize(
    ("lost", "kept"),
    [(LOST, True), (UnavailableError("no majority"), False), (OverloadedError("busy"), False)],
)
def test_a_log_stays_while_a_withdrawal_of_it_may_still_come(
    lost: HeadwaterError, *, kept: bool
) -> None:
    """A late copy would give up the replica with the new log; the next start voids the copy."""
    one = Withdrawing()
    one.fail(CorruptDataError("rot"), is_damaged=True)
    one.turn(0)
    one.answer(lost)
    one.turn(1_000)
    one.answer()
    with capture_logs() as logs:
        for now_ms in (2_000, 3_000):
            assert now_ms < one.turn(now_ms) < NEVER_MS
    assert one.aside == [P] * (not kept)
    told = [(each["event"], each["reason"]) for each in logs]
    assert told == [("damaged_replica_kept", "a withdrawal may still come; restart the broker")] * (
        kept
    )


def test_a_log_is_not_set_aside_before_the_answer_to_its_withdrawal() -> None:
    """The metadata may show an earlier copy, and the answer may be that the outcome is unknown."""
    one = Withdrawing()
    one.fail(CorruptDataError("rot"), is_damaged=True)
    one.turn(0)
    ((command, answered),) = one.under_way
    one.apply(command)
    one.turn(1_000)
    assert one.aside == []
    answered(None)
    one.turn(1_001)
    assert one.aside == [P]


def test_the_last_replica_is_neither_withdrawn_nor_set_aside() -> None:
    """Its remaining records exist nowhere else; it is looked at again, and told of once."""
    one = Withdrawing(rows=(A,))
    one.fail(CorruptDataError("rot"), is_damaged=True)
    for now_ms in (0, 5_000, 10_000):
        assert now_ms < one.turn(now_ms) < NEVER_MS
    assert (one.under_way, one.aside) == ([], [])


def test_a_refusal_that_does_not_go_away_ends_it() -> None:
    """Another process has registered as this broker, and its logs are not this process's."""
    one = Withdrawing()
    one.fail(LogFailedError("fdatasync failed"))
    one.turn(0)
    one.answer(StaleBrokerEpochError("a newer process has registered"))
    assert one.turn(10_000) == NEVER_MS
    assert one.under_way == []


def test_a_replica_that_is_gone_or_opened_anew_is_not_withdrawn() -> None:
    """The withdrawal was of a log that is no longer there."""
    gone, anew = Withdrawing(), Withdrawing()
    for one in (gone, anew):
        one.fail(LogFailedError("fdatasync failed"))
    gone.apply(DeleteStream(name="s", expected_uuid=UUID))
    anew.found[P] = Replica(Health(None))
    for one in (gone, anew):
        assert one.turn(0) == NEVER_MS
        assert one.under_way == []
