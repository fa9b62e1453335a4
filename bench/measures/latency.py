"""One outstanding record of 100 B: time until its durable acknowledgement.

Flight uses the product's client. NATS uses the same client on both sides; our streams answer with a
PubAck. Each percentile of one turn is one sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bench.processes import Load
from bench.servers import BrokerServer, JetStreamServer, headwater, jetstream
from bench.session import Session

_SIZE: Final = 100
_MESSAGES: Final = 10_000


def run(session: Session) -> None:
    """Measure the four ways in turns."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(headwater(session.work / "ours"))
        default = stack.enter_context(jetstream(session.work / "js", synced=False))
        synced = stack.enter_context(jetstream(session.work / "js-synced", synced=True))
        client = broker.client()
        client.create_stream("one", tiering=False, puback=True)
        client.close()
        for server in (default, synced):
            session.tools.create(server.url, "one")
        sides = {
            "flight": partial(_flight, session, broker),
            "nats": partial(_nats, session, broker.nats_url, "nats"),
            "default": partial(_peer, session, default, "jetstream"),
            "synced": partial(_peer, session, synced, "jetstream_synced"),
        }
        session.rounds(sides)


def _flight(session: Session, broker: BrokerServer, number: int) -> None:
    del number
    load = Load(
        "flight_latency", url=broker.url, stream="one", size=_SIZE, count=session.count(_MESSAGES)
    )
    load.go()
    _record(session, "flight", {**load.result(), "tool": "headwater.client"})


def _nats(session: Session, url: str, side: str, number: int) -> None:
    del number
    count = session.count(_MESSAGES)
    _record(session, side, session.tools.latency(url, "one", size=_SIZE, count=count))


def _peer(session: Session, server: JetStreamServer, side: str, number: int) -> None:
    _nats(session, server.url, side, number)


def _record(session: Session, side: str, found: Mapping[str, Any]) -> None:
    for name in ("p50", "p99"):
        session.recorder.add(
            f"latency/100B/{side}_{name}",
            found[f"{name}_us"] / 1000,
            "ms",
            max_ms=found["max_us"] / 1000,
            levels_us=found["levels_us"],
            tool=found["tool"],
        )
