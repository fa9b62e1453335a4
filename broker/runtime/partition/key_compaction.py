"""Key compaction of one partition's log, in steps of a pump of the broker.

A step reads or writes a small piece beside the partition's turns. Only what must not happen beside
a write is done in a turn: the begin of a pass, and the exchange of a segment's file. Each replica
compacts its own log; docs/decisions/0034 says why replicas may differ there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Final, TypedDict

import structlog

from broker.core.key_compaction import (
    AskedPasses,
    CompactedSoFar,
    CompactionPlan,
    CompactionRule,
    PassReport,
    compaction_line,
    line_reason,
    plan_compaction,
)
from broker.core.replication.leader import PartitionLeader
from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    LogFailedError,
    OffsetOutOfRangeError,
    OverloadedError,
)
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_state import PassState
from broker.model.stream import StreamConfig
from broker.runtime.partition.context import PartitionContext
from broker.runtime.partition.local_frees import FreesOwner, LeaseFloor
from broker.runtime.partition.queue import OwnerCall
from broker.storage.key_compaction.compaction_pass import ChosenSegment, CompactionPass
from broker.storage.key_compaction.rewriter import Replacement
from broker.storage.no_room import PROCESS_LIMITS, is_full

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 10_000  # after a pass that could not be finished
_IDS_HOLD: Final = "message ids of the deduplication window are in the next segment"


class _Ends(TypedDict):
    high_watermark: Offset
    cold_end: Offset | None
    copied_end: Offset


@dataclass(slots=True)
class _Running:
    """A pass that has begun."""

    plan: CompactionPlan
    work: CompactionPass
    steps: Generator[Replacement | None, None, None]
    rest: str | None  # why the plan ends below the log's end
    exchanged: int = 0
    freed_bytes: int = 0

    def report(self, state: PassState) -> PassReport:
        """Return what operators are told. Any thread."""
        counts, over = self.work.counts, state is PassState.COMPACTED
        return PassReport(
            state=state,
            end=self.plan.end if over else Offset(0),
            reason=self.rest if over else None,
            segments=self.exchanged,
            removed_count=counts.removed_count,
            freed_bytes=self.freed_bytes,
            read_bytes=counts.read_bytes,
        )


class KeyCompaction:
    """Owner: the thread of the broker's compaction pump, except where it says otherwise."""

    def __init__(
        self,
        owner: FreesOwner,
        context: PartitionContext,
        high_watermark: Callable[[], Offset],
        leader: Callable[[], PartitionLeader | None],
    ) -> None:
        """Compact the log of ``context``, below ``high_watermark`` and the copies of a leader."""
        self._owner = owner
        self._name = context.name
        self._config = context.stream.config
        keys_from = context.stream.keys_from  # a partition that was added is opened as such
        self._was_added = keys_from is not None and context.partition_id.number >= keys_from
        self._local = context.local
        self._queue = context.queue
        self._clock = context.clock
        self._counters = context.counters
        self._health = context.health
        self._high_watermark = high_watermark
        self._leader = leader
        self._so_far: CompactedSoFar | None = None  # None: look at the segments first
        self._log = context.local.log
        self._running: _Running | None = None
        self._call: OwnerCall | None = None  # the turn that this pass waits for
        self._not_before_ms = 0
        self._asked = AskedPasses()
        self._asked_lock = threading.Lock()

    def configure(self, config: StreamConfig) -> None:
        """Take changed settings. Any thread."""
        self._config = config

    def ask(self, ticket: str) -> PassReport:
        """Begin a pass soon, whatever is new; tell how far the one of this ticket is. Any thread.

        Call again, with the same ticket, until the report is final. The active segment is sealed
        first, if all of it may be compacted.

        Raises:
            OverloadedError: too many others wait.
        """
        running = self._running
        with self._asked_lock:
            over = self._asked.state_of(ticket)
            runs = self._asked.is_running(ticket)
        if over is not None:
            return over
        if runs and running is not None:
            return running.report(PassState.RUNNING)
        return PassReport(state=PassState.WAITING)

    @property
    def is_asked(self) -> bool:
        """Whether an operator waits for a pass to begin. Any thread."""
        return self._asked.are_waiting

    @property
    def is_wanted(self) -> bool:
        """Whether the stream is compacted, or somebody waits for the end of a pass. Any thread."""
        return self._config.compact or self.has_begun or self.is_asked

    @property
    def has_begun(self) -> bool:
        """Whether a pass runs, or waits for a turn."""
        return self._running is not None or self._call is not None

    def step(self, lease_floor: LeaseFloor) -> bool:
        """Take one step; return whether there was work, so that the next step may follow soon."""
        if not self._owner.may_free or not self._config.compact:
            self._give_up(self._refusal())
            return False
        if self._call is not None:
            return self._go_on_after_turn()
        if self._running is None:
            return self._look(lease_floor)
        try:
            replacement = next(self._running.steps, self._running)
        except OffsetOutOfRangeError:  # freed or cut meanwhile
            self._give_up()
        except CorruptDataError as error:
            self._stop(error)
        except OverloadedError as error:
            self._failed(error.message)
        except OSError as error:
            self._meet(error)
        else:
            self._take(replacement, lease_floor)
        return True

    # ------------------------------------------------------------------ beginning

    def _plan(self, lease_floor: LeaseFloor, *, asked: bool = False) -> CompactionPlan | None:
        """Return the next pass. The ends are read before the leases, as in ``TierView``."""
        local = self._local
        if self._so_far is None or self._log is not local.log:
            self._log = local.log
            self._so_far = CompactedSoFar.found_in(local.log.segments())
        if self._clock.monotonic_ms() < self._not_before_ms and not asked:
            return None
        return plan_compaction(
            local.log.segments(),
            line=compaction_line(**self._ends(), lease_floor=lease_floor()),
            so_far=self._so_far,
            rule=CompactionRule.of(self._config, keeps_tombstones=self._was_added),
            now_us=self._clock.now_us(),
            forced=asked,
        )

    def _ends(self) -> _Ends:
        cold_end = self._local.tier.cold_end if self._config.tiering else None
        return {
            "high_watermark": self._high_watermark(),
            "cold_end": cold_end,
            "copied_end": self._copied_end(),
        }

    def _copied_end(self) -> Offset:
        """Return above which offset followers copy records from here, of a log without a table."""
        leader = None if self._config.tiering else self._leader()
        end = Offset(OFFSET_MAX)
        return end if leader is None else leader.copied_end(self._clock.monotonic_ms())

    def _look(self, lease_floor: LeaseFloor) -> bool:
        if not self.is_asked and self._plan(lease_floor) is None:
            return False
        self._call = self._queue.begin(lambda: self._begin(lease_floor))
        return True

    def _begin(self, lease_floor: LeaseFloor) -> _Running | None:
        """Begin a pass, in a turn: the retry tables are the turn's."""
        if not self._owner.may_free:
            return None
        with self._asked_lock:
            asked = self._asked.are_waiting
            self._asked.begin()  # who asks from now on waits for the next pass
        ends, floor = self._ends(), lease_floor()
        if asked:
            self._seal_below(compaction_line(**ends, lease_floor=floor))
        rest = line_reason(**ends, lease_floor=floor, log_end=self._local.log.log_end)
        plan = self._plan(lease_floor, asked=asked)
        if plan is None:
            self._end_without(rest or "the log is empty")
            return None
        below = [one for one in self._local.log.segments() if one.end_offset <= plan.end]
        now_us, leads = self._clock.now_us(), self._owner.leads
        free = self._local.retries.free_of_ids(below, now_us, leads=leads)
        rest = _IDS_HOLD if len(free) < len(plan.segments) else rest
        plan = replace(plan, segments=plan.segments[: len(free)])
        if not plan.segments or (not asked and self._has_nothing_new(plan)):
            self._not_before_ms = self._clock.monotonic_ms() + _AGAIN_MS
            self._end_without(rest or "nothing is new")
            return None
        self._local.refresh()
        work = CompactionPass(
            self._local.log,
            [
                ChosenSegment(one.base_offset, one.end_offset, one.drops_tombstones)
                for one in plan.segments
            ],
            retried=self._local.retries.producers.offsets_below(plan.end),
        )
        return _Running(plan, work, work.steps(), rest)

    def _end_without(self, reason: str) -> None:
        """Tell those who have asked that there is nothing to compact."""
        with self._asked_lock:
            self._asked.end(PassReport(state=PassState.NOTHING, reason=reason))

    def _seal_below(self, line: Offset) -> None:
        """Seal the active segment if all of it is below the line: only a sealed one is taken."""
        last = self._local.log.segments()[-1]
        if not last.sealed and last.base_offset < last.end_offset <= line:
            self._local.log.seal_active(self._clock.now_us())

    def _has_nothing_new(self, plan: CompactionPlan) -> bool:
        """Tell whether message ids keep all that is new: nothing would come of a pass."""
        assert self._so_far is not None, "a plan was made from it"
        expired = any(
            one.drops_tombstones and one.base_offset in self._so_far.tombstones
            for one in plan.segments
        )
        return plan.end <= self._so_far.end and not expired

    # ------------------------------------------------------------------ going on

    def _take(self, replacement: Replacement | _Running | None, lease_floor: LeaseFloor) -> None:
        if isinstance(replacement, _Running):
            self._end()
        elif replacement is not None:
            made = replacement
            self._call = self._queue.begin(lambda: self._exchange(made, lease_floor))

    def _exchange(self, made: Replacement, lease_floor: LeaseFloor) -> bool:
        """Exchange a segment's file, in a turn, if it may still be done."""
        allowed = self._owner.may_free and lease_floor() >= made.segment.end_offset
        if not allowed or self._copied_end() < made.segment.end_offset:
            made.discard()
            return False
        if (leader := self._leader()) is not None:
            leader.copies.compacted(made.segment.end_offset)
        before = made.replaced.size_bytes
        done = self._local.log.replace_segment(made)
        self._local.watch_segments()
        if not done:
            return False
        if self._running is not None:
            self._running.freed_bytes += before - made.segment.size_bytes
        self._counters.compacted_segments += 1
        self._counters.compacted_records += made.removed_count
        _log.info(
            "segment_compacted",
            partition=self._name,
            start=made.segment.base_offset,
            end=made.segment.end_offset,
            records_removed=made.removed_count,
            size_bytes=made.segment.size_bytes,
            size_bytes_before=before,
        )
        return True

    def _go_on_after_turn(self) -> bool:
        call = self._call
        assert call is not None, "the caller looked"
        if not call.is_over():
            return False
        self._call = None
        if call.error is not None:
            self._failed(call.error.message)
        elif self._running is None:
            self._running = call.result if isinstance(call.result, _Running) else None
            return self._running is not None
        elif call.result is not True:
            self._give_up()
        else:
            self._running.exchanged += 1
        return True

    def _end(self) -> None:
        running = self._running
        assert running is not None, "a pass that ends has begun"
        assert self._so_far is not None, "a plan was made from it"
        counts = running.work.counts
        self._so_far = self._so_far.after(running.plan, frozenset(counts.tombstones))
        self._running = None
        with self._asked_lock:
            self._asked.end(running.report(PassState.COMPACTED))
        _log.info(
            "log_compacted",
            partition=self._name,
            end=running.plan.end,
            records_removed=counts.removed_count,
            segments=running.exchanged,
            read_bytes=counts.read_bytes,
            parts=counts.parts,
        )

    # ------------------------------------------------------------------ not going on

    def _meet(self, error: OSError) -> None:
        """Try again later if the disk is full; take no more writes if it fails."""
        if is_full(error) or error.errno in PROCESS_LIMITS:
            self._failed(str(error))
            return
        self._stop(LogFailedError(f"key compaction of {self._name} failed: {error}"))

    def _stop(self, failure: HeadwaterError) -> None:
        """Take no more writes, unless the log was replaced during the pass: its files are gone."""
        if self._log is not None and not self._local.holds(self._log):
            self._give_up()
            return
        self._give_up(failure.message)
        self._queue.post(lambda: self._health.fail(failure))

    def _failed(self, reason: str) -> None:
        self._give_up(reason)
        self._not_before_ms = self._clock.monotonic_ms() + _AGAIN_MS
        _log.warning("compaction_waits", partition=self._name, reason=reason)

    def _give_up(self, reason: str | None = None) -> None:
        """End the pass; what it has exchanged stays so. Without a reason it may begin again."""
        running, self._running = self._running, None
        self._call = None
        if running is not None:
            running.steps.close()
        with self._asked_lock:
            if reason is None:
                self._asked.begin_again()
            else:
                self._asked.end_all(PassReport(state=PassState.FAILED, reason=reason))

    def _refusal(self) -> str:
        """Return why no pass may go on here."""
        if not self._config.compact:
            return "the stream's setting compact is off"
        failure = self._health.failure
        return "the log is not open for writes" if failure is None else failure.message
