"""Tasks of a cluster member that have an end: pumps that give their result to a callback.

There are three: withdraw damaged replicas from the ISR, hand leaderships over before a stop, ask a
leader for its high watermark. A task repeats its request until it has a result or its time is up.
A thread that needs the result waits by ``wait_for_answer``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from broker.core.metadata.commands import StopBroker
from broker.core.metadata.placement import hand_overs
from broker.errors import HeadwaterError, NotLeaderError
from broker.model.control_messages import NewestTold
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.ports.pumps import NEVER_MS
from broker.runtime.metadata import newest_told
from broker.runtime.metadata.metadata_log import ProposingMetadata

_log = structlog.get_logger(__name__)

_PATIENCE_MS: Final = 10_000  # how long a task waits for the metadata
_WITHDRAW_AGAIN_MS: Final = 100
_LOOK_MS: Final = 50
_NEWEST_MS: Final = 3_000
_ASK_MS: Final = 300
_ASK_AGAIN_MS: Final = 20


class GivingUp:
    """Withdraws damaged replicas from ISR and eligible, one after the other.

    The result: the partitions of which another replica has all committed records.
    """

    def __init__(
        self,
        damaged: Sequence[PartitionId],
        *,
        me: BrokerId,
        metadata: ProposingMetadata,
        withdraw: Callable[[PartitionId], None],
        answered: Callable[[list[PartitionId]], None],
    ) -> None:
        """Let ``withdraw`` propose; the caller wakes this pump when the state changes."""
        self._left = list(damaged)
        self._me = me
        self._metadata = metadata
        self._withdraw = withdraw
        self._answered = answered
        self._given_up: list[PartitionId] = []
        self._deadline_ms = self._again_ms = 0  # of the first partition in `_left`
        self._is_over = False

    def turn(self, now_ms: int) -> int:
        """Check the metadata; propose a withdrawal that it does not show yet."""
        while self._left:
            partition_id = self._left[0]
            stands_in = self._stands_in(partition_id, now_ms)
            if stands_in is None:
                return self._again_ms
            if stands_in:
                self._given_up.append(partition_id)
            del self._left[0]
            self._deadline_ms = self._again_ms = 0
        if not self._is_over:
            self._is_over = True
            self._answered(self._given_up)
        return NEVER_MS

    def _stands_in(self, partition_id: PartitionId, now_ms: int) -> bool | None:
        """Tell whether another replica has this replica's records; None: not decided yet."""
        one = self._metadata.state.partition(partition_id)
        if one is None:
            return False  # the stream is deleted, so no replica has its records
        if self._me not in (*one.isr, *one.eligible, one.leader):
            return bool(one.isr or one.eligible)
        self._deadline_ms = self._deadline_ms or now_ms + _PATIENCE_MS
        if {*one.isr, *one.eligible} <= {self._me} or now_ms >= self._deadline_ms:
            _log.error("damaged_replica_kept", partition=str(partition_id), reason="it is the last")
            return False
        if now_ms >= self._again_ms:
            self._again_ms = now_ms + _WITHDRAW_AGAIN_MS
            self._withdraw(partition_id)
        return None


class HandingOver:
    """Hands leaderships over before a stop, if other replicas can lead.

    The result: whether no leadership is left that another replica could take.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        broker_epoch: BrokerEpoch,
        metadata: ProposingMetadata,
        wake: Callable[[], None],
        answered: Callable[[bool], None],
    ) -> None:
        """Prepare; the first turn proposes the command."""
        self._me = me
        self._command = StopBroker(broker=me, broker_epoch=broker_epoch)
        self._metadata = metadata
        self._wake = wake
        self._answered = answered
        self._is_proposed = self._is_over = False
        self._heard: list[HeadwaterError | None] = []  # at most one
        self._deadline_ms: int | None = None  # set when the metadata knows that this broker stops

    def turn(self, now_ms: int) -> int:
        """Propose the stop, then wait until the controller has moved the leaderships it can."""
        if not self._is_proposed:
            self._is_proposed = True
            self._metadata.propose_soon(self._command, self._hear, timeout_ms=_PATIENCE_MS)
        if self._heard and not self._is_over:
            error = self._heard.pop()
            if error is not None:
                _log.warning("stopping_without_hand_over", reason=error.message)
                return self._end(handed_over=False)
            self._deadline_ms = now_ms + _PATIENCE_MS
        if self._deadline_ms is None or self._is_over:
            return NEVER_MS
        if not hand_overs(self._metadata.state, self._me):
            return self._end(handed_over=True)  # also if all brokers stop: none can take over
        if now_ms >= self._deadline_ms:
            return self._end(handed_over=False)
        return now_ms + _LOOK_MS

    def _end(self, *, handed_over: bool) -> int:
        self._is_over = True
        self._answered(handed_over)
        return NEVER_MS

    def _hear(self, error: HeadwaterError | None) -> None:
        self._heard.append(error)
        self._wake()


class AskingNewest:
    """Asks a partition's leader for its high watermark, until a leader answers.

    The result: the leader's answer with a high watermark, or the error.
    """

    def __init__(
        self,
        partition_id: PartitionId,
        name: str,
        *,
        metadata: ProposingMetadata,
        ask: Callable[[BrokerId, Callable[[NewestTold], None]], Callable[[], None]],
        wake: Callable[[], None],
        answered: Callable[[NewestTold | HeadwaterError], None],
    ) -> None:
        """Let ``ask`` send the question to a leader; ``ask`` returns a function that cancels it."""
        self._partition_id = partition_id
        self._name = name
        self._metadata = metadata
        self._ask = ask
        self._wake = wake
        self._answered = answered
        self._told: list[NewestTold] = []  # at most one: the answer to the present question
        self._drop: Callable[[], None] | None = None  # cancels the present question
        self._leader: BrokerId | None = None  # the broker that was asked
        self._deadline_ms: int | None = None
        self._again_ms = 0
        self._is_over = False

    def turn(self, now_ms: int) -> int:
        """Take an answer, or ask (again)."""
        if self._is_over:
            return NEVER_MS
        if self._deadline_ms is None:
            self._deadline_ms = now_ms + _NEWEST_MS
        if self._told:
            answer = self._worth(self._told.pop())
            if answer is not None:
                return self._end(answer)
            self._end_question(now_ms)
        if now_ms >= self._deadline_ms:
            reason = (
                f"no leader of {self._name} has told its high watermark within {_NEWEST_MS} ms: "
                "try again later"
            )
            return self._end(NotLeaderError(reason, partition=self._name))
        if now_ms < self._again_ms:
            return min(self._again_ms, self._deadline_ms)
        if self._drop is not None:  # the asked broker does not answer
            self._end_question(now_ms)
            return self._again_ms
        self._begin_question(now_ms)
        return min(self._again_ms, self._deadline_ms)

    def _begin_question(self, now_ms: int) -> None:
        one = self._metadata.state.partition(self._partition_id)
        self._leader = None if one is None else one.leader
        if self._leader is None:
            self._again_ms = now_ms + _ASK_AGAIN_MS
            return
        self._again_ms = now_ms + _ASK_MS
        self._drop = self._ask(self._leader, self._hear)

    def _end_question(self, now_ms: int) -> None:
        if self._drop is not None:
            self._drop()
        self._drop, self._again_ms = None, now_ms + _ASK_AGAIN_MS
        self._told.clear()

    def _worth(self, told: NewestTold) -> NewestTold | HeadwaterError | None:
        if told.high_watermark is not None:
            return told
        return newest_told.refusal(told, self._name, self._leader)

    def _end(self, answer: NewestTold | HeadwaterError) -> int:
        self._is_over = True
        if self._drop is not None:
            self._drop()
        self._answered(answer)
        return NEVER_MS

    def _hear(self, told: NewestTold) -> None:
        if told.partition_id == self._partition_id:
            self._told.append(told)
            self._wake()
