"""`headwater query`: the time of the whole command, from its start to its end, on the demo's data.

The 336,776 flights lie in a table, on a local directory and on S3 (moto), with a tail in the log.
The time is that of a process that a person starts; the bar is a p50 of 0.8 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from bench.session import Session
from bench.stats import percentile
from headwater.client import Client
from headwater.demo.flights import FLIGHTS_COUNT, SUBJECTS, load_flights, messages
from headwater.local import embedded
from headwater.local.runtime_file import RuntimeFile
from headwater.nats_publisher import NatsPublisher

_MIB: Final = 1024 * 1024
_RUNS: Final = 5  # of each statement in each turn
_CARRIER: Final = "get_json_object(cast(value as string), '$.carrier')"
_STATEMENTS: Final = {
    "count": "select count(*) n from flights",
    "group": "select subject, count(*) n from flights group by subject",
    "json": f"select {_CARRIER} c, count(*) n from flights group by c",
}
_STORES: Final[dict[str, tuple[str, ...]]] = {"folder": (), "s3": ("--s3", "moto")}


def run(session: Session) -> None:
    """Measure three statements on two stores, in turns."""
    took_s: dict[str, list[float]] = {}
    for store, options in _STORES.items():
        data = session.work / f"query-{store}"
        ports = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
        with embedded.start_up(data, *options, *ports):
            _publish(RuntimeFile.read(data))
            sides: dict[str, Callable[[int], None]] = {
                name: partial(_turn, took_s.setdefault(f"query/{store}/{name}", []), data, sql)
                for name, sql in _STATEMENTS.items()
            }
            session.rounds(sides)
    for name, samples in took_s.items():
        for label, share in (("p50", 0.5), ("p95", 0.95)):
            session.recorder.add(f"{name}/{label}", percentile(samples, share), "s")


def _publish(server: RuntimeFile) -> None:
    if server.moto is not None:
        embedded.use_moto(server.moto, os.environ)
    with Client(server.flight) as client:
        stream = client.create_stream(
            "flights",
            subject=SUBJECTS,
            puback=True,
            segment_bytes_max=8 * _MIB,
            local_retention_bytes=16 * _MIB,
        )
        with NatsPublisher(server.nats, stream=stream) as publisher:
            for group in messages(load_flights(FLIGHTS_COUNT)):
                publisher.publish(group)
            publisher.finish()


def _turn(took_s: list[float], data: Path, sql: str, number: int) -> None:
    del number
    command = [sys.executable, "-m", "headwater", "query", sql, "--server", str(data)]
    for _ in range(_RUNS):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, timeout=120)
        took_s.append(time.perf_counter() - start)
