"""The history under a lock and a clock, for producers on several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from crashkit.records import TestRecord
from simkit.history import History, Sent


class Recorder:
    """Notes what producers do and hear, at the time at which they do."""

    def __init__(self) -> None:
        self._history = History()
        self._lock = threading.Lock()

    @contextmanager
    def history(self) -> Iterator[History]:
        """Give the history to one reader; producers wait meanwhile."""
        with self._lock:
            yield self._history

    @property
    def acked_count(self) -> int:
        """Records acknowledged so far."""
        return self._history.acked_count

    @property
    def sent_count(self) -> int:
        """Records sent so far."""
        return len(self._history.fates)

    def expect_order(self, producer: str) -> None:
        """Declare that a producer's records keep their order."""
        with self._lock:
            self._history.expect_order(producer)

    def send(self, producer: str, partition: int, records: Sequence[TestRecord]) -> None:
        """Note a first send; call it before the bytes leave."""
        with self._lock:
            now_ns = time.monotonic_ns()
            for record in records:
                self._history.send(
                    Sent(
                        name=record.name,
                        producer=producer,
                        sequence=record.sequence,
                        partition=partition,
                        fingerprint=record.fingerprint,
                        at_ns=now_ns,
                    )
                )

    def retry(self, name: str) -> None:
        """Note that a record goes again; call it before the bytes leave."""
        with self._lock:
            self._history.retry(name)

    def ack(
        self, name: str, *, partition: int, offset: int, leader_epoch: int, duplicate: bool
    ) -> None:
        """Note an ack, after it was received."""
        with self._lock:
            self._history.ack(
                name,
                partition=partition,
                offset=offset,
                at_ns=time.monotonic_ns(),
                duplicate=duplicate,
                leader_epoch=leader_epoch,
            )

    def refuse(self, name: str, error: str) -> None:
        """Note that the broker refused the record for good."""
        with self._lock:
            self._history.refuse(name, error)
