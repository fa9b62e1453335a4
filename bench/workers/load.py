"""Load generators, each in a separate process: ``python -m bench.workers.load KIND JSON``.

A generator prepares its data and its connection, prints ``ready``, waits for a line, runs, and
prints its result as JSON. Times are of the monotonic clock, which all processes share. Flight uses
the product's own client, NATS uses raw sockets.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from bench import payloads
from bench.peers import raw_nats
from bench.stats import LEVELS, percentile
from broker.model.records import AppendResult
from headwater.client import Client

Result = dict[str, Any]
Run = Callable[[], Result]


def main(arguments: list[str]) -> int:
    """Run one generator."""
    kind, values = arguments[0], json.loads(arguments[1])
    run = KINDS[kind](**values)
    gc.collect()
    gc.disable()
    print("ready", flush=True)
    sys.stdin.readline()
    start_ns, start_cpu_s = time.monotonic_ns(), time.process_time()
    found = run()
    found |= {
        "start_ns": start_ns,
        "end_ns": time.monotonic_ns(),
        "cpu_s": time.process_time() - start_cpu_s,
    }
    print(json.dumps(found), flush=True)
    return 0


# ---------------------------------------------------------------------------- Flight


def flight_publish(
    *, url: str, stream: str, size: int, rows: int, batches: int, window: int, keyed: bool = False
) -> Run:
    """Publish batches, with at most ``window`` of them unacknowledged; ends with the last ack."""
    sources = payloads.keyed_batches(size, rows) if keyed else [payloads.batch_of(size, rows)]
    producer = Client(url).producer(stream, window_batches=window)

    def run() -> Result:
        with producer:
            for index in range(batches):
                producer.send(sources[index % len(sources)])
            producer.flush(600_000)
        return {"records": rows * batches}

    return run


def flight_latency(*, url: str, stream: str, size: int, count: int) -> Run:
    """Send single records, each after the ack of the previous record."""
    one = payloads.batch_of(size, 1)
    producer = Client(url).producer(stream, window_batches=1)

    def send() -> Future[AppendResult]:
        return producer.send(one)

    return lambda: _latencies(count, lambda: send().result(30))


def flight_read(
    *, url: str, stream: str, columns: list[str] | None = None, records_max: int | None = None
) -> Run:
    """Read a stream from its first record to its high watermark at the start.

    With ``records_max`` the read ends with the batch that reaches this number.
    """
    client = Client(url)

    def run() -> Result:
        records = data_bytes = 0
        with client.fetch(stream, columns=columns) as fetch:
            for fetched in fetch:
                records += fetched.batch.num_rows
                data_bytes += fetched.batch.nbytes
                if records_max is not None and records >= records_max:
                    break
        return {"records": records, "arrow_bytes": data_bytes}

    return run


# ---------------------------------------------------------------------------- NATS


def nats_plain(*, url: str, subject: str, size: int, count: int) -> Run:
    """Publish without acknowledgements, as fast as the NATS server accepts messages."""
    connection = raw_nats.RawNats(url)
    one = raw_nats.frame(subject, payloads.payload(size))
    writer = raw_nats.PlainWriter(connection, one, count)

    def run() -> Result:
        writer.run()
        return {"records": count}

    return run


def nats_acknowledged(*, url: str, subject: str, size: int, count: int, window: int) -> Run:
    """Publish with a window of unanswered messages, over a raw socket."""
    connection = raw_nats.RawNats(url)
    value = payloads.payload(size)

    def run() -> Result:
        raw_nats.publish_acknowledged(connection, subject, value, count=count, window=window)
        return {"records": count}

    return run


def nats_latency(*, url: str, subject: str, size: int, count: int) -> Run:
    """Publish single messages over a raw socket, each after the answer to the previous one."""
    connection = raw_nats.RawNats(url)
    connection.socket.sendall(b"SUB _bench.acks 1\r\n")
    one = raw_nats.frame(subject, payloads.payload(size), "_bench.acks")

    def ask() -> None:
        connection.socket.sendall(one)
        if b'"error"' in connection.message():
            raise ValueError("a message was refused")

    return lambda: _latencies(count, ask)


def jetstream_consume(*, url: str, stream: str, count: int) -> Run:
    """Let JetStream push all messages over a raw socket."""
    connection = raw_nats.RawNats(url)

    def run() -> Result:
        raw_nats.consume(connection, stream, count)
        return {"records": count}

    return run


def _latencies(count: int, ask: Callable[[], object]) -> Result:
    """Time ``count`` calls one after another, after a warm-up of 5 % more calls."""
    clock = time.perf_counter_ns
    for _ in range(count // 20 + 1):
        ask()
    times = []
    for _ in range(count):
        start = clock()
        ask()
        times.append((clock() - start) / 1e3)
    return {
        "records": count,
        "p50_us": percentile(times, 0.5),
        "p99_us": percentile(times, 0.99),
        "max_us": max(times),
        "levels_us": {str(share): percentile(times, share) for share in LEVELS},
    }


KINDS: Final[dict[str, Callable[..., Run]]] = {
    "flight_publish": flight_publish,
    "flight_latency": flight_latency,
    "flight_read": flight_read,
    "nats_plain": nats_plain,
    "nats_acknowledged": nats_acknowledged,
    "nats_latency": nats_latency,
    "jetstream_consume": jetstream_consume,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
