"""What a node is to the daemon, and the node of a broker alone: its metadata, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.config import BrokerConfig
from broker.model.ids import BrokerId
from broker.ports.system import Clock, Files
from broker.process.cluster_samples import ClusterSamples
from broker.process.node import consensus_of
from broker.runtime.broker import Broker, BrokerPace
from broker.runtime.cluster.membership import Alone, Membership
from broker.runtime.led import LeadListener
from broker.runtime.metadata.lone import open_alone
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.promises.promises import Promises


class Node(Protocol):
    """A broker's metadata, and its place among others. Calls block for as long as it takes."""

    metadata: RaftMetadataLog

    @property
    def membership(self) -> Membership:
        """Whether the broker is alone, or one of several."""

    @property
    def pace(self) -> BrokerPace:
        """How often the broker looks at its replicas, and how long it waits for whom."""

    @property
    def claim_wait_ms(self) -> int:
        """How long a start waits for claims in the lake of what is led from the beginning."""

    @property
    def complaint(self) -> str | None:
        """Why no work should be sent here, though the logs are in order."""

    def attach(self, broker: Broker, clock: Clock) -> ClusterSamples | None:
        """Work for this broker; return the cluster's numbers, if there is a cluster."""

    def start(self) -> None:
        """Go on by itself; the broker has started."""

    def listener(
        self, listener: LeadListener, on_crash: Callable[[BaseException], None]
    ) -> tuple[LeadListener, Callable[[], None]]:
        """Return who tells ``listener`` what is led, and what ends it."""

    def hand_over(self) -> None:
        """Give leaderships away before a stop, as far as others can take them."""

    def stop(self) -> None:
        """End what :meth:`start` began."""

    def close(self) -> None:
        """End everything else."""


class LoneNode:
    """Implements ``Node`` for a broker without a cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        *,
        promises: Promises | None = None,
    ) -> None:
        """Open the metadata. Raises as :func:`open_alone` does."""
        self.metadata = open_alone(
            files,
            cluster=config.node.cluster,
            me=BrokerId(config.node.id),
            clock=clock,
            on_crash=on_crash,
            promises=promises,
            new_core=consensus_of(config),
        )
        self.membership: Membership = Alone(self.metadata, BrokerId(config.node.id), files)
        self._claim_wait_ms = config.lake.claim_timeout_ms

    @property
    def pace(self) -> BrokerPace:
        """See ``Node.pace``."""
        return BrokerPace(claim_ms=self._claim_wait_ms)

    @property
    def claim_wait_ms(self) -> int:
        """See ``Node.claim_wait_ms``: it leads everything as soon as it is open."""
        return self._claim_wait_ms

    @property
    def complaint(self) -> str | None:
        """See ``Node.complaint``: without metadata it only reads."""
        failure = self.metadata.failure
        return None if failure is None else f"metadata: {failure.message}"

    def attach(self, broker: Broker, clock: Clock) -> None:
        """See ``Node.attach``: nobody else has a part in it."""

    def start(self) -> None:
        """See ``Node.start``: the metadata changes by this broker's own proposals."""

    def listener(
        self,
        listener: LeadListener,
        on_crash: Callable[[BaseException], None],  # noqa: ARG002 - no thread that could crash
    ) -> tuple[LeadListener, Callable[[], None]]:
        """See ``Node.listener``: who creates a stream here has it subscribed when it returns."""
        return listener, _nothing

    def hand_over(self) -> None:
        """See ``Node.hand_over``: nobody could take them."""

    def stop(self) -> None:
        """See ``Node.stop``."""

    def close(self) -> None:
        """End Raft."""
        self.metadata.close()


def _nothing() -> None:
    """Nothing was begun."""
