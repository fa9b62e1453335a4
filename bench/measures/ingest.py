"""Plain NATS messages made durable: messages stored per second; publishers are not the limit.

Raw socket writers (bench/peers/raw_nats.py) send prepared frames to the NATS server without waiting
for answers. Our rate counts until the high watermark has reached the number of sent messages.
JetStream gets the same writers. It drops messages that overrun its ingest queue, so its rate counts
the stored messages, and the result has the number of lost ones. ``puback`` is the acknowledged
publish, by the same client against both sides.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bench.measures.publish import SIZES
from bench.peers.nats_tools import WINDOW
from bench.processes import BenchError, Load
from bench.servers import BrokerServer, JetStreamServer, headwater, jetstream
from bench.session import Session

_MESSAGES: Final = {"100B": 1_500_000, "1KiB": 200_000}  # below nats-server's limit of 256 MiB
_PEER_SYNCED: Final = 60_000
_ACKNOWLEDGED: Final = {"100B": 300_000, "1KiB": 200_000}
_WRITERS: Final = 2
_STALLED_S: Final = 10.0
_POLL_S_MIN, _POLL_S_MAX = 0.002, 0.2


def run(session: Session) -> None:
    """Measure both sizes on both sides."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(headwater(session.work / "ours"))
        default = stack.enter_context(jetstream(session.work / "js", synced=False))
        synced = stack.enter_context(jetstream(session.work / "js-synced", synced=True))
        for size in SIZES:
            sides = {
                "nats": partial(_ours, session, broker, size),
                "puback": partial(_puback, session, broker, size),
                "default": partial(_jetstream, session, default, size, ""),
                "synced": partial(_jetstream, session, synced, size, "_synced"),
            }
            session.rounds(sides)


def _ours(session: Session, broker: BrokerServer, size: str, number: int) -> None:
    stream = f"plain{size}{number}"
    count = session.count(_MESSAGES[size], multiple=_WRITERS)
    client = broker.client()
    client.create_stream(stream, tiering=False)
    loads = _writers(broker.nats_url, stream, size, count)
    cpu_s = broker.process.cpu_s()
    took_s, stored = stored_after(loads, lambda: client.describe(stream).records_count, count)
    session.recorder.add(
        f"ingest/{size}/nats",
        stored / took_s,
        "rec/s",
        sent=count,
        lost=count - stored,
        seconds=took_s,
        broker_cpu_s=broker.process.cpu_s() - cpu_s,
        writers=_WRITERS,
    )
    client.delete_stream(stream)
    client.close()


def _puback(session: Session, broker: BrokerServer, size: str, number: int) -> None:
    stream = f"acked{size}{number}"
    count = session.count(_ACKNOWLEDGED[size])
    client = broker.client()
    client.create_stream(stream, tiering=False, puback=True)
    rate, tool = session.tools.publish(
        broker.nats_url, stream, size=SIZES[size], count=count, publishers=1
    )
    stored = client.describe(stream).records_count
    assert stored == count, f"only {stored} of {count} acknowledged records are stored"
    session.recorder.add(
        f"puback/{size}/nats", rate, "rec/s", records=count, tool=tool, window=WINDOW
    )
    client.delete_stream(stream)
    client.close()


def _jetstream(
    session: Session, server: JetStreamServer, size: str, suffix: str, number: int
) -> None:
    stream = f"p{number}"
    count = session.count(_PEER_SYNCED if suffix else _MESSAGES[size], multiple=_WRITERS)
    session.tools.create(server.url, stream)
    loads = _writers(server.url, stream, size, count)
    took_s, stored = stored_after(
        loads, lambda: session.tools.stored(server.url, stream), count, stalled_s=2.0
    )
    session.recorder.add(
        f"ingest/{size}/jetstream{suffix}",
        stored / took_s,
        "rec/s",
        sent=count,
        lost=count - stored,
        seconds=took_s,
        writers=_WRITERS,
    )
    session.tools.delete(server.url, stream)


def _writers(url: str, subject: str, size: str, count: int) -> list[Load]:
    each = count // _WRITERS
    return [
        Load("nats_plain", url=url, subject=subject, size=SIZES[size], count=each)
        for _ in range(_WRITERS)
    ]


def stored_after(
    loads: Sequence[Load],
    stored: Callable[[], int],
    count: int,
    *,
    stalled_s: float = _STALLED_S,
) -> tuple[float, int]:
    """Start the loads; return the seconds until the last message was stored, and the number.

    ``stored`` is called rarely while the end is far and often when it is near, so that the calls
    cost little.
    """
    start = changed = time.monotonic()
    for load in loads:
        load.go()
    known = 0
    while known < count:
        found = stored()
        now = time.monotonic()
        if found > known:
            known, changed = found, now
        elif now - changed > stalled_s:
            break
        left_s = (count - known) * (now - start) / max(known, 1)
        time.sleep(min(max(left_s / 2, _POLL_S_MIN), _POLL_S_MAX))
    for load in loads:
        load.result(timeout_s=60)
    if not known:
        raise BenchError("no message was stored")
    return changed - start, known
