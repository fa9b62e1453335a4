"""The first vertical, as a newcomer meets it: one command up, NATS in, exact reads out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headwater.local import embedded
from headwater.local.runtime_file import FILE_NAME, RuntimeFile

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
_FREE_PORTS = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data directory that all commands of a test share."""
    return tmp_path / "data"


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Run:
    """Return a function that runs ``headwater`` as a process of its own."""
    environment = {**os.environ, "HEADWATER_SERVER": str(data), "COLUMNS": "160"}

    def command(
        *arguments: str, stdin: str = "", ok: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "headwater.cli.main", *arguments],
            input=stdin, capture_output=True, text=True, cwd=tmp_path, env=environment,
            timeout=240, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) == ok, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done

    return command


@pytest.fixture
def up(data: Path) -> Iterator[Callable[..., embedded.EmbeddedServer]]:
    """Return a function that starts ``headwater up``; whatever still runs is stopped at the end."""
    started: list[embedded.EmbeddedServer] = []

    def start(*options: str) -> embedded.EmbeddedServer:
        started.append(embedded.start_up(data, *_FREE_PORTS, *options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def _lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_records_survive_a_restart_in_both_tiers(
    run: Run, up: Callable[..., embedded.EmbeddedServer], data: Path, tmp_path: Path
) -> None:
    """Publish, tier, publish more, stop, start: every record is there once, and it is proved."""
    first = up()
    run("stream", "create", "orders", "--puback", "--segment-bytes", "64KiB")
    values = [json.dumps({"id": n, "customer": n % 7}) for n in range(3000)]
    sent = run(
        "publish", "orders", "--key-field", "customer", "--json", stdin="\n".join(values[:2000])
    )
    assert json.loads(sent.stdout)["acked"] == 2000
    flushed = _lines(run("tier", "flush", "orders", "--json").stdout)
    assert flushed[0]["cold"] == {"start": 0, "end": 2000}
    run("publish", "orders", "--via", "flight", stdin="\n".join(values[2000:]))

    def everything() -> list[str]:
        done = run("read", "orders", "--columns", "offset,value")
        assert "Exact: 3,000 records" in done.stderr
        rows = _lines(done.stdout)
        assert [row["offset"] for row in rows] == list(range(3000))
        return [str(row["value"]) for row in rows]

    assert everything() == values
    saved = run("cut", "orders", "--lease", "10m").stdout.strip()
    before = _lines(run("verify", "orders", "--json").stdout)[0]
    assert before["ok"] is True

    first.stop()
    assert first.process.returncode == 0
    assert not (data / FILE_NAME).exists()
    assert "up --data" in run("stream", "list", ok=False).stderr

    up()
    assert everything() == values
    after = _lines(run("verify", "orders", "--json").stdout)[0]
    assert _digests(after) == _digests(before)
    run("publish", "orders", stdin="one more")
    run("read", "orders", "--as-of", saved, "-o", "saved.parquet")
    table = pq.read_table(tmp_path / "saved.parquet")
    assert [value.decode() for value in table.column("value").to_pylist()] == values
    newest = run("subscribe", "orders", "--from", "3000", "--format", "raw")
    assert newest.stdout == "one more\n"


def _digests(verified: dict[str, object]) -> list[object]:
    certificate = verified["certificate"]
    assert isinstance(certificate, dict)
    return [part["digest"] for part in certificate["partitions"]]


def test_plain_nats_publishes_and_a_subscriber_follows(
    run: Run, up: Callable[..., embedded.EmbeddedServer], data: Path, tmp_path: Path
) -> None:
    """A NATS client without Headwater's code publishes; its acknowledgement is durable."""
    up()
    run("stream", "create", "flights", "--subject", "flights.>", "--puback")
    follower = subprocess.Popen(
        [sys.executable, "-m", "headwater.cli.main", "subscribe", "flights", "--follow",
         "--count", "20", "--format", "json"],
        stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "HEADWATER_SERVER": str(data)},
    )  # fmt: skip
    server = RuntimeFile.read(data)

    async def publish() -> list[int]:
        connection = await nats.connect(server.nats)
        offsets = []
        for n in range(20):
            answer = await connection.request(
                f"flights.JFK.{n}", b"%d" % n, headers={"Headwater-Key": "N1"}, timeout=120
            )
            offsets.append(json.loads(answer.data)["offset"])
        await connection.close()
        return offsets

    assert asyncio.run(publish()) == list(range(20))
    assert follower.stdout is not None
    with follower.stdout:
        records = _lines(follower.stdout.read())
    assert follower.wait(120) == 0
    assert [record["value"] for record in records] == [str(n) for n in range(20)]
    assert {record["key"] for record in records} == {"N1"}
    assert [record["subject"] for record in records] == [f"flights.JFK.{n}" for n in range(20)]


def test_a_missing_object_is_found_by_name(
    run: Run, up: Callable[..., embedded.EmbeddedServer], data: Path
) -> None:
    """With one Parquet file gone, reading and verifying fail; no read returns fewer rows."""
    up()
    run("stream", "create", "orders", "--puback")
    run("publish", "orders", stdin="a\nb\nc")
    run("tier", "flush", "orders")
    (victim,) = (data / "lake" / "default" / "orders").rglob("*.parquet")
    victim.unlink()
    read = run("read", "orders", ok=False)
    assert (read.returncode, read.stdout) == (1, "")
    assert "ObjectMissingError" in read.stderr
    found = run("verify", "orders", "--json", ok=False)
    assert found.returncode == 1
    assert _lines(found.stdout)[0]["error"] == "ObjectMissingError"


def test_the_table_is_plain_delta(
    run: Run, up: Callable[..., embedded.EmbeddedServer], data: Path
) -> None:
    """delta-rs without Headwater reads the same rows."""
    up()
    run("stream", "create", "orders", "--puback")
    run("publish", "orders", "-k", "k", stdin="a\nb\nc")
    run("tier", "flush", "orders")
    rows = DeltaTable(str(data / "lake" / "default" / "orders")).to_pyarrow_table()
    assert rows.sort_by("offset").column("value").to_pylist() == [b"a", b"b", b"c"]
    assert set(rows.column("key").to_pylist()) == {b"k"}


def test_ctrl_c_and_kill_leave_nothing_running(
    up: Callable[..., embedded.EmbeddedServer], run: Run
) -> None:
    """Ctrl-C ends everything with code 0; after kill -9 the children are gone, the data is not."""
    server = up("--s3", "moto")
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert len(children) >= 2  # nats-server and moto
    os.kill(server.process.pid, signal.SIGINT)
    assert server.process.wait(120) == 0
    assert psutil.wait_procs(children, timeout=60)[1] == []

    killed = up()
    children = psutil.Process(killed.process.pid).children(recursive=True)
    run("stream", "create", "orders", "--puback")
    run("publish", "orders", stdin="acknowledged")
    killed.process.kill()
    killed.process.wait()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert "has ended" in run("stream", "list", ok=False).stderr
    up()
    assert run("subscribe", "orders", "--format", "raw").stdout == "acknowledged\n"


def test_one_directory_has_one_server(
    up: Callable[..., embedded.EmbeddedServer], run: Run, data: Path
) -> None:
    """A second one on the same data is refused before it touches anything."""
    up()
    second = run("up", "--data", str(data), *_FREE_PORTS, ok=False)
    assert second.returncode == 2
    assert "another" in second.stderr
    run("stream", "list")


def test_a_taken_port(run: Run, tmp_path: Path) -> None:
    """A port that was asked for and is taken is an error that names its option."""
    with embedded.start_nats(tmp_path / "n") as other:
        done = run("up", "--data", str(tmp_path / "d"), "--nats-port", str(other.port), ok=False)
    assert done.returncode == 2
    assert "--nats-port" in done.stderr
