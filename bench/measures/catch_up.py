"""Catch-up: reads a stream from its first record to its end, in a separate process.

Ours: Flight with every column, and a second time with the three columns that a JetStream message
has (offset, timestamp, value). All data was just written, so every side reads from the page cache.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from bench.measures.publish import ROWS, SIZES, WINDOW
from bench.processes import Load, run_loads
from bench.servers import BrokerServer, JetStreamServer, headwater, jetstream
from bench.session import Session

_OURS: Final = {"100B": 8_000_000, "1KiB": 1_000_000}
_PEER: Final = {"100B": 400_000, "1KiB": 200_000}
_KAFKA: Final = {"100B": 4_000_000, "1KiB": 1_000_000}
_NARROW: Final = ["offset", "timestamp", "value"]


def run(session: Session) -> None:
    """Fill one stream per size and side, then read them in turns."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(headwater(session.work / "ours", nats=False))
        server = stack.enter_context(jetstream(session.work / "js", synced=False))
        for size in SIZES:
            records = _fill(session, broker, size)
            messages = session.count(_PEER[size])
            session.tools.create(server.url, size)
            session.tools.publish(server.url, size, size=SIZES[size], count=messages, publishers=1)
            sides = {
                "flight": partial(_flight, session, broker, size=size, records=records),
                "narrow": partial(
                    _flight, session, broker, size=size, records=records, columns=_NARROW
                ),
                "default": partial(_jetstream, session, server, size, messages),
            }
            session.rounds(sides)
    if session.kafka is not None:
        _kafka(session)


def _fill(session: Session, broker: BrokerServer, size: str) -> int:
    records = session.count(_OURS[size], multiple=ROWS)
    client = broker.client()
    client.create_stream(size, tiering=False)
    client.close()
    run_loads([
        Load(
            "flight_publish",
            url=broker.url,
            stream=size,
            size=SIZES[size],
            rows=ROWS,
            batches=records // ROWS,
            window=WINDOW,
        )
    ])  # fmt: skip
    return records


def _flight(
    session: Session,
    broker: BrokerServer,
    number: int,
    *,
    size: str,
    records: int,
    columns: list[str] | None = None,
) -> None:
    del number
    load = Load("flight_read", url=broker.url, stream=size, columns=columns)
    cpu_s = broker.process.cpu_s()
    load.go()
    found = load.result()
    assert found["records"] == records, f"only {found['records']} of {records} records arrived"
    took_s = (found["end_ns"] - found["start_ns"]) / 1e9
    session.recorder.add(
        f"catch_up/{size}/flight{'' if columns is None else '_narrow'}",
        records / took_s,
        "rec/s",
        records=records,
        seconds=took_s,
        arrow_bytes=found["arrow_bytes"],
        broker_cpu_s=broker.process.cpu_s() - cpu_s,
        client_cpu_s=found["cpu_s"],
        columns=columns or "all",
    )


def _jetstream(
    session: Session, server: JetStreamServer, size: str, messages: int, number: int
) -> None:
    del number
    rate, tool = session.tools.consume(server.url, size, size=SIZES[size], count=messages)
    session.recorder.add(f"catch_up/{size}/jetstream", rate, "rec/s", records=messages, tool=tool)


def _kafka(session: Session) -> None:
    assert session.kafka is not None
    with session.kafka.server(session.work / "kafka") as server:
        for size in SIZES:
            count = session.count(_KAFKA[size])
            server.create(size)
            server.publish(size, size=SIZES[size], count=count, publishers=1)

            def turn(number: int, size: str = size, count: int = count) -> None:
                del number
                session.recorder.add(
                    f"catch_up/{size}/kafka",
                    server.consume(size, count=count),
                    "rec/s",
                    records=count,
                    tool="ConsumerPerformance, fetch.nMsg.sec",
                )

            session.rounds({"kafka": turn})
