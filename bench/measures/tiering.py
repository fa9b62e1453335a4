"""Tiering: segment → verified Parquet → committed to the Delta table.

A broker without a lake writes streams of JSON records with keys; half of each record is random.
Then a separate process ships one stream per turn, with the daemon's tiering, into a local directory
or into moto. MiB count bytes of the log. "Per core" means per second of that process's CPU time,
without moto's. S3 requests are counted in moto's log.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.measures.publish import ROWS, SIZES, WINDOW
from bench.processes import Load, run_json, run_loads
from bench.servers import headwater
from bench.session import Session
from headwater.local.embedded import moto_environment, start_moto

_LOG_BYTES: Final = 512 * 2**20
_CASES: Final = (("local", "100B"), ("local", "1KiB"), ("moto", "100B"))
_BUCKET: Final = "bench"
_REQUEST: Final = re.compile(rb'"(GET|PUT|POST|HEAD|DELETE) /\S* HTTP/1\.[01]"')


def run(session: Session) -> None:
    """Write the logs, stop the broker, and ship the streams."""
    with headwater(session.work / "ours", nats=False) as broker:
        client = broker.client()
        for store, size in _CASES:
            batches = session.count(_LOG_BYTES // SIZES[size], multiple=ROWS) // ROWS
            for number in range(session.repeat):
                name = f"{store}-{size}-{number}"
                client.create_stream(name)
                run_loads([
                    Load(
                        "flight_publish",
                        url=broker.url,
                        stream=name,
                        size=SIZES[size],
                        rows=ROWS,
                        batches=batches,
                        window=WINDOW,
                        keyed=True,
                    )
                ])  # fmt: skip
        client.close()
        broker.stop()
        data = str(broker.folder / "data")
        with _moto(session.work / "moto") as (log, env):
            lakes = {"local": str(session.work / "lake"), "moto": f"s3://{_BUCKET}/lake"}

            def turn(number: int) -> None:
                for store, size in _CASES:
                    stream = f"{store}-{size}-{number}"
                    wanted = {"data_dir": data, "lake_uri": lakes[store], "stream": stream}
                    _ship(session, wanted, env=env, log=log)

            session.rounds({"ours": turn})


@contextlib.contextmanager
def _moto(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    with start_moto(folder, bucket=_BUCKET) as server:
        yield server.log_path, moto_environment(server.address)


def _ship(session: Session, wanted: dict[str, str], *, env: dict[str, str], log: Path) -> None:
    command = [sys.executable, "-m", "bench.workers.tiering", json.dumps(wanted)]
    seen = log.stat().st_size
    found = run_json(command, env=env)
    store, size, _ = wanted["stream"].split("-")
    case = f"tier/{store}/{size}"
    mib = found["log_bytes"] / 2**20
    add = session.recorder.add
    add(f"{case}/mib_per_core_s", mib / found["cpu_s"], "MiB/s", **found)
    add(f"{case}/mib_per_s", mib / found["seconds"], "MiB/s")
    add(f"{case}/cpu_s_per_gib", found["cpu_s"] / mib * 1024, "s")
    if store == "moto":
        requests = count_requests(log.read_bytes()[seen:])
        add(
            f"{case}/requests_per_gib",
            sum(requests.values()) / mib * 1024,
            "requests",
            requests=requests,
        )


def count_requests(log: bytes) -> dict[str, int]:
    """Count the requests in a piece of moto's log, by method."""
    counts: dict[str, int] = {}
    for method in _REQUEST.findall(log):
        counts[method.decode()] = counts.get(method.decode(), 0) + 1
    return counts
