"""The regular work of a broker: ticks, and reconciling again after a slow replica has caught up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import HeadwaterError
from broker.ports.pumps import NEVER_MS, Drive

_log = structlog.get_logger(__name__)

_JOIN_S: Final = 10.0


class Background:
    """Two pumps: one ticks, one reconciles. Neither waits for a partition."""

    def __init__(
        self,
        *,
        tick_ms: int,
        tick: Callable[[int], None],
        reconcile: Callable[[], None],
        drive: Drive,
    ) -> None:
        """Prepare; ``tick`` is called with the number of earlier ticks."""
        self._tick_ms = tick_ms
        self._tick = tick
        self._reconcile = reconcile
        self._ticks: int | None = None
        self._is_late = False
        self._late = drive("late", self._follow_late)
        self._driven = (drive("ticker", self._take_tick), self._late)

    def start(self) -> None:
        """Start both pumps."""
        for driven in self._driven:
            driven.start()

    def stop(self) -> None:
        """Stop both pumps. Blocks, but only for a limited time."""
        for driven in self._driven:
            driven.stop(_JOIN_S)

    def reconcile_soon(self) -> None:
        """Ask for a reconcile: a replica that was left behind has caught up. Any thread."""
        self._is_late = True
        self._late.wake()

    def _take_tick(self, now_ms: int) -> int:
        if self._ticks is not None:
            self._tick(self._ticks)
        self._ticks = 0 if self._ticks is None else self._ticks + 1
        return now_ms + self._tick_ms

    def _follow_late(self, _: int) -> int:
        if self._is_late:
            self._is_late = False
            try:
                self._reconcile()
            except HeadwaterError as error:  # the metadata follower gets the same error
                _log.warning("late_replica_not_followed", reason=error.message)
        return NEVER_MS
