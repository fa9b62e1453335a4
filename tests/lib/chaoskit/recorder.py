"""What load generators of a chaos run do and hear, as a history for checkkit.

Publishers and consumers call it from their threads; it takes the time itself. One clock for all of
them: they live in one process, whatever the brokers do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from broker.model.records import AckPolicy
from checkkit.anomalies import Verdict
from checkkit.checker import USUAL, judge
from checkkit.facts import Rules
from checkkit.history import History
from checkkit.readings import Reading, Rows


class ChaosRecorder:
    """A history under a lock and a clock."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._history = History()
        self._lock = threading.Lock()
        self._now_ns = now_ns

    @contextmanager
    def history(self) -> Iterator[History]:
        """Give the history to one reader; everybody else waits meanwhile."""
        with self._lock:
            yield self._history

    @property
    def acked_count(self) -> int:
        """Records acknowledged so far: what the runner watches."""
        return self._history.acked_count

    # ------------------------------------------------------------------ publishers

    def expect_order(self, producer: str) -> None:
        """Declare that a producer's records keep their sequence within each partition."""
        with self._lock:
            self._history.expect_order(producer)

    def send(
        self,
        fingerprints: Sequence[bytes],
        *,
        client: str,
        producer: str,
        base_sequence: int,
        partition: int,
        policy: AckPolicy = AckPolicy.ALL,
        identified: bool = True,
    ) -> range:
        """Note a batch at its first attempt, before its bytes leave; return its records."""
        with self._lock:
            at_ns = self._now_ns()
            numbers = [
                self._history.publish(
                    one,
                    partition=partition,
                    at_ns=at_ns,
                    producer=producer,
                    sequence=base_sequence + place,
                    policy=policy,
                    identified=identified,
                    client=client,
                )
                for place, one in enumerate(fingerprints)
            ]
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)

    def retry(self, records: range) -> None:
        """Note that a batch goes again under its id, before its bytes leave."""
        with self._lock:
            for record in records:
                self._history.retry(record)

    def ok(
        self,
        records: range,
        *,
        base_offset: int,
        leader_epoch: int,
        duplicate: bool,
        node: str = "",
    ) -> None:
        """Note an ack of a batch, after it was heard. ``node``: the process that sent it."""
        with self._lock:
            at_ns = self._now_ns()
            for place, record in enumerate(records):
                self._history.ok(
                    record,
                    at_ns=at_ns,
                    offset=base_offset + place,
                    leader_epoch=leader_epoch,
                    duplicate=duplicate,
                    node=node,
                )

    def fail(self, records: range, reason: str) -> None:
        """Note an answer that proves that the newest attempt stored nothing.

        Only where the answer can belong to no other attempt; else say nothing: that is "unknown".
        """
        with self._lock:
            for record in records:
                self._history.fail(record, reason)

    # ------------------------------------------------------------------ consumers

    def began(self) -> int:
        """Return the time before a poll."""
        return self._now_ns()

    def polled(
        self,
        consumer: str,
        partition: int,
        rows: Rows,
        *,
        began_ns: int,
        committed: bool = True,
        high_watermark: int = -1,
        node: str = "",
        leader_epoch: int = -1,
    ) -> None:
        """Note what a poll returned. ``node`` and ``leader_epoch``: who answered as leader."""
        with self._lock:
            self._history.poll(
                consumer,
                partition,
                rows,
                at_ns=self._now_ns(),
                began_ns=began_ns,
                committed=committed,
                high_watermark=high_watermark,
                node=node,
                leader_epoch=leader_epoch,
            )

    def seek(self, consumer: str, partition: int, position: int) -> None:
        """Note that a consumer goes on elsewhere, and knows it."""
        with self._lock:
            self._history.seek(consumer, partition, position)

    def truncated(self, consumer: str, partition: int, end: int) -> None:
        """Note that a consumer was told that what it read from ``end`` on is no more."""
        with self._lock:
            self._history.truncated(consumer, partition, end)

    def follow_to_the_end(self, consumer: str, partition: int) -> None:
        """Declare that a consumer has read on to the end after all load."""
        with self._lock:
            self._history.follow_to_the_end(consumer, partition)

    # ------------------------------------------------------------------ the cluster

    def leads(self, partition: int, leader_epoch: int, node: str) -> None:
        """Note that a process was seen to lead an epoch, in a status or a log event."""
        with self._lock:
            self._history.leads(partition, leader_epoch, node)

    def forgive(self, partition: int, end: int) -> None:
        """Note an unclean election: what is at ``end`` and above may be lost."""
        with self._lock:
            self._history.forgive(partition, end, self._now_ns())

    def judge(self, finals: Sequence[Reading], rules: Rules = USUAL) -> Verdict:
        """Judge the run by its final reads."""
        with self._lock:
            return judge(self._history, finals, rules)
