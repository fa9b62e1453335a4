"""Publishers that retry with the same ids, and a reader that follows what is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import SegmentCorruptError, SequenceGapError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.ports.partition import StoredBatch
from simkit.cluster.broker import SimBroker
from simkit.cluster.control import Control
from simkit.cluster.log import ReplicaLog
from simkit.cluster.oracle import Oracle
from simkit.cluster.publish import Publish, PublishAnswer
from simkit.cluster.table import Table
from simkit.cluster.witness import Witness
from simkit.network.world import Network, World

_BATCHES_REMEMBERED: Final = 64  # of each producer, by broker.core.dedup


@dataclass(slots=True)
class _Pending:
    sequence: int
    value: bytes
    sent_ms: int = -1
    attempts: int = 0
    record: int | None = None  # of the witness, since its first attempt


class Producer:
    """Publishes in order, keeps a few records in flight, retries until each is acked."""

    def __init__(
        self,
        number: int,
        world: World,
        network: Network,
        control: Control,
        oracle: Oracle,
        brokers: Mapping[str, SimBroker],
        witness: Witness,
        *,
        policy: AckPolicy,
        window: int,
        pause_ms: int,
    ) -> None:
        self.name = f"producer{number}"
        self._number = number
        self._world = world
        self._network = network
        self._control = control
        self._oracle = oracle
        self._brokers = brokers
        self._witness = witness
        self.policy = policy
        self._window = window
        self._pause_ms = pause_ms
        self._lives = 0
        self._sequence = 0
        self._pending: list[_Pending] = []
        self._sent: dict[int, tuple[int, _Pending]] = {}  # request -> (life, record)
        self._request = 0
        self._target: str | None = None
        self._epoch = LeaderEpoch(0)  # the newest heard in an ack
        self.stopped = False
        self.acked_count = 0
        network.join(self.name, self.receive)
        world.at(10 + number, self._tick)

    @property
    def drained(self) -> bool:
        """Tell whether every record was acked."""
        return not self._pending

    @property
    def _producer_id(self) -> int:
        # LEADER-acked records may be lost, and with them the middle of a sequence: such a
        # publisher begins again under a new id. ALL never has to.
        return self._number * 1000 + self._lives

    def _tick(self) -> None:
        now_ms = self._world.now_ms
        if not self.stopped and len(self._pending) < self._window and self._is_near():
            value = f"{self._producer_id}:{self._sequence}".encode()
            self._pending.append(_Pending(self._sequence, value))
            self._sequence += 1
        for one in self._pending:
            if one.sent_ms < 0 or now_ms - one.sent_ms > 250:
                if one.attempts:
                    self._target = None
                self._send(one)
        if self.policy is AckPolicy.NONE:
            self._pending.clear()
        self._world.at(1 + self._world.rng.randrange(self._pause_ms), self._tick)

    def _is_near(self) -> bool:
        """Stay within what a broker remembers, as a real producer does: it is answered in order."""
        first = self._pending[0].sequence if self._pending else self._sequence
        return self._sequence - first < _BATCHES_REMEMBERED

    def _send(self, one: _Pending) -> None:
        if self._target is None:
            self._target = self._guess()
        self._request += 1
        self._sent[self._request] = (self._lives, one)
        one.sent_ms, one.attempts = self._world.now_ms, one.attempts + 1
        none = self.policy is AckPolicy.NONE
        if one.record is None:
            one.record = self._witness.sent(
                self.name, self._producer_id, one.sequence, one.value, self.policy
            )
        else:
            self._witness.sent_again(one.record)
        publish = Publish(
            client=self.name,
            number=self._request,
            producer=NO_PRODUCER if none else self._producer_id,
            sequence=NO_SEQUENCE if none else one.sequence,
            value=one.value,
            policy=self.policy,
        )
        self._network.send(self.name, self._target, publish)

    def _guess(self) -> str:
        """Ask for the leader; now and then the answer is old."""
        rows = next(iter(self._control.state.partitions.values()), ())
        leader = rows[0].leader if rows else None
        if leader is None or self._world.chance(0.2):
            return self._world.rng.choice(sorted(self._brokers))
        return leader

    def receive(self, _: str, answer: Any) -> None:
        """Take an answer; an ack of an older epoch than one seen before is not believed."""
        assert isinstance(answer, PublishAnswer)
        life, one = self._sent.pop(answer.number, (-1, None))
        if answer.error is None and answer.leader_epoch < self._epoch:
            self._world.note("A14 ack of an old epoch dropped by a client")
            return
        if one is None or life != self._lives or one not in self._pending:
            return
        if answer.error is not None:
            self._target = None
            if isinstance(answer.error, SequenceGapError):
                self._meet_gap()
            return
        self._epoch = answer.leader_epoch
        self._pending.remove(one)
        self.acked_count += 1
        assert one.record is not None
        self._witness.acked(one.record, answer)
        if answer.duplicate and one.attempts > 1:
            self._world.note("A24 retry answered with its first offset")
        if self.policy is AckPolicy.ALL:
            self._oracle.client_heard(self._producer_id, one.sequence, answer.base)

    def _meet_gap(self) -> None:
        """A retry that overtook another one is sent again; a hole that stays was a loss."""
        assert self.policy is not AckPolicy.NONE
        if self.policy is AckPolicy.LEADER and self._pending[0].attempts > 3:
            self._world.note("publisher began again after a gap")
            self._begin_again()

    def _begin_again(self) -> None:
        self._lives += 1
        for number, one in enumerate(self._pending):
            one.sequence, one.sent_ms, one.record = number, -1, None
            one.value = f"{self._producer_id}:{number}".encode()
        self._sequence = len(self._pending)

    def told_of_loss(self, epoch: LeaderEpoch) -> None:
        """Hear of an unclean election: what was answered before it may be gone."""
        self._epoch = max(self._epoch, epoch)
        self._target = None
        self._begin_again()


class Reader:
    """Reads what is committed from whoever says that it leads, and never goes back."""

    def __init__(
        self,
        world: World,
        oracle: Oracle,
        brokers: Mapping[str, SimBroker],
        witness: Witness,
        table: Table | None = None,
    ) -> None:
        self._world = world
        self._oracle = oracle
        self._brokers = brokers
        self._witness = witness
        self._table = table
        self.position = 0
        world.at(60, self._tick)

    def _tick(self) -> None:
        leaders = [one for one in self._brokers.values() if one.serves]
        if leaders:
            self._read(self._world.rng.choice(leaders))
        self._world.at(40 + self._world.rng.randrange(40), self._tick)

    def truncated(self, end: Offset) -> None:
        """Hear from the epoch in its position that what it read from ``end`` on is no more."""
        if self.position > end:
            self.position = end
            self._witness.reader_truncated(end)

    def _batches(self, log: ReplicaLog, end: Offset) -> list[StoredBatch]:
        """Return what follows from the log, or as long as the log starts above it the table."""
        start = log.facts().log_start
        if self.position < start:
            assert self._table is not None
            return self._table.rows[self.position : min(start, end)]
        return log.read(Offset(self.position), end - self.position)

    def _read(self, broker: SimBroker) -> None:
        assert broker.replica is not None
        leader = broker.replica.leader
        assert leader is not None
        if leader.newest_committed is None:
            self._world.note("newest offset not available yet")
        end = leader.high_watermark
        if self.position > end:
            self._world.note("A20 reader above the high watermark")
            return
        try:
            batches = self._batches(broker.log, end)
        except SegmentCorruptError:
            broker.found_rot()
            return
        self._witness.polled(batches, end, (broker.session, leader.leader_epoch))
        for batch in batches:
            expected = self._oracle.committed[self.position]
            assert bytes(batch.body) == bytes(expected.body), "a reader was shown something else"
            self.position += 1
