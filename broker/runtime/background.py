"""What a broker does without being asked: ticks, and what a slow replica left to be done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import HeadwaterError

_log = structlog.get_logger(__name__)

_JOIN_S: Final = 10.0


class Background:
    """Two threads. Neither waits for a partition."""

    def __init__(
        self,
        *,
        tick_ms: int,
        tick: Callable[[int], None],
        reconcile: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Prepare: ``tick`` hears how many came before it; ``on_crash`` hears of bugs."""
        self._tick_ms = tick_ms
        self._tick = tick
        self._reconcile = reconcile
        self._on_crash = on_crash
        self._stopping = threading.Event()
        self._late = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("ticker", self._run_ticks), ("late", self._follow_late))
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End. Blocks for a while at most."""
        self._stopping.set()
        self._late.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)

    def reconcile_soon(self) -> None:
        """Let somebody reconcile: a replica is done with what it was not waited for. Any thread."""
        self._late.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as crash:  # noqa: BLE001 - no replica could do without it
            self._on_crash(crash)

    def _run_ticks(self) -> None:
        count = 0
        while not self._stopping.wait(self._tick_ms / 1000):
            self._tick(count)
            count += 1

    def _follow_late(self) -> None:
        while self._late.wait() and not self._stopping.is_set():
            self._late.clear()
            try:
                self._reconcile()
            except HeadwaterError as error:  # whoever follows the metadata hears it, too
                _log.warning("late_replica_not_followed", reason=error.message)
