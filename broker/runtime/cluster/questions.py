"""Questions between brokers: a partition's high watermark, and a replica's log end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from broker.core.metadata.state import MetadataState
from broker.core.replication.replica import first_request_id
from broker.model.control_messages import LogEndAsked, LogEndTold, NewestAsked, NewestTold
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.ports.cluster import ControlTransport
from broker.runtime.metadata import newest_told
from broker.runtime.partition.driver import PartitionDriver

Replica = Callable[[PartitionId], PartitionDriver | None]  # the local replica, or None


class NewestQuestions:
    """Asks leaders on other brokers for a partition's high watermark. Any thread."""

    def __init__(self, me: BrokerId, control: ControlTransport, replica: Replica) -> None:
        """Ask over ``control``; answer for partitions that ``me`` leads, found by ``replica``."""
        self._me = me
        self._control = control
        self._replica = replica
        self._waiting: dict[int, Callable[[NewestTold], None]] = {}
        self._numbers = itertools.count(1)  # until this process is registered

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Number questions so that a late answer to the former process matches none of them."""
        self._numbers = itertools.count(first_request_id(broker_epoch))

    def ask(
        self, leader: BrokerId, partition_id: PartitionId, told: Callable[[NewestTold], None]
    ) -> Callable[[], None]:
        """Ask a question; return a function that cancels it."""
        number = next(self._numbers)
        asked = NewestAsked(partition_id=partition_id, request_id=number)
        if leader == self._me:
            told(self._answer(asked))
        else:
            self._waiting[number] = told
            self._control.send(leader, asked)
        return partial(self._drop, number)

    def answer_to(self, sender: BrokerId, asked: NewestAsked) -> None:
        """Answer a question of another broker."""
        self._control.send(sender, self._answer(asked))

    def answered(self, told: NewestTold) -> None:
        """Hand an answer to its question, if that is still open."""
        hear = self._waiting.pop(told.request_id, None)
        if hear is not None:
            hear(told)

    def _drop(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _answer(self, asked: NewestAsked) -> NewestTold:
        return newest_told.newest_told(self._replica(asked.partition_id), asked)


class LogEndAnswers:
    """Answers the controller's question before an election: a replica's log end."""

    def __init__(
        self,
        control: ControlTransport,
        replica: Replica,
        state: Callable[[], MetadataState],
    ) -> None:
        """Answer over ``control``, for the replicas in ``state``."""
        self._control = control
        self._replica = replica
        self._state = state
        self._broker_epoch = BrokerEpoch(0)
        # By partition: the asker, and its question about a leader epoch that is not known here yet.
        self._open: dict[PartitionId, tuple[BrokerId, LogEndAsked]] = {}

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Set the broker epoch under which this process answers from now on."""
        self._broker_epoch = broker_epoch

    def asked(self, controller: BrokerId, asked: LogEndAsked) -> None:
        """Answer at once; that is enough if this process has been compared.

        Answer once more when this broker knows the leader epoch of the question: only then the
        replica has stopped following the former leader, so its log end is final.
        """
        if self._state().partition(asked.partition_id) is None:
            return
        self._open[asked.partition_id] = (controller, asked)  # first: the view may change now
        self._answer(asked.partition_id, at_once=True)

    def answer_again(self) -> None:
        """Answer the open questions whose leader epoch is known by now."""
        for partition_id in list(self._open):
            self._answer(partition_id)

    def _answer(self, partition_id: PartitionId, *, at_once: bool = False) -> None:
        driver, question = self._replica(partition_id), self._open.get(partition_id)
        if question is None or driver is None or driver.health.failure is not None:
            return
        controller, asked = question
        view = driver.replication.view
        known = LeaderEpoch(0) if view is None else view.leader_epoch
        if known >= asked.leader_epoch:
            self._open.pop(partition_id, None)
        elif not at_once:
            return
        # After the view, so the answer includes what the former leader sent.
        last_epoch, end = driver.replication.synced_position
        told = LogEndTold(
            partition_id=partition_id,
            broker_epoch=self._broker_epoch,
            leader_epoch=known,
            last_epoch=last_epoch,
            log_end=end,
        )
        self._control.send(controller, told)
