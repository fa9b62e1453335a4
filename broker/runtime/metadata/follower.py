"""The pump that makes a broker carry out changes of the metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import LogFailedError, UnavailableError
from broker.ports.pumps import NEVER_MS

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 1_000  # until a retry, after a full disk or without a majority


class MetadataFollower:
    """Any thread reports a change; one thread at a time takes turns. Changes are merged."""

    def __init__(self, reconcile: Callable[[], None], wake: Callable[[], None]) -> None:
        """Call ``reconcile`` in turns; ``wake`` is called when a turn is due."""
        self._reconcile = reconcile
        self._wake = wake
        self._is_news = False
        self._not_before_ms = 0

    def changed(self) -> None:
        """Note that the metadata changed. Any thread; quick."""
        self._is_news = True
        self._wake()

    def turn(self, now_ms: int) -> int:
        """Reconcile if the metadata changed; a change during the turn is for the next turn."""
        if not self._is_news:
            return NEVER_MS
        if now_ms < self._not_before_ms:
            return self._not_before_ms
        self._is_news = False
        try:
            self._reconcile()
        except LogFailedError:
            raise  # a failed disk is not tried again in this process
        except UnavailableError as error:  # a full disk, or no majority to commit a mark
            _log.warning("replica_not_opened", reason=error.message)
            self._not_before_ms = now_ms + _AGAIN_MS
            self._is_news = True
        return self._not_before_ms if self._is_news else NEVER_MS
