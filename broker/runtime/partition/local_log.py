"""A partition's log on this broker, with the tables and counters that are derived from it.

The retry tables are built from the log's records, and the unshipped bytes from its segments. This
class writes, cuts and replaces the log and updates these at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.core.dedup import BATCHES_KEPT, ProducerTable
from broker.core.message_ids import Room
from broker.errors import (
    CorruptDataError,
    DiskFullError,
    EncryptionKeyError,
    NoRoomError,
    OverloadedError,
    SegmentCorruptError,
)
from broker.model.epoch_history import EpochHistory
from broker.model.ids import PartitionId
from broker.model.lineage import Lineage, common_end
from broker.model.offsets import Offset
from broker.model.replica_messages import LogPrefix
from broker.model.stream import StreamConfig
from broker.ports.partition import SegmentInfo, StoredBatch
from broker.ports.system import Clock
from broker.runtime.partition.counters import PartitionCounters
from broker.runtime.partition.retry_tables import RetryTables
from broker.runtime.partition.tier_view import RecordColdEnd, TierView
from broker.runtime.stream_keys import PartitionCipher
from broker.storage.log.partition_log import LogConfig, PartitionLog

# Replaces the present log; takes start, epochs, and the producers' state of what was before.
BeginLog = Callable[[Offset, EpochHistory, bytes], PartitionLog]


def log_config(config: StreamConfig) -> LogConfig:
    """Return how the log of a stream with this configuration is laid out."""
    return LogConfig(
        segment_bytes_max=config.segment_bytes_max,
        segment_age_ms_max=config.segment_age_ms_max,
        index_interval_bytes=config.index_interval_bytes,
    )


def _window_of(config: StreamConfig) -> tuple[int, int]:
    return config.dedup_window_ms, config.dedup_ids_max


def batch_start(log: PartitionLog, end: Offset) -> Offset:
    """Return where a log may be cut for a truncation at ``end``.

    Key compaction may have joined the batches around ``end``. Then the whole joined batch goes:
    its records below ``end`` come again from the leader, whose log has them.
    """
    inside = (one.base_offset < end < one.end_offset for one in log.segments() if one.sparse)
    if not any(inside):
        return end
    last = log.read(Offset(end - 1), end, bytes_max=1)[0].header
    return end if last.end_offset == end else last.base_offset


class LocalLog:
    """Owner: the partition's turns, except for methods that say "any thread".

    The class is not split: each method is one short question or step, and all share one log.
    """

    def __init__(
        self,
        log: PartitionLog,
        *,
        partition_id: PartitionId,
        config: StreamConfig,
        cold_end: Offset,
        record_cold_end: RecordColdEnd,
        begin_log: BeginLog,
        clock: Clock,
        counters: PartitionCounters,
        cipher: PartitionCipher,
        room: Room | None = None,
        purged_end: Offset = Offset(0),  # noqa: B008 - a plain number
        remote_start: Offset = Offset(0),  # noqa: B008 - a plain number
    ) -> None:
        """Take over an open log. ``record_cold_end`` writes to the metadata, and blocks.

        ``cipher`` decrypts what is read for this broker's own tables. ``room`` bounds the memory of
        the message ids; None: nothing does.
        """
        self.cipher = cipher
        self.ids_refusal: EncryptionKeyError | None = None  # why a leader cannot read message ids
        self.log = log  # :meth:`replace` sets another log; any thread reads
        self.retries = RetryTables(config, room)
        self.tier = TierView(
            partition_id,
            config,
            cold_end,
            record_cold_end,
            purged_end=purged_end,
            remote_start=remote_start,
        )
        self._begin_log = begin_log
        self._is_stale = False  # the tables: a cut or a copy began, and perhaps did not end
        self._waiting: tuple[Offset, LogPrefix] | None = None  # for room for a log that begins so
        self._config = config
        self._clock = clock
        self._counters = counters
        self.watch_segments()

    # ------------------------------------------------------------------ the table, any thread

    def record_cold_end(self, cold_end: Offset) -> None:
        """Record a cold end in the metadata. Blocks until the metadata log has it."""
        self.tier.record(cold_end)
        self.watch_segments()

    def learn_cold_end(self, cold_end: Offset) -> None:
        """Take a higher cold end from the metadata; a lower one is ignored."""
        if self.tier.learn(cold_end):
            self.watch_segments()

    def learn_purged(self, purged_end: Offset) -> None:
        """Take a higher purged end from the metadata; a lower one is ignored."""
        if self.tier.learn_purged(purged_end):
            self.watch_segments()

    def learn_expired(self, remote_start: Offset) -> None:
        """Take a higher remote start from the metadata; a lower one is ignored."""
        self.tier.learn_expired(remote_start)

    @property
    def log_start(self) -> Offset:
        """First offset that is read here: segments may still have records that are gone below.

        A log that waits for room begins already: readers find the records below it in the table.
        """
        waiting = self._waiting
        return max(self.log.log_start if waiting is None else waiting[0], self.tier.gone_end)

    @property
    def log_end(self) -> Offset:
        """First offset that is not written."""
        waiting = self._waiting
        return self.log.log_end if waiting is None else waiting[0]

    @property
    def whole_start(self) -> Offset:
        """First offset from which the log has every record: key compaction took some below it."""
        return max(self.log_start, self.log.sparse_end)

    @property
    def sparse_end(self) -> Offset:
        """Below it, records may be gone from all there is; 0 with a table, which has them all."""
        return Offset(0) if self._config.tiering else self.log.sparse_end

    def committed_for_certain(self, lineage: Lineage) -> Offset:
        """Return the end of the records that no leader has to vouch for: all are committed.

        Those in the table and those that were purged were committed, but this log may have others
        at their offsets: it may have led, and stored records that its successor did not get. So
        the lineage has to say that this log has the same ones.
        """
        log, end = self.log, min(self.tier.floor, self.log.log_end)
        return max(log.log_start, common_end(lineage, log.epochs, end))

    def replacement(self) -> SegmentCorruptError | None:
        """Return the error if the log ends below its floor, or None."""
        return self.tier.replacement(self.log.log_end)

    def plan_frees(self, lease_floor: Callable[[], Offset]) -> Sequence[SegmentInfo]:
        """Return the segments that neither local retention nor a lease keeps."""
        if not self.log.segments()[0].sealed:  # most of many partitions have one segment
            return ()
        return self.tier.plan_frees(self.log.segments, lease_floor, self._clock.now_us())

    def is_aged(self, created_us: int) -> bool:
        """Tell whether a segment whose first batch was written then has to be sealed."""
        return log_config(self._config).is_aged(created_us, self._clock.now_us())

    def watch_segments(self) -> None:
        """Count again the bytes that are not in the table."""
        self.tier.watch(self.log.segments())

    # ------------------------------------------------------------------ in a turn

    def configure(self, config: StreamConfig) -> bool:
        """Take changed settings; return whether a leader has to read the ids of another window."""
        before, self._config = self._config, config
        self.log.configure(log_config(config))
        self.tier.configure(config)
        self.retries.configure(config)
        return _window_of(before) != _window_of(config)

    def free(self, plan: Sequence[SegmentInfo], *, leads: bool) -> int:
        """Free the segments of a plan, and return how many were freed.

        Segments with message ids of the deduplication window stay: a restart reads the ids there.
        If the disk has no room for the producers' state, the oldest segment goes to make room. The
        others wait for the state: a crash meanwhile forgets the producers of that segment only.
        """
        bases = self.retries.free_of_ids(plan, self._clock.now_us(), leads=leads)
        if not bases:
            return 0
        left, end = plan[: len(bases)], plan[len(bases) - 1].end_offset
        while left:
            noted = self._noted_end(end)
            count = max(1, sum(one.end_offset <= noted for one in left))
            self.log.free([one.base_offset for one in left[:count]])
            left = left[count:]
        self._save_before_free(end)  # the disk may have had no room before
        self._counters.freed_segments += len(bases)
        self.watch_segments()
        return len(bases)

    def _noted_end(self, end: Offset) -> Offset:
        """Return up to where a restart knows the producers without the records, at most ``end``.

        On a disk without room for two states, one has to do.
        """
        if self._save_before_free(end):
            return end
        newest = self.log.read_producer_states().newest
        noted = 0 if newest is None else newest[1]
        if noted >= end:
            return end
        offsets = self.retries.producers.offsets_below(end)
        return Offset(min((one for one in offsets if one >= noted), default=end))

    def _save_before_free(self, end: Offset) -> bool:
        """Write the producers' state unless two files cover all below ``end``; any may be damaged.

        Returns False when the disk is full.
        """
        covered = self.log.read_producer_states().kept_end >= end
        return covered or self.save_producers(twice=True)

    def seal_purged(self) -> None:
        """Seal the active segment if it has purged records: only a sealed one is freed."""
        last, end = self.log.segments()[-1], self.tier.purged_end
        if not last.sealed and last.base_offset < end <= last.end_offset:
            self.log.seal_active(self._clock.now_us())

    def has_rolled(self) -> bool:
        """Tell whether segments were sealed since the last call."""
        rolled = self.tier.rolled(self.log.sealed_count)
        if rolled:
            self.watch_segments()
        return rolled

    def save_producers(self, *, twice: bool = False) -> bool:
        """Write the producers' state beside the log: a start then reads only the log's end.

        With ``twice`` it is in two files, and any one of them may be damaged later. Returns False
        when the disk is full, or when the log cannot be read now.
        """
        try:
            self.refresh()
        except (NoRoomError, OverloadedError, CorruptDataError):  # who needs the tables says so
            return False
        return self.log.write_producer_state(self.retries.producers.to_state(), twice=twice)

    def begin_leading(self) -> None:
        """Begin the retry tables of a leader; :meth:`read_ids` fills them."""
        self.ids_refusal = None
        self.retries.begin_leading(self.log, self._clock.now_us())

    @property
    def reads_ids(self) -> bool:
        """Whether writes wait until :meth:`read_ids` has read more. Any thread."""
        return self.ids_refusal is None and self.retries.reads_ids

    def read_ids(self, slice_bytes: int) -> None:
        """Read the next ``slice_bytes`` of the log, if message ids are missing.

        The producers are read first, if they are missing: a leader takes no write without them.

        Raises:
            HeadwaterError: they cannot be read now. Writes wait; without a key they are refused.
        """
        self.refresh()
        try:
            self.retries.read_ids(self.cipher.opened, slice_bytes=slice_bytes)
        except EncryptionKeyError as error:  # a key was rotated that this broker cannot use yet
            self.ids_refusal = error
            raise
        self.ids_refusal = None

    def end_leading(self) -> None:
        """Return the memory of the message ids: publishes are not taken any more."""
        self.ids_refusal = None
        self.retries.end_leading()

    def grown(self, size_bytes: int) -> None:
        """Count an appended group; exactly, with the heads of segments, if they are bounded."""
        if self.tier.bounded:
            self.watch_segments()
        else:
            self.tier.unshipped_bytes += size_bytes

    def copy(self, batches: Sequence[StoredBatch]) -> None:
        """Write batches as their leader stored them, into the log and the tables.

        Raises as ``PartitionLog.append_stored`` and :meth:`refresh` do. The log may hold a part of
        the batches then.
        """
        self.refresh()
        self._is_stale = True
        self.log.append_stored(batches, now_us=self._clock.now_us())
        self.tier.unshipped_bytes += self.retries.copied(batches)
        self._is_stale = False

    def truncate(self, end: Offset) -> None:
        """Drop the records from ``end`` on, durably, and what the tables know of them.

        Freed records are in no segment: only the producer table remembers who sent them. The
        states of the table that are on the disk may cover records that are cut, and go with them.
        So the state as of ``end`` is written first; a crash leaves one that fits.

        Raises:
            NoRoomError: there is no room for the epoch history or that state, or no descriptor.
                Nothing is cut, or a part: call again. Without that, later calls finish the cut.
            LogFailedError: the disk failed.
        """
        if self.log.log_start and end < self.log.log_end:
            self.refresh()
            state = self.retries.producers.below(end, batches_max=BATCHES_KEPT)
            if not self.log.write_producer_state(state.to_state(), end=end, twice=True):
                raise DiskFullError(
                    "the disk has no room for the producer state that a truncation writes first"
                )
        self._is_stale = True
        self.log.truncate(end)
        self.shrunk()

    def shrunk(self) -> None:
        """Rebuild the derived tables after records were removed from the log."""
        self.retries.follow_log(self.log)
        self._is_stale = False
        self.watch_segments()

    def refresh(self) -> None:
        """Rebuild the derived tables if a cut or a copy was interrupted.

        Whoever needs the producers calls this first. Tables of records that were cut would
        acknowledge a retry that is nowhere; tables without copied records would store it twice.

        Raises:
            NoRoomError, OverloadedError: there is no descriptor or memory now: call again.
            LogFailedError, CorruptDataError: the log cannot be read.
        """
        if self._is_stale:
            self.log.sync()  # finishes a cut
            self.shrunk()

    def producers_before(self, start: Offset) -> bytes:
        """Return the producers' state of records below ``start``, for a log that begins there.

        Raises as :meth:`refresh` does.
        """
        self.refresh()
        return self.retries.before(start)

    @property
    def is_there(self) -> bool:
        """Whether there is a log: one that was replaced may wait for room for the new one."""
        return self._waiting is None

    def holds(self, log: PartitionLog) -> bool:
        """Tell whether a log is the one here, and is not being replaced. Any thread.

        A reader that met damage asks: the files of a log that is replaced are removed.
        """
        return self._waiting is None and self.log is log  # in this order: the new log is set first

    def replace(self, start: Offset, prefix: LogPrefix) -> None:
        """Replace the log by an empty log that begins at ``start``.

        Readers of the old log may find no files, and read again; see :meth:`holds`.

        Raises:
            NoRoomError: there is no room for an empty log; :meth:`begin_waiting` tries again, and
                nothing else may use the log until then.
        """
        self._waiting = start, prefix
        self.log.close()
        self.begin_waiting()

    def begin_waiting(self) -> None:
        """Begin the log that waits for room, if one does. Raises as :meth:`replace` does."""
        if self._waiting is None:
            return
        start, prefix = self._waiting
        producers = ProducerTable.from_state(prefix.producers)  # first: nothing is replaced yet
        begun = self._begin_log(start, EpochHistory.of(prefix.epochs), prefix.producers)
        begun.configure(log_config(self._config))  # the stream may have been changed since
        self.retries.producers = producers
        self.log = begun
        self._waiting = None
        self._is_stale = False
        self.watch_segments()
