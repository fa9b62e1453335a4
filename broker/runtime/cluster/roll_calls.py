"""The pump that calls the roll of standing fetches, and the answers of both sides.

The broker of the followers calls: every ``call_ms`` it sends the roll of its own fetches to each
broker at which some stand. That broker compares the roll with its own and answers. A replica whose
fetch was not confirmed for a while is woken; what to do then is the replica's own decision
(``broker/core/replication``). docs/decisions/0056 has the argument.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from broker.core.replication.replica import first_request_id
from broker.core.replication.standing import Roll, StandingFetch, StandingReplica
from broker.model.control_messages import RollAnswer, RollCall
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.ports.cluster import ControlTransport
from broker.ports.system import Clock

_UNHEARD: Final = 0  # less than every number


class RollCalls:
    """Any thread keeps fetches and takes messages; one thread at a time runs turns."""

    def __init__(
        self,
        *,
        control: ControlTransport,
        clock: Clock,
        broker_epoch: Callable[[], BrokerEpoch],
        call_ms: int,
        own_kept_ms: int,
        kept_ms: int,
    ) -> None:
        """Begin without fetches.

        A follower here is woken if its fetch was not confirmed for ``own_kept_ms``, a leader if a
        follower's fetch was not confirmed for ``kept_ms``.
        """
        self._control = control
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._call_ms = call_ms
        self._own_kept_ms, self._kept_ms = own_kept_ms, kept_ms
        self._lock = threading.Lock()
        self._kept: dict[PartitionId, Collection[StandingFetch]] = {}
        self._rolls: dict[tuple[BrokerId, bool], Roll] = {}  # by peer, and whether it is the leader
        self._calls_count = 0
        self._called: dict[BrokerId, int] = {}  # the newest roll call sent to each broker
        self._heard: dict[BrokerId, int] = {}  # the newest roll call that came from each broker

    def keep(
        self,
        partition_id: PartitionId,
        replica: StandingReplica,
        standing: Collection[StandingFetch],
    ) -> None:
        """Keep these fetches of a partition, instead of those that it had before."""
        with self._lock:
            before = self._kept.pop(partition_id, ())
            for fetch in before:
                if fetch not in standing:
                    self._rolls[fetch.peer, fetch.is_own].remove(fetch)
            for fetch in standing:
                if fetch not in before:
                    roll = self._rolls.setdefault((fetch.peer, fetch.is_own), Roll())
                    roll.add(partition_id, fetch, replica)
            if standing:
                self._kept[partition_id] = standing

    def turn(self, now_ms: int) -> int:
        """Call the roll at each leader's broker; wake the replicas that roll calls left out."""
        calls: list[tuple[BrokerId, RollCall]] = []
        with self._lock:
            silent: list[StandingReplica] = []
            for (peer, is_own), roll in self._rolls.items():
                silent += roll.silent(now_ms, self._own_kept_ms if is_own else self._kept_ms)
                if is_own and len(roll):
                    number = self._called[peer] = self._next_number()
                    calls.append((peer, RollCall(number=number, sums=roll.call(number))))
        for replica in silent:
            replica.wake()
        for peer, call in calls:
            self._control.send(peer, call)
        return now_ms + self._call_ms

    def called(self, sender: BrokerId, call: RollCall) -> None:
        """Answer a roll call; one that is late or comes twice proves nothing."""
        with self._lock:
            roll = self._rolls.get((sender, False))
            if roll is None or call.number <= self._heard.get(sender, _UNHEARD):
                return
            self._heard[sender] = call.number
            own = roll.call(call.number)
            equal = tuple(one == two for one, two in zip(own, call.sums, strict=True))
            roll.confirm(call.number, equal, self._clock.monotonic_ms())
        self._control.send(sender, RollAnswer(number=call.number, equal=equal))

    def answered(self, sender: BrokerId, answer: RollAnswer) -> None:
        """Take the answer to the newest roll call; an earlier one is dropped."""
        with self._lock:
            roll = self._rolls.get((sender, True))
            if roll is not None and answer.number == self._called.get(sender):
                roll.confirm(answer.number, answer.equal, self._clock.monotonic_ms())

    def _next_number(self) -> int:
        self._calls_count += 1
        return first_request_id(self._broker_epoch()) + self._calls_count
