"""A cluster of real broker processes on this machine, to be broken; see cluster.py for the words.

Every pair of brokers talks through two links of a ProxyMesh. Where small disks are wanted, each
broker's data directory is a tmpfs of its own. NATS is one server. Everything is ended by handle.

The file is not split: what is done to one cluster is read in one place.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from broker.errors import HeadwaterError
from broker.model.cluster_status import ClusterStatus
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.stream import Stream
from broker.storage.stream_folders import log_folder
from chaoskit.cluster import ChaosError, ClusterState, PartitionState, Ports
from chaoskit.guards import OPERATOR, Guards
from chaoskit.proxy import ProxyMesh
from chaoskit.replica_reads import read_replica
from checkkit.readings import Reading, Source
from clusterkit import forked_brokers
from clusterkit.lift_brokers import liftbridge_at
from clusterkit.login import OPEN, Login
from freezing import freeze
from headwater.client import Client
from headwater.client.operations import Operations, known_broker
from headwater.local import embedded
from headwater.local.embedded_cluster import plan_cluster
from tiering.read.lake import Lake

_CONFIRM_MS: Final = 250
_STOP_S: Final = 120.0
_FLUSH_MS: Final = 20_000
_CHANGE_S: Final = 40.0  # an operator asks again while the controller changes, or a broker starts
_FILLER: Final = "chaos-filler"


class ProcessCluster:
    """Implements :class:`chaoskit.cluster.ClusterUnderTest`. A context manager.

    The class is not split: it has a method for each one of ``ClusterUnderTest``, and all of them
    need the processes, their folders and their links.
    """

    def __init__(
        self,
        folder: Path,
        *,
        count: int,
        stream: str,
        lake_uri: str | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        small_disk_bytes: int | None = None,
        forked: bool = False,
        guarded: bool = False,
    ) -> None:
        """Plan a cluster.

        ``forked``: brokers start by a fork, not as ``python -m broker``. ``guarded``: its doors
        have TLS, and ask who calls.
        """
        self.folder, self.stream = folder, stream
        self.stream_uuid: StreamUuid | None = None  # told once it is there: nobody may run later
        self.lake_uri = lake_uri or str(folder / "lake")
        folder.mkdir(parents=True, exist_ok=True)
        self.nats = embedded.start_nats(folder / "nats", port=embedded.free_port())
        self._mesh = ProxyMesh()
        self._plan = plan_cluster(
            folder / "cluster",
            count=count,
            nats_url=self.nats.address,
            lake_uri=self.lake_uri,
            settings=settings,
        )
        if forked:
            self._plan.spawn = forked_brokers.spawn
        self._lift_ports = {broker: embedded.free_port() for broker in self._plan.brokers}
        self.guards = Guards(folder / "access", tuple(self._plan.brokers)) if guarded else None
        self._plan.own_settings = {
            broker: self._settings(broker, port) for broker, port in self._lift_ports.items()
        }
        self.brokers: Sequence[str] = tuple(self._plan.brokers)
        self._plan.dialled = {
            (one, two): self._mesh.connect(one, two, self._plan.ports[two].peer)
            for one in self.brokers
            for two in self.brokers
            if one != two
        }
        self._servers: dict[str, embedded.EmbeddedServer] = {}
        self._clients: dict[str, Client] = {}
        self._paused: set[str] = set()
        self._mounts: list[Path] = []
        self._last_teller = self.brokers[0]
        for broker in self.brokers if small_disk_bytes else ():
            self._mount(self._plan.folder_of(broker), small_disk_bytes or 0)

    # ------------------------------------------------------------------ beginning and end

    @property
    def url(self) -> str:
        """All brokers, as a client takes them."""
        return (
            self._plan.flight_url
            if self.guards is None
            else ",".join(self._url_of(broker) for broker in self.brokers)
        )

    def _url_of(self, broker: str) -> str:
        scheme = "grpc" if self.guards is None else "grpc+tls"
        return f"{scheme}://{embedded.LOOPBACK}:{self._plan.ports[broker].flight}"

    def _settings(self, broker: str, lift_port: int) -> dict[str, dict[str, Any]]:
        settings = liftbridge_at(lift_port)
        if self.guards is not None:
            for section, values in self.guards.settings(broker).items():
                settings.setdefault(section, {}).update(values)
        return settings

    def client(self) -> Client:
        """Return a client of an operator, for all brokers."""
        return self.login(OPERATOR).client(self.url)

    def login(self, principal: str) -> Login:
        """Return how a principal reaches the brokers."""
        return OPEN if self.guards is None else self.guards.login(principal)

    @property
    def liftbridge(self) -> str:
        """The addresses of all brokers, as a client of Liftbridge's API takes them."""
        return ",".join(f"{embedded.LOOPBACK}:{port}" for port in self._lift_ports.values())

    def start_all(self) -> None:
        """Start every broker, and return when all serve. Blocks."""
        for broker in self.brokers:
            self.start(broker)
        for server in self._servers.values():
            self._plan.wait_ready(server)
        if self.guards is not None:
            self.guards.set_up(self._url_of, self.url, self.stream)

    def close(self) -> None:
        """End everything that was started. Blocks."""
        for broker in self.brokers:
            with suppress(HeadwaterError, OSError):
                if self.is_running(broker):
                    self.kill(broker)
        if self.guards is not None:
            self.guards.close()
        for client in self._clients.values():
            client.close()
        self._mesh.close()
        self.nats.stop()
        for folder in self._mounts:
            subprocess.run(["umount", str(folder)], check=False, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def log_of(self, broker: str) -> Path:
        """Return what a broker prints to."""
        return self._plan.log_of(broker)

    # ------------------------------------------------------------------ what it says

    def ports(self, broker: str) -> Ports:
        """See ClusterUnderTest."""
        ports = self._plan.ports[broker]
        return Ports(flight=ports.flight, http=ports.http)

    def status(self) -> ClusterStatus | None:
        """Return the status of a broker that a majority of the controllers confirms, or None."""
        able = [one for one in self.brokers if self.is_running(one) and one not in self._paused]
        able.sort(key=lambda one: one != self._last_teller)
        for broker in able:
            with suppress(HeadwaterError):
                found = Operations(self._client(broker)).status(confirm_ms=_CONFIRM_MS)
                if found.confirmed:
                    self._last_teller = broker
                    return found
        return None

    def state(self) -> ClusterState | None:
        """See ClusterUnderTest."""
        found = self.status()
        if found is None:
            return None
        partitions = {
            one.partition: PartitionState(
                partition=one.partition,
                leader=one.leader if one.status == "online" else None,
                leader_epoch=one.leader_epoch,
                isr=frozenset(one.isr),
                # While replicas move both the old and the new ones are wanted: not whole yet.
                replicas=frozenset((*one.replicas, *one.target)),
            )
            for one in found.partitions
            if one.stream == self.stream
        }
        return ClusterState(controller=found.controller, partitions=partitions)

    def _client(self, broker: str) -> Client:
        if broker not in self._clients:
            self._clients[broker] = self.login(OPERATOR).client(self._url_of(broker))
        return self._clients[broker]

    def _forget(self, broker: str) -> None:
        """Close the connection to a process that is gone, rather than wait for it."""
        client = self._clients.pop(broker, None)
        if client is not None:
            client.close()

    # ------------------------------------------------------------------ processes

    def start(self, broker: str) -> None:
        """See ClusterUnderTest."""
        assert not self.is_running(broker), f"{broker} runs already"
        self._servers[broker] = self._plan.start(broker, wait=False)

    def stop(self, broker: str) -> None:
        """See ClusterUnderTest."""
        process = self._servers[broker].process
        process.terminate()
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired as error:
            raise ChaosError(f"{broker} did not end within {_STOP_S:.0f} s") from error
        finally:
            self._forget(broker)
        if code != 0:
            raise ChaosError(f"{broker} was asked to end and ended with {code}")

    def kill(self, broker: str) -> None:
        """See ClusterUnderTest."""
        process = self._servers[broker].process
        self._paused.discard(broker)
        process.kill()
        process.wait()
        self._forget(broker)

    def pause(self, broker: str) -> None:
        """See ClusterUnderTest."""
        freeze(self._servers[broker].process.pid)
        self._paused.add(broker)
        self._forget(broker)

    def resume(self, broker: str) -> None:
        """See ClusterUnderTest."""
        os.kill(self._servers[broker].process.pid, signal.SIGCONT)
        self._paused.discard(broker)

    def is_running(self, broker: str) -> bool:
        """See ClusterUnderTest."""
        server = self._servers.get(broker)
        return server is not None and server.process.poll() is None

    # ------------------------------------------------------------------ the network

    def cut(self, sender: str, receiver: str) -> None:
        """See ClusterUnderTest."""
        self._mesh.cut(sender, receiver)

    def delay(self, sender: str, receiver: str, delay_ms: float) -> None:
        """See ClusterUnderTest."""
        self._mesh.delay(sender, receiver, delay_ms)

    def heal_network(self) -> None:
        """See ClusterUnderTest."""
        self._mesh.heal_all()

    def restart_nats(self, down_ms: float) -> None:
        """See ClusterUnderTest."""
        port = self.nats.port
        self.nats.process.kill()
        self.nats.stop()
        time.sleep(down_ms / 1000)
        self.nats = embedded.start_nats(self.folder / "nats", port=port)

    # ------------------------------------------------------------------ disks

    def _mount(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        subprocess.run(command, check=True, timeout=30)
        self._mounts.append(folder)

    def fill_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        folder = self._plan.folder_of(broker)
        assert folder in self._mounts, "only a small disk of its own may be filled"
        # Unbuffered: what a buffer keeps, closing the file writes, and there is no room for that.
        with suppress(OSError), (folder / _FILLER).open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 20))

    def free_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        (self._plan.folder_of(broker) / _FILLER).unlink(missing_ok=True)

    def wipe(self, broker: str) -> None:
        """See ClusterUnderTest."""
        assert not self.is_running(broker), f"{broker} runs on that disk"
        for entry in self._plan.folder_of(broker).iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _copy_of(self, broker: str) -> Path:
        return self.folder / "copies" / broker

    def copy_disk(self, broker: str) -> None:
        """See ClusterUnderTest. As ``cp -r`` does it: one file after the other, while they change.

        A file that goes meanwhile is not in the copy.
        """
        target = self._copy_of(broker)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        _copy_content(self._plan.folder_of(broker), target)

    def restore_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self.wipe(broker)
        _copy_content(self._copy_of(broker), self._plan.folder_of(broker))

    def swap_disk(self, broker: str) -> None:
        """See ClusterUnderTest. Contents change places, for a small disk's folder cannot move."""
        assert not self.is_running(broker), f"{broker} runs on that disk"
        here, there = self._plan.folder_of(broker), self._copy_of(broker)
        aside = there.with_name(f"{broker}.aside")
        aside.mkdir(parents=True)
        _copy_content(here, aside)
        self.wipe(broker)
        _copy_content(there, here)
        shutil.rmtree(there)
        aside.rename(there)

    def lose_partition(self, broker: str, partition: int, *, keep_folder: bool) -> None:
        """See ClusterUnderTest."""
        assert not self.is_running(broker), f"{broker} runs on that disk"
        assert self.stream_uuid is not None, "the stream is there"
        lost = PartitionId(self.stream_uuid, PartitionNumber(partition))
        folder = self._plan.folder_of(broker) / log_folder(lost)
        shutil.rmtree(folder)
        if keep_folder:
            folder.mkdir()

    def lose_raft(self, broker: str) -> None:
        """See ClusterUnderTest."""
        assert not self.is_running(broker), f"{broker} runs on that disk"
        for entry in (self._plan.folder_of(broker) / "raft").iterdir():
            if entry.name.startswith("journal") and entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name.startswith(("meta", "journal")):
                entry.unlink()

    # ------------------------------------------------------------------ operators

    def _ask(self, what: str, ask: Callable[[Client], object]) -> object:
        """Let an operator ask, again and again while the controllers change."""
        deadline_s = time.monotonic() + _CHANGE_S
        while True:
            try:
                with self.client() as client:
                    return ask(client)
            except HeadwaterError as error:
                if time.monotonic() > deadline_s:
                    raise ChaosError(f"{what}: {type(error).__name__}: {error}") from error
                time.sleep(0.1)

    def transfer_leader(self, partition: int, to: str) -> None:
        """See ClusterUnderTest."""
        self._ask(
            f"transfer {partition} to {to}",
            lambda client: Operations(client).transfer_leader(self.stream, partition, to),
        )

    def reassign(self, partition: int, replicas: Sequence[str]) -> None:
        """See ClusterUnderTest."""
        self._ask(
            f"move {partition} to {replicas}",
            lambda client: Operations(client).move(self.stream, partition, replicas),
        )

    def ends_below_table(self, broker: str, partition: int) -> bool:
        """See ClusterUnderTest."""
        assert not self.is_running(broker), f"{broker} runs, and follows"
        self.flush_tier()
        with self.client() as client:
            description = client.describe(self.stream)
        found = read_replica(
            self._plan.folder_of(broker),
            PartitionId(description.stream.uuid, PartitionNumber(partition)),
            subject=description.partitions[partition].subject,
            scratch=self.folder / "scratch",
        )
        return found is not None and found.hot_end < self._cold_end(description.stream, partition)

    def _cold_end(self, stream: Stream, partition: int) -> int:
        """Return the first offset that is not in the table, as the table says it."""
        table = Lake.open(self.lake_uri, cluster=self._plan.name).table(stream).find()
        return 0 if table is None else int(table.ranges[PartitionNumber(partition)].end)

    def elect_unclean(self, partition: int, broker: str) -> int:
        """See ClusterUnderTest. Everything below the cold end is in the table, and has to stay."""
        found = self._ask(
            f"let {broker} lead {partition} uncleanly",
            lambda client: self._elect(client, partition, broker),
        )
        assert isinstance(found, int)
        return found

    def _elect(self, client: Client, partition: int, broker: str) -> int:
        operations = Operations(client)
        status = operations.status()
        one = status.partition(self.stream, partition)
        assert one is not None, "the stream is there"
        replicas = [
            replica
            for replica in operations.replicas(status.brokers)
            if (replica.stream, replica.partition) == (self.stream, partition)
        ]
        operations.elect_unclean(
            self.stream,
            partition,
            broker=known_broker(status, broker),
            partition_epoch=one.partition_epoch,
            known_end=max([one.cold_end, *(replica.log_end for replica in replicas)]),
            operator="chaos",
            accept_data_loss=True,
        )
        return self._cold_end(client.stream(self.stream), partition)

    def change_access(self, what: str) -> None:
        """See ClusterUnderTest."""
        assert self.guards is not None, "this story needs a cluster that asks who calls"
        running = {one: at for one, at in self._lift_ports.items() if self.is_running(one)}
        self.guards.change(what, running)

    def flush_tier(self) -> None:
        """See ClusterUnderTest. That it does not end in time is no fault of the cluster."""
        with suppress(HeadwaterError), self.client() as client:
            client.tier_flush(self.stream, timeout_ms=_FLUSH_MS)

    # ------------------------------------------------------------------ the end

    def final_reads(self) -> list[Reading]:
        """Stop every broker, and read each replica's log from its disk."""
        with self.client() as client:
            description = client.describe(self.stream)
        status = self.status()
        if status is None:
            raise ChaosError("nobody says where the replicas are")
        for broker in self.brokers:
            self.stop(broker)
        began_ns = time.monotonic_ns()
        held: dict[str, list[Any]] = {broker: [] for broker in self.brokers}
        for part in description.partitions:
            placed = status.partition(self.stream, part.partition)
            assert placed is not None
            number = PartitionNumber(part.partition)
            for broker in placed.replicas:
                found = read_replica(
                    self._plan.folder_of(broker),
                    PartitionId(description.stream.uuid, number),
                    subject=part.subject,
                    scratch=self.folder / "scratch",
                )
                if found is None:
                    raise ChaosError(f"{broker} has no log of partition {number}")
                held[broker].append(found)
        return [
            Reading.of(broker, began_ns, parts, Source.REPLICA)
            for broker, parts in held.items()
            if parts
        ]


def _copy_content(source: Path, target: Path) -> None:
    """Copy what is in a folder; what goes while it is copied is left out."""
    for entry in sorted(source.iterdir()):
        with suppress(FileNotFoundError):
            if entry.is_dir():
                (target / entry.name).mkdir()
                _copy_content(entry, target / entry.name)
            else:
                shutil.copy2(entry, target / entry.name)
