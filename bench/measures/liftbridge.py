"""Liftbridge's API, by its public Go client: ours beside Liftbridge 1.9.0 in one run.

Ours syncs each message before its acknowledgement, Liftbridge never does. Both are one broker with
its defaults, on NATS servers of their own; the same program measures both.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import Final

from bench.peers.liftbridge import LiftServer, LiftTools, find_liftbridge
from bench.processes import BenchError
from bench.servers import BrokerServer, headwater
from bench.session import Session
from headwater.local.embedded import LOOPBACK, free_port

_SIZES: Final = {"100B": 100, "1KiB": 1024}
_MESSAGES: Final = 200_000
_ONE_BY_ONE: Final = 3_000
_SEGMENT_BYTES: Final = 256 * 1024
_FREED_S: Final = 60.0


def run(session: Session) -> None:
    """Measure both servers in turns."""
    tools = find_liftbridge(session.work.parent / "bin")
    port = free_port()
    env = {
        **os.environ,
        "HEADWATER_LIFTBRIDGE_ENABLED": "true",
        "HEADWATER_LIFTBRIDGE_PORT": str(port),
    }
    with contextlib.ExitStack() as stack:
        lake = str(session.work / "lake")
        broker = stack.enter_context(headwater(session.work / "ours", lake_uri=lake, env=env))
        ours = LiftServer(f"{LOOPBACK}:{port}", broker.nats_url)
        peer = stack.enter_context(tools.liftbridge(session.work / "liftbridge"))
        sides = {
            "ours": partial(_side, session, tools, ours, "ours"),
            "liftbridge": partial(_side, session, tools, peer, "liftbridge"),
        }
        session.rounds(sides)
        _from_the_table(session, tools, broker, ours)


def _side(session: Session, tools: LiftTools, at: LiftServer, side: str, number: int) -> None:
    add = session.recorder.add
    count = session.count(_MESSAGES)
    for name, size in _SIZES.items():
        stream = f"s{size}x{number}"
        tools.measure(at, "create", stream, 0, 1)
        found = tools.measure(at, "publish", stream, size, count)
        add(f"liftbridge/publish/{name}/{side}", found["msgs_s"], "msg/s")
        found = tools.measure(at, "subscribe", stream, size, count)
        add(f"liftbridge/subscribe/{name}/{side}", found["msgs_s"], "msg/s")
    calls = session.count(_ONE_BY_ONE)
    tools.measure(at, "create", f"u{number}", 0, 1)
    found = tools.measure(at, "unary", f"u{number}", 100, calls)
    for part in ("p50", "p99"):
        add(f"liftbridge/unary/100B/{side}_{part}", found[f"{part}_us"] / 1000, "ms")
    found = tools.measure(at, "busy", f"s100x{number}", 100, min(calls, count // 10))
    for part in ("p50", "p99"):
        add(f"liftbridge/busy/100B/{side}_{part}", found[f"{part}_us"] / 1000, "ms")
    stream = f"g{number}"
    tools.measure(at, "create", stream, 0, 8)
    tools.measure(at, "publish8", stream, 100, count)
    found = tools.measure(at, "group", stream, 100, count)
    add(f"liftbridge/group/100B/{side}", found["msgs_s"], "msg/s")


def _from_the_table(
    session: Session, tools: LiftTools, broker: BrokerServer, ours: LiftServer
) -> None:
    """Measure the first message of subscriptions at offsets that only the table has."""
    count = session.count(50_000)
    client = broker.client()
    # Liftbridge's own retention would take the messages from the table, too.
    client.create_stream("cold", segment_bytes_max=_SEGMENT_BYTES, local_retention_bytes=1)
    tools.measure(ours, "publish", "cold", 100, count)
    client.tier_flush("cold")
    deadline = time.monotonic() + _FREED_S
    while client.describe("cold").partitions[0].log_start < count // 2:
        if time.monotonic() > deadline:
            raise BenchError(f"the local log keeps offset {count // 2} after {_FREED_S:.0f} s")
        time.sleep(0.2)
    client.close()
    found = tools.measure(ours, "first", "cold", 100, count // 2)
    for part in ("p50", "p99"):
        session.recorder.add(
            f"liftbridge/first/table/ours_{part}", found[f"{part}_us"] / 1000, "ms"
        )
