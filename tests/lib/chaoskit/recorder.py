"""What the load of a chaos run does and hears, as a history for checkkit.

Publishers record as in the crash campaign; here come consumers, leaders and accepted losses. One
clock for all of them: they live in one process, whatever the brokers do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from checkkit.anomalies import Verdict
from checkkit.checker import USUAL, judge
from checkkit.facts import Rules
from checkkit.readings import Reading, Rows
from crashkit.recorder import Recorder


class ChaosRecorder(Recorder):
    """A history under a lock and a clock; publishers use the methods that it inherits."""

    def polled(
        self,
        consumer: str,
        partition: int,
        rows: Rows,
        *,
        began_ns: int,
        at_ns: int | None = None,
        committed: bool = True,
        high_watermark: int = -1,
        node: str = "",
        leader_epoch: int = -1,
    ) -> None:
        """Note what a poll returned, now or at ``at_ns``.

        ``node`` and ``leader_epoch`` say who answered as leader.
        """
        with self.history() as history:
            history.poll(
                consumer,
                partition,
                rows,
                at_ns=time.monotonic_ns() if at_ns is None else at_ns,
                began_ns=began_ns,
                committed=committed,
                high_watermark=high_watermark,
                node=node,
                leader_epoch=leader_epoch,
            )

    def seek(self, consumer: str, partition: int, position: int) -> None:
        """Note that a consumer goes on elsewhere, and knows it."""
        with self.history() as history:
            history.seek(consumer, partition, position)

    def truncated(self, consumer: str, partition: int, end: int) -> None:
        """Note that a consumer was told that the records from ``end`` on are gone."""
        with self.history() as history:
            history.truncated(consumer, partition, end)

    def follow_to_the_end(self, consumer: str, partition: int) -> None:
        """Declare that a consumer has read on to the end after all load."""
        with self.history() as history:
            history.follow_to_the_end(consumer, partition)

    def leads(self, partition: int, leader_epoch: int, node: str) -> None:
        """Note that a process was seen to lead an epoch, in a status or a log event."""
        with self.history() as history:
            history.leads(partition, leader_epoch, node)

    def forgive(self, partition: int, end: int) -> None:
        """Note an unclean election: what is at ``end`` and above may be lost."""
        with self.history() as history:
            history.forgive(partition, end, time.monotonic_ns())

    def judge(self, finals: Sequence[Reading], rules: Rules = USUAL) -> Verdict:
        """Judge the run by its final reads."""
        with self.history() as history:
            return judge(history, finals, rules)
