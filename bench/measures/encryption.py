"""Encryption: publish to and read from an encrypted stream, beside a plain one of the same broker.

The same batches by Flight, fdatasync before every ack, the keys from the environment. The reads
come from the page cache, so that what they cost is decoding, deciphering and the network.
"""

from __future__ import annotations

import base64
import secrets
from functools import partial
from typing import Final

from bench.measures.publish import ROWS, SIZES, WINDOW
from bench.processes import Load, run_loads
from bench.servers import BrokerServer, headwater
from bench.session import Session

_RECORDS: Final = {"100B": 4_000_000, "1KiB": 500_000}
_SIDES: Final = {"plain": "none", "encrypted": "xaes-256-gcm"}


def run(session: Session) -> None:
    """Publish and read in turns; each turn has a stream of its own."""
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    env = {"HEADWATER_ENCRYPTION_PROVIDER": "environment", "HEADWATER_ENCRYPTION_KEY": key}
    with headwater(session.work / "ours", nats=False, env=env) as broker:
        for size in SIZES:
            sides = {side: partial(_turn, session, broker, size=size, side=side) for side in _SIDES}
            session.rounds(sides)


def _turn(session: Session, broker: BrokerServer, number: int, *, size: str, side: str) -> None:
    records = session.count(_RECORDS[size], multiple=ROWS)
    stream = f"{side}-{size}-{number}"
    client = broker.client()
    client.create_stream(stream, tiering=False, encryption=_SIDES[side])  # type: ignore[arg-type]
    case = f"encryption/{size}"
    cpu_s = broker.process.cpu_s()
    (published,) = run_loads([
        Load(
            "flight_publish",
            url=broker.url,
            stream=stream,
            size=SIZES[size],
            rows=ROWS,
            batches=records // ROWS,
            window=WINDOW,
        )
    ])  # fmt: skip
    _add(session, f"{case}/publish_{side}", published, records, broker.process.cpu_s() - cpu_s)
    load = Load("flight_read", url=broker.url, stream=stream, columns=None)
    cpu_s = broker.process.cpu_s()
    load.go()
    found = load.result()
    assert found["records"] == records, f"only {found['records']} of {records} records arrived"
    _add(session, f"{case}/read_{side}", found, records, broker.process.cpu_s() - cpu_s)
    client.delete_stream(stream)
    client.close()


def _add(session: Session, name: str, found: dict[str, int], records: int, cpu_s: float) -> None:
    took_s = (found["end_ns"] - found["start_ns"]) / 1e9
    session.recorder.add(name, records / took_s, "rec/s", records=records, broker_cpu_s=cpu_s)
