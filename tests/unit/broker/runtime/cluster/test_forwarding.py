"""Writes that are handed to leaders, over a transport in memory that may lose them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, cast

import pytest

from broker.core.metadata.state import BrokerState, MetadataState, PartitionState
from broker.errors import (
    CommitTimeoutError,
    EncryptionKeyError,
    HeadwaterError,
    InvalidRequestError,
    NotLeaderError,
    OverloadedError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.forwarded_writes import ForwardingMessage
from broker.model.ids import BrokerId, PartitionId, PartitionNumber
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.stream import StreamConfig
from broker.ports.partition import RecordsOutcome
from broker.runtime.cluster.forwarding import ANSWER_MS, ForwardedWrites, LeadersWriter
from broker.runtime.partition.driver import PartitionDriver
from simkit.brokers.memory_broker import FakeClock, MemoryBroker, records

A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")


@dataclass
class Wire:
    """Two joined transports; the test may let them refuse or lose messages."""

    ears: dict[BrokerId, Callable[[BrokerId, ForwardingMessage], None]] = field(
        default_factory=dict
    )
    full: bool = False
    loses: bool = False
    meanwhile: Callable[[], object] = field(
        default=lambda: None
    )  # what another thread does during a send

    def end(self, me: BrokerId) -> Any:
        """Return a broker's transport."""
        wire = self

        class End:
            def start(self, deliver: Callable[[BrokerId, ForwardingMessage], None]) -> None:
                wire.ears[me] = deliver

            def send(self, to: BrokerId, message: ForwardingMessage) -> bool:
                wire.meanwhile()
                if wire.full:
                    return False
                if not wire.loses:
                    wire.ears[to](me, message)
                return True

            def close(self) -> None:
                wire.ears.pop(me, None)

        return End()


class Rig:
    """Brokers a and c, which have no replica, and broker b, which leads the only partition."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.leader = MemoryBroker(self.clock)
        stream = self.leader.create("s", StreamConfig(subject="s"))
        self.partition_id = PartitionId(stream.uuid, PartitionNumber(0))
        self.partition = self.leader.handle("s", 0)
        row = PartitionState(
            leader=B, leader_epoch=LeaderEpoch(1), cold_end=Offset(0), replicas=(B,), isr=(B,)
        )
        brokers = {one: BrokerState(epoch=BrokerEpoch(1), features_max=4) for one in (A, B, C)}
        self.state = MetadataState(brokers=brokers, partitions={stream.uuid: (row,)})
        self.row = row
        self.wire = Wire()
        self.refused: dict[PartitionId, HeadwaterError] = {}  # replicas that could not be opened
        self.here = self._end(A, None)
        self.there = self._end(B, cast("PartitionDriver", self.partition))
        self.third = self._end(C, None)
        self.writer = LeadersWriter(self.here, self.partition_id, "s/0")
        self.outcomes: SimpleQueue[RecordsOutcome | HeadwaterError] = SimpleQueue()

    def _end(self, me: BrokerId, replica: PartitionDriver | None) -> ForwardedWrites:
        writes = ForwardedWrites(
            me,
            self.wire.end(me),
            lambda asked: replica if asked == self.partition_id and not self.refused else None,
            lambda: self.state,
            self.clock,
            refusal=self.refused.get,
        )
        writes.registered(BrokerEpoch(1))
        writes.start()
        return writes

    def write(self, value: bytes, **facts: Any) -> None:
        """Write one record at broker a."""
        self.writer.submit_records(records([value]), None, self.outcomes.put, **facts)

    def change(self, **facts: Any) -> None:
        """Change the partition in the metadata."""
        uuid = self.partition_id.stream_uuid
        self.state = replace(self.state, partitions={uuid: (replace(self.row, **facts),)})

    def close(self) -> None:
        """End the threads."""
        self.leader.close()


@pytest.fixture
def rig() -> Any:
    """Give two brokers."""
    made = Rig()
    yield made
    made.close()


def test_a_write_is_stored_by_its_leader(rig: Rig) -> None:
    """Its publisher gets the leader's offsets."""
    for number, policy in enumerate(AckPolicy):
        rig.write(b"a", policy=policy)
        told = rig.outcomes.get(timeout=30)
        assert isinstance(told, RecordsOutcome)
        assert list(told.offsets) == [number]


def test_a_condition_goes_with_the_write(rig: Rig) -> None:
    """The leader refuses a write that expects another log end; the refusal keeps its class."""
    rig.write(b"a", expected_end=Offset(5))
    assert isinstance(rig.outcomes.get(timeout=30), InvalidRequestError)
    assert rig.partition.log_end == 0


def test_a_leader_that_cannot_open_its_log_says_why(rig: Rig) -> None:
    """A leader without the stream's key tells the publisher of another broker so, by its class."""
    rig.refused[rig.partition_id] = EncryptionKeyError("the key of s is missing: put it back")
    rig.write(b"a")
    told = rig.outcomes.get(timeout=30)
    assert isinstance(told, EncryptionKeyError)
    assert "put it back" in told.message
    assert rig.partition.log_end == 0


def test_what_cannot_be_handed_over_is_refused_at_once(rig: Rig) -> None:
    """A full queue, no leader, a leader of an older build, a write with message ids."""
    rig.wire.full = True
    with pytest.raises(OverloadedError):
        rig.write(b"a")
    rig.wire.full = False
    with pytest.raises(InvalidRequestError):
        rig.writer.submit_records(records([b"a"]), ["id"], rig.outcomes.put)
    with pytest.raises(NotLeaderError):
        rig.writer.submit((), lambda _: None)
    old = replace(rig.state.brokers[B], features_max=3)
    rig.state = replace(rig.state, brokers={**rig.state.brokers, B: old})
    with pytest.raises(NotLeaderError, match=f"publish to broker {B}"):
        rig.write(b"a")
    rig.change(leader=None, status="election")
    with pytest.raises(NotLeaderError, match="no leader now"):
        rig.write(b"a")
    assert rig.outcomes.empty()
    assert rig.partition.log_end == 0


def test_a_broker_without_the_replica_refuses(rig: Rig) -> None:
    """The sender's metadata may be old. Nothing is stored, and the publisher may try again."""
    rig.change(leader=C, replicas=(C,), isr=(C,))
    rig.write(b"a")
    assert isinstance(rig.outcomes.get(timeout=30), NotLeaderError)


@pytest.mark.parametrize("why", ["late", "new leader", "deleted", "stopped"])
def test_an_outcome_that_does_not_come_is_not_known(rig: Rig, why: str) -> None:
    """Each write is answered once: after a timeout, or once no answer can come any more."""
    rig.wire.loses = True
    rig.write(b"a")
    now = rig.clock.monotonic_ms()
    rig.here.turn(now + ANSWER_MS - 1)
    assert rig.outcomes.empty()
    if why == "late":
        rig.here.turn(now + ANSWER_MS)
    elif why == "new leader":
        rig.change(leader_epoch=LeaderEpoch(2))
        rig.here.turn(now)
    elif why == "deleted":
        rig.state = replace(rig.state, partitions={})
        rig.here.turn(now)
    else:
        rig.here.close()
    assert isinstance(rig.outcomes.get(timeout=30), CommitTimeoutError)
    rig.here.turn(now + 2 * ANSWER_MS)
    assert rig.outcomes.empty()


def test_a_write_whose_wait_ends_while_it_is_sent_has_one_outcome(rig: Rig) -> None:
    """The broker stops just when the queue to the leader is full: the write has its outcome."""
    rig.wire.full, rig.wire.meanwhile = True, rig.here.close
    rig.write(b"a")
    assert isinstance(rig.outcomes.get(timeout=30), CommitTimeoutError)
    assert rig.outcomes.empty()


def test_a_broker_that_begins_to_lead_hands_nothing_to_itself(rig: Rig) -> None:
    """Its metadata names it before its replica takes writes: the publisher is told to try again."""
    rig.change(leader=A, replicas=(A,), isr=(A,))
    with pytest.raises(NotLeaderError, match="begins to lead"):
        rig.write(b"x")
