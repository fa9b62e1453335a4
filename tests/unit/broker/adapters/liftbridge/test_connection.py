"""The answer to a publisher when the service has no free thread to find its partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from broker.adapters.liftbridge.connection import Workers, _LookUps
from broker.adapters.liftbridge.statuses import Code, status_of
from broker.errors import HeadwaterError


class BusyWorkers:
    """A pool without a free thread."""

    def run(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """Refuse the work, as a full pool does."""
        return False

    def subscribe(self, work: Callable[[], object], done: Callable[[object], None]) -> bool:
        """Refuse the work."""
        return False

    def call_soon(self, work: Callable[[], None]) -> None:
        """Run at once."""
        work()


def test_a_publisher_of_a_busy_broker_is_told_to_try_again() -> None:
    """A client repeats a call after Unavailable, and not after Internal."""
    found: list[object] = []
    busy = _LookUps(cast("Workers", BusyWorkers()), lambda *_: None, lambda *_: False)
    busy.look_up("orders", 0, found.append)
    (error,) = found
    assert isinstance(error, HeadwaterError)
    assert error.retriable
    assert status_of(error).code is Code.UNAVAILABLE
