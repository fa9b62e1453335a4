"""The servers' addresses and the leaders of partitions, as the servers last reported them. Pure."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from dataclasses import replace

from headwater.liftbridge.values import Metadata, PartitionDescription, StreamInfo


class Directory:
    """The addresses of a cluster and the places of its partitions. Owner: one event loop."""

    def __init__(self, bootstrap: list[str]) -> None:
        """``bootstrap`` are the addresses that the caller knows.

        Raises:
            ValueError: there is none.
        """
        if not bootstrap:
            raise ValueError("no address: name host:port of at least one server")
        self._bootstrap = bootstrap
        self._known = Metadata({}, {})
        self.healthy: str | None = None  # the address that answered last

    def learn(self, told: Metadata) -> None:
        """Take metadata, which may describe only some of the streams."""
        brokers = told.brokers or self._known.brokers
        self._known = Metadata(brokers, {**self._known.streams, **told.streams})

    def forget(self, streams: Iterable[str]) -> None:
        """Forget streams, before they are asked for again."""
        left = {name: one for name, one in self._known.streams.items() if name not in set(streams)}
        self._known = replace(self._known, streams=left)

    def answered(self, address: str) -> None:
        """Note a server that answers."""
        self.healthy = address

    def failed(self, address: str) -> None:
        """Note a server that does not answer."""
        if self.healthy == address:
            self.healthy = None

    def all(self) -> list[str]:
        """Return every known address, those of the caller first."""
        return list(dict.fromkeys([*self._bootstrap, *self._known.brokers.values()]))

    def address(self, broker: str) -> str | None:
        """Return where a broker listens."""
        return self._known.brokers.get(broker)

    def knows(self, stream: str) -> bool:
        """Tell whether a stream was described."""
        return stream in self._known.streams

    def stream(self, stream: str) -> StreamInfo | None:
        """Return a stream as it was described last."""
        return self._known.streams.get(stream)

    def _place(self, stream: str, partition: int) -> PartitionDescription | None:
        found = self._known.streams.get(stream)
        return None if found is None else found.partitions.get(partition)

    def reader(self, stream: str, partition: int, *, replica: bool) -> str | None:
        """Return the address to read a partition at: its leader's, or any in-sync replica's."""
        place = self._place(stream, partition)
        if place is None:
            return None if self.knows(stream) else self.healthy or self._bootstrap[0]
        if replica and place.isr:
            return self.address(random.choice(place.isr))  # noqa: S311  # to spread readers
        return self.address(place.leader)

    def taker(self, stream: str, partition: int, tried: int) -> str:
        """Return the address to publish at: the leader's, or others after ``tried`` failures."""
        place = self._place(stream, partition)
        leader = self.address(place.leader) if place is not None else None
        others = self.all()
        first = leader or self.healthy or others[0]
        order = [first, *(one for one in others if one != first)]
        return order[tried % len(order)]

    def cursor_place(self, cursors: str, key: str) -> int:
        """Return the partition of the cursors' stream that has this cursor."""
        count = len(self._known.streams[cursors].partitions)
        return zlib.crc32(key.encode()) % max(1, count)
