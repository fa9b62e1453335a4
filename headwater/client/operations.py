"""The requests of an operator as plain calls: the status of a cluster, and changes to it.

Any broker answers for the cluster. Only a replica's own broker knows the progress of the replica,
so :meth:`Operations.replicas` asks each broker, and leaves out brokers that do not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
    ReplicaCompaction,
    ReplicaStatus,
)
from headwater.client.address import Addresses
from headwater.client.client import Client
from headwater.client.compacting import compact_logs

_ASK_TIMEOUT_MS: Final = 2_000
_CHANGE_TIMEOUT_MS: Final = 30_000


class Operations:
    """The operator's side of a client; it does not own the client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def status(self, *, confirm_ms: int = 1_000) -> ClusterStatus:
        """Return the status of the cluster from the metadata."""
        values = _one(self._client, "cluster_status", {"confirm_ms": confirm_ms})
        return ClusterStatus.from_dict(values)

    def controllers(self) -> ControllersStatus:
        """Return the voters on the metadata; how far behind each is, only if the leader answers."""
        found = ControllersStatus.from_dict(_one(self._client, "cluster_controllers", {}))
        leader = self._address_of(found.leader) if found.leader != found.told_by else None
        if leader is None:
            return found
        try:
            with _at(self._client, leader) as client:
                return ControllersStatus.from_dict(_one(client, "cluster_controllers", {}))
        except UnavailableError:
            return found

    def change_controller(self, broker: str, *, votes: bool) -> ControllerChanged:
        """Make a broker vote on the metadata, or only follow it; call again until ``done``.

        Raises:
            InvalidRequestError: the change is not possible.
            UnknownBrokerError: the controllers' configuration does not name it.
            UnavailableError: no broker answers, or the leader of the controllers is not known.
        """
        values = {"broker": broker, "votes": votes}
        found = ControllerChanged.from_dict(_one(self._client, "change_controller", values))
        leader = self._address_of(found.leader) if found.leader != found.told_by else None
        if found.done or leader is None:
            return found
        with _at(self._client, leader) as client:
            return ControllerChanged.from_dict(_one(client, "change_controller", values))

    def _address_of(self, broker: str | None) -> str | None:
        found = None if broker is None else self.status().broker(broker)
        return None if found is None else found.addresses.get("flight")

    def replicas(self, brokers: Iterable[BrokerStatus] | None = None) -> list[ReplicaStatus]:
        """Return the replicas that brokers report; a broker that does not answer is left out.

        Args:
            brokers: The brokers to ask, each at its own address; None: only the client's broker.
        """
        if brokers is None:
            return _replicas(self._client, timeout_ms=_CHANGE_TIMEOUT_MS)
        addresses = [one.addresses["flight"] for one in brokers if "flight" in one.addresses]
        if not addresses:
            return _replicas(self._client, timeout_ms=_ASK_TIMEOUT_MS)
        with ThreadPoolExecutor(len(addresses)) as pool:
            told = pool.map(partial(_ask, self._client), addresses)
            return [one for found in told for one in found]

    def compact(
        self,
        name: str,
        partitions: Sequence[int] = (),
        *,
        timeout_ms: int = 600_000,
        told: Callable[[list[ReplicaCompaction]], None] = lambda _: None,
    ) -> list[ReplicaCompaction]:
        """Compact the logs of a stream now, at every broker that has a replica; wait for the end.

        Args:
            name: A stream with the setting ``compact``.
            partitions: Their numbers; none means all.
            timeout_ms: After it the passes go on without this call.
            told: Is called with all that is known, several times a second.

        Returns:
            A result for each replica, by partition. Its state is ``failed`` if its broker does not
            answer, and ``waiting`` or ``running`` if time is up.

        Raises:
            InvalidRequestError: the setting ``compact`` is off.
            UnknownStreamError, UnknownPartitionError.
        """
        return compact_logs(
            self._client, self.status(), name, partitions, timeout_ms=timeout_ms, told=told
        )

    def move(self, name: str, partition: int, target: Sequence[str]) -> Proposed:
        """Begin to move a partition.

        Raises:
            InvalidAssignmentError: the target is not possible.
            UnknownStreamError, UnknownPartitionError.
        """
        values = {"name": name, "partition": partition, "target": list(target)}
        return Proposed.from_dict(_one(self._client, "move_partition", values))

    def transfer_leader(self, name: str, partition: int, to: str) -> Proposed:
        """Hand leadership over; raises IneligibleReplicaError, UnknownBrokerError."""
        values = {"name": name, "partition": partition, "to": to}
        return Proposed.from_dict(_one(self._client, "transfer_leader", values))

    def balance(self) -> list[Proposed]:
        """Give leadership back to preferred leaders; return the changes, and refused ones."""
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
        """Let a broker lead although it may lack records; the request goes to that broker itself.

        Raises:
            InvalidRequestError: the loss was not accepted, or a replica can lead without a loss.
            StalePartitionEpochError: the partition has changed since ``partition_epoch`` was read.
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
            raise UnavailableError(
                f"the cluster has no Flight address of broker {broker.broker}; start that broker"
            )
        with _at(self._client, address) as client:
            return Proposed.from_dict(_one(client, "elect_unclean", values))

    def remove_broker(self, broker: str) -> None:
        """Remove a broker from the cluster; raises UnknownBrokerError, InvalidRequestError."""
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


def _at(client: Client, url: str) -> Client:
    """Return a client of one broker of the cluster, with the same certificates and token."""
    told = client.address.learn(url)
    if told is None:
        raise UnavailableError(
            f"the broker at {url!r} cannot be asked: the text is not an address, or it has no TLS "
            "although the configured addresses have"
        )
    return Client(Addresses((told,)))


def _ask(client: Client, address: str) -> list[ReplicaStatus]:
    try:
        with _at(client, address) as other:
            return _replicas(other, timeout_ms=_ASK_TIMEOUT_MS)
    except (UnavailableError, InvalidRequestError):
        return []  # the broker is away or runs an older version; the reports are optional


def _replicas(client: Client, *, timeout_ms: int) -> list[ReplicaStatus]:
    results = client.call("cluster_replicas", {}, timeout_ms=timeout_ms)
    return [ReplicaStatus.from_dict(one) for one in results]


def _one(client: Client, action: str, values: dict[str, Any]) -> dict[str, Any]:
    results = client.call(action, values, timeout_ms=_CHANGE_TIMEOUT_MS)
    if len(results) != 1:
        raise EnvelopeError(f"the broker answered {action} with {len(results)} results, not 1")
    return results[0]
