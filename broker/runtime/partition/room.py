"""Whether the log of a partition has room for records; the broker's log says once that it has not.

A full disk is overload and not damage: writes are refused, and taken again without a restart.
"""

from __future__ import annotations

import structlog

from broker.errors import DiskFullError, NoRoomError

_log = structlog.get_logger(__name__)

_WANTED_BYTES_MIN = 4096  # what a new file needs, too


class LogRoom:
    """Owner: the partition's turns; any thread reads."""

    def __init__(self, name: str) -> None:
        """Begin with room; ``name`` is the partition's, for log lines."""
        self._name = name
        self.lack: NoRoomError | None = None  # what was refused last; None: nothing is
        self.wanted_bytes = 0  # for what was refused

    @property
    def is_disk_full(self) -> bool:
        """Whether the log takes no records because the disk is full."""
        return isinstance(self.lack, DiskFullError)

    def lacks(self, error: NoRoomError, wanted_bytes: int = 0, *, follows: bool = False) -> None:
        """Take note that something was refused; ``follows``: by the log of a follower."""
        first, self.lack = self.lack is None, error
        self.wanted_bytes = max(wanted_bytes, _WANTED_BYTES_MIN)
        if not first:
            return
        if not isinstance(error, DiskFullError):
            _log.warning("no_descriptor", partition=self._name, reason=error.message)
        elif follows:
            _log.warning("follower_disk_full", partition=self._name, reason=error.message)
        else:
            _log.warning("disk_full", partition=self._name, reason=error.message)

    def found(self) -> None:
        """Take note that there is room."""
        if self.lack is not None:
            _log.warning("disk_has_room", partition=self._name)
        self.lack = None
