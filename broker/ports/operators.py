"""The interface of a broker for operators; any broker of a cluster may be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.model.cluster_status import (
    ClusterStatus,
    ControllerChanged,
    ControllersStatus,
    Proposed,
    ReplicaCompaction,
    ReplicaStatus,
)


class OperatorApi(Protocol):
    """Implemented by ``ClusterOperations``. Blocking; any thread.

    Commands are proposed to the metadata log. A method returns when its command is applied, not
    when its effect (for example a move) is complete; :meth:`status` shows the progress.
    """

    def status(self, *, confirm_ms: int = 1_000) -> ClusterStatus:
        """Return the newest metadata; if it is not confirmed in time, this broker's metadata."""

    def controllers(self) -> ControllersStatus:
        """Return the voters and observers of the metadata, with progress if this broker leads.

        Raises:
            InvalidRequestError: this is a broker alone.
        """

    def change_controller(self, broker: str, *, votes: bool) -> ControllerChanged:
        """Take the next step of making a broker a controller, or an observer without a vote.

        The call does not wait for the change: call it again, on the leader that the result names,
        until the result is ``done``.

        Raises:
            InvalidRequestError: this is a single broker, or the change is impossible.
            UnknownBrokerError: the leader has no such broker in its configuration.
        """

    def replicas(self) -> list[ReplicaStatus]:
        """Return the state of the replicas on this broker."""

    def compact(
        self, name: str, partitions: Sequence[int], *, ticket: str
    ) -> list[ReplicaCompaction]:
        """Compact the logs of this broker's replicas now; of these partitions, or of all.

        Each replica compacts its own log, so every broker has to be asked. The call does not wait
        for the end: call it again, with the same ``ticket``, until every result is final.

        Raises:
            InvalidRequestError: the stream's setting ``compact`` is off.
            UnknownStreamError, UnknownPartitionError.
            OverloadedError: too many other requests wait.
        """

    def move(self, name: str, partition: int, target: Sequence[str]) -> Proposed:
        """Begin to move a partition to other brokers.

        The old replicas leave when all new replicas are in sync.

        Raises:
            UnknownStreamError, UnknownPartitionError, InvalidAssignmentError.
        """

    def transfer_leader(self, name: str, partition: int, to: str) -> Proposed:
        """Let another in-sync replica lead.

        Raises:
            UnknownStreamError, UnknownPartitionError, UnknownBrokerError.
            IneligibleReplicaError: the replica is not in sync, or its broker is fenced or stopping.
        """

    def balance(self) -> list[Proposed]:
        """Give leadership back to each partition's preferred leader, where it is in sync."""

    def elect_unclean(
        self,
        name: str,
        partition: int,
        *,
        broker: str,
        partition_epoch: int,
        known_end: int,
        operator: str,
        accept_data_loss: bool,
    ) -> Proposed:
        """Let this broker lead although it may lack committed records; record the loss.

        Call it on ``broker`` itself: only that broker knows its own log end.

        Raises:
            InvalidRequestError: another replica can lead without a loss, or the caller does not
                accept the loss, or this broker is not ``broker``.
        """

    def remove_broker(self, broker: str) -> None:
        """Forget a broker that is fenced, holds no replica and has no vote.

        Raises:
            UnknownBrokerError.
            InvalidRequestError: the broker is not fenced, holds replicas or votes on the metadata.
        """
