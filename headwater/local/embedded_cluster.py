"""Several brokers on this machine, each a process of its own: ``up --brokers``, tests, chaos.

The folder keeps everything: certificates, one data directory and configuration file per broker,
and the ports, so that a start in the same folder is the same cluster again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
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

_PLAN: Final = "cluster.json"
_STOP_TIMEOUT_S: Final = 60.0  # it hands leaderships over, answers, syncs


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """Where one broker listens, on the loopback."""

    peer: int
    flight: int
    http: int


@dataclass(slots=True)
class EmbeddedCluster:
    """The plan of a cluster below one folder; :meth:`start` makes a broker's process."""

    folder: Path
    name: str
    ports: Mapping[str, BrokerPorts]
    nats_url: str
    lake_uri: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # extra, by section
    # Where a broker dials another: tests put proxies there. By (from, to); else the peer's port.
    dialled: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def brokers(self) -> list[str]:
        """Ids of the brokers."""
        return list(self.ports)

    @property
    def controllers(self) -> list[str]:
        """Ids of those that vote on the metadata: the first five or three, or the only one."""
        count = len(self.ports)
        return self.brokers[: 5 if count >= 5 else 3 if count >= 3 else 1]

    @property
    def flight_url(self) -> str:
        """The address of all brokers, as a client takes it."""
        return ",".join(f"grpc://{LOOPBACK}:{one.flight}" for one in self.ports.values())

    def folder_of(self, broker: str) -> Path:
        """Return a broker's data directory."""
        return self.folder / broker

    def log_of(self, broker: str) -> Path:
        """Return the file that a broker's process prints to."""
        return self.folder / f"{broker}.log"

    def start(self, broker: str, *, wait: bool = True) -> EmbeddedServer:
        """Start a broker; with ``wait``, until it serves: a majority must run, first all. Blocks.

        Raises:
            UnavailableError: it ended or was not ready in time; the message ends with its log.
        """
        config = self.folder / f"{broker}.toml"
        config.write_text(self._config(broker), encoding="utf-8")
        log = self.log_of(broker)
        ports = self.ports[broker]
        process = spawn([sys.executable, "-m", "broker", "--config", str(config)], log)
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
        for section, values in self.settings.items():
            sections.setdefault(section, {}).update(values)
        lines: list[str] = []
        for section, values in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(one)}" for key, one in values.items()]
        return "\n".join(lines) + "\n"


def plan_cluster(
    folder: Path,
    *,
    count: int,
    nats_url: str,
    lake_uri: str,
    name: str = "headwater",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    first_ports: Sequence[BrokerPorts] = (),
) -> EmbeddedCluster:
    """Return the cluster of a folder: the one that was there, or a new one of ``count`` brokers.

    Raises:
        InvalidConfigError: the folder holds a cluster of another size, or its ports are taken.
    """
    if count < 1 or count == 2:
        raise InvalidConfigError(f"a cluster has 1, 3 or more brokers, not {count}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _PLAN
    if path.exists():
        ports = _read_plan(path)
        if len(ports) != count:
            raise InvalidConfigError(f"{folder} holds a cluster of {len(ports)} brokers")
        taken = [
            port
            for one in ports.values()
            for port in (one.peer, one.flight, one.http)
            if not hold_port(port)
        ]
        if taken:
            raise InvalidConfigError(f"ports {taken} of the cluster in {folder} are taken")
    else:
        chosen = list(first_ports) + [
            BrokerPorts(peer=free_port(), flight=free_port(), http=free_port())
            for _ in range(count - len(first_ports))
        ]
        ports = {f"broker-{number}": one for number, one in enumerate(chosen)}
        body = {one: [at.peer, at.flight, at.http] for one, at in ports.items()}
        path.write_text(json.dumps(body) + "\n", encoding="utf-8")
    make_certificates(folder / "certificates", cluster=name, brokers=list(ports))
    return EmbeddedCluster(
        folder=folder,
        name=name,
        ports=ports,
        nats_url=nats_url,
        lake_uri=lake_uri,
        settings=settings or {},
    )


def read_plan(folder: Path) -> dict[str, BrokerPorts]:
    """Return where each broker of a folder's cluster listens, by id; empty: there is none.

    Raises:
        InvalidConfigError: its plan is not readable.
    """
    path = folder / _PLAN
    return _read_plan(path) if path.exists() else {}


def _read_plan(path: Path) -> dict[str, BrokerPorts]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): BrokerPorts(peer=int(peer), flight=int(flight), http=int(http))
            for name, (peer, flight, http) in body.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as cause:
        raise InvalidConfigError(f"{path} is not the plan of a cluster: {cause}") from cause
