"""Spark, local[2]: reads of the tail alone, and of the whole history with 0, 1 and 20 % tail.

The ``full`` streams have the same number of JSON records of 100 B. ``full-1`` has 99 % of them in
its table and 1 % in the log, and so on. Each is read by ``headwater.read`` and as a table of the
catalog. The native scan is plain Delta on the table of ``full-0``, which has all records. The lake
is a local directory. There are so many records that a read takes seconds, so that the fixed cost
of a read does not matter here.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from bench.measures.publish import ROWS, WINDOW
from bench.processes import Load, run_json, run_loads
from bench.servers import BrokerServer, headwater
from bench.session import Session
from headwater.client import Client

_TAIL_RECORDS: Final = 8_000_000
_FULL_RECORDS: Final = 16_000_000
_PIECE: Final = 128 * ROWS  # shipped at once; gives objects of the default size
_SEGMENT_BYTES: Final = 1024 * 2**20  # so large that segments are shipped only on request
_SIZE: Final = 100
_TAILS: Final = (0, 1, 20)
_HOUR_MS: Final = 3_600_000


def run(session: Session) -> None:
    """Fill the streams, then let one JVM read them all."""
    tail = session.count(_TAIL_RECORDS, multiple=ROWS)
    full = session.count(_FULL_RECORDS, multiple=ROWS * 100)
    lake = str(session.work / "lake")
    with headwater(session.work / "ours", lake_uri=lake, nats=False) as broker:
        client = broker.client()
        client.create_stream("tail", tiering=False)
        _fill(broker, "tail", tail)
        for percent in _TAILS:
            _fill_both(broker, client, f"full-{percent}", full, percent)
        cut = client.cut("full-0")
        client.drop_lease(cut.lease.lease_id)
        client.close()
        wanted = {
            "master": "local[2]",
            "server": broker.url,
            "tail_rows": tail,
            "full_rows": full,
            "repeat": session.repeat,
            "native_uri": cut.table_uri,
            "full": {f"full_{percent}": f"full-{percent}" for percent in _TAILS},
        }
        command = [sys.executable, "-m", "bench.workers.spark", json.dumps(wanted)]
        found = run_json(command)
    _record(session, found["seconds"], tail=tail, full=full)


def _fill_both(
    broker: BrokerServer, client: Client, stream: str, records: int, percent: int
) -> None:
    client.create_stream(stream, segment_age_ms_max=_HOUR_MS, segment_bytes_max=_SEGMENT_BYTES)
    hot = records * percent // 100
    left = records - hot
    while left:
        piece = min(left, _PIECE)
        _fill(broker, stream, piece)
        client.tier_flush(stream, timeout_ms=1_800_000)
        left -= piece
    if hot:
        _fill(broker, stream, hot)
    cut = client.cut(stream)
    client.drop_lease(cut.lease.lease_id)
    part = cut.partitions[0]
    assert (part.hot_end, part.hot_end - part.cold_end) == (records, hot), f"unexpected cut: {cut}"


def _fill(broker: BrokerServer, stream: str, records: int) -> None:
    run_loads([
        Load(
            "flight_publish",
            url=broker.url,
            stream=stream,
            size=_SIZE,
            rows=ROWS,
            batches=records // ROWS,
            window=WINDOW,
            keyed=True,
        )
    ])  # fmt: skip


def _record(session: Session, seconds: dict[str, list[float]], *, tail: int, full: int) -> None:
    add = session.recorder.add
    for way, samples in seconds.items():
        rows = tail if way.startswith("tail") else full
        for took_s in samples:
            if way == "native" or way.startswith("tail"):
                add(f"spark/{way}/rows_per_s", rows / took_s, "rows/s", rows=rows, seconds=took_s)
            if not way.startswith("tail"):
                name = "native/0" if way == "native" else way.replace("_", "/")
                add(f"spark/{name}pct", took_s, "s", rows=rows)
