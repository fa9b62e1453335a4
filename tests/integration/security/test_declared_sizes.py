"""Sizes that a message declares are checked before anything is allocated."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyarrow import flight, ipc

from crashkit.processes import BrokerProcess
from headwater.client import Client

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MIB: Final = 1024 * 1024
ARROW_BYTES_MAX: Final = 256 * MIB
BOMB_BYTES: Final = 1024 * MIB
RESIDENT_BYTES_MAX: Final = 350 * MIB
BOMBS: Final = 9


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Run a broker whose memory for Arrow is bounded."""
    process = BrokerProcess(
        tmp_path / "broker",
        nats_url="",
        lake=str(tmp_path / "lake"),
        settings={"node": {"arrow_bytes_max": ARROW_BYTES_MAX}},
        forked=False,
    )
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        with suppress(AssertionError):
            process.kill()


def bomb() -> pa.RecordBatch:
    """Return a record whose value is a GiB of zeros, which costs no memory here."""
    zeros = mmap.mmap(-1, BOMB_BYTES)
    offsets = pa.py_buffer(b"".join(one.to_bytes(4, "little") for one in (0, BOMB_BYTES)))
    values = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(zeros)])
    return pa.RecordBatch.from_arrays([values], names=["value"])


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no peak")


def test_a_small_message_does_not_unpack_to_a_gib(broker: BrokerProcess) -> None:
    """Nine of 33 KiB took a broker to 6.3 GB; each is refused, and others are served meanwhile."""
    with Client(broker.url) as client:
        client.create_stream("s", subject="s")
        batch = bomb()
        options = flight.FlightCallOptions(
            timeout=60.0, write_options=ipc.IpcWriteOptions(compression="zstd")
        )
        descriptor = flight.FlightDescriptor.for_path("s", "0")

        def send(_: int) -> str:
            with flight.FlightClient(broker.url) as one:
                try:
                    writer, reader = one.do_put(descriptor, batch.schema, options)
                    writer.write_batch(batch)
                    writer.done_writing()
                    told = [bytes(frame).decode() for frame in iter(reader.read, None)]
                    writer.close()
                except flight.FlightError as refused:
                    return str(refused)
                return " ".join(told)

        with client.producer("s") as producer, ThreadPoolExecutor(3) as pool:
            answers = pool.map(send, range(BOMBS))
            for number in range(50):
                producer.send([b"%d" % number]).result(timeout=30)
            told = list(answers)
            producer.send([b"last"]).result(timeout=30)
        assert all("no memory" in one for one in told), told
        assert sum(one.batch.num_rows for one in client.fetch("s")) == 51
    assert peak_bytes(broker.pid) < RESIDENT_BYTES_MAX
