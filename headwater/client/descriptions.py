"""A stream and its partitions, as a broker describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPosition:
    """The offsets of a partition: the table and the log together hold ``[start, HW)``.

    Of a compacted stream without a table some of these records are gone.
    """

    partition: int
    subject: str
    start: Offset  # first offset of either tier
    log_start: Offset  # first offset on local disk
    high_watermark: Offset
    leader_epoch: int
    leader: str | None = None  # the broker that leads it
    purged_end: Offset = Offset(0)  # noqa: RUF009 - records below were purged on purpose
    remote_start: Offset = Offset(0)  # noqa: RUF009 - records below expired by remote retention
    paused: bool = False  # takes no records until it is resumed
    readonly: bool = False  # takes no records until an operator allows them
    records_left: int | None = None  # of a compacted stream without a table; None: not known

    @property
    def offsets_count(self) -> int:
        """Committed offsets that can be read from, whether or not each has its record still."""
        return self.high_watermark - self.start

    @property
    def records_count(self) -> int:
        """Committed records that can be read; at most so many where it is not known."""
        return self.offsets_count if self.records_left is None else self.records_left

    @property
    def expired_count(self) -> int:
        """Records that remote retention has removed, beside those that were purged."""
        return max(0, self.remote_start - self.purged_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDescription:
    """A stream and the positions of its partitions, by number."""

    cluster: str
    stream: Stream
    partitions: tuple[PartitionPosition, ...]

    @property
    def knows_records(self) -> bool:
        """Whether :attr:`records_count` is exact, and not only an upper bound."""
        config = self.stream.config
        if config.history == "compact":  # only the table says how many have left it
            return False
        sparse = config.compact and not config.tiering
        return not sparse or all(one.records_left is not None for one in self.partitions)

    @property
    def offsets_count(self) -> int:
        """Committed offsets that can be read from, in all partitions."""
        return sum(part.offsets_count for part in self.partitions)

    @property
    def records_count(self) -> int:
        """Committed records that can be read, in all partitions; see :attr:`knows_records`."""
        return sum(part.records_count for part in self.partitions)

    @property
    def expired_count(self) -> int:
        """Records that remote retention has removed, in all partitions."""
        return sum(part.expired_count for part in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHighWatermarks:
    """The high watermark of each partition of a stream, by number."""

    stream_uuid: StreamUuid
    offsets: tuple[Offset, ...]
    lineage_ids: tuple[str | None, ...]  # the leadership under which each was committed


def position_of(told: Mapping[str, Any]) -> PartitionPosition:
    """Return the position of a partition from a broker's JSON; an older broker tells less."""
    return PartitionPosition(
        partition=told["partition"],
        subject=told["subject"],
        start=Offset(told["start"]),
        log_start=Offset(told["log_start"]),
        high_watermark=Offset(told["high_watermark"]),
        leader_epoch=told["leader_epoch"],
        leader=told["leader"],
        purged_end=Offset(told.get("purged_end", 0)),
        remote_start=Offset(told.get("remote_start", 0)),
        paused=told.get("paused", False),
        readonly=told.get("readonly", False),
        records_left=told.get("records_left"),
    )
