"""Makes promises durable about once a second, where no caller waits for it.

Only while there is traffic. A promise may lag, because after a power cut the logs themselves show
what they had synced. This pump also tries again to open logs that a full disk kept closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import HeadwaterError, LogFailedError
from broker.ports.pumps import NEVER_MS, Drive
from broker.storage.promises.promises import Promises

_log = structlog.get_logger(__name__)

_EVERY_MS: Final = 1_000


class PromiseKeeper:
    """One pump. Owner: the broker."""

    def __init__(
        self, promises: Promises, open_what_waits: Callable[[], None], drive: Drive
    ) -> None:
        """Prepare; nothing runs before :meth:`start`."""
        self._promises = promises
        self._open_what_waits = open_what_waits
        self._begun = self._failed = False
        self._told = ""  # the last reason why a log was not opened
        self._driven = drive("promises", self._turn)

    def start(self) -> None:
        """Begin."""
        self._driven.start()

    def stop(self) -> None:
        """End. Blocks."""
        self._driven.stop()

    def _turn(self, now_ms: int) -> int:
        try:
            if self._begun and not self._failed:
                if self._promises.dirty:
                    self._promises.sync()
                self._open()
        except LogFailedError as error:  # every log meets and reports it at its next write
            _log.error("promises_failed", reason=error.message)
            self._failed = True
        self._begun = True
        return NEVER_MS if self._failed else now_ms + _EVERY_MS

    def _open(self) -> None:
        try:
            self._open_what_waits()
        except HeadwaterError as error:
            if error.message != self._told:  # once: it is tried every second
                _log.warning("replica_not_opened", reason=error.message)
            self._told = error.message
        else:
            self._told = ""
