"""Three brokers' replica transports in one process, over real connections, for the contract suite.

A rig starts and stops them one by one; each has an inbox of delivered messages.
"""

from __future__ import annotations

import json
import queue
import socket
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from broker.adapters.nats.replicas import NatsReplicaTransport
from broker.adapters.peer.identity import PeerAddress
from broker.adapters.peer.link import PeerLink
from broker.adapters.peer.replicas import PeerReplicaTransport
from broker.adapters.tls.context import TlsFiles
from broker.codec.checksum import crc32c
from broker.codec.record_batch import BatchHeader
from broker.config import NatsConfig
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import (
    NO_PRODUCER,
    NO_SEQUENCE,
    BrokerId,
    PartitionId,
    PartitionNumber,
    StreamUuid,
)
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchAnswer, FetchRequest, ReplicaMessage
from broker.ports.cluster import ReplicaAddress, ReplicaTransport
from broker.ports.partition import StoredBatch
from headwater.local.cluster_certificates import make_certificates
from headwater.local.embedded import LOOPBACK, free_port
from simkit.servers.natsproc import NatsProcess

A, B, C = BROKERS = (BrokerId("a"), BrokerId("b"), BrokerId("c"))
CLUSTER: Final = "test"
TIMEOUT_S: Final = 60.0

Delivered = tuple[BrokerId, PartitionId, ReplicaMessage]
Inbox = queue.Queue[Delivered]


def address(number: int = 0) -> ReplicaAddress:
    """Return the partition of this number."""
    uuid = StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10")
    return ReplicaAddress(partition_id=PartitionId(uuid, PartitionNumber(number)), stream="s")


def fetch(request_id: int, *, follower: BrokerId = B, at: int = 0) -> FetchRequest:
    """Return a follower's request of this number."""
    return FetchRequest(
        follower=follower,
        broker_epoch=BrokerEpoch(4),
        leader_epoch=LeaderEpoch(7),
        request_id=request_id,
        fetch_from=Offset(at),
        last_epoch=LeaderEpoch(3),
        synced_end=Offset(at),
    )


def answer(request_id: int, batches: Sequence[StoredBatch] = (), *, at: int = 0) -> FetchAnswer:
    """Return the answer to the request of this number."""
    return FetchAnswer(
        leader_epoch=LeaderEpoch(7),
        request_id=request_id,
        start=Offset(at),
        high_watermark=Offset(at),
        log_end=Offset(at + len(batches)),
        batches=batches,
    )


def stored(at: int, body: bytes, *, crc: int | None = None) -> StoredBatch:
    """Return a batch of one record at this offset; its body is anything."""
    header = BatchHeader(
        base_offset=Offset(at),
        leader_epoch=LeaderEpoch(7),
        synced_end=Offset(at),
        first_timestamp_us=1,
        max_timestamp_us=1,
        producer_id=NO_PRODUCER,
        base_sequence=NO_SEQUENCE,
        records_count=1,
        offset_span=1,
        body_size=len(body),
        body_crc=crc32c(body) if crc is None else crc,
        columns=0,
        codec="none",
        sparse=False,
    )
    return StoredBatch(header, body)


class ReplicaRig(Protocol):
    """The interface of an implementation to the suite."""

    inboxes: dict[BrokerId, Inbox]
    transports: dict[BrokerId, ReplicaTransport]

    def start(self, broker: BrokerId) -> None:
        """Start a broker that does not run."""

    def stop(self, broker: BrokerId) -> None:
        """End a broker's transport and its connections."""

    def connections_count(self, one: BrokerId, other: BrokerId) -> int:
        """Return how many connections there are between two running brokers."""

    def malformed_count(self, broker: BrokerId) -> int:
        """Return how many messages a broker could not read."""

    def close(self) -> None:
        """End everything."""


class PeerRig:
    """The link between brokers."""

    def __init__(self, folder: Path) -> None:
        """Start all three."""
        self.folder = folder
        self._files = make_certificates(folder, cluster=CLUSTER, brokers=BROKERS)
        self.ports = {name: free_port() for name in BROKERS}
        self.links: dict[BrokerId, PeerLink] = {}
        self.transports: dict[BrokerId, ReplicaTransport] = {}
        self.inboxes: dict[BrokerId, Inbox] = {}
        for name in BROKERS:
            self.start(name)

    def start(self, broker: BrokerId) -> None:
        """Start a broker on its port, with an empty inbox."""
        link = self.links[broker] = PeerLink(
            cluster=CLUSTER,
            me=broker,
            listener=socket.create_server((LOOPBACK, self.ports[broker])),
            peers={name: PeerAddress(LOOPBACK, port) for name, port in self.ports.items()},
            tls=self.tls(broker),
        )
        transport = self.transports[broker] = PeerReplicaTransport(link)
        inbox = self.inboxes[broker] = queue.Queue()
        transport.start(lambda sender, partition, m: inbox.put((sender, partition, m)))

    def tls(self, broker: BrokerId) -> TlsFiles:
        """Return a broker's certificate files, with the list of revoked ones if there is one."""
        files, revoked = self._files[broker], self.folder / "revoked.crl"
        return TlsFiles(
            ca_file=files.ca_file,
            cert_file=files.cert_file,
            key_file=files.key_file,
            crl_file=revoked if revoked.exists() else None,
        )

    def stop(self, broker: BrokerId) -> None:
        """End a broker's transport, then its link."""
        self.transports.pop(broker).close()
        self.links.pop(broker).close()

    def connections_count(self, one: BrokerId, other: BrokerId) -> int:
        """Count what each of the two has accepted of the other."""
        return self.links[one].callers().count(other) + self.links[other].callers().count(one)

    def malformed_count(self, broker: BrokerId) -> int:
        """Count messages that did not decode."""
        transport = self.transports[broker]
        assert isinstance(transport, PeerReplicaTransport)
        return transport.malformed_count

    def close(self) -> None:
        """End those that run."""
        for broker in list(self.links):
            self.stop(broker)


class NatsRig:
    """NATS subjects, with a real nats-server."""

    def __init__(self, folder: Path) -> None:
        """Start the server and all three."""
        self.monitor_port = free_port()
        self.nats = NatsProcess(folder, settings=f'http: "{LOOPBACK}:{self.monitor_port}"').start()
        self.transports: dict[BrokerId, ReplicaTransport] = {}
        self.inboxes: dict[BrokerId, Inbox] = {}
        self.crashes: list[BaseException] = []
        for name in BROKERS:
            self.start(name)

    def start(self, broker: BrokerId) -> None:
        """Start a broker, with an empty inbox."""
        transport = self.transports[broker] = NatsReplicaTransport(
            NatsConfig(url=self.nats.url),
            cluster=CLUSTER,
            me=broker,
            brokers=BROKERS,
            on_crash=self.crashes.append,
        )
        inbox = self.inboxes[broker] = queue.Queue()
        transport.start(lambda sender, partition, m: inbox.put((sender, partition, m)))

    def stop(self, broker: BrokerId) -> None:
        """End a broker's transport."""
        self.transports.pop(broker).close()

    def connections_count(self, one: BrokerId, other: BrokerId) -> int:
        """Ask the server: the two have no other connections than those to it."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.monitor_port}/connz") as answer:
            connections = json.load(answer)["connections"]
        names = {f"headwater.{CLUSTER}.{broker}.replication" for broker in (one, other)}
        return sum(connection["name"] in names for connection in connections)

    def malformed_count(self, broker: BrokerId) -> int:
        """Count messages that did not decode."""
        transport = self.transports[broker]
        assert isinstance(transport, NatsReplicaTransport)
        return transport.refused["malformed"]

    def close(self) -> None:
        """End those that run, and the server; nothing may have crashed."""
        for broker in list(self.transports):
            self.stop(broker)
        self.nats.stop()
        assert self.crashes == []
