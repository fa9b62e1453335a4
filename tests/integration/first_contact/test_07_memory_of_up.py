"""Issue 11, item 7: ``headwater up`` of one stream takes at most 350 MiB, whole, at its highest.

*Whole* is the sum of the resident memory of every process that ``up`` consists of: itself with its
broker, and nats-server. Pages that they share are counted in each. The kernel keeps the highest
value of each (``VmHWM``), so no peak is missed between two samples; the sum of the highest values
is never less than the highest sum.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from headwater.client.client import Client
from headwater.local.embedded import start_up
from headwater.local.runtime_file import RuntimeFile

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MIB: Final = 1024 * 1024
WHOLE_MIB_MAX: Final = 350
IDLE_MIB_MAX: Final = 300  # 230 to 250 alone; 267 beside other tests, whose load delays each step
RECORDS: Final = 300_000
RECORD_BYTES: Final = 100
_POLL_S: Final = 0.1
PORTS: Final = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")


def _processes(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            for child in children.read_text().split():
                found += _processes(int(child))
    return found


def _whole_mib(pid: int, what: str) -> float:
    kib = 0
    for process in _processes(pid):
        rows = Path(f"/proc/{process}/status").read_text().splitlines()
        kib += next(int(row.split()[1]) for row in rows if row.startswith(f"{what}:"))
    return kib / 1024


def _metric(http: str, name: str) -> float:
    with urlopen(f"{http}/metrics") as answer:
        rows = answer.read().decode().splitlines()
    return float(next(row for row in rows if row.startswith(f"headwater_{name}{{")).split()[1])


def _command(*arguments: str, given: bytes = b"") -> None:
    command = [sys.executable, "-m", "headwater", *arguments]
    subprocess.run(command, input=given, check=True, capture_output=True)


def test_up_of_one_stream_takes_at_most_350_mib(tmp_path: Path) -> None:
    """With 300,000 message ids in memory, while the records are shipped into the table.

    Before, it was 443 MiB. Then the window becomes one second, and nobody publishes: the ids'
    memory is given back, and the broker does not keep what shipping took.
    """
    data = tmp_path / "data"
    with start_up(data, *PORTS) as server, Client(RuntimeFile.read(data).flight) as client:
        http, pid = RuntimeFile.read(data).http, server.process.pid
        client.create_stream("orders", subject="orders", puback=True, dedup_window_ms=3_600_000)
        records = b"\n".join(b"%0*d" % (RECORD_BYTES, number) for number in range(RECORDS))
        _command("publish", "orders", "--via", "nats", "--server", str(data), given=records)
        _command("tier", "flush", "orders", "--server", str(data))
        assert client.describe("orders").records_count == RECORDS
        assert _metric(http, "partition_message_ids") == RECORDS
        assert _metric(http, "partition_message_ids_bytes") <= 60 * RECORDS + MIB

        client.alter_stream("orders", dedup_window_ms=1_000)
        deadline_s = time.monotonic() + 300
        while _metric(http, "partition_message_ids_bytes"):
            assert time.monotonic() < deadline_s, "the window has passed, and its memory is kept"
            time.sleep(_POLL_S)
        assert _metric(http, "partition_message_ids") == 0
        assert _metric(http, "partition_forgotten_ids_total") == 0
        assert _whole_mib(pid, "VmHWM") <= WHOLE_MIB_MAX
        deadline_s = time.monotonic() + 60  # the kernel gets memory back when nothing is left to do
        while (idle_mib := _whole_mib(pid, "VmRSS")) > IDLE_MIB_MAX:
            assert time.monotonic() < deadline_s, f"{idle_mib:.0f} MiB are kept"
            time.sleep(_POLL_S)
