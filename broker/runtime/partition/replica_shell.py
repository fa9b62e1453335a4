"""The shell of one replica: it performs the effects of the replication core, on the owner's thread.

The file is not split: what a replica asks of its broker and its owner is read with the shell.
docs/replication.md names the effects and their order. Only this shell writes the log of a replica.
The effects of messages, ticks and new views of the metadata are performed in the partition's turns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from broker.codec.sparse import from_offset
from broker.core.events import TickElapsed
from broker.core.replication import effects as does
from broker.core.replication.events import (
    AppendRefused,
    IsrAnswered,
    LeaseGranted,
    LogAppended,
    LogSynced,
    LogTruncated,
    MessageCame,
    ViewChanged,
)
from broker.core.replication.follower import FollowerTiming, PartitionFollower
from broker.core.replication.isr import LagLimits
from broker.core.replication.leader import PartitionLeader
from broker.core.replication.replica import PartitionReplica
from broker.core.replication.runs import append_runs, is_copying
from broker.core.replication.standing import StandingFetch, StandingReplica
from broker.core.replication.view import PartitionView, Role
from broker.errors import (
    CorruptDataError,
    HeadwaterError,
    NoRoomError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OverloadedError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import FetchAnswer, FetchRequest, LogPrefix, ReplicaMessage
from broker.model.stream import StreamConfig
from broker.ports.partition import StoredBatch
from broker.ports.system import Clock
from broker.runtime.partition.committed import CommittedEnd
from broker.runtime.partition.local_log import LocalLog, batch_start
from broker.runtime.partition.room import LogRoom
from broker.runtime.partition.tier_view import below_floor

_log = structlog.get_logger(__name__)

FETCH_BYTES_MAX: Final = 4 * 1024 * 1024  # of batches in an answer; one batch may be larger
NEVER_MS: Final = 1 << 62
_AGAIN_MS: Final = 100  # until a retry, after a full disk


class ReplicaLinks(Protocol):
    """The broker's services for a replica. No method blocks."""

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """Send a message to the partition's replica on another broker; it may be lost."""

    def propose_isr(self, wanted: does.ProposeIsr, answered: Callable[[bool], None]) -> None:
        """Propose an ISR; call ``answered`` on any thread, unless the outcome is unknown."""

    def confirm_leader(
        self, leader_epoch: LeaderEpoch, log_end: Offset, log_epoch: LeaderEpoch
    ) -> None:
        """Confirm to the controller that this candidate is ready; its log is as it says."""

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Report to the controller that the leader does not answer."""

    def lease_until_ms(self, leader_epoch: LeaderEpoch) -> int:
        """Return until when this broker may lead in an epoch, on its monotonic clock.

        0 if the metadata on this broker has a newer epoch, whose view is still on its way to the
        replica.
        """

    def lease_lapses(self) -> int:
        """Return how often the lease had ended before it was extended."""

    def keep(self, replica: StandingReplica, standing: Collection[StandingFetch]) -> None:
        """Have these fetches of the partition confirmed by roll calls, instead of the earlier."""

    def withdraw(self, reason: HeadwaterError) -> None:
        """Have this replica taken out of the ISR: its log has failed, or was opened damaged."""

    def lead_changed(self, *, leads: bool) -> None:
        """Take note of a new view of a replica that leads, or of one that led until now."""


class AloneLinks:
    """The links of a broker that is its own cluster."""

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """Fail: there is no other broker."""
        raise AssertionError(f"a broker alone has no {to} to send {message} to")

    def propose_isr(self, wanted: does.ProposeIsr, answered: Callable[[bool], None]) -> None:
        """Fail: the ISR of a lone broker is always itself."""
        raise AssertionError(f"a broker alone proposes no ISR: {wanted} {answered}")

    def confirm_leader(
        self, leader_epoch: LeaderEpoch, log_end: Offset, log_epoch: LeaderEpoch
    ) -> None:
        """Fail: a lone broker is never a candidate."""
        where = f"{log_end} of {log_epoch}"
        raise AssertionError(f"a broker alone is no candidate of {leader_epoch} at {where}")

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Fail: a lone broker follows no leader."""
        raise AssertionError(f"a broker alone follows no leader in {leader_epoch}")

    def lease_until_ms(self, leader_epoch: LeaderEpoch) -> int:  # noqa: ARG002 - one broker
        """Return a lease that never ends: no other broker could become leader."""
        return NEVER_MS

    def lease_lapses(self) -> int:
        """Return 0: the lease never ends."""
        return 0

    def keep(self, replica: StandingReplica, standing: Collection[StandingFetch]) -> None:
        """Do nothing: without followers no fetch stands."""

    def withdraw(self, reason: HeadwaterError) -> None:
        """Do nothing: no other broker could lead. The partition refuses writes with the reason."""

    def lead_changed(self, *, leads: bool) -> None:
        """Do nothing: the code that opens the stream tells the listeners."""


class ReplicaOwner(Protocol):
    """The driver's methods for the shell. Every call is on the owner's thread."""

    def begin_leading(self) -> None:
        """Take publishes from now on."""

    def end_leading(self) -> None:
        """Answer all waiting publishers: the outcome of their writes is unknown."""

    def fail(self, error: HeadwaterError) -> None:
        """Take no more writes."""

    def later(self, delay_ms: int, function: Callable[[], None]) -> None:
        """Call ``function`` in a turn after at least ``delay_ms``."""

    @property
    def waiting_turn(self) -> int | None:
        """See ``StandingReplica``."""

    def wake(self) -> None:
        """See ``StandingReplica``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """Broker id, broker epoch and timers of all replicas of this process."""

    me: BrokerId
    broker_epoch: BrokerEpoch
    limits: LagLimits | None = None
    timing: FollowerTiming | None = None

    @property
    def quiet_ms(self) -> int:
        """How long an idle replica needs no turn: most replicas are idle, and a turn is costly."""
        return (self.timing or FollowerTiming()).idle_ms // 2

    @property
    def may_rest(self) -> bool:
        """Whether a replica without work needs no turns at all: roll calls wake it."""
        return bool(self.timing and self.timing.stand_ms)


class ReplicaShell:
    """Drives one ``PartitionReplica`` over an open, healthy log. Owner: the partition's turns.

    The class is not split: it has a method for each effect of the core, and one order for all.
    """

    def __init__(
        self,
        *,
        owner: ReplicaOwner,
        name: str,
        local: LocalLog,
        config: StreamConfig,
        identity: ReplicaIdentity,
        links: ReplicaLinks,
        clock: Clock,
        committed: CommittedEnd,
        room: LogRoom,
    ) -> None:
        """Start without a role; the first view brings one. Readers see what ``committed`` says."""
        self._owner = owner
        self._local = local
        self._interval = config.flush == "interval"
        self._links = links
        self._clock = clock
        self._name = name
        self._room = room
        self._replica = PartitionReplica(
            me=identity.me,
            broker_epoch=identity.broker_epoch,
            facts=self._facts,
            lease_until_ms=0,
            limits=identity.limits,
            timing=identity.timing,
            known_high_watermark=local.log.log_start,
        )
        self._lease_until_ms, self._lapses = 0, links.lease_lapses()
        self._standing: tuple[StandingFetch, ...] = ()
        self._committed = committed
        self._shared: tuple[Offset, Offset, list[StoredBatch]] | None = None  # within one event
        self.sync_count = 0
        self.synced_ms = clock.monotonic_ms()

    # ------------------------------------------------------------------ any thread

    @property
    def leader(self) -> PartitionLeader | None:
        """The leader core, while this replica leads."""
        return self._replica.leader

    @property
    def role(self) -> Role:
        """The present role of this replica."""
        return self._replica.role

    @property
    def view(self) -> PartitionView | None:
        """The newest view of the partition's metadata on this broker."""
        return self._replica.view

    @property
    def granted_until_ms(self) -> int:
        """The end of the broker's lease, which this replica may not have taken yet."""
        view = self._replica.view
        return 0 if view is None else self._links.lease_until_ms(view.leader_epoch)

    def misses_leader(self, leader_epoch: LeaderEpoch) -> bool:
        """Tell whether the leader of an epoch was reported here, and has sent no word since."""
        follower = self._replica.follower
        if follower is None or follower.leader_epoch != leader_epoch:
            return False
        return follower.misses_leader

    # ------------------------------------------------------------------ events, owner thread

    def view_changed(self, view: PartitionView | None) -> None:
        """Take a newer view; it waits while a log that begins anew waits for room."""
        if view is not None and not self._has_log():
            self._owner.later(_AGAIN_MS, lambda: self.view_changed(view))
            return
        if view is not None:
            self._take_lease(view)
        before = self._replica.role
        self._do(self._replica.step(ViewChanged(view, self._now_ms())))
        role = self._replica.role
        if "leader" in (before, role):
            self._links.lead_changed(leads=role == "leader")

    def message(self, message: ReplicaMessage) -> None:
        """Take a message of another replica; it comes again if there is no log now."""
        if not self._has_log():
            return
        self.refresh_lease()
        self._do(self._replica.step(MessageCame(message, self._now_ms())))

    def refresh_lease(self) -> None:
        """Take the broker's lease, if it has been extended."""
        if self._replica.view is not None:
            self._take_lease(self._replica.view)

    def _take_lease(self, view: PartitionView) -> None:
        # Before the lapses: see MemberBeats.take_lease.
        until_ms = self._links.lease_until_ms(view.leader_epoch)
        if until_ms > self._lease_until_ms:
            lapses, self._lapses = self._lapses, self._links.lease_lapses()
            self._lease_until_ms = until_ms
            granted = LeaseGranted(until_ms, self._now_ms(), unbroken=lapses == self._lapses)
            self._do(self._replica.step(granted))

    @property
    def due_ms(self) -> int | None:
        """When the next timer of the replication core ends; None if none runs."""
        return self._replica.due_ms

    @property
    def rests(self) -> bool:
        """Whether no timer of the replication core runs as long as nobody wakes the replica."""
        return self._replica.rests

    def end(self) -> None:
        """Let no fetch stand any more: the log has failed or is closed."""
        self._links.keep(self._owner, ())

    def tick(self) -> None:
        """Time has passed."""
        if not self._has_log():
            return
        self.refresh_lease()
        self._do(self._replica.step(TickElapsed(self._now_ms())))

    def appended(self) -> None:
        """Take note of written, unsynced publishes: followers may fetch them already."""
        self._do(self._replica.step(LogAppended(self._local.log.log_end)))

    def sync(self) -> None:
        """Sync the log and tell the replication core.

        Raises:
            NoRoomError, LogFailedError: see ``PartitionLog.sync``.
        """
        self._sync()
        self.written()

    def written(self) -> None:
        """Tell the replication core what is durable; a stream that syncs by interval says: all."""
        log = self._local.log
        end = log.log_end if self._interval else log.synced_end
        self._do(self._replica.step(LogSynced(end, self._now_ms())))

    # ------------------------------------------------------------------ effects

    def _facts(self) -> does.LogFacts:
        log = self._local.log
        return does.LogFacts(
            log_start=log.log_start,
            log_end=log.log_end,
            synced_end=log.log_end if self._interval else log.synced_end,
            epochs=log.epochs,
            sparse_end=self._local.sparse_end,
        )

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def _sync(self) -> None:
        self._local.log.sync()
        self.sync_count += 1
        self.synced_ms = self._now_ms()

    def _do(self, effects: Sequence[does.Effect]) -> None:
        # First the roll: a fetch that an effect answers must not be confirmed if the effect hangs.
        if (standing := tuple(self._replica.standing)) != self._standing:
            self._standing = standing
            self._links.keep(self._owner, standing)
        try:
            for effect in effects:
                self._do_one(effect)
        finally:
            self._shared = None

    def _do_one(self, effect: does.Effect) -> None:
        match effect:
            case does.AdvanceHighWatermark(end):
                self._committed.advance(end)
            case does.SendToReplica(to, message):
                self._links.send(to, message)
            case does.SendRecords():
                self._send_records(effect)
            case does.AppendStored(batches):
                self._append_stored(batches)
            case does.TruncateLog(end):
                self._truncate(end, self._replica.follower)
            case does.ResetLog(start, prefix):
                self._reset(start, prefix)
            case does.BeginLogAt(start, kept_end):
                self._begin_at(start, kept_end)
            case does.RefuseLeadership(log_end, floor):
                self._owner.fail(below_floor(self._name, log_end, floor))
            case does.ProposeIsr():
                self._propose_isr(effect)
            case does.ProposeLeadership(leader_epoch):
                self._confirm_leader(leader_epoch)
            case does.ReportLeader(_, leader_epoch):
                self._links.report_leader(leader_epoch)
            case does.StartLeading(leader_epoch):
                self._owner.begin_leading()
                _log.info("leading", partition=self._name, leader_epoch=leader_epoch)
            case does.StopLeading(leader_epoch):
                self._owner.end_leading()
                _log.info("not_leading", partition=self._name, leader_epoch=leader_epoch)
            case does.ReportLostRecords(end, committed):
                self._committed.lower(end)
                _log.error("records_lost", partition=self._name, start=end, end=committed)

    def _confirm_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Confirm with a synced log; while the disk has no room, the candidate asks again later."""
        if not self._local.is_there:
            return
        try:
            self._sync()
            self._local.refresh()
        except (NoRoomError, OverloadedError) as error:
            self._lacks(error)
            return
        log = self._local.log
        end = log.synced_end
        self._links.confirm_leader(leader_epoch, end, log.epochs.epoch_of(Offset(end - 1)))

    def _send_records(self, effect: does.SendRecords) -> None:
        try:
            answer = self._answer(effect)
        except CorruptDataError as error:
            self._owner.fail(error)
        except (NoRoomError, OverloadedError) as error:  # not now: the follower asks again
            _log.warning("records_not_sent", partition=self._name, reason=error.message)
        else:
            self._links.send(effect.to, answer)

    def _answer(self, effect: does.SendRecords) -> FetchAnswer:
        request = effect.request
        log_end = self._local.log.log_end
        try:
            batches = self._records_from(request.fetch_from, log_end)
        except OffsetOutOfRangeError:
            return self._below_start(request)
        return FetchAnswer(
            leader_epoch=request.leader_epoch,
            request_id=request.request_id,
            start=request.fetch_from,
            high_watermark=effect.high_watermark,
            log_end=log_end,
            batches=batches,
        )

    def _records_from(self, start: Offset, log_end: Offset) -> list[StoredBatch]:
        """Read batches from ``start``; followers that wait at the same offset share one read.

        Where a follower's log ends, a batch began when the follower got it. Key compaction may have
        joined that batch with its neighbours since.
        """
        if start >= log_end:
            return []
        if self._shared is None or self._shared[:2] != (start, log_end):
            batches = self._local.log.read(start, log_end, bytes_max=FETCH_BYTES_MAX)
            first = batches[0]
            if first.header.base_offset < start and first.header.sparse:
                batches[0] = StoredBatch(*from_offset(first.header, first.body, start))
            self._shared = (start, log_end, batches)
        return self._shared[2]

    def _below_start(self, request: FetchRequest) -> FetchAnswer:
        """Tell a follower to begin at this log's start: the records it lacks are in the table."""
        log = self._local.log
        start = log.log_start
        epochs = log.epochs.truncated(start).starts
        return FetchAnswer(
            leader_epoch=request.leader_epoch,
            request_id=request.request_id,
            start=start,
            high_watermark=self._committed.end,
            log_end=log.log_end,
            refusal="below_start",
            prefix=LogPrefix(
                epochs=tuple((one.leader_epoch, one.start_offset) for one in epochs),
                producers=self._local.producers_before(start),
            ),
        )

    def _has_log(self) -> bool:
        """Tell whether there is a log. One that waits for room is begun as soon as there is."""
        if self._local.is_there:
            return True
        try:
            self._local.begin_waiting()
        except NoRoomError as error:
            self._room.lacks(error, follows=True)
            return False
        self._room.found()
        self._do(self._replica.step(LogTruncated(self._now_ms())))
        return True

    def _lacks(self, error: HeadwaterError, wanted_bytes: int = 0) -> None:
        """Take note that the log of a follower or candidate lacks room, or memory, now."""
        if isinstance(error, NoRoomError):
            self._room.lacks(error, wanted_bytes, follows=True)
        else:
            _log.warning("no_memory", partition=self._name, reason=error.message)

    def _replace(self, start: Offset, prefix: LogPrefix) -> None:
        """Replace the log by an empty one, and report it; see :meth:`_has_log` if it waits."""
        try:
            self._local.replace(start, prefix)
        except NoRoomError as error:
            _log.warning("new_log_waits", partition=self._name, reason=error.message)
            self._room.lacks(error, follows=True)
            return
        self._do(self._replica.step(LogTruncated(self._now_ms())))

    def _reset(self, start: Offset, prefix: LogPrefix) -> None:
        """Replace the log of a follower by an empty one."""
        _log.warning(
            "log_begins_anew", partition=self._name, log_end=self._local.log.log_end, start=start
        )
        self._committed.lower(start)
        self._replace(start, prefix)

    def _begin_at(self, start: Offset, kept_end: Offset) -> None:
        """Replace the log by an empty one at the cold end, after an unclean election."""
        try:
            producers = self._local.producers_before(kept_end)
        except (NoRoomError, OverloadedError) as error:  # the candidate asks again later
            self._lacks(error)
            return
        _log.warning(
            "log_begins_at_cold_end",
            partition=self._name,
            log_end=self._local.log_end,
            start=start,
        )
        self._replace(start, LogPrefix(epochs=(), producers=producers))

    def _append_stored(self, batches: Sequence[StoredBatch]) -> None:
        """Write fetched batches in runs, so that a torn tail never looks like rot; then sync.

        A follower that is far behind writes them whole, into a log that says so.
        """
        first, log = 0, self._local.log
        runs = [len(run) for run in append_runs([one.header for one in batches], log.synced_end)]
        try:
            if is_copying(len(runs), before=log.copying):
                log.begin_copying()
                runs = [len(batches)]
            else:
                log.end_copying()
            for count in runs:
                if first:
                    self._sync()
                self._local.copy(batches[first : first + count])
                first += count
            self._sync()
        except (NoRoomError, OverloadedError) as error:  # a part may be there, also durably
            self._lacks(error, sum(one.header.size for one in batches))
            self._do(self._replica.step(AppendRefused(self._now_ms())))
            return
        self._room.found()
        self.written()

    def _truncate(self, end: Offset, follower: PartitionFollower | None) -> None:
        """Truncate the log; if there is no room or no descriptor now, try again later."""
        if follower is not self._replica.follower or self._replica.leader is not None:
            return  # whoever has taken over aligns the log itself, or writes to it
        if not self._local.is_there:
            return  # the log is replaced meanwhile
        log_end = self._local.log.log_end
        # Segments may have been freed while this truncation waited for room.
        end = max(end, self._local.log.log_start)
        try:
            if (cut := batch_start(self._local.log, end)) < end:
                self._committed.lower(cut)
                end = cut
            self._local.truncate(end)
        except (NoRoomError, OverloadedError) as error:
            _log.warning("truncation_waits", partition=self._name, reason=error.message)
            if follower is not None:  # a candidate confirms again soon, and cuts then
                self._owner.later(_AGAIN_MS, lambda: self._truncate(end, follower))
            return
        if end < log_end:
            _log.info("log_truncated", partition=self._name, start=end, end=log_end)
        self._do(self._replica.step(LogTruncated(self._now_ms())))

    def _propose_isr(self, wanted: does.ProposeIsr) -> None:
        def take(accepted: bool) -> None:
            epoch, now_ms = wanted.partition_epoch, self._now_ms()
            self._do(self._replica.step(IsrAnswered(epoch, accepted, now_ms)))

        self._links.propose_isr(
            wanted, lambda accepted: self._owner.later(0, partial(take, accepted))
        )


def not_leader(partition: str, view: PartitionView | None) -> NotLeaderError:
    """Return the error that names the leader to the client."""
    leader = None if view is None else view.leader
    where = f"broker {leader} does" if leader is not None else "no broker leads it now, try again"
    return NotLeaderError(
        f"this broker does not lead {partition}; {where}", partition=partition, leader=leader
    )
