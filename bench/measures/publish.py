"""Acknowledged publish: Flight with a sync before every ack, compared with JetStream and Kafka.

Ours: batches of 8192 records, at most 8 unacknowledged per publisher; each publisher is a process,
and all publish into one partition. JetStream: single messages with 1000 unacknowledged per
publisher, and atomic batches of 1000; the table shows the fastest of these. Every side has random
payloads and no keys.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from bench.processes import Load, run_loads, span_s
from bench.servers import BrokerServer, JetStreamServer, headwater, jetstream
from bench.session import Session

SIZES: Final = {"100B": 100, "1KiB": 1024}
ROWS: Final = 8192
WINDOW: Final = 8
_OURS: Final = {"100B": 8_000_000, "1KiB": 800_000}
_PEER: Final = {"100B": 400_000, "1KiB": 300_000}
_PEER_SYNCED: Final = 20_000
_PEER_SYNCED_BATCHES: Final = 200_000


def run(session: Session) -> None:
    """Measure every size with one and with four publishers."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(headwater(session.work / "ours", nats=False))
        default = stack.enter_context(jetstream(session.work / "js", synced=False))
        synced = stack.enter_context(jetstream(session.work / "js-synced", synced=True))
        for size in SIZES:
            for publishers in (1, 4):
                case = f"publish/{size}/{publishers}p"
                sides = {
                    "flight": partial(
                        _flight, session, broker, case=case, size=size, publishers=publishers
                    ),
                    "default": partial(
                        _jetstream, session, default, case=case, size=size, publishers=publishers
                    ),
                    "synced": partial(
                        _jetstream,
                        session,
                        synced,
                        case=case,
                        size=size,
                        publishers=publishers,
                        suffix="_synced",
                    ),
                }
                session.rounds(sides)
    if session.kafka is not None:
        _kafka(session)


def _flight(
    session: Session, broker: BrokerServer, number: int, *, case: str, size: str, publishers: int
) -> None:
    stream = f"bench-{size}-{publishers}-{number}"
    records = session.count(_OURS[size], multiple=ROWS * publishers)
    client = broker.client()
    client.create_stream(stream, tiering=False)
    batches = records // ROWS // publishers
    loads = [
        Load(
            "flight_publish",
            url=broker.url,
            stream=stream,
            size=SIZES[size],
            rows=ROWS,
            batches=batches,
            window=WINDOW,
        )
        for _ in range(publishers)
    ]
    cpu_s = broker.process.cpu_s()
    results = run_loads(loads)
    took_s = span_s(results)
    stored = client.describe(stream).records_count
    assert stored == records, f"only {stored} of {records} acknowledged records are stored"
    session.recorder.add(
        f"{case}/flight",
        records / took_s,
        "rec/s",
        records=records,
        seconds=took_s,
        mib_per_s=records * SIZES[size] / took_s / 2**20,
        broker_cpu_s=broker.process.cpu_s() - cpu_s,
        clients_cpu_s=sum(one["cpu_s"] for one in results),
        window_batches=WINDOW,
        batch_records=ROWS,
    )
    client.delete_stream(stream)
    client.close()


def _jetstream(
    session: Session,
    server: JetStreamServer,
    number: int,
    *,
    case: str,
    size: str,
    publishers: int,
    suffix: str = "",
) -> None:
    tools = session.tools
    count = session.count(_PEER_SYNCED if suffix else _PEER[size], multiple=publishers)
    stream = f"a{number}"
    tools.create(server.url, stream)
    rate, tool = tools.publish(
        server.url, stream, size=SIZES[size], count=count, publishers=publishers
    )
    session.recorder.add(
        f"{case}/jetstream_async{suffix}", rate, "rec/s", records=count, tool=tool, window=1000
    )
    tools.delete(server.url, stream)
    if tools.natscli is None:
        return
    batched = session.count(_PEER_SYNCED_BATCHES if suffix else _PEER[size], multiple=publishers)
    for mode, records in (("async", count), ("batch", batched)):
        tools.create(server.url, stream)
        rate = tools.bench(
            server.url, mode, stream, size=SIZES[size], count=records, publishers=publishers
        )
        session.recorder.add(
            f"{case}/jetstream_bench_{mode}{suffix}",
            rate,
            "rec/s",
            records=records,
            tool=f"nats bench js pub {mode}, batches of 1000",
        )
        tools.delete(server.url, stream)


def _kafka(session: Session) -> None:
    assert session.kafka is not None
    with session.kafka.server(session.work / "kafka") as server:
        for size in SIZES:
            for publishers in (1, 4):
                count = session.count(2_000_000 if size == "100B" else 500_000, multiple=publishers)

                def turn(
                    number: int, size: str = size, publishers: int = publishers, count: int = count
                ) -> None:
                    topic = f"p{size}-{publishers}-{number}"
                    server.create(topic)
                    rate = server.publish(
                        topic, size=SIZES[size], count=count, publishers=publishers
                    )
                    session.recorder.add(
                        f"publish/{size}/{publishers}p/kafka",
                        rate,
                        "rec/s",
                        records=count,
                        tool="ProducerPerformance, acks=all linger.ms=5 batch.size=65536",
                    )
                    server.delete(topic)

                session.rounds({"kafka": turn})
