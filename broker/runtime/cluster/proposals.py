"""Metadata proposals of this broker's replicas; no call waits."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from broker.core.metadata.commands import (
    ChangeIsr,
    Command,
    ConfirmLeader,
    WithdrawReplica,
)
from broker.core.replication.effects import ProposeIsr
from broker.errors import CommitTimeoutError, HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.runtime.metadata.metadata_log import ProposingMetadata

_PROPOSE_MS: Final = 5_000


class MemberProposals:
    """Any thread. Call :meth:`registered` before the first proposal."""

    def __init__(self, me: BrokerId, metadata: ProposingMetadata) -> None:
        """Propose to ``metadata`` as ``me``."""
        self._me = me
        self._metadata = metadata
        self._broker_epoch = BrokerEpoch(0)
        # Leaderships whose confirmation is not answered yet: a candidate repeats it meanwhile.
        self._confirming: set[tuple[PartitionId, LeaderEpoch]] = set()

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Set the broker epoch under which this process proposes from now on."""
        self._broker_epoch = broker_epoch

    def isr(
        self, partition_id: PartitionId, wanted: ProposeIsr, answered: Callable[[bool], None]
    ) -> None:
        """Propose an ISR. ``answered`` is not called if the outcome is unknown."""

        def heard(error: HeadwaterError | None) -> None:
            if not isinstance(error, CommitTimeoutError):
                answered(error is None)

        self._propose(
            ChangeIsr(
                stream_uuid=partition_id.stream_uuid,
                partition=partition_id.number,
                broker=self._me,
                broker_epoch=self._broker_epoch,
                leader_epoch=wanted.leader_epoch,
                partition_epoch=wanted.partition_epoch,
                isr=wanted.isr,
                forgotten=wanted.forgotten,
            ),
            heard,
        )

    def leader(
        self,
        partition_id: PartitionId,
        leader_epoch: LeaderEpoch,
        log_end: Offset,
        log_epoch: LeaderEpoch,
    ) -> None:
        """Propose that a candidate leads; the leadership gets a random lineage id."""
        confirmed = partition_id, leader_epoch
        if confirmed in self._confirming:
            return  # a repeat would only queue behind the first proposal
        self._confirming.add(confirmed)
        self._propose(
            ConfirmLeader(
                stream_uuid=partition_id.stream_uuid,
                partition=partition_id.number,
                broker=self._me,
                broker_epoch=self._broker_epoch,
                leader_epoch=leader_epoch,
                lineage_id=uuid.uuid4().hex,
                log_end=log_end,
                log_epoch=log_epoch,
            ),
            lambda _: self._confirming.discard(confirmed),
        )

    def withdrawal(
        self, partition_id: PartitionId, answered: Callable[[HeadwaterError | None], None]
    ) -> None:
        """Propose that a replica leaves ISR and eligible: others there have all its records."""
        self._propose(
            WithdrawReplica(
                stream_uuid=partition_id.stream_uuid,
                partition=partition_id.number,
                broker=self._me,
                broker_epoch=self._broker_epoch,
            ),
            answered,
        )

    def _propose(self, command: Command, answered: Callable[[HeadwaterError | None], None]) -> None:
        self._metadata.propose_soon(command, answered, timeout_ms=_PROPOSE_MS)
