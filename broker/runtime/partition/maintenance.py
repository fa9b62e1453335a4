"""The periodic work of a partition: roll by age, sync by interval, expire ids, look for room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.core.dedup import PRODUCER_BYTES_MAX
from broker.core.idleness import Idleness
from broker.errors import DiskFullError, LogFailedError, NoRoomError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.runtime.partition.context import PartitionContext
from broker.runtime.partition.replica_shell import ReplicaShell
from broker.runtime.partition.replication import Replication

_log = structlog.get_logger(__name__)

_QUIET_US: Final = 600_000_000  # time without a forgotten producer after which the next is news
CHECKPOINTED_MS: Final = 20_000  # after its last record a log has a checkpoint: see ``LogConfig``


class Maintenance:
    """Owner: the partition's turns; any thread ticks."""

    def __init__(
        self,
        context: PartitionContext,
        replication: Replication,
        *,
        on_sealed: Callable[[PartitionId], None],
        on_idle: Callable[[PartitionId, LeaderEpoch], None],
    ) -> None:
        """Call ``on_sealed`` after segments were sealed, ``on_idle`` when a pause is due.

        Both are called in a turn, and must be quick.
        """
        self._partition_id = context.partition_id
        self._name = context.name
        self._config = context.stream.config
        self._clock = context.clock
        self._counters = context.counters
        self._queue = context.queue
        self._local = context.local
        self._health = context.health
        self._room = context.room
        self._replication = replication
        self._on_sealed = on_sealed
        self._on_idle = on_idle
        self._idleness = Idleness()
        self._queued = False  # whether a run is in the queue; a second one would do nothing more
        # Whether a later run would do nothing, unless a turn does other work before or `is_due`.
        self.is_done = False
        self._log_end = Offset(0)  # when it was last seen to have moved, and where to
        self._moved_ms = 0
        self._begun_us: int | None = None  # when the first record of the active segment came
        self._forgotten_ids = _Forgotten()  # message ids that left the window early
        self._forgotten_producers = _Forgotten()  # that the table had no room for

    def configure(self, config: StreamConfig) -> None:
        """Take changed settings."""
        self._config = config

    @property
    def is_due(self) -> bool:
        """Whether time alone has brought work to a partition that rests. Any thread."""
        begun_us = self._begun_us
        aged = begun_us is not None and self._local.is_aged(begun_us)
        return aged or len(self._local.retries.window) > 0

    @property
    def is_busy(self) -> bool:
        """Whether records came since the last run, or work has to be done soon. Any thread."""
        log = self._local.log
        return (
            not log.synced_end == log.log_end == self._log_end
            or self._room.lack is not None
            or self._config.auto_pause_ms is not None
        )

    def tick(self) -> None:
        """Queue the work, unless it is queued. Any thread; does not block."""
        if self._health.failure is None and not self._queue.closing and not self._queued:
            self._queued = True
            self._queue.post(self._maintain)

    def sync_below(self, end: Offset) -> None:
        """Make every record below ``end`` durable, also of a stream that syncs by interval.

        Any thread; blocks until it is done.

        Raises:
            NoRoomError: the records are durable, and the disk has no room for their promise.
            LogFailedError: the disk failed.
            CommitTimeoutError: the disk hangs.
        """
        if self._local.log.synced_end < end:
            self._queue.call(self._sync)
        if self._health.failure is not None:
            raise self._health.failure

    def _sync(self) -> None:
        shell = self._replication.shell
        if shell is not None and self._health.failure is None and self._local.is_there:
            shell.sync()
            self._counters.syncs = shell.sync_count

    def notice_roll(self) -> None:
        """Tell of segments that were sealed, and save the producers' state beside the log."""
        if self._local.has_rolled():
            if self._health.failure is None:
                try:
                    self._local.save_producers()
                except LogFailedError as error:  # answered records are durable; take no more
                    self._health.fail(error)
            self._on_sealed(self._partition_id)

    def _maintain(self) -> None:
        self._queued = False
        now_us = self._clock.now_us()
        self._expire_ids(now_us)
        self._tell_forgotten_producers(now_us)
        shell = self._replication.shell
        if shell is None or self._health.failure is not None or not self._local.is_there:
            return
        self._look_idle()
        waited_ms = self._clock.monotonic_ms() - shell.synced_ms
        log = self._local.log
        try:
            if log.synced_end < log.log_end and waited_ms >= self._config.flush_interval_ms:
                self._sync()
            log.roll_if_due(now_us)
            self._local.seal_purged()
            self._look_for_room(shell)
        except NoRoomError as error:  # the next run tries again
            self._room.lacks(error, follows=shell.leader is None)
        self.notice_roll()
        self.is_done = self._may_rest()

    def _may_rest(self) -> bool:
        """Tell whether only new work, or the age of a segment or of ids, brings work again."""
        log, now_ms = self._local.log, self._clock.monotonic_ms()
        if log.log_end != self._log_end:
            self._log_end, self._moved_ms = log.log_end, now_ms
        last = log.segments()[-1]
        self._begun_us = None if last.sealed or last.base_offset == log.log_end else last.created_us
        return (
            log.synced_end == log.log_end
            and self._room.lack is None
            and now_ms - self._moved_ms >= CHECKPOINTED_MS
            and self._config.auto_pause_ms is None
        )

    def _look_for_room(self, shell: ReplicaShell) -> None:
        """Do what a full disk had prevented, if there is room now; publishers may wait for it."""
        lack = self._room.lack
        if lack is None:
            return
        self._local.log.find_room(self._room.wanted_bytes)
        shell.written()
        if isinstance(lack, DiskFullError):  # only a write shows that there is a descriptor
            self._room.found()

    def _look_idle(self) -> None:
        """Ask for a pause of a partition that has been idle for long, if its stream says so."""
        leader, view = self._replication.leader, self._replication.view
        due = self._idleness.step(
            self._clock.monotonic_ms(),
            after_ms=self._config.auto_pause_ms,
            takes_records=leader is not None
            and view is not None
            and not (view.paused or view.readonly),
            records_count=self._counters.appended_records,
            watched=self._config.auto_pause_unless_subscribed and self._counters.followers > 0,
        )
        if due and leader is not None:
            self._on_idle(self._partition_id, leader.leader_epoch)

    def _expire_ids(self, now_us: int) -> None:
        """Free the memory of expired message ids; warn if others had to be forgotten early.

        The next warning comes only after a whole dedup window in which no id was forgotten early.
        """
        retries = self._local.retries
        retries.window.expire(now_us)
        quiet_us = self._config.dedup_window_ms * 1000
        count = self._forgotten_ids.to_tell(retries.forgotten_ids, now_us, quiet_us=quiet_us)
        if count:
            _log.warning(
                "message_ids_forgotten_early",
                partition=self._name,
                ids=count,
                effect="a message that is sent again with one of these ids is stored again",
                bounds="dedup_ids_max of the stream, node.message_ids_bytes_max of the broker",
            )

    def _tell_forgotten_producers(self, now_us: int) -> None:
        """Warn if producers had to be forgotten; again only after ten minutes without."""
        total = self._local.retries.forgotten_producers
        count = self._forgotten_producers.to_tell(total, now_us, quiet_us=_QUIET_US)
        if count:
            _log.warning(
                "producers_forgotten",
                partition=self._name,
                producers=count,
                effect="a batch that one of these producers sends again may be stored again",
                bytes_max=PRODUCER_BYTES_MAX,
            )


class _Forgotten:
    """Decides when to warn that a table of bounded size has forgotten something."""

    def __init__(self) -> None:
        self._seen = 0
        self._told_until_us = 0  # no further warning before this time

    def to_tell(self, total: int, now_us: int, *, quiet_us: int) -> int:
        """Return how many were forgotten since the last look; 0 also if that is no news.

        It is news again after ``quiet_us`` in which nothing was forgotten.
        """
        count, self._seen = total - self._seen, total
        if not count:
            return 0
        told_until_us, self._told_until_us = self._told_until_us, now_us + quiet_us
        return count if now_us >= told_until_us else 0
