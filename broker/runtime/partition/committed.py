"""The end of what readers see of a partition, and the readers that wait for more."""

from __future__ import annotations

import threading

from broker.errors import ShuttingDownError
from broker.model.offsets import Offset


class CommittedEnd:
    """The owner's turns move the end; any thread reads it, and waits for more."""

    def __init__(self, name: str, end: Offset) -> None:
        """Begin with the records of a partition that are committed for certain."""
        self._name = name
        self.end = end  # first offset that is not known to be committed
        self._moved = threading.Condition()
        self._closing = False

    def advance(self, end: Offset) -> None:
        """Move the end, never back, and wake the readers that wait."""
        self.end = max(end, self.end)
        self.wake()

    def lower(self, end: Offset) -> None:
        """Move the end back to ``end``, if it is above: this log has no committed record there."""
        self.end = min(end, self.end)

    def wait_above(self, above: Offset, timeout_ms: int) -> Offset:
        """Block until the end exceeds ``above`` or time is up; return the end.

        Raises:
            ShuttingDownError: the log is closed, and the end will not exceed ``above`` here.
        """
        if self.end <= above:
            with self._moved:
                self._moved.wait_for(lambda: self.end > above or self._closing, timeout_ms / 1000)
                if self._closing and self.end <= above:
                    raise self.closed_error()
        return self.end

    def closed_error(self) -> ShuttingDownError:
        """Return what readers of a closed log are told."""
        return ShuttingDownError(
            f"the replica of {self._name} on this broker is closed: the broker stops, or the "
            "partition was moved to other brokers. Read at another broker"
        )

    def wake(self) -> None:
        """Wake the readers that wait, so that they check again."""
        with self._moved:
            self._moved.notify_all()

    def close(self) -> None:
        """End every wait at once, and every later one, with an error."""
        with self._moved:
            self._closing = True
            self._moved.notify_all()
