"""Finds the server that a command talks to, in the same way for every command.

Order: ``--server`` (or HEADWATER_SERVER), then ``./headwater-data/headwater.json``, which
``headwater up`` writes, then the default ports on this machine. ``--server`` takes one of: a Flight
URL or ``host:port``; several of these with commas, for a cluster; a data directory; a runtime file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.errors import InvalidConfigError, UnavailableError
from broker.process.quick_imports import quick_imports
from headwater.cli import console
from headwater.local import runtime_file
from headwater.local.owner_token import token_file_of
from headwater.local.runtime_file import FILE_NAME

if TYPE_CHECKING:
    from headwater.client import Client

DEFAULT_FLIGHT_PORT: Final = 7410
DEFAULT_HTTP_PORT: Final = 7411
DEFAULT_NATS_PORT: Final = 4222
_LOOPBACK: Final = "127.0.0.1"
DEFAULT_FLIGHT: Final = f"grpc://{_LOOPBACK}:{DEFAULT_FLIGHT_PORT}"
DEFAULT_NATS: Final = f"nats://{_LOOPBACK}:{DEFAULT_NATS_PORT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The addresses that a command uses, and the source of the addresses."""

    flight: str
    nats: str | None  # None: ask the broker
    source: str  # for messages: "--server", a file's path, "default"
    moto: str | None = None


def find_server(given: str | None, *, nats: str | None = None) -> Server:
    """Return the server to talk to; reads at most one small file, connects to nothing.

    The token of a guarded ``headwater up`` is put into the environment of this process, unless a
    token is there: what the command starts, a Spark session for example, needs it, too.

    Raises:
        InvalidConfigError: the given text is not an address, or the runtime file is damaged.
        UnavailableError: the runtime file belongs to a server that has ended.
    """
    if given is not None:
        path = Path(given)
        if path.exists():
            return _from_file(path, nats)
        return Server(flight=_flight_url(given), nats=nats, source="--server")
    local = Path(runtime_file.DEFAULT_DATA_DIR)
    with suppress(FileNotFoundError):
        return _from_file(local, nats)
    return Server(flight=DEFAULT_FLIGHT, nats=nats, source="default")


@contextmanager
def connect(server: Server, *, waits_long: bool = False) -> Iterator[Client]:
    """Open a client of the server; its first request makes the connection.

    A command that shows nothing for two seconds names the server that it waits for, unless it
    ``waits_long`` on purpose.
    """
    with quick_imports():
        from headwater.client import Client

    remark = nullcontext() if waits_long else console.waiting(f"waiting for {server.flight}")
    with Client(server.flight) as client, remark:
        yield client


def use_lake_of(server: Server) -> None:
    """Set the environment of this process for the server's moto, if the lake is in moto.

    Variables that are already set are kept, because the user set them on purpose.
    """
    if server.moto is not None:
        from headwater.local import embedded

        for name, value in embedded.moto_environment(server.moto).items():
            os.environ.setdefault(name, value)


def _from_file(path: Path, nats: str | None) -> Server:
    try:
        found = runtime_file.RuntimeFile.read(path)
    except FileNotFoundError as cause:
        if path == Path(runtime_file.DEFAULT_DATA_DIR):
            raise
        raise UnavailableError(
            f"no server runs in {path}; start it with `headwater up --data {path}`"
        ) from cause
    if not found.running():
        raise UnavailableError(
            f"{path} is from a server that has ended (process {found.pid}); start it again with "
            f"`headwater up`"
        )
    token_file = token_file_of(path / FILE_NAME if path.is_dir() else path, found)
    if token_file is not None and not os.environ.get("HEADWATER_TOKEN"):
        os.environ.setdefault("HEADWATER_TOKEN_FILE", str(token_file))
    return Server(flight=found.flight, nats=nats or found.nats, source=str(path), moto=found.moto)


def _flight_url(text: str) -> str:
    if "," in text:
        return ",".join(_flight_url(one.strip()) for one in text.split(",") if one.strip())
    if "://" in text:
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidConfigError(
            f"--server {text!r} is neither an address (host:port or grpc://host:port) nor a file "
            "or folder that exists"
        )
    return f"{'grpc+tls' if os.environ.get('HEADWATER_TLS_CA_FILE') else 'grpc'}://{text}"
