"""The protocol of a node, and the node of a broker alone: only its own metadata."""

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
    """A broker's metadata and its connections to other brokers. Calls may block."""

    metadata: RaftMetadataLog

    @property
    def membership(self) -> Membership:
        """The membership: of a single broker, or of a cluster."""

    @property
    def pace(self) -> BrokerPace:
        """The interval of ticks, and the limits of waiting."""

    @property
    def claim_wait_ms(self) -> int:
        """How long a start waits until its leaderships are claimed in the lake, in milliseconds."""

    @property
    def complaint(self) -> str | None:
        """Why the broker is not ready although its logs are in order; None if it is ready."""

    def attach(self, broker: Broker, clock: Clock) -> ClusterSamples | None:
        """Connect this broker; return the samples of its cluster, or None if it is alone."""

    def start(self) -> None:
        """Begin to work; called when the broker has started."""

    def listener(
        self, listener: LeadListener, on_crash: Callable[[BaseException], None]
    ) -> tuple[LeadListener, Callable[[], None]]:
        """Return a listener that passes events on to ``listener``, and a function that ends it."""

    def hand_over(self) -> None:
        """Hand leaderships to other brokers before a stop, if they can take them."""

    def stop(self) -> None:
        """End the work that :meth:`start` began."""

    def close(self) -> None:
        """Close everything else."""


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
        """See ``Node.claim_wait_ms``: this broker leads every partition from its start."""
        return self._claim_wait_ms

    @property
    def complaint(self) -> str | None:
        """See ``Node.complaint``: with failed metadata the broker only serves reads."""
        failure = self.metadata.failure
        return None if failure is None else f"metadata: {failure.message}"

    def attach(self, broker: Broker, clock: Clock) -> None:
        """See ``Node.attach``: there are no other brokers."""

    def start(self) -> None:
        """See ``Node.start``: the metadata changes by this broker's own proposals."""

    def listener(
        self,
        listener: LeadListener,
        on_crash: Callable[[BaseException], None],  # noqa: ARG002 - no thread that could crash
    ) -> tuple[LeadListener, Callable[[], None]]:
        """See ``Node.listener``: a stream is subscribed before its creation returns."""
        return listener, _nothing

    def hand_over(self) -> None:
        """See ``Node.hand_over``: there is no other broker."""

    def stop(self) -> None:
        """See ``Node.stop``."""

    def close(self) -> None:
        """End Raft."""
        self.metadata.close()


def _nothing() -> None:
    """Do nothing."""
