"""What operators may ask of a broker, whichever of a cluster it is. See :mod:`broker.ports`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.model.cluster_status import ClusterStatus, Proposed, ReplicaStatus


class OperatorApi(Protocol):
    """Implemented by ``ClusterOperations``. Blocking; any thread.

    Commands are proposed to the metadata log: they return once they are decided, not once what
    they ask for has happened; that shows in :meth:`status`.
    """

    def status(self, *, confirm_ms: int = 1_000) -> ClusterStatus:
        """Return what the metadata says; if nobody confirms it in time, what is known here."""

    def replicas(self) -> list[ReplicaStatus]:
        """Return how the replicas on this very broker stand."""

    def move(self, name: str, partition: int, target: Sequence[str]) -> Proposed:
        """Begin to move a partition to other brokers; the old ones leave once all have it.

        Raises:
            UnknownStreamError, UnknownPartitionError, InvalidAssignmentError.
        """

    def transfer_leader(self, name: str, partition: int, to: str) -> Proposed:
        """Let another in-sync replica lead.

        Raises:
            UnknownStreamError, UnknownPartitionError, UnknownBrokerError.
            IneligibleReplicaError: it is not in sync, fenced or stopping.
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
        """Let this broker lead although it may lack committed records; what is lost is recorded.

        Asked of ``broker`` itself: only it knows how far its log reaches.

        Raises:
            InvalidRequestError: somebody can still lead without a loss, or the loss is not
                accepted, or this is another broker.
        """

    def remove_broker(self, broker: str) -> None:
        """Forget a broker that is fenced and holds no replica.

        Raises:
            UnknownBrokerError; InvalidRequestError: it lives, or holds replicas.
        """
