"""The tables by which a partition recognises retries: caches of its log.

Every replica keeps the newest batches of each producer. Only a leader keeps message ids: it reads
them from the log when it begins to lead, slice by slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from broker.core.dedup import ProducerTable
from broker.core.message_ids import MessageIdWindow, Room
from broker.model.ids import NO_PRODUCER
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo, StoredBatch
from broker.runtime.partition.dedup_recovery import OpenBatches, WindowReading, rebuild_producers
from broker.storage.log.partition_log import PartitionLog

_BATCHES_SENT_MAX: Final = 200_000  # of all producers, sent to a follower that begins a new log


@dataclass(frozen=True, slots=True)
class RetryCounts:
    """The retry tables of a partition at one moment: message ids and producers."""

    ids: int  # in the window
    size_bytes: int  # of the memory that they take
    forgotten: int  # that left the window early, since the start
    forgotten_producers: int  # that the table had no room for, since the start
    unknown_below: Offset  # some producers of records below may be missing in the table


class RetryTables:
    """The producer table and the window of message ids. Owner: the partition's turns."""

    def __init__(self, config: StreamConfig, room: Room | None = None) -> None:
        """Start empty. ``room`` bounds the memory of the window; None: nothing does."""
        self._config = config
        self._room = room
        self._producers = ProducerTable()
        self._forgotten_producers_before = 0  # by earlier tables
        self.window = self._new_window()
        self._reading: WindowReading | None = None  # None: all ids are known, or none is needed
        self._forgotten_before = 0  # by earlier windows

    @property
    def producers(self) -> ProducerTable:
        """The newest batches of each producer."""
        return self._producers

    @producers.setter
    def producers(self, table: ProducerTable) -> None:
        self._forgotten_producers_before += self._producers.forgotten
        self._producers = table

    @property
    def forgotten_producers(self) -> int:
        """Number of producers that the table had no room for, since the start. Any thread."""
        return self._forgotten_producers_before + self._producers.forgotten

    @property
    def forgotten_ids(self) -> int:
        """Number of message ids that left the window early, since the start. Any thread."""
        return self._forgotten_before + self.window.forgotten_early

    def counts(self) -> RetryCounts:
        """Return the counts of both tables. Any thread."""
        window = self.window
        return RetryCounts(
            ids=len(window),
            size_bytes=window.size_bytes,
            forgotten=self.forgotten_ids,
            forgotten_producers=self.forgotten_producers,
            unknown_below=self._producers.unknown_below,
        )

    def _new_window(self) -> MessageIdWindow:
        config = self._config
        return MessageIdWindow(
            window_us=config.dedup_window_ms * 1000, ids_max=config.dedup_ids_max, room=self._room
        )

    def configure(self, config: StreamConfig) -> None:
        """Take changed settings; the window of a leader changes with :meth:`begin_leading`."""
        self._config = config

    def follow_log(self, log: PartitionLog) -> None:
        """Read the producers from a log that was opened or cut."""
        self.producers = rebuild_producers(log)

    @property
    def reads_ids(self) -> bool:
        """Whether ids are still missing in the window of this leader. Any thread."""
        return self._reading is not None

    def begin_leading(self, log: PartitionLog, now_us: int) -> None:
        """Begin a window; :meth:`read_ids` fills it from the log."""
        self.window.clear()
        self._forgotten_before += self.window.forgotten_early
        self.window = self._new_window()
        self._reading = WindowReading(log, self.window, now_us, self._config)

    def read_ids(self, opened: OpenBatches, *, slice_bytes: int) -> None:
        """Read the next slice of the log, if ids are missing; see ``WindowReading.step``."""
        reading = self._reading
        if reading is not None and reading.step(opened, slice_bytes=slice_bytes):
            self._reading = None

    def end_leading(self) -> None:
        """Forget the message ids, and return their memory: the next leader has its own."""
        self._reading = None
        self.window.clear()

    def copied(self, batches: Sequence[StoredBatch]) -> int:
        """Add the producers of batches from another leader; return the bytes of the batches."""
        size = 0
        for header in (batch.header for batch in batches):
            size += header.size
            if header.producer_id != NO_PRODUCER:
                self.producers.add(
                    header.producer_id,
                    header.base_sequence,
                    header.offset_span,  # what was sent, also if compaction removed some
                    header.base_offset,
                )
        return size

    def before(self, start: Offset) -> bytes:
        """Return the producers' state of records below ``start``, for a log that begins there."""
        share = max(1, _BATCHES_SENT_MAX // max(1, len(self.producers)))
        return self.producers.below(start, batches_max=share).to_state()

    def free_of_ids(self, plan: Sequence[SegmentInfo], now_us: int, *, leads: bool) -> list[Offset]:
        """Return the base offsets of the segments without ids of the window, oldest first.

        A follower keeps no ids, but may become leader and need them. So its segments stay for the
        whole time of the window, and those of a leader that has not read all ids yet.
        """
        if leads and self._reading is None:
            self.window.expire(now_us)
            floor = self.window.oldest_offset()
            return [one.base_offset for one in plan if floor is None or one.end_offset <= floor]
        horizon_us = now_us - self._config.dedup_window_ms * 1000
        old = itertools.takewhile(lambda one: one.max_timestamp_us < horizon_us, plan)
        return [one.base_offset for one in old]
