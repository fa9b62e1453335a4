"""A running broker takes new certificates at HTTP and Liftbridge's API; Flight's at a restart."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from broker.adapters.tls.context import TlsFiles
from headwater.local.embedded import LOOPBACK, free_port
from simkit.servers.certificates import Authority

pytestmark = pytest.mark.integration

WAIT_S = 60


def _start(folder: Path, files: TlsFiles, ports: dict[str, int]) -> subprocess.Popen[str]:
    doors = "".join(
        f'[{door}]\nport = {port}\ntls_cert_file = "{files.cert_file}"\n'
        f'tls_key_file = "{files.key_file}"\ntls_client_ca_file = "{files.ca_file}"\n'
        + ("enabled = true\n" if door == "liftbridge" else "")
        for door, port in ports.items()
    )
    config = folder / "broker.toml"
    config.write_text(
        f'[node]\ndata_dir = "{folder / "data"}"\n[nats]\nurl = ""\n[lake]\nuri = ""\n'
        f'[log]\nformat = "json"\n{doors}'
    )
    command = [sys.executable, "-m", "broker", "--config", str(config)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait_for(broker: subprocess.Popen[str], event: str, *doors: str) -> None:
    """Read the log up to an event, of each of these doors, whatever their order."""
    assert broker.stdout is not None
    missing = set(doors)
    for line in broker.stdout:
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("event") == event:
            missing.discard(told.get("door"))
            if not missing:
                return
    raise AssertionError(f"the broker ended without {event} of {missing}")


def _client(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca_file)
    context.load_cert_chain(files.cert_file, files.key_file)
    return context


def _served(port: int, client: ssl.SSLContext) -> bytes | None:
    with (
        socket.create_connection((LOOPBACK, port), timeout=WAIT_S) as raw,
        client.wrap_socket(raw, server_hostname="localhost") as secured,
    ):
        return secured.getpeercert(binary_form=True)


def test_doors_serve_new_certificates_without_a_restart(tmp_path: Path) -> None:
    """On SIGHUP at once, else soon; files that do not fit are kept out; metrics tell the end."""
    authority = Authority(days=30)
    files = authority.files(tmp_path)
    ports = {door: free_port() for door in ("http", "liftbridge", "flight")}
    broker = _start(tmp_path, files, ports)
    try:
        _wait_for(broker, "broker_started")
        client = _client(files)
        old = ssl.PEM_cert_to_DER_cert(files.cert_file.read_text())
        assert {_served(port, client) for port in ports.values()} == {old}
        files.key_file.write_bytes(authority.issue("else").key)
        broker.send_signal(signal.SIGHUP)
        _wait_for(broker, "certificates_kept", "http", "liftbridge")
        assert _served(ports["http"], client) == old
        new = ssl.PEM_cert_to_DER_cert(authority.files(tmp_path).cert_file.read_text())
        _wait_for(broker, "certificates_read", "http", "liftbridge")
        assert _served(ports["http"], client) == new
        assert _served(ports["liftbridge"], client) == new
        assert _served(ports["flight"], client) == old
        url = f"https://localhost:{ports['http']}/metrics"
        with urllib.request.urlopen(url, timeout=WAIT_S, context=client) as answer:
            metrics = answer.read().decode()
        found = re.findall(
            r'_remaining_seconds\{door="(\w+)",file="\S+broker\.crt"\} (\S+)', metrics
        )
        assert {door for door, _ in found} == set(ports)
        assert all(29 * 86400 < float(left) <= 30 * 86400 for _, left in found)
        with pytest.raises((ssl.SSLError, OSError)):  # without a certificate nobody is answered
            urllib.request.urlopen(
                url, timeout=WAIT_S, context=ssl.create_default_context(cafile=files.ca_file)
            )
    finally:
        broker.terminate()
        broker.communicate(timeout=WAIT_S)
    assert broker.returncode == 0
