"""Issue 11, item 6: a bound on unshipped bytes and the size of a segment are bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from broker.codec.record_batch import PreparedBatch, prepare
from broker.errors import HeadwaterError, OverloadedError, RecordTooLargeError
from broker.model.records import AppendResult
from broker.model.stream import StreamConfig
from broker.runtime.partition.driver import PartitionDriver
from headwater.cli.main import app
from headwater.client import Client
from simkit.brokers.brokers import disk_broker
from simkit.brokers.served_broker import served_disk_broker

KIB = 1024
SEGMENT = 64 * KIB
LIMIT = 256 * KIB


class Burst:
    """A partition whose writes pile up while its turn is held, as they do during a slow fsync."""

    def __init__(self, partition: PartitionDriver) -> None:
        self.partition = partition
        self._go = threading.Event()
        self._outcomes: SimpleQueue[Any] = SimpleQueue()
        self._submitted = 0
        self._refused: list[HeadwaterError] = []

    def hold(self) -> None:
        """Keep the owner busy until :meth:`results`."""
        held = threading.Event()

        def wait() -> None:
            held.set()
            self._go.wait(30)

        self.partition.replication.later(0, wait)
        assert held.wait(30)

    def submit(self, *batches: PreparedBatch) -> None:
        """Submit batches as one call."""
        try:
            self.partition.writes.submit(list(batches), self._outcomes.put)
        except HeadwaterError as error:
            self._refused.append(error)
        else:
            self._submitted += 1

    def results(self) -> list[AppendResult | HeadwaterError]:
        """Let the turn run; return every outcome."""
        self._go.set()
        told = [one for _ in range(self._submitted) for one in self._outcomes.get(timeout=60)]
        told += self._refused
        self._submitted, self._refused = 0, []
        return told


@pytest.fixture
def burst(tmp_path: Path) -> Iterator[Burst]:
    """A stream with small bounds."""
    with disk_broker(tmp_path, workers=2) as broker:
        config = StreamConfig(subject="s", segment_bytes_max=SEGMENT, unshipped_bytes_max=LIMIT)
        broker.streams.create("s", config)
        yield Burst(broker.partitions.handle("s", 0))


def _batch(size: int) -> PreparedBatch:
    value = pa.array([b"x" * size], pa.binary())
    return prepare(pa.RecordBatch.from_pydict({"value": value}), now_us=1)


def test_unshipped_bytes_never_exceed_the_bound(burst: Burst) -> None:
    """A burst of 2 MiB against 256 KiB: what does not fit is refused, and the rest is stored."""
    burst.hold()
    for _ in range(100):
        burst.submit(_batch(20 * KIB))
    results = burst.results()
    refused = [one for one in results if isinstance(one, HeadwaterError)]
    assert {type(one) for one in refused} == {OverloadedError}
    assert "unshipped_bytes_max" in str(refused[0])
    stored = sum(one.size_bytes for one in burst.partition.tier.segments())
    assert burst.partition.tier.unshipped_bytes == stored
    assert LIMIT - 2 * 20 * KIB < stored <= LIMIT


def test_a_burst_after_a_burst_is_refused_before_it_is_accepted(burst: Burst) -> None:
    """Near the bound a small batch still fits where a larger one does not."""
    for _ in range(12):
        burst.submit(_batch(20 * KIB))
    assert all(isinstance(one, AppendResult) for one in burst.results())
    burst.submit(_batch(30 * KIB))
    burst.submit(_batch(1 * KIB))
    small, large = sorted(burst.results(), key=lambda one: isinstance(one, HeadwaterError))
    assert isinstance(small, AppendResult)
    assert isinstance(large, OverloadedError)
    assert burst.partition.tier.unshipped_bytes <= LIMIT


def test_no_segment_exceeds_its_size(burst: Burst, tmp_path: Path) -> None:
    """Batches of one group and of one call are spread over segments; so are the files on disk."""
    burst.hold()
    for size in (20, 40, 30, 10, 25, 5):
        burst.submit(_batch(size * KIB), _batch(KIB))
    assert all(isinstance(one, AppendResult) for one in burst.results())
    sizes = [one.size_bytes for one in burst.partition.tier.segments()]
    assert max(sizes) <= SEGMENT
    assert max(path.stat().st_size for path in tmp_path.rglob("*.log")) <= SEGMENT


@pytest.mark.parametrize("above", [-1, 0, 1], ids=["below", "at", "above"])
def test_a_batch_that_fills_a_segment_fits_with_its_header_or_is_refused(
    burst: Burst, above: int
) -> None:
    """A single batch larger than a segment is refused by name: it is never stored in part."""
    empty = _batch(0).size
    room = SEGMENT - 64 - empty  # a segment begins with a header of 64 bytes
    value = room - room % 64 + above * 64
    batch = _batch(value)
    burst.submit(batch)
    (result,) = burst.results()
    if batch.size + 64 <= SEGMENT:
        assert isinstance(result, AppendResult)
        assert max(one.size_bytes for one in burst.partition.tier.segments()) <= SEGMENT
    else:
        assert isinstance(result, RecordTooLargeError)
        assert "segment_bytes_max" in result.message


def test_the_command_sends_batches_that_fit_into_a_segment(tmp_path: Path) -> None:
    """Small records are not too large for small segments: the batch of the command was."""
    lines = b"".join(b"%05d\n" % number for number in range(20_000))
    with served_disk_broker(tmp_path) as url, Client(url) as client:
        client.create_stream("s", segment_bytes_max=SEGMENT, tiering=False)
        sent = CliRunner().invoke(
            app, ["publish", "s", "--via", "flight", "--server", url, "--header", "k=" + "v" * 50],
            input=lines,
        )  # fmt: skip
        assert sent.exit_code == 0, sent.output
        stored = [
            value
            for part in client.fetch("s", start=0)
            for value in part.batch["value"].to_pylist()
        ]
    assert b"".join(value + b"\n" for value in stored) == lines
