"""Reads several partitions of a stream at once: one read per partition, side by side.

Each partition's rows come in offset order; partitions are interleaved. The queue between the reads
and the caller is bounded, so a slow caller slows the reads and not the memory.

A key may move into a partition that is added: then its older records are in a lower one, and all of
them were committed before its first record in the new one. So an added partition is read once the
lower ones have returned what they had, and no caller gets an older record of a key after a newer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from broker.codec.flight.protocol import AtTime, StartAt
from broker.errors import (
    HeadwaterError,
    StreamRecreatedError,
    UnavailableError,
    UnknownPartitionError,
)
from broker.model.offsets import Offset
from broker.model.stream import Stream
from headwater.client.descriptions import StreamDescription
from headwater.client.fetch import Fetch, Fetched

_QUEUE_BATCHES: Final = 8
_LOOK_S: Final = 1.0  # between two looks for partitions that were added to the stream
_WAIT_S: Final = 0.05  # between two looks how far the lower partitions are


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
        ends: Callable[[], Mapping[int, Offset]] | None = None,
        look_s: float = _LOOK_S,
    ) -> None:
        """``opened`` returns a new read of a partition.

        With ``count``, which asks how many partitions the stream has, those that are not among
        ``partitions`` are read, too, also if they are added while this consumer reads. With
        ``ends``, which asks for the end of each partition that has records, the lower partitions
        come first.
        """
        self._opened = opened
        self._count = count
        self._ends = ends
        self._look_s = look_s
        self._arrived: queue.Queue[Consumed | HeadwaterError | None] = queue.Queue(_QUEUE_BATCHES)
        self._closed = threading.Event()
        self._growth = threading.Lock()  # one partition is added at a time, none after a close
        self._positions: dict[int, Offset] = {}
        self._fetches = {number: opened(number) for number in partitions}
        self._queued = {number: one.position or 0 for number, one in self._fetches.items()}
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
                    self._queued[partition] = one.end_offset
            except HeadwaterError as error:
                last = error
        self._put(last)

    def _look(self) -> None:
        """Look for added partitions, and begin to read them; on a thread of its own."""
        assert self._count is not None, "only a consumer that follows looks"
        pause_s = 0.0  # the stream may have grown before
        while not self._closed.wait(pause_s):
            pause_s = self._look_s
            try:
                wanted = range(self._count())
                added = [number for number in wanted if number not in self._fetches]
                for number in self._in_order(added):
                    self._add(number)
            except UnavailableError:
                continue  # looked for again a little later
            except HeadwaterError as error:  # for example, the stream was deleted
                self._put(error)
                return

    def _in_order(self, added: Sequence[int]) -> Iterator[int]:
        """Yield added partitions, each when the rows of lower ones from before are in the queue.

        The ends are asked for a look later: by then the leaders know of the growth and refuse
        records of moved keys, or have lost their sessions.
        """
        if not added or self._ends is None:
            yield from added
            return
        if self._closed.wait(self._look_s):
            return
        ends = self._ends()
        for number in added:
            while any(self._queued[lower] < ends.get(lower, 0) for lower in range(number)):
                if self._closed.wait(_WAIT_S):
                    return
            yield number

    def _add(self, number: int) -> None:
        fetch = self._opened(number)
        with self._growth:
            if self._closed.is_set():
                fetch.cancel()
                return
            self._left += 1
            self._queued[number] = fetch.position or 0
            self._fetches = {**self._fetches, number: fetch}
        threading.Thread(target=self._read, args=(number, fetch), daemon=True).start()

    def _put(self, item: Consumed | HeadwaterError | None) -> bool:
        """Wait for room in the queue; False once the consumer is closed."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._arrived.put(item, timeout=0.1)
                return True
        return False


class _StreamReads(Protocol):
    """What is needed of the client."""

    def stream(self, name: str, /) -> Stream: ...
    def describe(self, name: str, /) -> StreamDescription: ...
    def fetch(
        self,
        stream: str,
        partition: int,
        start: StartAt,
        /,
        *,
        columns: Sequence[str] | None,
        follow: bool,
        stream_uuid: str | None,
    ) -> Fetch: ...


def consumer_of(
    client: _StreamReads,
    stream: str,
    start: Literal["earliest", "latest"] | AtTime | Mapping[int, int],
    *,
    columns: Sequence[str] | None,
    follow: bool,
    stream_uuid: str | None,
) -> Consumer:
    """Open the reads of :meth:`Client.consume`; errors as there."""
    found = client.stream(stream)
    if stream_uuid is not None:
        refuse_other(found, stream_uuid)
    count = found.config.partitions
    places = start if isinstance(start, Mapping) else {}
    for number in places:
        if number not in range(count):
            raise UnknownPartitionError.of(stream, number, count)

    def opened(number: int) -> Fetch:
        place: StartAt = "earliest"  # also of a later partition: all of its records are later ones
        if not isinstance(start, Mapping):
            place = start if number < count else place
        return client.fetch(
            stream,
            number,
            places.get(number, place),
            columns=columns,
            follow=follow,
            stream_uuid=found.uuid,
        )

    if not follow:
        return Consumer(range(count), opened)
    # From the newest end on no partition has older records, and by time there is no such order.
    begins_at_once = start == "latest" or isinstance(start, AtTime)
    first = count if begins_at_once else found.keys_from or count
    keeps_keys = found.config.partitioner == "crc32" and not isinstance(start, AtTime)
    return Consumer(
        range(first),
        opened,
        count=partitions_of(client.stream, found),
        ends=ends_of(client.describe, stream) if keeps_keys else None,
    )


def partitions_of(look: Callable[[str], Stream], stream: Stream) -> Callable[[], int]:
    """Return a function that asks how many partitions a stream has now.

    It raises StreamRecreatedError for another stream of the name, and the errors of ``look``.
    """

    def present() -> int:
        now = look(stream.name)
        refuse_other(now, stream.uuid)
        return now.config.partitions

    return present


def ends_of(
    describe: Callable[[str], StreamDescription], stream: str
) -> Callable[[], dict[int, Offset]]:
    """Return a function that asks for the high watermark of each partition that has records."""

    def ends() -> dict[int, Offset]:
        told = describe(stream).partitions
        return {one.partition: one.high_watermark for one in told if one.offsets_count}

    return ends


def refuse_other(found: Stream, expected: str) -> None:
    """Raise StreamRecreatedError unless the stream is the expected incarnation."""
    if found.uuid != expected:
        raise StreamRecreatedError(
            f"stream {found.name!r} was created again: it is {found.uuid} now, not {expected}",
            stream=found.name,
            expected=expected,
            found=found.uuid,
        )
