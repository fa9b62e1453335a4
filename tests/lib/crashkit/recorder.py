"""The history under a lock and a clock, for producers on several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from broker.model.records import AckPolicy
from checkkit.history import History
from checkkit.readings import NO_TIME
from crashkit.records import TestRecord


class Recorder:
    """Notes what producers do and hear, at the time at which they do.

    Records are known by name: the answers of all attempts come under it, and which attempt one
    belongs to nobody can tell.
    """

    def __init__(self) -> None:
        self._history = History()
        self._numbers: dict[str, int] = {}
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

    def acked_in(self, partition: int) -> int:
        """Return how many records of one partition were acknowledged so far."""
        return self._history.acked_in(partition)

    @property
    def sent_count(self) -> int:
        """Records sent so far."""
        return self._history.sent_count

    def expect_order(self, producer: str) -> None:
        """Declare that a producer's records keep their order."""
        with self._lock:
            self._history.expect_order(producer)

    def send(
        self,
        producer: str,
        partition: int,
        records: Sequence[TestRecord],
        policy: AckPolicy = AckPolicy.ALL,
    ) -> None:
        """Note a first send; call it before the bytes leave."""
        with self._lock:
            now_ns = time.monotonic_ns()
            for record in records:
                assert record.name not in self._numbers, f"{record.name} is sent as new twice"
                self._numbers[record.name] = self._history.publish(
                    record.fingerprint,
                    partition=partition,
                    at_ns=now_ns,
                    producer=producer,
                    sequence=record.sequence,
                    policy=policy,
                    name=record.name,
                    timestamp_us=NO_TIME if record.timestamp_us is None else record.timestamp_us,
                )

    def retry(self, name: str) -> None:
        """Note that a record goes again; call it before the bytes leave."""
        with self._lock:
            self._history.retry(self._numbers[name])

    def ack(
        self,
        name: str,
        *,
        partition: int,
        offset: int,
        leader_epoch: int,
        duplicate: bool,
        node: str = "",
    ) -> None:
        """Note an ack, after it was received."""
        with self._lock:
            number = self._numbers.get(name)
            if number is None:
                self._history.ok_unsent(name, partition=partition, offset=offset)
                return
            self._history.ok(
                number,
                at_ns=time.monotonic_ns(),
                offset=offset,
                leader_epoch=leader_epoch,
                partition=partition,
                duplicate=duplicate,
                node=node,
            )

    def refuse(self, name: str, error: str) -> None:
        """Note that the broker refused the record for good.

        Only of a record that was sent once does this prove that nothing was stored.
        """
        with self._lock:
            number = self._numbers[name]
            if self._history.records["attempts"][number] == 1:
                self._history.fail(number, error)
