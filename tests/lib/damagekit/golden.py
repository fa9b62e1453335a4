"""The golden world: a broker's folder and its lake, with all that a table of ours can hold.

A world is built once by a real broker, with moments of it copied on the way:

    older-stopped    when the first session of the broker had ended
    older-running    in the middle of the second session, while the broker ran
    killed           at the end of the second session, while the broker ran: what kill -9 leaves
    stopped          after the broker was asked to end

``expected`` holds every acknowledged row, as read once and compared with what was sent; a saved cut
of each stream is taken in the middle of the second session and at its end. Two retentions: with
``kept`` all segments stay on local disk, with ``freed`` those below the cold end go.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from broker.codec.schema import ROW_SCHEMA
from broker.errors import UnavailableError
from damagekit.spawner import Broker, Spawner
from headwater.client import Client
from headwater.reads.history import History

RETENTIONS: Final = ("kept", "freed")
STATES: Final = ("running", "stopped", "killed")
OLDER: Final = ("older-stopped", "older-running")
_WAIT_S: Final = 60.0
_COPIES_MAX: Final = 20

# name -> what is special about it
STREAMS: Final[dict[str, dict[str, Any]]] = {
    "orders": {"partitions": 2, "segment_bytes_max": 16384},  # keyed
    "beat": {"flush": "interval", "flush_interval_ms": 20, "segment_bytes_max": 16384},
    "again": {"segment_bytes_max": 16384, "compression": "zstd"},  # deleted, and made anew
}


@dataclass(frozen=True, slots=True)
class World:
    """A built world in its folder."""

    folder: Path

    def moment(self, name: str) -> Path:
        """Return the folder of a copied moment: ``data`` and ``lake`` are in it."""
        return self.folder / name

    def info(self) -> dict[str, Any]:
        """Return names by uuid and the saved cuts."""
        loaded = json.loads((self.folder / "info.json").read_text())
        assert isinstance(loaded, dict)
        return loaded

    def expected(self) -> dict[tuple[str, int], pa.Table]:
        """Return all acknowledged rows by stream and partition, in offset order."""
        found = {}
        for path in sorted(self.folder.glob("expected/*.parquet")):
            stream, _, number = path.stem.rpartition("-")
            found[stream, int(number)] = pq.read_table(path).cast(ROW_SCHEMA)
        return found


def clone(source: Path, target: Path) -> None:
    """Copy a tree with its times; shares blocks where the file system can.

    A running broker renames files in it meanwhile; then the copy is made once more.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["cp", "-a", "--reflink=auto", str(source), str(target)]
    for tries_left in reversed(range(_COPIES_MAX)):
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        if done.returncode == 0:
            return
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        assert tries_left, done.stderr


def build(folder: Path, *, retention: str, seed: int) -> World:
    """Build a world. To be called in a process of its own that has a single thread yet. Blocks."""
    folder.mkdir(parents=True)
    builder = _Builder(folder, retention=retention, seed=seed)
    try:
        builder.build()
    except BaseException:
        builder.broker.kill()
        raise
    return World(folder)


class _Builder:
    def __init__(self, folder: Path, *, retention: str, seed: int) -> None:
        self._spawner = Spawner()
        self._folder, self._live = folder, folder / "live"
        self._retention, self._dice = retention, random.Random(seed)
        self._sent: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._cuts: dict[str, dict[str, str]] = {}
        self._live.mkdir()
        self.broker = self._start()

    def build(self) -> None:
        """Live two sessions, and copy moments of them."""
        with Client(self.broker.url) as client:
            self._create(client)
            self._publish(client, batches=8)
            self._flush(client)
            self._publish(client, batches=3)
            self._recreate(client)
            self._names(client)
        self._stop()
        clone(self._live, self._folder / "older-stopped")
        self.broker = self._start()
        with Client(self.broker.url) as client:
            self._publish(client, batches=2)
            self._cut(client, "middle")
            clone(self._live, self._folder / "older-running")
            self._publish(client, batches=2)
            self._flush(client)
            self._publish(client, batches=3)
            self._snapshot_keys(client)
            self._checkpoint(client)
            self._wait_until_still()
            self._expect(client)
            self._cut(client, "end")
            names = self._names(client)
            clone(self._live, self._folder / "killed")
        self._stop()
        clone(self._live, self._folder / "stopped")
        shutil.rmtree(self._live)
        info = {"retention": self._retention, "names": names, "cuts": self._cuts}
        info["lake"] = str(self._live / "lake")
        (self._folder / "info.json").write_text(json.dumps(info, indent=1))

    def _start(self) -> Broker:
        broker = self._spawner.start(
            self._live / "data", self._live / "lake", self._folder / "broker.log"
        )
        assert broker.wait_ready(), broker.events_text()
        deadline_s = time.monotonic() + _WAIT_S
        with Client(broker.url) as client:
            while not _answers(client):  # on a busy machine a first connection may take too long
                assert time.monotonic() < deadline_s, "the broker serves and does not answer"
                time.sleep(0.02)
        return broker

    def _stop(self) -> None:
        ended = self.broker.stop()
        assert ended.code == 0, ended

    def _create(self, client: Client) -> None:
        freed = {"local_retention_bytes": 0, "dedup_window_ms": 0}
        for name, settings in STREAMS.items():
            retention = freed if self._retention == "freed" else {}
            client.create_stream(name, subject=f"in.{name}", **{**settings, **retention})

    def _recreate(self, client: Client) -> None:
        """Delete a stream that has a table, and make it anew under its name."""
        client.delete_stream("again")
        self._sent.pop(("again", 0))
        freed = {"local_retention_bytes": 0, "dedup_window_ms": 0}
        retention = freed if self._retention == "freed" else {}
        client.create_stream("again", subject="in.again", **{**STREAMS["again"], **retention})
        for batches in (8, 2):
            self._publish(client, batches=batches, only="again")
            if batches == 8:
                self._flush(client, only="again")

    def _publish(self, client: Client, *, batches: int, only: str | None = None) -> None:
        for name, settings in STREAMS.items():
            if only not in (None, name):
                continue
            for number in range(settings.get("partitions", 1)):
                sent = self._sent.setdefault((name, number), [])
                with client.producer(name, number) as producer:
                    for _ in range(batches):
                        rows = [self._record(name, number) for _ in range(self._dice.randint(3, 9))]
                        at = producer.send(rows).result(timeout=_WAIT_S).base_offset
                        assert at == len(sent), f"{name}/{number}: {at}, not {len(sent)}"
                        sent += rows

    def _record(self, name: str, partition: int) -> dict[str, Any]:
        """Return a record with every field now and then absent, empty or odd."""
        dice = self._dice
        own = f"in.{name}.{partition}" if partition else f"in.{name}"
        return {
            "key": dice.choice([None, b"", b"k%d" % dice.randrange(9), b"k%d" % dice.randrange(9)]),
            "value": dice.choice([None, dice.randbytes(dice.randint(0, 400)), dice.randbytes(60)]),
            "headers": dice.choice([None, [("h", dice.randbytes(3)), ("h", None)]]),
            "subject": own,
            "reply_subject": dice.choice([None, f"reply.{dice.randrange(100)}"]),
            "correlation_id": dice.choice([None, f"c{dice.randrange(1000)}"]),
        }

    def _flush(self, client: Client, *, only: str | None = None) -> None:
        for name in STREAMS:
            if only in (None, name):
                client.tier_flush(name, timeout_ms=60_000)

    def _cut(self, client: Client, moment: str) -> None:
        self._cuts[moment] = {
            name: client.cut(name, ttl_ms=86_000_000, owner=f"damage {moment}").save()
            for name in STREAMS
        }
        if self._retention == "freed":  # the lease would keep what this world is to free
            for name in STREAMS:
                for lease in client.leases(name):
                    client.drop_lease(lease.lease_id)

    def _snapshot_keys(self, client: Client) -> None:
        from damagekit.keys import build_key_snapshot

        build_key_snapshot(client, "orders", self._live / "lake")

    def _checkpoint(self, client: Client) -> None:
        """Let one table have a checkpoint; the others have commits alone."""
        from tiering.read.lake import Lake

        Lake.open(str(self._live / "lake")).table(client.stream("orders")).checkpoint()

    def _wait_until_still(self) -> None:
        """Wait until no file appears or goes: retention frees a moment after the table has it."""
        _wait_for_stillness(lambda: _listing(self._live))

    def _expect(self, client: Client) -> None:
        """Read every row once; it has to equal the sent row, bit for bit."""
        (self._folder / "expected").mkdir()
        for name in STREAMS:
            with_rows: dict[int, list[pa.RecordBatch]] = {}
            cut = client.cut(name, ttl_ms=60_000)
            for batch in History(client, cut).batches():
                with_rows.setdefault(batch.column("partition")[0].as_py(), []).append(batch)
            for number, batches in with_rows.items():
                table = pa.Table.from_batches(batches, ROW_SCHEMA)
                _require_sent(self._sent[name, number], table)
                pq.write_table(table, self._folder / "expected" / f"{name}-{number}.parquet")
            client.drop_lease(cut.lease.lease_id)

    def _names(self, client: Client) -> dict[str, str]:
        return {stream.uuid: stream.name for stream in client.streams()}


def _require_sent(sent: list[dict[str, Any]], table: pa.Table) -> None:
    found = table.to_pylist()
    assert [row["offset"] for row in found] == list(range(len(sent)))
    for wanted, row in zip(sent, found, strict=True):
        headers = row["headers"]
        if headers is not None:
            row["headers"] = [(one["key"], one["value"]) for one in headers]
        assert {name: row[name] for name in wanted} == wanted


def _answers(client: Client) -> bool:
    try:
        client.streams()
    except UnavailableError:
        return False
    return True


def _listing(folder: Path) -> list[tuple[str, int]]:
    found = []
    for at, _, names in os.walk(folder):  # passes over a folder that goes meanwhile
        for path in (Path(at), *(Path(at) / name for name in names)):
            try:
                found.append((str(path), path.stat().st_size))
            except FileNotFoundError:
                found.append((str(path), -1))
    return sorted(found)


def _wait_for_stillness(look: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    before, since_s = look(), time.monotonic()
    while time.monotonic() < since_s + 0.5:
        time.sleep(0.05)
        now = look()
        if now != before:
            before, since_s = now, time.monotonic()
        assert time.monotonic() < deadline_s, "the world does not come to rest"
