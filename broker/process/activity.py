"""Makes the stream of the cluster's events, if the configuration asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import HeadwaterError
from broker.model.activity import ActivityEvent
from broker.ports.pumps import NEVER_MS
from broker.ports.system import Clock
from broker.runtime.broker import Broker
from broker.runtime.pumps import on_threads

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 1_000


def encode_event(event: ActivityEvent) -> bytes:
    """Return the value of an event's record."""
    # Imported late: most brokers have no activity stream, and start sooner without protobuf.
    from broker.adapters.liftbridge.activity import encode_event as encode  # noqa: PLC0415

    return encode(event)


def begin_activity(
    broker: Broker, clock: Clock, on_crash: Callable[[BaseException], None]
) -> Callable[[], None]:
    """Make the stream in a thread, which tries again; return the function that ends the thread.

    Of several brokers any one may succeed: too few may have registered when the first one starts.
    """
    told: list[str] = []

    def turn(now_ms: int) -> int:
        try:
            broker.streams.create_activity()
        except HeadwaterError as error:
            if error.message not in told:
                _log.warning("activity_stream_waits", reason=error.message)
                told[:] = [error.message]
            return now_ms + _AGAIN_MS
        return NEVER_MS

    driven = on_threads(clock, on_crash)("activity-stream", turn)
    driven.start()
    return driven.stop
