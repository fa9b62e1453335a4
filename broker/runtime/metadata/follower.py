"""The pump that lets a broker do what a change of the metadata asks of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import LogFailedError, UnavailableError
from broker.ports.pumps import NEVER_MS

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 1_000  # what the disk had no room for, or the metadata no majority


class MetadataFollower:
    """Any thread says that there is news; one at a time takes turns. Many changes are one."""

    def __init__(self, reconcile: Callable[[], None], wake: Callable[[], None]) -> None:
        """Let ``reconcile`` work; ``wake`` asks for a turn."""
        self._reconcile = reconcile
        self._wake = wake
        self._is_news = False
        self._not_before_ms = 0

    def changed(self) -> None:
        """Hear that something may have to be done. Any thread; quick."""
        self._is_news = True
        self._wake()

    def turn(self, now_ms: int) -> int:
        """Reconcile, if there is news; what comes during the turn is news for the next one."""
        if not self._is_news:
            return NEVER_MS
        if now_ms < self._not_before_ms:
            return self._not_before_ms
        self._is_news = False
        try:
            self._reconcile()
        except LogFailedError:
            raise  # a disk that failed is not asked again; the next process looks at it
        except UnavailableError as error:  # no room, or no majority that takes a mark
            _log.warning("replica_not_opened", reason=error.message)
            self._not_before_ms = now_ms + _AGAIN_MS
            self._is_news = True
        return self._not_before_ms if self._is_news else NEVER_MS
