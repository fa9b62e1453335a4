"""A broker alone on a real disk, its image after a ``kill -9``, and one broken thing in it.

The image is a copy of the data folder taken while the broker runs and nobody writes: what the page
cache holds is in it, and nothing that a clean stop would add. A second copy, taken earlier, is the
backup that somebody puts back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import pyarrow as pa

from broker.adapters.disk.files import DiskFiles
from broker.codec.record_batch import decode_body, prepare
from broker.errors import HeadwaterError
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.system import Files
from broker.runtime.broker import Broker
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.stream_keys import StreamKeys
from simkit.brokers.brokers import disk_broker

OWNER: Final = "5e3f0a8e-7a52-4c8b-9a70-6a6f4b9f2c11"
STREAM: Final = "s"


@dataclass
class Running:
    """One run of a broker."""

    broker: Broker
    folder: Path

    @property
    def partition(self) -> PartitionDriver:
        """Partition 0 of the stream."""
        return self.broker.partitions.handle(STREAM, 0)

    @property
    def log_folder(self) -> Path:
        """Where its log is."""
        return self.folder / "streams" / self.broker.streams.get(STREAM).uuid / "0"

    def put(self, *values: bytes, now_us: int = 1) -> Any:
        """Publish one batch; return its result or its error."""
        outcome: SimpleQueue[Any] = SimpleQueue()
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        try:
            self.partition.writes.submit([prepare(rows, now_us=now_us)], outcome.put)
        except HeadwaterError as error:
            return error
        return outcome.get(timeout=30)[0]

    def rows(self) -> list[bytes]:
        """Read every committed record from the log start on; raises the errors of a read."""
        partition = self.partition
        found: list[bytes] = []
        at, end = partition.reads.log_start, partition.reads.high_watermark
        while at < end:
            for batch in partition.reads.read(at, end, bytes_max=1 << 20):
                found += decode_body(batch.header, batch.body).column("value").to_pylist()
                at = batch.header.end_offset
        return found


@contextmanager
def running(
    folder: Path,
    *,
    wrap: Callable[[DiskFiles], Files] = lambda files: files,
    keys: StreamKeys | None = None,
) -> Iterator[Running]:
    """Run a broker as the daemon does, without services, until the block ends."""
    with disk_broker(folder, wrap=wrap, owner=OWNER, keys=keys) as broker:
        yield Running(broker, folder)


def image(source: Path, target: Path) -> Path:
    """Copy a data folder as a kill leaves it; files renamed meanwhile are copied again."""
    while True:
        try:
            shutil.copytree(source, target)
        except shutil.Error:
            shutil.rmtree(target)
        else:
            return target


@dataclass(frozen=True)
class Killed:
    """The remains of a broker: its folder, an older copy of it, its acknowledged records."""

    folder: Path
    older: Path
    uuid: str
    values: list[bytes]

    @property
    def log(self) -> Path:
        """The partition's folder."""
        return self.folder / "streams" / self.uuid / "0"

    @property
    def older_log(self) -> Path:
        """The partition's folder in the copy."""
        return self.older / "streams" / self.uuid / "0"

    def segments(self) -> list[Path]:
        """The segment files, oldest first."""
        return sorted(self.log.glob("*.log"))


def killed(folder: Path, *, count: int = 40, copied_at: int = 25, **settings: Any) -> Killed:
    """Publish, take an image while the broker runs, and return it with an older copy."""
    values = [b"%05d" % number + b"x" * 500 for number in range(count)]
    with running(folder / "origin") as live:
        config = StreamConfig(subject="s", segment_bytes_max=4096, **settings)
        uuid = live.broker.streams.create(STREAM, config).uuid
        for number, value in enumerate(values):
            if number == copied_at:
                image(live.folder, folder / "older")
            result = live.put(value, now_us=1000 * (number + 1))
            assert result.base_offset == number
        image(live.folder, folder / "killed")
    return Killed(folder / "killed", folder / "older", uuid, values)


def copied(at: Killed, target: Path) -> Killed:
    """Return the same, as a copy that a test may damage."""
    folder = image(at.folder, target / "killed")
    return Killed(folder, image(at.older, target / "older"), at.uuid, at.values)


def first_offset_after(live: Running) -> Offset | None:
    """Publish once more; return the offset that was given out, or None when it was refused."""
    result = live.put(b"new")
    return None if isinstance(result, HeadwaterError) else Offset(result.base_offset)
