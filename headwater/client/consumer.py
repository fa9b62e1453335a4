"""Reads several partitions of a stream at once: one read per partition, side by side.

Each partition's rows come in offset order; partitions are interleaved. The queue between the reads
and the caller is bounded, so a slow caller slows the reads and not the memory.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from broker.errors import HeadwaterError
from broker.model.offsets import Offset
from headwater.client.fetch import Fetch, Fetched

_QUEUE_BATCHES: Final = 8


@dataclass(frozen=True, slots=True)
class Consumed:
    """Rows of one partition."""

    partition: int
    fetched: Fetched


class Consumer:
    """An iterator over the batches of all partitions; use it in a ``with`` statement.

    The iteration raises the first error of a partition's read, as :class:`Fetch` does.
    """

    def __init__(self, partitions: Iterable[int], opened: Callable[[int], Fetch]) -> None:
        """``opened`` returns a new read of a partition."""
        self._arrived: queue.Queue[Consumed | HeadwaterError | None] = queue.Queue(_QUEUE_BATCHES)
        self._closed = threading.Event()
        self._positions: dict[int, Offset] = {}
        self._fetches = {number: opened(number) for number in partitions}
        self._left = len(self._fetches)
        self._threads = [
            threading.Thread(target=self._read, args=(number, fetch), daemon=True)
            for number, fetch in self._fetches.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def positions(self) -> dict[int, Offset]:
        """The next offset of each partition that has returned rows: the ``start`` to go on with."""
        return dict(self._positions)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Consumed:
        """Return the next batch of any partition; blocks."""
        while self._left and not self._closed.is_set():
            item = self._arrived.get()
            if isinstance(item, HeadwaterError):
                self.close()
                raise item
            if item is None:
                self._left -= 1
                continue
            self._positions[item.partition] = item.fetched.end_offset
            return item
        raise StopIteration

    def close(self) -> None:
        """End the reads; a second call does nothing. Any thread."""
        self._closed.set()
        for fetch in self._fetches.values():
            fetch.cancel()
        with suppress(queue.Empty):
            while True:
                self._arrived.get_nowait()
        with suppress(queue.Full):
            self._arrived.put_nowait(None)  # wakes a caller that waits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, partition: int, fetch: Fetch) -> None:
        """Pass one partition's batches on; on its own thread."""
        last: HeadwaterError | None = None
        with fetch:
            try:
                for one in fetch:
                    if not self._put(Consumed(partition, one)):
                        return
            except HeadwaterError as error:
                last = error
        self._put(last)

    def _put(self, item: Consumed | HeadwaterError | None) -> bool:
        """Wait for room in the queue; False once the consumer is closed."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._arrived.put(item, timeout=0.1)
                return True
        return False
