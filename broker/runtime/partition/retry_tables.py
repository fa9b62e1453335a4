"""What a partition remembers to recognise a retry: caches of what its log says.

Producers' newest batches are remembered on every replica; message ids only where publishes are
taken, from the log, when a replica begins to lead.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from broker.core.dedup import MessageIdWindow, ProducerTable
from broker.model.ids import NO_PRODUCER
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo, StoredBatch
from broker.runtime.partition.dedup_recovery import rebuild_producers, rebuild_window
from broker.storage.log.partition_log import PartitionLog

_BATCHES_SENT_MAX: Final = 200_000  # to a log that begins anew, of all producers


class RetryTables:
    """The producer table and the window of message ids. Owner: the partition's turns."""

    def __init__(self, config: StreamConfig) -> None:
        """Start empty."""
        self._config = config
        self.producers = ProducerTable()
        self.window = self._new_window()

    def _new_window(self) -> MessageIdWindow:
        config = self._config
        return MessageIdWindow(
            window_us=config.dedup_window_ms * 1000, ids_max=config.dedup_ids_max
        )

    def follow_log(self, log: PartitionLog) -> None:
        """Take the producers from the log, which was opened or cut."""
        self.producers = rebuild_producers(log)

    def begin_leading(self, log: PartitionLog, now_us: int) -> None:
        """Take the message ids from the log."""
        self.window = self._new_window()
        rebuild_window(log, self.window, now_us, self._config)

    def copied(self, batches: Sequence[StoredBatch]) -> int:
        """Remember the producers of batches that another leader wrote; return their bytes."""
        size = 0
        for header in (batch.header for batch in batches):
            size += header.size
            if header.producer_id != NO_PRODUCER:
                self.producers.add(
                    header.producer_id,
                    header.base_sequence,
                    header.records_count,
                    header.base_offset,
                )
        return size

    def before(self, start: Offset) -> bytes:
        """Return the producers of records below ``start``, for a log that begins there."""
        share = max(1, _BATCHES_SENT_MAX // max(1, len(self.producers)))
        return self.producers.below(start, batches_max=share).to_state()

    def begin_at(self, log: PartitionLog, producers: bytes) -> None:
        """Take over what another log knew; ``log`` is empty and keeps it from now on.

        Raises:
            MetadataCorruptError: that is no producer state.
        """
        self.producers = ProducerTable.from_state(producers)
        log.write_producer_state(producers)

    def free_of_ids(self, plan: Sequence[SegmentInfo], now_us: int, *, leads: bool) -> list[Offset]:
        """Return the bases of the segments, oldest first, in which no id of the window can lie.

        Whoever does not lead remembers no ids and may have to: its segments stay for the window.
        """
        if leads:
            self.window.expire(now_us)
            floor = self.window.oldest_offset()
            return [one.base_offset for one in plan if floor is None or one.end_offset <= floor]
        horizon_us = now_us - self._config.dedup_window_ms * 1000
        old = itertools.takewhile(lambda one: one.max_timestamp_us < horizon_us, plan)
        return [one.base_offset for one in old]
