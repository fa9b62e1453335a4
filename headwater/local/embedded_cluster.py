"""Several brokers on this machine, each in its own process: for ``up --brokers``, tests, chaos.

The cluster's folder has the certificates, a data directory and a configuration file per broker, and
the plan (``cluster.json``) with the ports. So a start in the same folder runs the same cluster.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.errors import InvalidConfigError
from headwater.local.cluster_certificates import make_certificates
from headwater.local.embedded import (
    LOOPBACK,
    EmbeddedServer,
    free_port,
    hold_port,
    http_status,
    spawn,
    wait_ready,
)
from headwater.local.private_files import make_private_folder, write_private

_PLAN: Final = "cluster.json"
_VOTERS: Final = "controllers"  # a key of the plan; no broker has this id
_LOCK: Final = ".lock"  # in a data directory; its broker holds it, and the directory itself
_STOP_TIMEOUT_S: Final = 60.0  # to hand leaderships over, answer requests and sync


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """The ports of one broker, on the loopback."""

    peer: int
    flight: int
    http: int


@dataclass(slots=True)
class EmbeddedCluster:
    """A cluster in one folder; :meth:`start` starts the process of a broker."""

    folder: Path
    name: str
    ports: Mapping[str, BrokerPorts]
    nats_url: str
    lake_uri: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # more, by section
    # More of single brokers, by id and section.
    own_settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    voters: Sequence[str] = ()  # ids of the controllers; empty: see ``controllers``
    # By (from, to): the port at which a broker connects to another, where a test has a proxy; the
    # default is the other's peer port.
    dialled: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # Starts a command whose output goes to the file; tests have a quicker way for many starts.
    spawn: Callable[[list[str], Path], subprocess.Popen[bytes]] = field(default=spawn, repr=False)

    @property
    def brokers(self) -> list[str]:
        """Ids of the brokers."""
        return list(self.ports)

    @property
    def controllers(self) -> list[str]:
        """Ids of the brokers that vote on the metadata; by default the first 5, 3 or 1 of them."""
        if self.voters:
            return list(self.voters)
        return self.usual_controllers

    @property
    def usual_controllers(self) -> list[str]:
        """Ids of the first 5, 3 or 1 brokers, which vote if the cluster began with all brokers."""
        count = len(self.ports)
        return self.brokers[: 5 if count >= 5 else 3 if count >= 3 else 1]

    @property
    def flight_url(self) -> str:
        """The addresses of all brokers, as the ``url`` of a client."""
        return ",".join(f"grpc://{LOOPBACK}:{one.flight}" for one in self.ports.values())

    def note_usual_controllers(self) -> None:
        """Write the plan with the usual controllers; call this once all of them vote."""
        self.voters = ()
        _write_plan(self.folder / _PLAN, _Plan(self.ports, ()))

    def folder_of(self, broker: str) -> Path:
        """Return a broker's data directory."""
        return self.folder / broker

    def log_of(self, broker: str) -> Path:
        """Return the file for the output of a broker's process."""
        return self.folder / f"{broker}.log"

    def start(self, broker: str, *, wait: bool = True) -> EmbeddedServer:
        """Start a broker; with ``wait``, block until it serves.

        A broker serves only if a majority of the controllers runs; a new cluster needs all brokers.

        Raises:
            UnavailableError: the broker ended, or was not ready in time; the message has its log.
        """
        config = self.folder / f"{broker}.toml"
        write_private(config, self._config(broker))
        log = self.log_of(broker)
        ports = self.ports[broker]
        process = self.spawn([sys.executable, "-m", "broker", "--config", str(config)], log)
        server = EmbeddedServer(
            name=broker,
            address=f"grpc://{LOOPBACK}:{ports.flight}",
            port=ports.flight,
            log_path=log,
            process=process,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )
        if wait:
            self.wait_ready(server)
        return server

    def wait_ready(self, server: EmbeddedServer) -> None:
        """Return once a started broker serves; else stop it and raise UnavailableError. Blocks."""
        http = self.ports[server.name].http
        try:
            wait_ready(server, lambda: http_status(http, "GET", "/readyz") == 200)
        except BaseException:
            server.stop()
            raise

    def _config(self, broker: str) -> str:
        ports = self.ports[broker]
        certificates = self.folder / "certificates"
        brokers = ",".join(
            f"{one}={LOOPBACK}:{self.dialled.get((broker, one), at.peer)}"
            for one, at in self.ports.items()
        )
        sections: dict[str, dict[str, Any]] = {
            "node": {
                "id": broker,
                "cluster": self.name,
                "data_dir": str(self.folder_of(broker).absolute()),
            },
            "nats": {"url": self.nats_url},
            "flight": {"host": LOOPBACK, "port": ports.flight},
            "http": {"host": LOOPBACK, "port": ports.http},
            "lake": {"uri": self.lake_uri},
            "cluster": {
                "brokers": brokers,
                "controllers": ",".join(self.controllers),
                "tls_ca_file": str((certificates / "ca.crt").absolute()),
                "tls_cert_file": str((certificates / f"{broker}.crt").absolute()),
                "tls_key_file": str((certificates / f"{broker}.key").absolute()),
            },
            "log": {"format": "json"},
        }
        for more in (self.settings, self.own_settings.get(broker, {})):
            for section, values in more.items():
                sections.setdefault(section, {}).update(values)
        lines: list[str] = []
        for section, values in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(one)}" for key, one in values.items()]
        return "\n".join(lines) + "\n"


def refuse_size(count: int) -> None:
    """Raise InvalidConfigError for a number of brokers that no cluster has.

    Two brokers would stop as soon as one fails, as one broker does, and there are two that can.
    """
    if count < 1 or count == 2:
        raise InvalidConfigError(f"a cluster has 1, 3 or more brokers, not {count}")


def plan_cluster(
    folder: Path,
    *,
    count: int,
    nats_url: str,
    lake_uri: str,
    name: str = "headwater",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    first_ports: Sequence[BrokerPorts] = (),
    lone: Path | None = None,
) -> EmbeddedCluster:
    """Return the existing cluster of a folder, or make a new cluster of ``count`` brokers.

    ``lone`` is the path where a single broker's data directory may be. If there is one, a new
    cluster takes the directory over for its first broker. That broker is then the only controller,
    because only that broker has the metadata.

    Raises:
        InvalidConfigError: the folder has a cluster of another size; or its ports are taken; or
            there are both a cluster and the data directory of a single broker; or that directory
            is in use, or of a cluster of another name. The directory is where it was then.
    """
    refuse_size(count)
    make_private_folder(folder)
    path = folder / _PLAN
    if path.exists():
        plan = _read_plan(path)
        if len(plan.ports) != count:
            raise InvalidConfigError(
                f"{folder} has a cluster of {len(plan.ports)} brokers, not {count}"
            )
        taken = [
            port
            for one in plan.ports.values()
            for port in (one.peer, one.flight, one.http)
            if not hold_port(port)
        ]
        if taken:
            raise InvalidConfigError(
                f"other processes use the ports {taken} of the cluster in {folder}; stop them, or "
                "use another folder"
            )
    else:
        chosen = list(first_ports) + [
            BrokerPorts(peer=free_port(), flight=free_port(), http=free_port())
            for _ in range(count - len(first_ports))
        ]
        first = lone_broker_id(lone)
        ids = [f"broker-{number}" for number in range(count + 1)]
        if first is not None:
            ids = [first, *(one for one in ids[1:] if one != first)]
        plan = _Plan(dict(zip(ids, chosen, strict=False)), () if first is None else (first,))
    with _taken_over(lone, cluster=name):
        make_certificates(folder / "certificates", cluster=name, brokers=list(plan.ports))
        if not path.exists():
            _write_plan(path, plan)
        _adopt(folder, plan, lone)
    return EmbeddedCluster(
        folder=folder,
        name=name,
        ports=plan.ports,
        nats_url=nats_url,
        lake_uri=lake_uri,
        settings=settings or {},
        voters=plan.voters,
    )


def read_plan(folder: Path) -> dict[str, BrokerPorts]:
    """Return the ports of each broker of a folder's cluster, by id; empty if there is no cluster.

    Raises:
        InvalidConfigError: the plan is not readable.
    """
    path = folder / _PLAN
    return dict(_read_plan(path).ports) if path.exists() else {}


def lone_broker_id(lone: Path | None) -> str | None:
    """Return the id of the single broker with the data directory ``lone``; None without one.

    Raises:
        InvalidConfigError: the directory's ``node.json`` does not name a broker.
    """
    found = _identity_of(lone)
    return None if found is None else found[1]


def _identity_of(lone: Path | None) -> tuple[str, str] | None:
    """Return the names of a data directory's cluster (perhaps "") and broker, if it has any."""
    path = None if lone is None else lone / "node.json"
    if path is None or not path.exists():
        return None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return str(body.get("cluster", "")), str(body["broker_id"])
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as cause:
        raise InvalidConfigError(f"{path} does not name a broker: {cause}") from cause


@contextmanager
def _taken_over(lone: Path | None, *, cluster: str) -> Iterator[None]:
    """Hold a single broker's data directory, as its broker would, while it is moved.

    Raises:
        InvalidConfigError: a process uses the directory, or it is of another cluster.
    """
    found = _identity_of(lone)
    if lone is None or found is None:
        yield
        return
    if found[0] not in ("", cluster):
        raise InvalidConfigError(
            f"{lone} belongs to a broker of cluster {found[0]!r}, not of {cluster!r}: set "
            f"HEADWATER_NODE_CLUSTER={found[0]}, or give another --data"
        )
    with ExitStack() as stack:
        try:
            for path, flags in ((lone / _LOCK, os.O_RDWR | os.O_CREAT), (lone, os.O_DIRECTORY)):
                descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                stack.callback(os.close, descriptor)
                _lock(descriptor)
        except OSError as cause:
            raise InvalidConfigError(
                f"{lone} is in use by another process ({cause.strerror}): stop that broker first, "
                "or give another --data"
            ) from cause
        yield


def _lock(descriptor: int) -> None:
    """Lock a file or folder; a file system without locks of folders is no reason to stop."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        if isinstance(cause, BlockingIOError) or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise


@dataclass(frozen=True, slots=True)
class _Plan:
    """The content of ``cluster.json``."""

    ports: Mapping[str, BrokerPorts]
    voters: tuple[str, ...]  # as in EmbeddedCluster


def _adopt(folder: Path, plan: _Plan, lone: Path | None) -> None:
    """Move a single broker's data directory into the cluster, unless it was moved already."""
    if lone is None or lone_broker_id(lone) is None:
        return
    target = folder / plan.voters[0] if plan.voters else None
    if target is None or target.exists():
        raise InvalidConfigError(
            f"{lone} belongs to a single broker that is not part of the cluster in {folder}: move "
            "the folder that you do not need away, or give another --data"
        )
    lone.rename(target)
    _sync_folder(folder)
    _sync_folder(lone.parent)


def _write_plan(path: Path, plan: _Plan) -> None:
    """Write the plan atomically and durably: the move of the data directory relies on it."""
    body: dict[str, Any] = {one: [at.peer, at.flight, at.http] for one, at in plan.ports.items()}
    if plan.voters:
        body[_VOTERS] = list(plan.voters)
    write_private(path, json.dumps(body) + "\n")
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_plan(path: Path) -> _Plan:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        voters = tuple(map(str, body.pop(_VOTERS, ())))
        ports = {
            str(name): BrokerPorts(peer=int(peer), flight=int(flight), http=int(http))
            for name, (peer, flight, http) in body.items()
        }
    except (
        OSError, ValueError, OverflowError, TypeError, AttributeError, RecursionError,
    ) as cause:  # fmt: skip
        raise InvalidConfigError(f"{path} is not the plan of a cluster: {cause}") from cause
    if not set(voters) <= ports.keys():
        raise InvalidConfigError(
            f"{path} is not the plan of a cluster: its controllers {', '.join(voters)} are not "
            "among its brokers"
        )
    return _Plan(ports, voters)
