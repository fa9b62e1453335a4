"""One member of a Raft group as a process of its own, so that it can be killed.

It takes one line of JSON on its standard input, what it is; then a command per line, and answers
each with one line. Registrations count up by one, so each answer tells how many came before.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.adapters.clock import SystemClock
from broker.adapters.disk.files import DiskFiles
from broker.adapters.peer.raft import PeerAddress, RaftTls, TlsRaftTransport, member_uri
from broker.adapters.raft_pysyncobj.core import PysyncobjCore
from broker.core.metadata.commands import RegisterBroker
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.errors import HeadwaterError
from broker.model.ids import BrokerId
from broker.model.raft import NodeId
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from headwater.local.embedded import free_port
from simkit.raft.groups import issue_certificate
from simkit.servers.certificates import Authority

_LIBRARY = Path(__file__).parents[2]
_ROOT = Path(__file__).parents[4]
_COMMAND = RegisterBroker(broker=BrokerId("b1"))
_TIMEOUT_MS = 30_000


class MemberProcess:
    """A living member; :meth:`kill` leaves it no time for anything."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "simkit.raft.member_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(_LIBRARY), str(_ROOT)))},
        )
        self._tell(json.dumps(settings))

    def wait_ready(self) -> None:
        """Wait until it takes commands."""
        assert self._hear() == "ready", "a member does not start"

    def ask(self, line: str) -> str:
        """Send a command, wait for its answer; an empty one means that the member is dead."""
        try:
            self._tell(line)
        except BrokenPipeError:
            return ""
        return self._hear()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self) -> None:
        """Send SIGKILL, without waiting for the end; other members may still ask it."""
        self._process.send_signal(signal.SIGKILL)

    def kill(self) -> None:
        """End it by SIGKILL; a command that the dead member did not take is dropped."""
        self.signal()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # A command that met a broken pipe is still buffered, and close() sends it again.
                with suppress(BrokenPipeError):
                    pipe.close()


class ProcessGroup:
    """Three members, each a process."""

    def __init__(self, folder: Path, core: str) -> None:
        self.names = tuple(f"n{number}" for number in range(3))
        authority = Authority()
        ports = {name: free_port() for name in self.names}
        self._settings = {}
        for name in self.names:
            uri = member_uri("kill", NodeId(name))
            tls = issue_certificate(folder, NodeId(name), authority, uri=uri)
            self._settings[name] = {
                "name": name,
                "core": core,
                "folder": str(folder / name),
                "ports": ports,
                "tls": [str(tls.ca_file), str(tls.cert_file), str(tls.key_file)],
            }
        self.alive: dict[str, MemberProcess] = {}
        try:
            self.start(*self.names)
        except AssertionError:
            self.close()
            raise

    def start(self, *names: str) -> None:
        """Start members on their files."""
        for name in names:
            self.alive[name] = MemberProcess(self._settings[name])
        for name in names:
            self.alive[name].wait_ready()

    def kill(self, *names: str) -> None:
        """Kill members."""
        for name in names:
            self.alive.pop(name).kill()

    def close(self) -> None:
        """Kill the processes that still run."""
        self.kill(*list(self.alive))


def main() -> None:
    """Be a member until the standard input ends."""
    answer, sys.stdout = sys.stdout, sys.stderr  # log lines are no answers
    settings = json.loads(sys.stdin.readline())
    me = NodeId(settings["name"])
    ports = {NodeId(name): int(port) for name, port in settings["ports"].items()}
    ca, cert, key = (Path(path) for path in settings["tls"])
    transport = TlsRaftTransport(
        cluster="kill",
        me=me,
        listener=socket.create_server(("127.0.0.1", ports[me])),
        peers={name: PeerAddress("127.0.0.1", port) for name, port in ports.items() if name != me},
        tls=RaftTls(ca_file=ca, cert_file=cert, key_file=key),
    )
    log = RaftMetadataLog(
        DiskFiles(Path(settings["folder"])),
        RaftConfig(members=tuple(ports), keep_entries=10),
        cluster="kill",
        me=me,
        clock=SystemClock(),
        on_crash=lambda _: os._exit(3),
        transport=transport,
        journal_bytes_max=4000,
        new_core=PysyncobjCore if settings["core"] == "pysyncobj" else RaftCore,
    )
    answer.write("ready\n")
    answer.flush()
    for line in sys.stdin:
        answer.write(_answer(log, line.strip()) + "\n")
        answer.flush()
    os._exit(0)


def _answer(log: RaftMetadataLog, command: str) -> str:
    try:
        match command:
            case "register":
                reply = log.propose(_COMMAND, timeout_ms=_TIMEOUT_MS)
                return str(reply["broker_epoch"])
            case "leader":
                log.barrier(timeout_ms=_TIMEOUT_MS)
                return str(log.leader)
            case _:
                log.barrier(timeout_ms=_TIMEOUT_MS)
                return str(log.state.broker_epochs.get(BrokerId("b1"), 0))
    except HeadwaterError as error:
        return f"{type(error).__name__}: {error.message}"


if __name__ == "__main__":
    main()
