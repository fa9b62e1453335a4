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

from broker.errors import HeadwaterError, StreamRecreatedError, UnavailableError
from broker.model.offsets import Offset
from broker.model.stream import Stream
from headwater.client.fetch import Fetch, Fetched

_QUEUE_BATCHES: Final = 8
_LOOK_S: Final = 1.0  # between two looks for partitions that were added to the stream


@dataclass(frozen=True, slots=True)
class Consumed:
    """Rows of one partition."""

    partition: int
    fetched: Fetched


class Consumer:
    """An iterator over the batches of all partitions; use it in a ``with`` statement.

    The iteration raises the first error of a partition's read, as :class:`Fetch` does.
    """

    def __init__(
        self,
        partitions: Iterable[int],
        opened: Callable[[int], Fetch],
        *,
        count: Callable[[], int] | None = None,
        look_s: float = _LOOK_S,
    ) -> None:
        """``opened`` returns a new read of a partition.

        With ``count``, which asks how many partitions the stream has, partitions that are added
        while this consumer reads are read, too, from their first record.
        """
        self._opened = opened
        self._count = count
        self._look_s = look_s
        self._arrived: queue.Queue[Consumed | HeadwaterError | None] = queue.Queue(_QUEUE_BATCHES)
        self._closed = threading.Event()
        self._growth = threading.Lock()  # one partition is added at a time, none after a close
        self._positions: dict[int, Offset] = {}
        self._fetches = {number: opened(number) for number in partitions}
        self._left = len(self._fetches)
        for number, fetch in self._fetches.items():
            threading.Thread(target=self._read, args=(number, fetch), daemon=True).start()
        if count is not None:
            threading.Thread(target=self._look, name="headwater-partitions", daemon=True).start()

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
        with self._growth:
            self._closed.set()
        for fetch in list(self._fetches.values()):
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

    def _look(self) -> None:
        """Look for added partitions, and begin to read them; on a thread of its own."""
        assert self._count is not None, "only a consumer that follows looks"
        while not self._closed.wait(self._look_s):
            try:
                wanted = range(self._count())
                for number in wanted:
                    if number not in self._fetches:
                        self._add(number)
            except UnavailableError:
                continue  # looked for again a little later
            except HeadwaterError as error:  # for example, the stream was deleted
                self._put(error)
                return

    def _add(self, number: int) -> None:
        fetch = self._opened(number)
        with self._growth:
            if self._closed.is_set():
                fetch.cancel()
                return
            self._left += 1
            self._fetches = {**self._fetches, number: fetch}
        threading.Thread(target=self._read, args=(number, fetch), daemon=True).start()

    def _put(self, item: Consumed | HeadwaterError | None) -> bool:
        """Wait for room in the queue; False once the consumer is closed."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._arrived.put(item, timeout=0.1)
                return True
        return False


def partitions_of(look: Callable[[str], Stream], stream: Stream) -> Callable[[], int]:
    """Return a function that asks how many partitions a stream has now.

    It raises StreamRecreatedError for another stream of the name, and the errors of ``look``.
    """

    def present() -> int:
        now = look(stream.name)
        refuse_other(now, stream.uuid)
        return now.config.partitions

    return present


def refuse_other(found: Stream, expected: str) -> None:
    """Raise StreamRecreatedError unless the stream is the expected incarnation."""
    if found.uuid != expected:
        raise StreamRecreatedError(
            f"stream {found.name!r} was created again: it is {found.uuid} now, not {expected}",
            stream=found.name,
            expected=expected,
            found=found.uuid,
        )
