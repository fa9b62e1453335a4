"""Makes promises durable now and then, off every path that somebody waits on.

About once a second while there is traffic: after a power cut the logs say themselves what they had
synced, so a promise may lag. It also asks again for what a full disk did not let open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import HeadwaterError, LogFailedError
from broker.storage.promises import Promises

_log = structlog.get_logger(__name__)

_EVERY_S: Final = 1.0


class PromiseKeeper:
    """One thread. Owner: the broker."""

    def __init__(
        self,
        promises: Promises,
        open_what_waits: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Nothing runs before :meth:`start`."""
        self._promises = promises
        self._open_what_waits = open_what_waits
        self._on_crash = on_crash
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="promises", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it. Blocks."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_EVERY_S):
                if self._promises.dirty:
                    self._promises.sync()
                self._open()
        except LogFailedError as error:  # every log meets it at its next write, and says so
            _log.error("promises_failed", reason=error.message)
        except BaseException as crash:  # noqa: BLE001 - nobody else would hear of it
            self._on_crash(crash)

    def _open(self) -> None:
        try:
            self._open_what_waits()
        except HeadwaterError as error:
            _log.warning("replica_not_opened", reason=error.message)
