"""The hardened cluster of docs/security.md, set up by the page's own files and commands.

Three brokers over TLS and a NATS server with permissions, on one machine: each host of the page is
a loopback address of its own, so that every port is the one that the page has.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.model.secret import Secret
from headwater.client import Client
from headwater.client.address import read_token
from headwater.local.embedded import LOOPBACK, free_port, http_status, spawn
from projectfiles import ROOT
from simkit.servers.certificates import Authority
from simkit.servers.natsproc import NatsProcess

BROKERS: Final = ("b1", "b2", "b3")
PASSWORDS: Final = {"BROKER_PASSWORD": "of-the-brokers", "SHOP_PASSWORD": "of-the-shop"}
_TITLE: Final = "A hardened cluster"
_WAIT_S: Final = 120.0
_POLL_S: Final = 0.02


def page_blocks(kind: str, title: str = _TITLE) -> list[str]:
    """Return the blocks of a kind in a section of the page, in their order."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page.partition(f"## {title}\n")[2], flags=re.MULTILINE)[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)


def page_commands() -> list[str]:
    """Return the lines of the page that are commands; the others set variables."""
    lines = "".join(page_blocks("sh")).splitlines()
    return [one for one in lines if not one.startswith("export ")]


@dataclass(slots=True, kw_only=True)
class Hardened:
    """A running cluster, and what its users have on their machines."""

    folder: Path
    hosts: Mapping[str, str]  # by broker
    nats: NatsProcess
    lake: str
    environment: Mapping[str, str]  # of every process
    http_ports: Mapping[str, int] = field(default_factory=lambda: {b: free_port() for b in BROKERS})
    brokers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The Flight addresses of all brokers."""
        return ",".join(self.url_of(broker) for broker in BROKERS)

    @property
    def liftbridge(self) -> str:
        """The addresses of Liftbridge's API."""
        return ",".join(f"{host}:9292" for host in self.hosts.values())

    @property
    def user(self) -> Path:
        """The folder in which a user works."""
        return self.folder / "user"

    @property
    def ca_file(self) -> Path:
        """The authority that clients trust."""
        return self.user / "ca.crt"

    def url_of(self, broker: str) -> str:
        """Return the Flight address of one broker."""
        return f"grpc+tls://{self.hosts[broker]}:7410"

    def token_file(self, principal: str) -> Path:
        """Return the file of a token that the page makes."""
        return self.user / f"{principal}.token"

    def token(self, principal: str) -> Secret:
        """Return such a token."""
        return read_token(self.token_file(principal))

    def client(self, principal: str | None, url: str | None = None) -> Client:
        """Return a client with a principal's token; None: without any."""
        token = None if principal is None else self.token(principal)
        return Client(url or self.url, tls_ca_file=self.ca_file, token=token)

    def variables(self, principal: str) -> dict[str, str]:
        """Return what a principal has in the environment of commands."""
        return {
            **self.environment,
            "HEADWATER_SERVER": self.url,
            "HEADWATER_TLS_CA_FILE": str(self.ca_file),
            "HEADWATER_TOKEN_FILE": str(self.token_file(principal)),
        }

    def run(
        self, script: str, *, principal: str | None = None, ok: bool = True, cwd: Path | None = None
    ) -> str:
        """Run a script of the shell; return what it printed."""
        variables = self.environment if principal is None else self.variables(principal)
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=cwd or self.user,
            env=variables,
            capture_output=True,
            text=True,
            timeout=2 * _WAIT_S,
            check=False,
        )
        assert (done.returncode == 0) is ok, (script, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def log_of(self, broker: str) -> str:
        """Return what a broker has logged."""
        return (self.folder / broker / "log").read_text(encoding="utf-8")

    # ------------------------------------------------------------------ the page's steps

    def set_up(self) -> None:
        """Do what the page says, with this cluster's hosts and folders in place of the page's."""
        certificates, start, first, tenant = page_blocks("sh")
        self.user.mkdir()
        self.run(self._here(certificates))
        certs = self.user / "certs"
        (certs / "ca.crt").rename(self.ca_file)
        for broker in BROKERS:
            etc = self.folder / broker
            etc.mkdir()
            for name in (f"{broker}.crt", f"{broker}.key"):
                (certs / name).rename(etc / name)
            (etc / "ca.crt").write_bytes(self.ca_file.read_bytes())
            (etc / "nats-ca.crt").write_bytes((self.folder / "nats-ca.crt").read_bytes())
            (etc / "broker.toml").write_text(self._config(broker), encoding="utf-8")
            self._start(broker, self._here(start, broker))
        for broker in BROKERS:
            self._wait_ready(broker)
        self.run(self._here(first, "b1"))
        self.run(self._here(tenant))

    def _start(self, broker: str, command: str) -> None:
        # One loopback has the health of all three, so each has a port of its own.
        script = f"""
            export HEADWATER_HTTP_PORT={self.http_ports[broker]}
            export HEADWATER_NATS_PASSWORD={PASSWORDS["BROKER_PASSWORD"]}
            exec {command}"""
        log = self.folder / broker / "log"
        self.brokers[broker] = spawn(["/bin/bash", "-euc", script], log)

    def _wait_ready(self, broker: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while http_status(self.http_ports[broker], "GET", "/readyz") != 200:
            assert self.brokers[broker].poll() is None, self.log_of(broker)
            assert time.monotonic() < deadline, self.log_of(broker)
            time.sleep(_POLL_S)

    def _config(self, broker: str) -> str:
        page = page_blocks("toml")[0]  # the next ones are settings of other sections
        lines = [
            line if line.startswith("brokers") else re.sub(r"\bb1\b", broker, line)
            for line in page.splitlines()
        ]
        return self._here("\n".join(lines), broker)

    def _here(self, text: str, broker: str = "b1") -> str:
        """Replace the page's hosts, folders and bucket by this cluster's."""
        for name, host in self.hosts.items():
            text = text.replace(f"{name}.example", host)
        for there, here in (
            ("nats.example:4222", f"{LOOPBACK}:{self.nats.port}"),
            ("s3://my-bucket/headwater", self.lake),
            ("/etc/headwater", str(self.folder / broker)),
            ("/var/lib/headwater", str(self.folder / broker / "data")),
        ):
            text = text.replace(there, here)
        return text

    def close(self) -> None:
        """End the brokers as a service manager does."""
        for process in self.brokers.values():
            process.terminate()
        ended = [process.wait(_WAIT_S) for process in self.brokers.values()]
        assert ended == [0] * len(ended), [self.log_of(broker)[-2000:] for broker in self.brokers]


@contextmanager
def hardened_cluster(folder: Path, lake: str, environment: Mapping[str, str]) -> Iterator[Hardened]:
    """Run the page's cluster; ``environment`` is what a machine has to reach the lake."""
    net = ".".join(str(random.randrange(1, 255)) for _ in range(2))  # other runs have other nets
    with ExitStack() as stack:
        commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        stack.enter_context(_environment({**environment, "PATH": commands}))
        nats = stack.enter_context(_nats(folder))
        found = Hardened(
            folder=folder,
            hosts={broker: f"127.{net}.{broker[1:]}" for broker in BROKERS},
            nats=nats,
            lake=lake,
            environment=dict(os.environ),
        )
        stack.callback(found.close)
        found.set_up()
        yield found


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Have variables in this process, which its children inherit."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _nats(folder: Path) -> Iterator[NatsProcess]:
    """Run a NATS server with the page's settings; its authority is not the cluster's."""
    authority = Authority("authority of NATS")
    pair = authority.issue("nats")
    (folder / "nats-ca.crt").write_bytes(authority.cert)
    (folder / "server.crt").write_bytes(pair.cert)
    (folder / "server.key").write_bytes(pair.key)
    (settings,) = page_blocks("text")
    settings = settings.replace("/etc/nats", str(folder))
    with _environment(PASSWORDS), NatsProcess(folder, settings=settings) as running:
        yield running
