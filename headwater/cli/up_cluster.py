"""``headwater up --brokers 3``: several brokers on this machine, each a process of its own.

If a broker is killed or fails, this process reports it and restarts it after a delay, as a service
manager would; the other brokers continue. NATS and a throw-away S3 are shared: if one of them ends,
all brokers are stopped. Ctrl-C stops all brokers at once, each gracefully.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker.config import AccessConfig, BrokerConfig, NatsConfig
from broker.errors import HeadwaterError, InvalidConfigError
from broker.model.secret import Secret
from headwater.cli import console
from headwater.cli.cluster_controllers import change
from headwater.cli.failures import EXIT_TRY_LATER
from headwater.client.address import read_token
from headwater.local import embedded, owner_token
from headwater.local.embedded_cluster import (
    BrokerPorts,
    EmbeddedCluster,
    lone_broker_id,
    plan_cluster,
    read_plan,
)
from headwater.local.owner_token import token_path
from headwater.local.runtime_file import DEFAULT_DATA_DIR, FILE_NAME, RuntimeFile

_WATCH_S: Final = 0.3
_AGAIN_S: Final = 2.0  # delay of a restart; by then the other brokers have elected new leaders
_AGAIN_S_MAX: Final = 30.0  # the delay doubles up to this if a broker fails again and again
_VOTE_MS: Final = 30_000  # until a broker that follows the metadata may vote on it
_STEADY_S: Final = 60.0  # a broker that ran this long begins with the short delay again
# `up` sets these for each broker; a variable of the environment would give all the same value.
_DECIDED: Final = (
    "NODE_ID", "NODE_DATA_DIR", "NODE_CLUSTER", "NATS_URL", "FLIGHT_HOST", "FLIGHT_PORT",
    "HTTP_HOST", "HTTP_PORT", "LAKE_URI", "LOG_LEVEL", "LOG_FORMAT", "CLUSTER_BROKERS",
    "CLUSTER_CONTROLLERS", "CLUSTER_TLS_CA_FILE", "CLUSTER_TLS_CERT_FILE", "CLUSTER_TLS_KEY_FILE",
    "CLUSTER_LISTEN_HOST", "CLUSTER_ADVERTISED_HOST", "ACCESS_ENABLED", "ACCESS_OWNER_TOKEN_FILE",
)  # fmt: skip


def cluster_folder(data: Path) -> Path:
    """Return the folder of the cluster in a data directory."""
    return data / "cluster"


def lone_folder(data: Path) -> Path:
    """Return the folder of the single broker in a data directory without a cluster."""
    return data / "broker"


def refuse_other_kind(data: Path, brokers: int | None) -> int:
    """Return the number of brokers to start: ``brokers``, else the plan's number, else 1.

    Raises:
        InvalidConfigError: the directory has a cluster of another size.
    """
    planned = len(read_plan(cluster_folder(data)))
    wanted = brokers or planned or 1
    if planned and wanted != planned:
        raise InvalidConfigError(
            f"{data} belongs to a cluster of {planned} brokers: start it with --brokers {planned}, "
            "or give another --data"
        )
    return wanted


def planned_ports(data: Path, *, flight: int | None, http: int | None) -> BrokerPorts | None:
    """Return the ports of the first broker of the directory's cluster; None if there is no cluster.

    Raises:
        InvalidConfigError: the options ask for other ports.
    """
    plan = read_plan(cluster_folder(data))
    first = next(iter(plan.values()), None)
    if first is None:
        return None
    for option, given, planned in (
        ("--flight-port", flight, first.flight),
        ("--http-port", http, first.http),
    ):
        if given not in (None, 0, planned):
            raise InvalidConfigError(
                f"{option} {given}: the cluster in {data} keeps its ports; leave the option out, "
                f"or give {planned}"
            )
    return first


def run_cluster(
    config: BrokerConfig,
    shared: Sequence[embedded.EmbeddedServer],
    *,
    data: Path,
    count: int,
    moto: str | None,
) -> int:
    """Run brokers until SIGINT or SIGTERM, or until NATS or the S3 ends; return the exit code.

    ``config`` is the configuration of a single broker; the first broker gets its ports.
    """
    for name in _DECIDED:
        os.environ.pop(f"HEADWATER_{name}", None)
    _hand_down_login(config.nats)
    first = BrokerPorts(
        peer=embedded.free_port(),
        flight=config.flight.port or embedded.free_port(),
        http=config.http.port or embedded.free_port(),
    )
    was_alone = lone_broker_id(lone_folder(data))
    cluster = plan_cluster(
        cluster_folder(data),
        count=count,
        nats_url=config.nats.url,
        lake_uri=config.lake.uri,
        name=config.node.cluster,
        settings={"log": {"format": "json", "level": config.log.level}, **_access(config.access)},
        first_ports=(first,),
        lone=lone_folder(data),
    )
    if was_alone is not None:
        console.note(
            f"The single broker of this directory is now {console.plain(was_alone)} of the "
            "cluster. Its streams have one replica until `headwater cluster move` gives them more."
        )
    with _stop_signal() as stopping, _brokers(cluster) as running:
        for server in running:
            if not stopping.is_set():
                cluster.wait_ready(server)
        if not stopping.is_set():
            add_controllers(cluster, stopping.is_set, _owner_token(config.access))
            guarded = config.access.owner_token_file == str(token_path(data))
            found = _runtime_file(cluster, moto, guarded=guarded)
            found.write(data)
            _banner(found, cluster, data)
        code = _watch(cluster, running, shared, stopping)
        (data / FILE_NAME).unlink(missing_ok=True)
        if code == 0:
            console.note("Stopping: the brokers finish the requests that they have accepted.")
    return code


def add_controllers(
    cluster: EmbeddedCluster, is_stopped: Callable[[], bool], token: Secret | None = None
) -> None:
    """Let the usual number of brokers vote, if a broker that was alone is the only controller.

    Blocks. A change that does not succeed is reported, and the next start continues it: until it is
    done, the plan names only the one controller.
    """
    from headwater.client import Client
    from headwater.client.operations import Operations

    if not cluster.voters:
        return
    missing = [one for one in cluster.usual_controllers if one not in cluster.voters]
    with Client(cluster.flight_url, token=token) as client:
        operations = Operations(client)
        try:
            for broker in missing:
                change(operations, broker, votes=True, timeout_ms=_VOTE_MS, is_stopped=is_stopped)
        except HeadwaterError as error:
            console.note(
                f"[yellow]The cluster has fewer controllers than it should have:[/yellow] "
                f"{console.plain(error.message)}. The next start continues the change."
            )
            return
    cluster.note_usual_controllers()
    console.note(
        f"{console.plain(', '.join(cluster.controllers))} vote on the metadata from now on: a "
        "majority of them is enough."
    )


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event; a second signal does nothing: the stop is bounded."""
    stopping = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopping.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _brokers(cluster: EmbeddedCluster) -> Iterator[list[embedded.EmbeddedServer]]:
    """Start every broker; at the end stop all at once, so that none waits for a stopped one."""
    running: list[embedded.EmbeddedServer] = []
    try:
        running += (cluster.start(broker, wait=False) for broker in cluster.brokers)
        yield running
    finally:
        if running:
            with ThreadPoolExecutor(len(running)) as pool:
                list(pool.map(embedded.EmbeddedServer.stop, running))


@dataclass(slots=True)
class _Life:
    """When a broker was started, its restart delay, and after a failure the time of the restart."""

    started_s: float
    delay_s: float = _AGAIN_S
    again_s: float | None = None

    def failed(self, now_s: float) -> float:
        """Plan the restart; return its delay in seconds, which grows if the broker ran briefly."""
        if now_s - self.started_s >= _STEADY_S:
            self.delay_s = _AGAIN_S
        waits_s, self.delay_s = self.delay_s, min(2 * self.delay_s, _AGAIN_S_MAX)
        self.again_s = now_s + waits_s
        return waits_s


def _watch(
    cluster: EmbeddedCluster,
    running: list[embedded.EmbeddedServer],
    shared: Sequence[embedded.EmbeddedServer],
    stopping: threading.Event,
) -> int:
    """Report and restart brokers that end; return the exit code when all brokers must stop.

    ``running`` always has the current process of each broker.
    """
    lives = [_Life(time.monotonic()) for _ in running]
    while not stopping.wait(_WATCH_S):
        for server in [one for one in shared if not one.running()]:
            console.note(
                f"[bold red]{server.name} has ended[/bold red]; see {server.log_path}. Stopping."
            )
            return EXIT_TRY_LATER
        now_s = time.monotonic()
        for number, life in enumerate(lives):
            name = running[number].name
            if life.again_s is None and not running[number].running():
                _report_ended(running, number, cluster.controllers, life.failed(now_s))
            elif life.again_s is not None and now_s >= life.again_s:
                running[number] = cluster.start(name, wait=False)
                life.started_s, life.again_s = now_s, None
                console.note(f"{name} was restarted.")
    return 0


def _report_ended(
    running: Sequence[embedded.EmbeddedServer],
    number: int,
    controllers: Sequence[str],
    again_s: float,
) -> None:
    ended = running[number]
    alive = [one.name for one in running if one.running()]
    deciding = sum(one in controllers for one in alive)
    rest = (
        f"{len(alive)} of {len(running)} continue."
        if deciding * 2 > len(controllers)
        else f"Only {len(alive)} of {len(running)} run: without a majority of the controllers the "
        "cluster cannot change leaders or accept writes."
    )
    console.note(
        f"[bold red]{ended.name} has ended[/bold red] with code {ended.process.returncode}; see "
        f"{console.plain(str(ended.log_path))}. {rest} {ended.name} restarts in {again_s:.0f} s."
    )


def _access(access: AccessConfig) -> dict[str, dict[str, Any]]:
    """Return the brokers' section about access; none for what is not asked."""
    if not access.enabled:
        return {}
    return {"access": {"enabled": True, "owner_token_file": access.owner_token_file}}


def _owner_token(access: AccessConfig) -> Secret | None:
    return read_token(access.owner_token_file) if access.owner_token_file else None


def _hand_down_login(nats: NatsConfig) -> None:
    """Put a login that stood in the address of NATS into the brokers' environment, on no disk."""
    for name, value in (
        ("USER", nats.user),
        ("PASSWORD", None if nats.password is None else nats.password.reveal()),
        ("TOKEN", None if nats.token is None else nats.token.reveal()),
    ):
        if value is not None:
            os.environ[f"HEADWATER_NATS_{name}"] = value


def _runtime_file(cluster: EmbeddedCluster, moto: str | None, *, guarded: bool) -> RuntimeFile:
    first = next(iter(cluster.ports.values()))
    return RuntimeFile(
        pid=os.getpid(),
        flight=cluster.flight_url,
        nats=cluster.nats_url,
        http=f"http://{embedded.LOOPBACK}:{first.http}",
        lake=cluster.lake_uri,
        moto=moto,
        started_us=time.time_ns() // 1000,
        guarded=guarded,
    )


def _banner(found: RuntimeFile, cluster: EmbeddedCluster, data: Path) -> None:
    server = "" if data == Path(DEFAULT_DATA_DIR) else f" --server {data}"
    lines = [f"[bold]NATS[/bold]      {found.nats}"]
    lines += [
        f"[bold]{console.plain(name)}[/bold]  grpc://{embedded.LOOPBACK}:{ports.flight}  "
        f"metrics http://{embedded.LOOPBACK}:{ports.http}/metrics"
        for name, ports in cluster.ports.items()
    ]
    lines += [
        f"[bold]Tables[/bold]    {console.plain(found.lake)}",
        f"[bold]Data[/bold]      {console.plain(str(cluster.folder))}, logs of the brokers beside",
    ]
    if found.guarded:
        lines.append(f"[bold]Guarded[/bold]   {owner_token.TOLD}")
    if found.moto is not None:
        lines.append(
            f"[yellow]S3 is moto at {found.moto}: it loses every table when this ends.[/yellow]"
        )
    lines += [
        "",
        "In another terminal:",
        f"  headwater cluster status{server}",
        f"  headwater stream create orders --puback{server}",
        f"  echo hello | headwater publish orders{server}",
        f"  headwater subscribe orders --follow{server}",
        "",
        "Ctrl-C stops all of them; the next start has all streams and records again."
        if found.moto is None
        else "Ctrl-C stops them. Use a new --data after that: these tables will be gone.",
    ]
    console.panel(f"Headwater is running: {len(cluster.brokers)} brokers", "\n".join(lines))
    console.flush()
