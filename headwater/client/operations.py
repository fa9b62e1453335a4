"""What operators ask of a cluster, as plain calls: how it stands, and changes on purpose.

Any broker answers for the cluster. How far a replica is, its own broker knows: :meth:`replicas`
asks each of them, and passes over who does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from broker.errors import (
    EnvelopeError,
    InvalidRequestError,
    UnavailableError,
    UnknownBrokerError,
)
from broker.model.cluster_status import (
    BrokerStatus,
    ClusterStatus,
    ControllerChanged,
    ControllersStatus,
    Proposed,
    ReplicaStatus,
)
from headwater.client.client import Client

_ASK_TIMEOUT_MS: Final = 2_000
_CHANGE_TIMEOUT_MS: Final = 30_000


class Operations:
    """The operator's side of a client; it does not own the client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def status(self, *, confirm_ms: int = 1_000) -> ClusterStatus:
        """Return how the cluster stands, as the metadata has it."""
        values = _one(self._client, "cluster_status", {"confirm_ms": confirm_ms})
        return ClusterStatus.from_dict(values)

    def controllers(self) -> ControllersStatus:
        """Return who votes on the metadata, and how far behind each is, if the leader answers."""
        found = ControllersStatus.from_dict(_one(self._client, "cluster_controllers", {}))
        leader = self._address_of(found.leader) if found.leader != found.told_by else None
        if leader is None:
            return found
        try:
            with Client(leader) as client:
                return ControllersStatus.from_dict(_one(client, "cluster_controllers", {}))
        except UnavailableError:
            return found

    def change_controller(self, broker: str, *, votes: bool) -> ControllerChanged:
        """Go on with making a broker vote on the metadata or follow it; ask until it is done.

        Raises:
            InvalidRequestError: it can never be.
            UnknownBrokerError: the controllers' configuration does not name it.
            UnavailableError: nobody answers, or who leads is not known.
        """
        values = {"broker": broker, "votes": votes}
        found = ControllerChanged.from_dict(_one(self._client, "change_controller", values))
        leader = self._address_of(found.leader) if found.leader != found.told_by else None
        if found.done or leader is None:
            return found
        with Client(leader) as client:
            return ControllerChanged.from_dict(_one(client, "change_controller", values))

    def _address_of(self, broker: str | None) -> str | None:
        found = None if broker is None else self.status().broker(broker)
        return None if found is None else found.addresses.get("flight")

    def replicas(self, brokers: Iterable[BrokerStatus] | None = None) -> list[ReplicaStatus]:
        """Return what brokers say of their replicas; a broker that does not answer is left out.

        Args:
            brokers: whom to ask, each at its own address; None: only the broker we talk to.
        """
        if brokers is None:
            return _replicas(self._client, timeout_ms=_CHANGE_TIMEOUT_MS)
        addresses = [one.addresses["flight"] for one in brokers if "flight" in one.addresses]
        if not addresses:
            return _replicas(self._client, timeout_ms=_ASK_TIMEOUT_MS)
        with ThreadPoolExecutor(len(addresses)) as pool:
            return [one for told in pool.map(_ask, addresses) for one in told]

    def move(self, name: str, partition: int, target: Sequence[str]) -> Proposed:
        """Begin to move a partition; raises InvalidAssignmentError and what names a stream."""
        values = {"name": name, "partition": partition, "target": list(target)}
        return Proposed.from_dict(_one(self._client, "move_partition", values))

    def transfer_leader(self, name: str, partition: int, to: str) -> Proposed:
        """Hand leadership over; raises IneligibleReplicaError, UnknownBrokerError."""
        values = {"name": name, "partition": partition, "to": to}
        return Proposed.from_dict(_one(self._client, "transfer_leader", values))

    def balance(self) -> list[Proposed]:
        """Give leadership back to preferred leaders; return what was done."""
        results = self._client.call("balance_leaders", {}, timeout_ms=_CHANGE_TIMEOUT_MS)
        return [Proposed.from_dict(one) for one in results]

    def elect_unclean(
        self,
        name: str,
        partition: int,
        *,
        broker: BrokerStatus,
        partition_epoch: int,
        known_end: int,
        operator: str,
        accept_data_loss: bool,
    ) -> Proposed:
        """Let a broker lead although it may lack records; asked of that very broker.

        Raises:
            InvalidRequestError: not accepted, or somebody can lead without a loss.
            StalePartitionEpochError: the partition has changed since it was looked at.
            UnavailableError: that broker does not answer.
        """
        values = {
            "name": name,
            "partition": partition,
            "broker": broker.broker,
            "partition_epoch": partition_epoch,
            "known_end": known_end,
            "operator": operator,
            "accept_data_loss": accept_data_loss,
        }
        address = broker.addresses.get("flight")
        if address is None:
            raise UnavailableError(f"broker {broker.broker} has told nobody its address")
        with Client(address) as client:
            return Proposed.from_dict(_one(client, "elect_unclean", values))

    def remove_broker(self, broker: str) -> None:
        """Forget a broker; raises UnknownBrokerError, InvalidRequestError."""
        _one(self._client, "remove_broker", {"broker": broker})


def known_broker(status: ClusterStatus, broker: str) -> BrokerStatus:
    """Return a broker of a status; raises UnknownBrokerError."""
    found = status.broker(broker)
    if found is None:
        known = ", ".join(one.broker for one in status.brokers)
        raise UnknownBrokerError(
            f"no broker {broker!r} has ever registered; there are {known}", broker=broker
        )
    return found


def _ask(address: str) -> list[ReplicaStatus]:
    try:
        with Client(address) as client:
            return _replicas(client, timeout_ms=_ASK_TIMEOUT_MS)
    except (UnavailableError, InvalidRequestError):
        return []  # away, or of an older build; nothing depends on it


def _replicas(client: Client, *, timeout_ms: int) -> list[ReplicaStatus]:
    results = client.call("cluster_replicas", {}, timeout_ms=timeout_ms)
    return [ReplicaStatus.from_dict(one) for one in results]


def _one(client: Client, action: str, values: dict[str, Any]) -> dict[str, Any]:
    results = client.call(action, values, timeout_ms=_CHANGE_TIMEOUT_MS)
    if len(results) != 1:
        raise EnvelopeError(f"{action} gave {len(results)} results, not one")
    return results[0]
