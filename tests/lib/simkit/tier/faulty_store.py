"""An object store that misbehaves on demand, over one that works.

Faults are queued per operation and used up one by one. A late PUT reports a timeout and is applied
when the test says so, as S3-like stores do.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, cast

from broker.errors import RemoteTierUnavailableError
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore, ObjectInfo, ObjectStore


class Fault(Enum):
    """The kinds of faults."""

    REFUSED = auto()  # an error before anything happened (503, no connection)
    ANSWER_LOST = auto()  # done, but reported as failed
    LATE = auto()  # reported as failed, done when the test calls apply_late
    TRUNCATED = auto()  # a GET gives half the bytes
    FLIPPED = auto()  # a GET gives one wrong bit
    HIDDEN = auto()  # a PUT reports success and stores nothing


class FaultyStore:
    """Implements ``ObjectStore``; ``faults["put"]``, ``["get"]``, ``["head"]``, ``["list"]``."""

    def __init__(self, store: ObjectStore, shared: FaultyStore | None = None) -> None:
        self._store = store
        self.faults: dict[str, deque[Fault | None]] = (  # None: this call goes well
            shared.faults if shared is not None else defaultdict(deque)
        )
        self.late: list[Callable[[], object]] = shared.late if shared is not None else []
        self.calls: dict[str, int] = shared.calls if shared is not None else defaultdict(int)
        self._root: FaultyStore = shared._root if shared is not None else self
        self.down = False

    def apply_late(self) -> None:
        """Apply every late PUT now."""
        while self.late:
            self.late.pop(0)()

    @property
    def config(self) -> StoreConfig:
        """Of the working store."""
        return self._store.config

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """See the port."""
        fault = self._next("put", key)
        data = bytes(body)
        if fault is Fault.LATE:
            self.late.append(lambda: self._store.put_if_absent(key, data, crc32c=crc32c))
            raise _lost(key)
        if fault is Fault.HIDDEN:
            return ObjectInfo(key, len(data))
        created = self._store.put_if_absent(key, data, crc32c=crc32c)
        if fault is Fault.ANSWER_LOST:
            raise _lost(key)
        return created

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """See the port."""
        fault = self._next("get", key)
        data = self._store.get(key, start, end)
        if fault is Fault.TRUNCATED:
            return data[: len(data) // 2]
        if fault is Fault.FLIPPED:
            damaged = bytearray(data)
            damaged[len(damaged) // 2] ^= 0x10
            return bytes(damaged)
        return data

    def head(self, key: str) -> ObjectInfo:
        """See the port."""
        self._next("head", key)
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See the port."""
        self._next("list", prefix)
        return self._store.list(prefix, start_after=start_after)

    def make_durable(self, keys: Sequence[str]) -> None:
        """See the port."""
        self._store.make_durable(keys)

    def erase(self, keys: Sequence[str]) -> None:
        """See the port."""
        cast("ErasableStore", self._store).erase(keys)

    def under(self, path: str) -> FaultyStore:
        """Return a store one folder down that has the same faults."""
        return FaultyStore(self._store.under(path), self)

    def _next(self, operation: str, key: str) -> Fault | None:
        self.calls[operation] += 1
        if self._root.down:
            raise RemoteTierUnavailableError(f"{key}: 503", key=key)
        fault = self.faults[operation].popleft() if self.faults[operation] else None
        if fault is Fault.REFUSED:
            raise RemoteTierUnavailableError(f"{key}: 503", key=key)
        return fault


def _lost(key: str) -> RemoteTierUnavailableError:
    return RemoteTierUnavailableError(f"{key}: timed out", key=key)
