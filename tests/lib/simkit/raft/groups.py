"""Metadata logs under one roof, for the contract suite: one node's journal, and Raft groups.

A Raft group's members live in this process, each with its own folder, and talk over real TLS on
the loopback with certificates of a throw-away authority.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final, Protocol

from broker.adapters.clock import SystemClock
from broker.adapters.disk.files import DiskFiles
from broker.adapters.peer.raft import PeerAddress, RaftTls, TlsRaftTransport, member_uri
from broker.adapters.raft_pysyncobj.core import PysyncobjCore
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import NewConsensus
from broker.core.raft.core import RaftCore
from broker.model.ids import BrokerId
from broker.model.raft import NodeId
from broker.runtime.metadata.lone import open_alone
from broker.runtime.metadata.metadata_log import MetadataLog
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.storage.promises.promises import Promises
from headwater.local.embedded import LOOPBACK, free_port
from simkit.servers.certificates import Authority

# Both implementations of a Raft member, by the names that tests give them.
CORES: Final[dict[str, NewConsensus]] = {"own": RaftCore, "pysyncobj": PysyncobjCore}


class MetadataLogs(Protocol):
    """All members of one implementation."""

    def members(self) -> list[MetadataLog]:
        """Return the running members."""

    def restart(self) -> None:
        """End all of them, then start them again on the same files."""

    def close(self) -> None:
        """End all of them."""


class LoneLogs:
    """The log of a broker alone, as its daemon opens it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._crashes: list[BaseException] = []
        self._open()

    def _open(self) -> None:
        self._files = DiskFiles(self._folder / "data")
        self._promises = Promises(self._files)
        self._log = open_alone(
            self._files,
            cluster="test",
            me=BrokerId("b1"),
            clock=SystemClock(),
            on_crash=self._crashes.append,
            promises=self._promises,
        )

    def members(self) -> list[MetadataLog]:
        """Return the one member."""
        return [self._log]

    def restart(self) -> None:
        """Close and open."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close; nothing may have crashed."""
        self._log.close()
        self._promises.close()
        self._files.close()
        assert self._crashes == [], f"the Raft thread crashed: {self._crashes}"


class RaftGroup:
    """One or three members; `stop` and `start` end and begin single ones."""

    def __init__(
        self,
        folder: Path,
        *,
        size: int,
        journal_bytes_max: int = 1 << 22,
        keep_entries: int = 1000,
        core: NewConsensus = RaftCore,
    ) -> None:
        self._folder = folder
        self.core = core  # of members that are started from now on
        self._journal_bytes_max = journal_bytes_max
        self._keep_entries = keep_entries
        self.names = tuple(NodeId(f"n{number}") for number in range(size))
        self._ports = {name: free_port() for name in self.names}
        self.authority = Authority()
        self._tls = {
            name: issue_certificate(folder, name, self.authority, uri=member_uri("test", name))
            for name in self.names
        }
        self.crashes: list[BaseException] = []
        self.running: dict[NodeId, RaftMetadataLog] = {}
        self.transports: dict[NodeId, TlsRaftTransport] = {}
        self._files: dict[NodeId, DiskFiles] = {}
        self._start_all()

    def _start_all(self) -> None:
        for name in self.names:
            self.start(name)

    def start(self, name: NodeId, listener: socket.socket | None = None) -> RaftMetadataLog:
        """Start a member on its files and its port, or with a listener of the test's own."""
        transport = None
        if len(self.names) > 1:
            transport = self.transports[name] = TlsRaftTransport(
                cluster="test",
                me=name,
                listener=listener or socket.create_server((LOOPBACK, self._ports[name])),
                peers={
                    one: PeerAddress(LOOPBACK, self._ports[one])
                    for one in self.names
                    if one != name
                },
                tls=self._tls[name],
            )
        self._files[name] = DiskFiles(self._folder / name)
        self.running[name] = RaftMetadataLog(
            self._files[name],
            RaftConfig(members=self.names, keep_entries=self._keep_entries),
            cluster="test",
            me=name,
            clock=SystemClock(),
            on_crash=self.crashes.append,
            transport=transport,
            journal_bytes_max=self._journal_bytes_max,
            new_core=self.core,
        )
        return self.running[name]

    def stop(self, name: NodeId) -> None:
        """End a member."""
        self.running.pop(name).close()
        self._files.pop(name).close()

    def port(self, name: NodeId) -> int:
        """Return where a member listens."""
        return self._ports[name]

    def tls(self, name: NodeId) -> RaftTls:
        """Return a member's certificate files."""
        return self._tls[name]

    def leader(self) -> NodeId:
        """Return who leads, as its first member that knows says, after a barrier."""
        one = next(iter(self.running.values()))
        one.barrier(timeout_ms=30_000)
        leader = one.leader
        assert leader is not None, "a barrier passed without a leader"
        return leader

    def members(self) -> list[MetadataLog]:
        """Return the running members."""
        return list(self.running.values())

    def restart(self) -> None:
        """End all, then start all."""
        for name in self.names:
            self.stop(name)
        self._start_all()

    def close(self) -> None:
        """End all that run; nothing may have crashed."""
        for name in list(self.running):
            self.stop(name)
        assert self.crashes == [], f"the Raft thread crashed: {self.crashes}"


def issue_certificate(folder: Path, name: NodeId, authority: Authority, *, uri: str) -> RaftTls:
    """Write a certificate for a URI, its key and its authority's certificate."""
    pair = authority.issue(name, uris=(uri,))
    paths = {kind: folder / f"{name}.{kind}.pem" for kind in ("ca", "cert", "key")}
    for kind, data in (("ca", authority.cert), ("cert", pair.cert), ("key", pair.key)):
        paths[kind].write_bytes(data)
    return RaftTls(ca_file=paths["ca"], cert_file=paths["cert"], key_file=paths["key"])
