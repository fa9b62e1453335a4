"""Messages that have begun and cannot be handled yet: how many bytes, and for how long.

A message is kept until it is whole. A call with one message is kept until its caller has said that
there is no other. So a caller who stops in the middle could keep memory for ever, and many could
keep all of it. Here are a bound over all connections of the port, and a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024
# 256 connections with 1 MiB each and four messages of the largest size: 512 MiB at most.
SHARED_BYTES_MAX: Final = 256 * MIB
OWN_BYTES_MAX: Final = MIB
LATE_S: Final = 10.0  # the longest pause within a message, as between brokers
STEP_BYTES: Final = 16 * 1024  # fewer in that time are a pause, too


class UnfinishedBytes:
    """What all connections keep. Owner: the event loop.

    Each connection has some bytes of its own, so that large messages of others never refuse a small
    message. What it keeps beyond that comes out of one pool.
    """

    def __init__(
        self, *, shared_bytes_max: int = SHARED_BYTES_MAX, own_bytes_max: int = OWN_BYTES_MAX
    ) -> None:
        """``shared_bytes_max`` is the size of the pool."""
        self._shared_bytes_max = shared_bytes_max
        self._own_bytes_max = own_bytes_max
        self.shared_bytes = 0

    def share(self, bytes_max: int) -> UnfinishedShare:
        """Return the share of a new connection, which may keep ``bytes_max``."""
        return UnfinishedShare(self, bytes_max)

    def changed(self, before: int, after: int) -> None:
        """Note that a connection keeps more or fewer bytes."""
        own = self._own_bytes_max
        self.shared_bytes += max(0, after - own) - max(0, before - own)

    def is_too_much(self, size: int) -> bool:
        """Tell whether a connection that keeps ``size`` bytes may keep no more."""
        return size > self._own_bytes_max and self.shared_bytes > self._shared_bytes_max


class UnfinishedShare:
    """What one connection keeps."""

    def __init__(self, whole: UnfinishedBytes, bytes_max: int) -> None:
        self._whole = whole
        self._bytes_max = bytes_max
        self._is_closed = False
        self.size = 0

    def add(self, size: int) -> None:
        """Count bytes, or count them no more if ``size`` is negative."""
        if size and not self._is_closed:
            self._whole.changed(self.size, self.size + size)
            self.size += size

    @property
    def is_too_much(self) -> bool:
        """Whether what was added last has to be given back."""
        return self.size > self._bytes_max or self._whole.is_too_much(self.size)

    def close(self) -> None:
        """Give everything back: the connection has ended."""
        self.add(-self.size)
        self._is_closed = True


@dataclass(slots=True)
class MessageProgress:
    """How a message that has begun goes on. It is looked at now and then."""

    arrived_bytes: int = 0
    seen_bytes: int = 0
    since_s: float | None = None  # when this many had arrived

    def is_late(self, now_s: float, is_held_back: Callable[[], bool]) -> bool:
        """Tell whether too little has arrived for too long, though the peer could send."""
        goes_on = self.since_s is None or self.arrived_bytes - self.seen_bytes >= STEP_BYTES
        if self.since_s is None or goes_on or is_held_back():
            self.since_s, self.seen_bytes = now_s, self.arrived_bytes
            return False
        return now_s - self.since_s >= LATE_S
