"""``headwater up`` and ``headwater broker``: start servers and stop them cleanly."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker.errors import InvalidConfigError
from broker.process.quick_imports import import_structlog, quick_imports
from headwater.cli import console
from headwater.cli.discovery import (
    DEFAULT_FLIGHT_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_NATS_PORT,
)
from headwater.cli.failures import EXIT_TRY_LATER
from headwater.local import embedded, owner_token
from headwater.local.owner_token import token_path
from headwater.local.private_files import UMASK, make_private_folder, open_lock
from headwater.local.runtime_file import DEFAULT_DATA_DIR, FILE_NAME, RuntimeFile

if TYPE_CHECKING:
    from broker.config import BrokerConfig

_MOTO_BUCKET: Final = "headwater"
_WATCH_S: Final = 0.5
_METADATA: Final = ("raft", "metadata")  # folders of a broker: of this release, of release 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ports:
    nats: int
    flight: int
    http: int


DataOption = Annotated[
    Path, typer.Option(help="Directory for all data of the server.", metavar="DIR")
]
S3Option = Annotated[
    str | None,
    typer.Option(
        metavar="moto|s3://BUCKET/PREFIX",
        help="Keep the tables in S3: 'moto' starts a throw-away S3 that loses all tables when it "
        "ends; a URL uses a real store, with credentials as the AWS tools find them. "
        "Default: a local directory.",
        show_default=False,
    ),
]
NatsUrlOption = Annotated[
    str | None,
    typer.Option(help="Use this NATS server instead of starting one.", show_default=False),
]
NatsPortOption = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help=f"NATS {DEFAULT_NATS_PORT} by default; 0: a free one."),
]
FlightPortOption = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help=f"Arrow Flight {DEFAULT_FLIGHT_PORT} by default; 0: a free one."
    ),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help=f"Metrics {DEFAULT_HTTP_PORT} by default; 0: a free one."),
]
LiftbridgePortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Liftbridge's API of one broker: 9292 by default; 0: a free one, which is the default "
        "with --flight-port 0. HEADWATER_LIFTBRIDGE_ENABLED=false: none.",
        show_default=False,
    ),
]
BrokersOption = Annotated[
    int | None,
    typer.Option(
        "--brokers",
        metavar="1|3|…",
        help="Number of brokers, each a process, that replicate each other; three or five of them "
        "vote. Default: the number that the directory has, else 1.",
        show_default=False,
    ),
]
GuardedOption = Annotated[
    bool | None,
    typer.Option(
        "--guarded/--no-guarded",
        help="Ask every client who it is, as on a machine that others use, too. A token in the "
        "directory, for your user only, lets your commands do everything; docs/security.md. "
        "Default: as the directory was guarded before, else not.",
        show_default=False,
    ),
]
LogLevelOption = Annotated[
    str, typer.Option(help="debug, info, warning or error; logs go to stderr.")
]


def up(
    *,
    data: DataOption = Path(DEFAULT_DATA_DIR),
    brokers: BrokersOption = None,
    s3: S3Option = None,
    nats_url: NatsUrlOption = None,
    nats_port: NatsPortOption = None,
    flight_port: FlightPortOption = None,
    http_port: HttpPortOption = None,
    liftbridge_port: LiftbridgePortOption = None,
    guarded: GuardedOption = None,
    log_level: LogLevelOption = "warning",
) -> None:
    """Run a whole server on this machine: NATS, one broker or a cluster of brokers, tiering.

    Ctrl-C stops it; a restart with the same --data has every stream and record again.

    [bold]Examples[/bold]

      headwater up
      headwater up --brokers 3 --guarded
      headwater up --data /var/lib/headwater --log-level info
      headwater up --s3 s3://my-bucket/headwater
      headwater up --s3 moto --nats-port 0 --flight-port 0 --http-port 0
    """
    from broker import config as broker_config
    from headwater.cli import up_cluster
    from headwater.local.embedded_cluster import refuse_size

    lake = _usable_lake(s3, data)
    if brokers is not None:
        refuse_size(brokers)
    _make_data_folder(data)
    with ExitStack() as stack:
        # Libraries make files by themselves, such as the commits of a table.
        stack.callback(os.umask, os.umask(UMASK))
        stack.enter_context(_only_one(data))
        stack.enter_context(console.waiting("starting: NATS first, then the broker and its logs"))
        count = up_cluster.refuse_other_kind(data, brokers)
        first = up_cluster.planned_ports(data, flight=flight_port, http=http_port)
        if first is None:
            ports = _choose_ports(nats_port, flight_port, http_port, own_nats=nats_url is None)
        else:
            nats = 0 if nats_url else _nats_port(nats_port)
            ports = _Ports(nats=nats, flight=first.flight, http=first.http)
        base = _guarded(broker_config.load(None, os.environ), data, wanted=guarded)
        children: list[embedded.EmbeddedServer] = []
        if nats_url is None:
            server = stack.enter_context(embedded.start_nats(data / "nats", port=ports.nats))
            children.append(server)
            nats_url = server.address
        moto = None
        if s3 == "moto":
            moto = stack.enter_context(embedded.start_moto(data / "moto", bucket=_MOTO_BUCKET))
            children.append(moto)
            embedded.use_moto(moto.address, os.environ)
        config = _broker_config(
            base, data=data, nats_url=nats_url, lake=lake, ports=ports, level=log_level
        )
        stack.callback((data / FILE_NAME).unlink, missing_ok=True)
        address = moto.address if moto else None
        if count == 1:
            config = _with_liftbridge(config, liftbridge_port, any_port=flight_port == 0)
            code = _run_one(config, data, children, address)
        else:
            code = up_cluster.run_cluster(config, children, data=data, count=count, moto=address)
    if code == 0:
        console.note("Stopped. Everything is on disk." if moto is None else _MOTO_FAREWELL)
    raise typer.Exit(code)


def _run_one(
    config: BrokerConfig, data: Path, children: list[embedded.EmbeddedServer], moto: str | None
) -> int:
    """Run a single broker in this process; stop the broker if NATS or the throw-away S3 ends."""
    make_private_folder(Path(config.node.data_dir))
    stopping, all_alive = threading.Event(), threading.Event()
    all_alive.set()
    watch = partial(_watch, children, stopping, all_alive)
    threading.Thread(target=watch, name="watch-children", daemon=True).start()
    try:
        code = _run_broker(config, data, moto)
    finally:
        stopping.set()
    return code if all_alive.is_set() else EXIT_TRY_LATER


_MOTO_FAREWELL: Final = (
    "Stopped. The throw-away S3 has lost its tables: a stream with shipped records can no longer "
    "be read in full."
)


def broker(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            envvar="HEADWATER_CONFIG",
            help="TOML file; HEADWATER_<SECTION>_<KEY> overrides it.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check configuration, folder, ports, certificates, access, NATS, keys and lake; "
            "start nothing.",
        ),
    ] = False,
    java: Annotated[
        bool, typer.Option("--java", help="With --check: also look for the Java that Spark needs.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Listen beyond this machine even without TLS or identity of clients."
        ),
    ] = False,
) -> None:
    """Run a broker as a daemon, from a configuration file and the environment.

    Unknown keys are refused. docs/operations.md lists all of them with their defaults.

    [bold]Examples[/bold]

      headwater broker --config /etc/headwater/broker.toml
      HEADWATER_LAKE_URI=s3://my-bucket/headwater headwater broker
      headwater broker --config broker.toml --check
    """
    from broker import config as broker_config

    loaded = broker_config.load(config, os.environ)
    if insecure:
        loaded = broker_config.insecure(loaded)
    if check:
        from headwater.cli.broker_check import check as look

        raise typer.Exit(look(loaded, java=java))
    from broker.process.allocator import share_with_arrow

    share_with_arrow(broker_config.arrow_bytes_max(loaded))
    with quick_imports():
        import_structlog()
        from broker.process import daemon
    from broker.process.arrow_without_pandas import keep_pandas_out

    keep_pandas_out()
    raise typer.Exit(daemon.run(loaded))


def _run_broker(config: BrokerConfig, data: Path, moto: str | None) -> int:
    from broker.process.allocator import share_with_arrow

    share_with_arrow()
    with quick_imports():
        import_structlog()
        from broker.process import daemon
    from broker.process.arrow_without_pandas import keep_pandas_out

    keep_pandas_out()

    def ready(addresses: daemon.ServingAddresses) -> None:
        found = RuntimeFile(
            pid=os.getpid(),
            flight=f"grpc://{embedded.LOOPBACK}:{addresses.flight_port}",
            nats=addresses.nats_url,
            http=f"http://{embedded.LOOPBACK}:{addresses.http_port}",
            lake=addresses.lake_uri,
            moto=moto,
            started_us=time.time_ns() // 1000,
            guarded=config.access.owner_token_file == str(token_path(data)),
        )
        found.write(data)
        port = addresses.liftbridge_port
        _banner(found, data, None if port is None else f"{config.liftbridge.host}:{port}")

    with ExitStack() as stack:

        def stopping() -> None:
            stack.enter_context(console.working("stopping: what was accepted is being stored"))

        return daemon.run(config, on_ready=ready, on_stopping=stopping)


def _make_data_folder(data: Path) -> None:
    """Make the directory for this user only, or take the one that is there.

    Raises:
        InvalidConfigError: it is a file, a broker's own data folder, or another user's folder.
    """
    _refuse_a_daemons_folder(data)
    if data.exists() and not data.is_dir():
        raise InvalidConfigError(f"--data {data} is a file: give a folder, or a new name for one")
    make_private_folder(data)


def _refuse_a_daemons_folder(data: Path) -> None:
    """Refuse a directory that is a broker's own data folder, or that is inside of one.

    ``up`` keeps the broker's folder one level below its own, as ``broker``.
    """
    path = data.absolute()
    for folder in (path, *path.parents):
        has_metadata = any((folder / name).exists() for name in _METADATA)
        if has_metadata and (folder / "node.json").exists():
            raise InvalidConfigError(
                f"{folder} is the data folder of a broker (`headwater broker`): give `up` another "
                "--data, or start that broker with its configuration"
            )


@contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """Hold the directory's lock; the kernel releases the lock however this process ends."""
    with os.fdopen(open_lock(data / "up.lock"), "r+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            raise InvalidConfigError(
                f"another `headwater up` runs in {data}; use that one, or another --data"
            ) from cause
        yield


def _choose_ports(
    nats: int | None, flight: int | None, http: int | None, *, own_nats: bool
) -> _Ports:
    return _Ports(
        nats=_nats_port(nats) if own_nats else 0,
        flight=_port("--flight-port", flight, DEFAULT_FLIGHT_PORT),
        http=_port("--http-port", http, DEFAULT_HTTP_PORT),
    )


def _nats_port(given: int | None) -> int:
    return _port("--nats-port", given, DEFAULT_NATS_PORT)


def _port(option: str, given: int | None, default: int) -> int:
    """Return the port to use: the given one; else the default, or 0 for a free one if it is taken.

    Raises:
        InvalidConfigError: the given port is taken.
    """
    port = default if given is None else given
    if port == 0 or embedded.port_is_free(port):
        return port
    if given is not None:
        raise InvalidConfigError(f"{option} {port} is taken on {embedded.LOOPBACK}; choose another")
    console.note(f"Port {port} is taken; using a free one instead of it ({option}).")
    return 0


def _usable_lake(s3: str | None, data: Path) -> str:
    from tiering.store.location import StoreConfig
    from tiering.store.opening import refuse_without_credentials

    lake = _lake(s3, data)
    if s3 != "moto":
        refuse_without_credentials(StoreConfig.from_env(lake))
    return lake


def _lake(s3: str | None, data: Path) -> str:
    if s3 is None:
        return str((data / "lake").absolute())
    if s3 == "moto":
        return f"s3://{_MOTO_BUCKET}/lake"
    if not s3.startswith("s3://"):
        raise InvalidConfigError(f"--s3 {s3!r} is neither moto nor s3://bucket/prefix")
    return s3


def _broker_config(
    base: BrokerConfig, *, data: Path, nats_url: str, lake: str, ports: _Ports, level: str
) -> BrokerConfig:
    """Return the configuration of the environment, with the settings that ``up`` decides."""
    replace = dataclasses.replace
    return replace(
        base,
        node=replace(base.node, data_dir=str((data / "broker").absolute())),
        nats=replace(base.nats, url=nats_url),
        flight=replace(base.flight, host=embedded.LOOPBACK, port=ports.flight),
        http=replace(base.http, host=embedded.LOOPBACK, port=ports.http),
        lake=replace(base.lake, uri=lake),
        log=replace(base.log, level=level),
    )


def _with_liftbridge(config: BrokerConfig, given: int | None, *, any_port: bool) -> BrokerConfig:
    """Return the configuration with Liftbridge's API on, unless the environment decides."""
    if given is None and "HEADWATER_LIFTBRIDGE_ENABLED" in os.environ:
        return config
    base = config.liftbridge
    port = _port("--liftbridge-port", given, 0 if any_port else base.port)
    return dataclasses.replace(
        config, liftbridge=dataclasses.replace(base, enabled=True, port=port)
    )


def _guarded(config: BrokerConfig, data: Path, *, wanted: bool | None) -> BrokerConfig:
    """Return the configuration with identity on and a new owner's token, if the folder has that."""
    path = token_path(data)
    if not (path.exists() if wanted is None else wanted):
        return config
    from broker.process.access import owner_token as made

    path.unlink(missing_ok=True)  # a copy of it opens nothing from now on
    made(path)
    access = dataclasses.replace(config.access, enabled=True, owner_token_file=str(path))
    return dataclasses.replace(config, access=access)


def _watch(
    children: list[embedded.EmbeddedServer],
    stopping: threading.Event,
    all_alive: threading.Event,
) -> None:
    """Stop this process if a server that it started has ended: the broker needs all of them."""
    while not stopping.wait(_WATCH_S):
        for child in children:
            if not child.running():
                all_alive.clear()
                console.note(
                    f"[bold red]{child.name} has ended[/bold red]; see {child.log_path}. Stopping."
                )
                os.kill(os.getpid(), signal.SIGTERM)
                return


def _banner(found: RuntimeFile, data: Path, liftbridge: str | None) -> None:
    lines = [
        f"[bold]NATS[/bold]        {found.nats}",
        f"[bold]Flight[/bold]      {found.flight}",
        f"[bold]Metrics[/bold]     {found.http}/metrics",
        f"[bold]Tables[/bold]      {console.plain(found.lake)}",
        f"[bold]Data[/bold]        {console.plain(str(data))}",
    ]
    if liftbridge is not None:
        lines.insert(2, f"[bold]Liftbridge[/bold]  {console.plain(liftbridge)}")
    if found.guarded:
        lines.append(f"[bold]Guarded[/bold]     {owner_token.TOLD}")
    if found.moto is not None:
        lines.append(
            f"[yellow]S3 is moto at {found.moto}: it loses every table when this ends.[/yellow]"
        )
    server = "" if data == Path(DEFAULT_DATA_DIR) else f" --server {data}"
    lines += [
        "",
        "In another terminal:",
        f"  headwater stream create orders --puback{server}",
        f"  echo hello | headwater publish orders{server}",
        f"  headwater subscribe orders --follow{server}",
        f"  headwater query 'select count(*) from orders'{server}",  # noqa: S608  # a hint
        "",
        "Ctrl-C stops the server; the next start has all streams and records again."
        if found.moto is None
        else "Ctrl-C stops the server. Use a new --data after that: these tables will be gone.",
    ]
    console.panel("Headwater is running", "\n".join(lines))
    console.flush()
