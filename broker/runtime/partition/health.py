"""Whether the log of a partition takes records, and why not.

A log may be found damaged when it is opened, or fail later. Both are final for this driver: the log
takes no more records until it is opened again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import structlog

from broker.errors import CorruptDataError, HeadwaterError, LogFailedError
from broker.runtime.partition.local_log import LocalLog

_log = structlog.get_logger(__name__)


class PartitionHealth:
    """Owner: the partition's turns; any thread reads."""

    def __init__(self, name: str, local: LocalLog) -> None:
        """Look at a log that was just opened, and build its retry tables."""
        self._name = name
        self._local = local
        self._listeners: list[Callable[[HeadwaterError], None]] = []
        self.failure: HeadwaterError | None = _damage(local)
        self.is_damaged = self.failure is not None  # found when the log was opened
        self.lost_end = local.log.recovery.lost_end_error  # set if the log was once longer
        self.is_only_copy = False  # from the view: whether no other replica has the records

    def when_failed(self, listener: Callable[[HeadwaterError], None]) -> None:
        """Register a callback for the first failure; callbacks are called in this order."""
        self._listeners.append(listener)

    def fail(self, error: HeadwaterError) -> None:
        """Take no more records. A log with damage is marked, for the next start to scan it all."""
        if self.failure is not None:
            return
        self.failure = error
        _log.error("partition_failed", partition=self._name, reason=error.message)
        if isinstance(error, CorruptDataError):
            with suppress(HeadwaterError):  # if the disk refuses this, the log has failed anyway
                self._local.log.mark_suspect()
        for listener in self._listeners:
            listener(error)

    def refuse_if_replaced(self) -> None:
        """Fail if the log ends below its cold end: a lone broker cannot fetch the lost records.

        Nobody listens yet: the partition is just being opened.
        """
        if self.failure is None:
            self.failure = self._local.replacement()

    def poison(self) -> LogFailedError:
        """End everything after a bug in a turn: nothing of memory is written any more."""
        self.failure = error = LogFailedError(
            f"a bug stopped the work of partition {self._name}, so the broker stops: see its log"
        )
        self._local.log.poison(error.message)
        return error


def _damage(local: LocalLog) -> HeadwaterError | None:
    """Return the damage that was found when the log was opened, or in its retry tables' bytes."""
    log = local.log
    if log.recovery.damaged:
        return log.recovery.damaged[0]
    try:
        local.retries.follow_log(log)
    except CorruptDataError as error:  # in bytes that opening the log did not scan
        return error
    return None
