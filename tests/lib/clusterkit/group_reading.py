"""What tests of consumer groups do with a client: store, take, and read on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from headwater.client import Client, GroupConsumer, GroupRecord

WAIT_S: Final = 60.0


def send(client: Client, partition: int, *values: bytes) -> None:
    """Store records in a partition of stream ``s``."""
    with client.producer("s", partition) as producer:
        producer.send(list(values)).result(WAIT_S)


def take(consumer: GroupConsumer, count: int) -> list[GroupRecord]:
    """Return the next records."""
    found: list[GroupRecord] = []
    for record in consumer:
        found.append(record)
        if len(found) == count:
            break
    return found


class Reader(threading.Thread):
    """Reads as a member until it is told to stop."""

    def __init__(self, consumer: GroupConsumer) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._changed = threading.Condition()
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Read."""
        while not self._over.is_set():
            self._consumer.poll(0.05)
            with self._changed:
                self._changed.notify_all()

    def until(self, true: Callable[[], bool]) -> None:
        """Wait."""
        with self._changed:
            assert self._changed.wait_for(true, WAIT_S)

    def stop(self) -> None:
        """End."""
        self._over.set()
        self.join(WAIT_S)
