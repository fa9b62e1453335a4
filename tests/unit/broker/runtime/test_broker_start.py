"""The steps of a start, in their order: each begins after the answer to the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from broker.errors import CommitTimeoutError, HeadwaterError, LogFailedError, UnavailableError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.stream import StreamConfig
from broker.ports.pumps import NEVER_MS
from broker.runtime.broker import Broker
from broker.runtime.broker_start import BrokerStart
from broker.runtime.cluster.membership import Membership
from simkit.brokers.brokers import disk_broker
from simkit.replacing import replaced

P0, P1 = (
    PartitionId(StreamUuid("00000000-0000-4000-8000-000000000001"), PartitionNumber(number))
    for number in range(2)
)


class Asked:
    """A pump whose answer a test sets."""

    def __init__(self, stage: Stage, what: str, answered: Callable[[Any], None]) -> None:
        self._stage = stage
        self._what = what
        self._answered = answered

    def turn(self, _: int) -> int:
        """Answer, if there is an answer."""
        if self._stage.done[-1:] != [self._what]:
            self._stage.done.append(self._what)
        if self._stage.answers:
            self._answered(self._stage.answers.pop(0))
        return NEVER_MS


class Stage:
    """A broker, its membership and its partitions; each records its calls."""

    def __init__(self, *damaged: PartitionId) -> None:
        self.done: list[str] = []
        self.answers: list[Any] = []
        self.damage = list(damaged)
        self.is_over = False  # the closing of the logs
        self.closes_whole = True
        self.passed: Callable[[HeadwaterError | None], None] | None = None
        self.started: list[BrokerEpoch] = []
        self.woken = 0
        self.start = BrokerStart(
            self,
            membership=cast(Membership, self),
            hosted=cast(Any, self),
            patience_s=7.0,
            wake=self._wake,
            answered=self.started.append,
        )

    def _wake(self) -> None:
        self.woken += 1

    def answer(self, value: Any) -> None:
        """Let the pump that is asked answer."""
        self.answers.append(value)
        self.start.turn(0)

    # the broker

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """See ``StartedBroker``."""
        self.done.append(f"epoch {broker_epoch}")

    def reconcile(self, *, patience_s: float) -> None:
        """See ``StartedBroker``."""
        assert patience_s == 7.0
        self.done.append("open")

    def remove_leftovers(self) -> None:
        """See ``StartedBroker``."""
        self.done.append("leftovers")

    def begin_leading(self) -> None:
        """See ``StartedBroker``."""
        self.done.append("lead")

    # its membership

    def registering(self, _: Any, answered: Callable[[BrokerEpoch], None]) -> Asked:
        """See ``Membership``."""
        return Asked(self, "register", answered)

    def giving_up(self, damaged: Sequence[PartitionId], _: Any, answered: Any) -> Asked:
        """See ``Membership``."""
        assert list(damaged) == self.damage
        return Asked(self, "give up", answered)

    def confirm_metadata(self, passed: Callable[[HeadwaterError | None], None]) -> None:
        """See ``Membership``."""
        self.done.append("confirm")
        self.passed = passed

    def logs_closed(self) -> None:
        """See ``Membership``."""
        self.done.append("closed whole")

    # its partitions

    def damaged(self) -> list[PartitionId]:
        """See ``HostedPartitions``."""
        return self.damage

    def begin_close(self, _: Callable[[], None]) -> Stage:
        """See ``HostedPartitions``."""
        self.done.append("close")
        return self

    def set_aside(self, given_up: Sequence[PartitionId], _: Any) -> bool:
        """See ``HostedPartitions``."""
        self.done.append(f"set aside {len(given_up)}")
        return self.closes_whole


def test_a_start_without_damage_registers_once() -> None:
    """Leftovers are not removed before the newest metadata is known."""
    stage = Stage()
    assert stage.start.turn(0) == NEVER_MS
    assert stage.done == ["register"]
    stage.answer(BrokerEpoch(1))
    stage.answer([])
    assert stage.done == ["register", "epoch 1", "open", "give up", "confirm"]
    assert stage.start.turn(1) == NEVER_MS
    assert not stage.started
    assert stage.passed is not None
    stage.passed(None)
    assert stage.woken == 1
    assert stage.start.turn(2) == NEVER_MS
    assert stage.done[5:] == ["leftovers", "lead", "open"]
    assert stage.start.turn(3) == NEVER_MS
    assert stage.started == [BrokerEpoch(1)]


def test_what_is_given_up_is_set_aside_and_opened_under_a_new_epoch() -> None:
    """Leaders count the ends that a process reported, which are wrong for the new, empty log."""
    stage = Stage(P0, P1)
    stage.start.turn(0)
    stage.answer(BrokerEpoch(1))
    stage.answer([P0])
    assert stage.done[-1] == "close"
    assert stage.start.turn(10) > 10, "logs close in turns of their own"
    stage.is_over = True
    stage.start.turn(11)
    assert stage.done[4:] == ["close", "set aside 1", "closed whole", "register"]
    stage.answer(BrokerEpoch(2))
    assert stage.done[8:] == ["epoch 2", "open", "confirm"], "what is damaged now is kept"
    assert stage.passed is not None
    stage.passed(UnavailableError("no majority"))
    stage.start.turn(12)
    assert stage.done[11:] == ["lead", "open"], "what is left over is kept"
    assert stage.started == [BrokerEpoch(2)]


def test_a_disk_that_hangs_is_not_waited_for_for_ever() -> None:
    """A stop with an open log leaves no note of a clean stop."""
    stage = Stage(P0)
    stage.closes_whole = False
    stage.start.turn(0)
    stage.answer(BrokerEpoch(1))
    stage.answer([P0])
    due_ms = stage.start.turn(5)
    assert 5 < due_ms < NEVER_MS
    stage.start.turn(due_ms)
    assert stage.done[4:] == ["close", "set aside 1", "register"]


def test_a_mark_that_no_majority_takes_does_not_end_a_start(tmp_path: Path) -> None:
    """The metadata follower tries again; a failed disk ends the start."""
    with disk_broker(tmp_path) as broker:
        broker.streams.create("s", StreamConfig(subject="s"))
    errors: list[HeadwaterError] = [CommitTimeoutError("no majority")]

    def reconcile(self: Any, **settings: Any) -> None:
        original(self, **settings)
        if errors:
            raise errors.pop()

    original: Any = Broker.reconcile
    with replaced(Broker, "reconcile", reconcile):
        with disk_broker(tmp_path) as broker:
            assert not errors
            assert broker.partitions.handle("s", 0).leads
        errors.append(LogFailedError("the disk"))
        with pytest.raises(LogFailedError), disk_broker(tmp_path):
            pass
