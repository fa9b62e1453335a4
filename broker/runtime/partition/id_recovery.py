"""A new leader reads the message ids of its window: a slice a turn, while writes wait.

Until the leader knows the ids, it cannot tell a retry from a new record. So it takes no write. It
answers its followers and readers between two slices: a leader that is silent for as long as the
reading takes would be replaced by another one, which would begin to read, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.errors import CorruptDataError, HeadwaterError, LogFailedError
from broker.runtime.partition.context import PartitionContext

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 1000  # after memory, a descriptor or a key was not there

Later = Callable[[int, Callable[[], None]], None]  # calls a function in a turn, after some time


class IdRecovery:
    """Reads the ids of one partition's log. Owner: the partition's turns; any thread may ask."""

    def __init__(self, context: PartitionContext, later: Later, *, slice_bytes: int) -> None:
        """Read ``slice_bytes`` of the log in a turn."""
        self._name = context.name
        self._queue = context.queue
        self._local = context.local
        self._health = context.health
        self._clock = context.clock
        self._later = later
        self._slice_bytes = slice_bytes
        self._queued = False  # whether the next slice is
        self._begun_ms = 0
        self._slices = 0  # that were read since

    @property
    def is_held(self) -> bool:
        """Whether writes must wait, because it is not known yet which of them are retries."""
        return self._local.reads_ids and self._health.failure is None

    def begin(self) -> None:
        """Forget the ids that are known, read the first slice now, and the others in later turns.

        Raises:
            LogFailedError, CorruptDataError: the log cannot be read.
        """
        self._begun_ms, self._slices = self._clock.monotonic_ms(), 0
        self._local.begin_leading()
        self._read()

    def _read(self) -> None:
        self._queued = False
        if not self._local.retries.reads_ids:
            return  # the leadership has ended
        try:
            self._local.read_ids(self._slice_bytes)
        except (LogFailedError, CorruptDataError):
            raise
        except HeadwaterError as error:
            _log.warning("message_ids_not_read", partition=self._name, reason=error.message)
            self._later(_AGAIN_MS, self._read)
            return
        self._slices += 1
        if self._local.reads_ids:
            if not self._queued:
                self._queued = True
                self._queue.post(self._read)
        elif self._slices > 1:
            ids = self._local.retries.counts().ids
            waited_ms = self._clock.monotonic_ms() - self._begun_ms
            _log.info("message_ids_read", partition=self._name, ids=ids, writes_waited_ms=waited_ms)
