"""The leader of one partition: it takes log ends and decides what is committed. No I/O.

Records are committed when the high watermark passes them. The high watermark is the lowest synced
end of all members of the ISR *and* of every proposed ISR that is not settled yet (KIP-497's maximal
ISR). Only synced ends that were reported in this leader epoch count. The high watermark moves only
while the ISR has its minimum (KIP-966) and the leader's lease holds. For a broker alone, the ISR is
this broker.

The file is not split: it is one class, which says why it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from broker.core.events import TickElapsed
from broker.core.replication.copies import FollowerCopies
from broker.core.replication.effects import (
    NO_PREFIX,
    AdvanceHighWatermark,
    ProposeIsr,
    SendRecords,
    SendToReplica,
)
from broker.core.replication.events import (
    IsrAnswered,
    LeaderEvent,
    LeaseGranted,
    LogAppended,
    LogSynced,
    RequestCame,
    ViewChanged,
)
from broker.core.replication.isr import FollowerProgress, LagLimits, high_watermark
from broker.core.replication.standing import StandingFetch
from broker.core.replication.view import PartitionView
from broker.errors import HeadwaterError, NotEnoughReplicasError, NotLeaderError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    NewDataNotice,
    Refusal,
)

_PROPOSAL_MS: Final = 1_000  # an ISR proposal without an answer is made again after this


LeaderEffect = AdvanceHighWatermark | SendToReplica | SendRecords | ProposeIsr


class PartitionLeader:
    """Decides the high watermark and the ISR of a partition that this broker leads.

    The class is not split: one fetch may move the high watermark, the ISR, and what is parked.
    """

    def __init__(
        self,
        me: BrokerId,
        leader_epoch: LeaderEpoch,
        synced_end: Offset,
        *,
        view: PartitionView | None = None,
        epochs: EpochHistory | None = None,
        known_high_watermark: Offset | None = None,
        limits: LagLimits | None = None,
        lease_until_ms: int | None = None,
        now_ms: int = 0,
        sparse_end: Callable[[], Offset] = lambda: Offset(0),
    ) -> None:
        """Start leading at ``leader_epoch`` with a log that is synced to its end ``synced_end``.

        Without ``view`` this broker is alone. ``known_high_watermark`` is the high watermark that
        this replica knew as a follower; the former leader may have shown a higher one to readers.
        With ``lease_until_ms`` None no lease is needed. ``sparse_end``: see ``FollowerCopies``.
        """
        self._me = me
        self.leader_epoch = leader_epoch
        self.epoch_start = synced_end
        self._limits = limits or LagLimits()
        self._lease_until_ms = lease_until_ms
        self._doubted_end: Offset | None = None  # log end when the lease was renewed after a lapse
        self._now_ms = self._tick_ms = now_ms
        self._log_end = self._synced_end = synced_end
        history = epochs or EpochHistory()
        self._epochs = (
            history if leader_epoch <= history.latest else history.begun(leader_epoch, synced_end)
        )
        self._view = view
        self.isr = frozenset({me}) if view is None else view.isr
        self._min_isr = 1 if view is None else view.min_isr
        # All members of ISRs that were proposed in the present partition epoch.
        self._proposed: frozenset[BrokerId] = frozenset()
        self._proposed_ms: int | None = None  # when the last proposal was made, if unanswered
        self._followers: dict[BrokerId, FollowerProgress] = {}
        self.copies = FollowerCopies(sparse_end)
        self._parked: dict[BrokerId, tuple[FetchRequest, int]] = {}  # a fetch and its deadline
        self._waiting: set[BrokerId] = set()  # followers to notify of new records
        # Which of the parked fetches stand. Replaced, never changed in place.
        self.standing: Mapping[BrokerId, StandingFetch] = {}
        for follower in sorted(self.isr - {me}):
            self._followers[follower] = FollowerProgress(
                self._epoch_of(follower), caught_up_ms=now_ms
            )
        if view is None:
            self.high_watermark = high_watermark({me: synced_end}, self.isr)
        else:
            self.high_watermark = min(known_high_watermark or Offset(0), synced_end)

    # ------------------------------------------------------------------ facts for the shell

    def is_fenced(self, now_ms: int) -> bool:
        """Tell whether the lease has expired: then no record is committed or acknowledged.

        Read the clock after the fsync and immediately before an ack is sent: the process may be
        suspended for seconds between any two instructions.
        """
        return self._lease_until_ms is not None and now_ms >= self._lease_until_ms

    @property
    def synced_end(self) -> Offset:
        """The leader's own synced end."""
        return self._synced_end

    @property
    def leader_ack_end(self) -> Offset:
        """End of the records that may be acked under LEADER: the leader's own synced end.

        While the lease had lapsed another leader may have been elected, and the new lease may come
        before the view of that election. So after a lapse only committed records are acked, until a
        record that was written after the lapse is committed: that shows that the followers still
        follow this leader.
        """
        return self.high_watermark if self.is_doubted else self._synced_end

    @property
    def is_doubted(self) -> bool:
        """Whether another leader may have been elected since the lease lapsed."""
        doubted = self._doubted_end
        return doubted is not None and self.high_watermark <= doubted

    @property
    def newest_committed(self) -> Offset | None:
        """The high watermark, or None while an earlier leader may have shown a higher one.

        Source: KIP-207. Meanwhile a reader that asks for the newest offset must ask again.
        """
        return self.high_watermark if self.high_watermark >= self.epoch_start else None

    def progress(self) -> Mapping[BrokerId, FollowerProgress]:
        """Return the progress of each follower that is a replica now, for operators. Any thread."""
        followers, view = dict(self._followers), self._view
        if view is None:
            return followers
        return {one: found for one, found in followers.items() if one in view.replicas}

    def copied_end(self, now_ms: int) -> Offset:
        """Return above which offset followers still copy: key compaction waits. Any thread."""
        view = self._view
        return self.copies.floor(() if view is None else view.replicas, now_ms)

    @property
    def due_ms(self) -> int | None:
        """When the first parked fetch must be answered; None while no fetch is parked."""
        return min((deadline_ms for _, deadline_ms in self._parked.values()), default=None)

    @property
    def rests(self) -> bool:
        """Whether time alone changes nothing as long as roll calls confirm the standing fetches."""
        return (
            self._proposed_ms is None
            and self.isr - {self._me} <= self.standing.keys()
            and self._proposed <= self.isr
            and not self._forgotten()
        )

    def refusal(self, policy: AckPolicy, now_ms: int) -> HeadwaterError | None:
        """Return why a publish with this ack policy must be refused now, or None."""
        if self.is_fenced(now_ms):
            return NotLeaderError(
                "this broker's lease has expired, so another broker may lead by now"
            )
        if policy is AckPolicy.ALL and len(self.isr) < self._min_isr:
            return NotEnoughReplicasError(
                f"{len(self.isr)} replicas are in sync; ack policy ALL needs {self._min_isr}",
                isr=sorted(self.isr),
                min_isr=self._min_isr,
            )
        return None

    # ------------------------------------------------------------------ events

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Take one event; return the effects, which the shell performs in this order."""
        match event:
            case LogSynced(synced_end, now_ms):
                assert synced_end >= self._synced_end, "a synced log never shrinks"
                self._now_ms = max(self._now_ms, now_ms)
                self._synced_end = synced_end
                return [*self._appended(max(self._log_end, synced_end)), *self._advance()]
            case LogAppended(log_end):
                return list(self._appended(log_end))
            case RequestCame(request, now_ms):
                self._now_ms = max(self._now_ms, now_ms)
                return list(self._answer(request))
            case ViewChanged(view, now_ms):
                assert view is not None, "a partition that is gone has no leader"
                self._now_ms = max(self._now_ms, now_ms)
                return list(self._take_view(view))
            case IsrAnswered(partition_epoch, accepted, now_ms):
                self._now_ms = max(self._now_ms, now_ms)
                current = self._view is not None and partition_epoch == self._view.partition_epoch
                if current and not accepted:
                    self._proposed_ms = None  # the proposed members still count: see _proposed
                return []
            case LeaseGranted(until_ms, now_ms, unbroken):
                self._now_ms = max(self._now_ms, now_ms)
                before_ms = self._lease_until_ms
                if before_ms is not None and until_ms > before_ms:
                    if now_ms >= before_ms and not unbroken:
                        self._doubted_end = self._log_end
                    self._lease_until_ms = until_ms
                return list(self._advance())
            case TickElapsed(now_ms):
                return list(self._tick(now_ms))

    # ------------------------------------------------------------------ committing

    def _advance(self) -> Iterator[LeaderEffect]:
        if self.is_fenced(self._now_ms) or len(self.isr) < self._min_isr:
            return
        ends = {self._me: self._synced_end}
        for follower in (self.isr | self._proposed) - {self._me}:
            progress = self._followers.get(follower)
            if progress is None or progress.synced_end is None:
                return  # this follower has not fetched in this epoch
            ends[follower] = progress.synced_end
        committed = high_watermark(ends, ends.keys())
        if committed > self.high_watermark:
            self.high_watermark = committed  # it never goes back
            yield AdvanceHighWatermark(committed)

    def _appended(self, log_end: Offset) -> Iterator[LeaderEffect]:
        """Answer parked fetches, and notify followers whose last fetch got no records."""
        if log_end <= self._log_end:
            return
        self._log_end = log_end
        for follower in sorted(self._parked):
            yield self._answer_parked(follower)
        for follower in sorted(self._waiting):
            yield SendToReplica(follower, NewDataNotice(leader_epoch=self.leader_epoch))
        self._waiting.clear()

    # ------------------------------------------------------------------ followers

    def _answer(self, request: FetchRequest | EpochEndRequest) -> Iterator[LeaderEffect]:
        refusal = self._refusal_of(request)
        if isinstance(request, EpochEndRequest):
            yield SendToReplica(request.follower, self._epoch_end(request, refusal))
            return
        refusal = refusal or self._divergence_of(request)
        if refusal is not None:
            yield SendToReplica(request.follower, self._refused_fetch(request, refusal))
            return
        follower = request.follower
        progress = self._followers.get(follower)
        if progress is None or progress.broker_epoch < request.broker_epoch:
            # A new process of the follower: its progress starts from zero. If its log ends below
            # the synced end of the former process (``owed_end``), the disk has lost records.
            if progress is None:
                progress = FollowerProgress(request.broker_epoch, caught_up_ms=self._now_ms)
            else:
                progress = progress.succeeded_by(request.broker_epoch)
            self._followers[follower] = progress
        progress.heard(request.synced_end, self._log_end, self._now_ms)
        self.copies.fetched(request, log_end=self._log_end, now_ms=self._now_ms)
        yield from self._advance()
        if self._proved_epoch(follower):
            progress.owed_end = Offset(0)  # a later message with a lower end is late, not a loss
        yield from self._propose_member(follower, progress)
        self._waiting.discard(follower)
        self._take_parked(follower)
        waits = request.wait_ms > 0 and (not request.stands or self._may_stand(follower))
        if request.fetch_from == self._log_end and waits:
            self._park(request)
            return
        if request.fetch_from == self._log_end:
            self._waiting.add(follower)
        yield self._records_for(request)

    def _records_for(self, request: FetchRequest) -> SendRecords | SendToReplica:
        """Send records; or have a follower begin anew that would miss tombstones in this log.

        Replicas that count for commits or elections are never told to: they have all committed
        records, and only those below the high watermark are compacted.
        """
        follower, view = request.follower, self._view
        counts = follower in self.isr or follower in self._proposed
        if view is not None:
            counts = counts or follower in view.eligible
        if counts or not self.copies.lacks_tombstones(request):
            return SendRecords(follower, request, self.high_watermark)
        answer = self._refused_fetch(request, "below_start")
        return SendToReplica(follower, replace(answer, start=Offset(0), prefix=NO_PREFIX))

    # ------------------------------------------------------------------ parked and standing fetches

    def _park(self, request: FetchRequest) -> None:
        self._parked[request.follower] = (request, self._now_ms + request.wait_ms)
        if request.stands:
            fetch = StandingFetch(
                peer=request.follower,
                is_own=False,
                leader_epoch=request.leader_epoch,
                request_id=request.request_id,
                known_ms=self._now_ms,
            )
            self.standing = {**self.standing, request.follower: fetch}

    def _take_parked(self, follower: BrokerId) -> FetchRequest | None:
        """Take a parked fetch away; its follower was caught up while it stood."""
        request, _ = self._parked.pop(follower, (None, 0))
        fetch = self.standing.get(follower)
        if fetch is not None:
            self._note_known(fetch)
            self.standing = {one: kept for one, kept in self.standing.items() if one != follower}
        return request

    def _answer_parked(self, follower: BrokerId) -> SendRecords | SendToReplica:
        request = self._take_parked(follower)
        assert request is not None, "only a parked fetch is answered late"
        return self._records_for(request)

    def _note_known(self, fetch: StandingFetch) -> None:
        """Count the time in which roll calls confirmed a fetch as caught up, and as ticks."""
        progress = self._followers[fetch.peer]
        progress.caught_up_ms = max(progress.caught_up_ms, fetch.known_ms)
        self._tick_ms = max(self._tick_ms, fetch.known_ms)

    def _is_unconfirmed(self, follower: BrokerId, now_ms: int) -> bool:
        fetch = self.standing.get(follower)
        return fetch is not None and now_ms - fetch.known_ms >= self._limits.kept_ms

    def _may_stand(self, follower: BrokerId) -> bool:
        """Tell whether the leader needs no other fetch of this follower before records come."""
        progress, view = self._followers[follower], self._view
        return (
            view is not None
            and follower in self.isr
            and follower not in view.restarted
            and not progress.owed_end
            and progress.synced_end == self._log_end
        )

    def _refusal_of(self, request: FetchRequest | EpochEndRequest) -> Refusal | None:
        """Compare epochs: the follower's may be older or newer than the leader's."""
        if request.leader_epoch < self.leader_epoch:
            return "fenced_epoch"
        if request.leader_epoch > self.leader_epoch:
            return "unknown_epoch"
        known = self._followers.get(request.follower)
        newest = max(self._epoch_of(request.follower), 0 if known is None else known.broker_epoch)
        return "fenced_broker" if request.broker_epoch < newest else None

    def _divergence_of(self, request: FetchRequest) -> Refusal | None:
        """Refuse to extend a log that is not a prefix of this log."""
        at = request.fetch_from
        if at > self._log_end or request.synced_end > at:
            return "diverged"
        # A log that began anew, or whose epochs were read from its segments, knows no epoch below
        # its start. Such a follower has aligned before, and gets the records from the start on.
        known = self._epochs.epoch_of(Offset(at - 1)) if at > 0 else LeaderEpoch(0)
        return "diverged" if known and known != request.last_epoch else None

    def _refused_fetch(self, request: FetchRequest, refusal: Refusal) -> FetchAnswer:
        return FetchAnswer(
            leader_epoch=self.leader_epoch,
            request_id=request.request_id,
            start=request.fetch_from,
            high_watermark=self.high_watermark,
            log_end=self._log_end,
            refusal=refusal,
        )

    def _epoch_end(self, request: EpochEndRequest, refusal: Refusal | None) -> EpochEndAnswer:
        known, end = self._epochs.end_of(request.epoch, self._log_end)
        return EpochEndAnswer(
            leader_epoch=self.leader_epoch,
            request_id=request.request_id,
            epoch=request.epoch,
            known_epoch=known,
            end=end,
            refusal=refusal,
        )

    def _epoch_of(self, broker: BrokerId) -> BrokerEpoch:
        view = self._view
        return BrokerEpoch(0 if view is None else view.broker_epochs.get(broker, 0))

    # ------------------------------------------------------------------ the ISR

    def _take_view(self, view: PartitionView) -> Iterator[LeaderEffect]:
        """Take a newer view of the metadata; an older view is ignored."""
        assert view.leader_epoch == self.leader_epoch, "another epoch needs a new PartitionLeader"
        assert self._view is not None, "a broker alone has no view"
        if view.partition_epoch > self._view.partition_epoch:
            self._proposed = frozenset()
            self._proposed_ms = None
            for joined in sorted(view.isr - self.isr - {self._me}):
                if joined not in self._followers:
                    self._followers[joined] = FollowerProgress(
                        BrokerEpoch(0), caught_up_ms=self._now_ms
                    )
            self.isr, self._min_isr = view.isr, view.min_isr
        if view.partition_epoch >= self._view.partition_epoch:
            self._view = view
        yield from self._advance()
        for follower in sorted(self.standing):
            if not self._may_stand(follower):
                yield self._answer_parked(follower)

    def _propose_member(
        self, follower: BrokerId, progress: FollowerProgress
    ) -> Iterator[LeaderEffect]:
        """Propose the ISR that follows from a fetch.

        The follower may have lost records, may have shown that it has all, or may join.
        """
        view = self._view
        if view is None or self._proposed_ms is not None:
            return
        if progress.owed_end and follower in self._forgotten():
            yield self._propose(self.isr)
            return
        if follower in self.isr:
            if follower in view.restarted and self._proved_epoch(follower):
                yield self._propose(self.isr)
            return
        current = view.broker_epochs.get(follower) == progress.broker_epoch
        if (follower in view.joinable and current) and progress.may_join(
            self._limits,
            high_watermark=self.high_watermark,
            epoch_start=self.epoch_start,
            log_end=self._log_end,
            now_ms=self._now_ms,
        ):
            yield self._propose(self.isr | {follower})

    def _propose(self, isr: frozenset[BrokerId]) -> ProposeIsr:
        """Propose an ISR.

        All members that were proposed in this partition epoch count for the high watermark until
        the epoch ends: a proposal without an answer may still be accepted.
        """
        assert self._view is not None, "a broker alone proposes nothing"
        forgotten = self._forgotten()
        isr -= forgotten
        self._proposed |= isr
        self._proposed_ms = self._now_ms
        epochs = {one: self._proved_epoch(one) for one in sorted(isr)}
        epochs[self._me] = self._epoch_of(self._me)
        return ProposeIsr(
            isr=epochs,
            leader_epoch=self.leader_epoch,
            partition_epoch=self._view.partition_epoch,
            forgotten=tuple(sorted(forgotten)),
        )

    def _proved_epoch(self, follower: BrokerId) -> BrokerEpoch:
        """Return the broker epoch of a follower's process that has all committed records, or 0.

        A replica needs such a process to join the ISR. Its epoch also ends the state "restarted".
        """
        progress = self._followers.get(follower)
        if progress is None or not progress.has_everything(
            high_watermark=self.high_watermark, epoch_start=self.epoch_start
        ):
            return BrokerEpoch(0)
        return progress.broker_epoch

    def _forgotten(self) -> frozenset[BrokerId]:
        """Return the members whose disks have lost committed records that this leader had counted.

        They leave the ISR and do not become eligible. They may join again when they have all
        committed records.
        """
        view = self._view
        if view is None:
            return frozenset()
        return frozenset(
            one
            for one in self.isr | view.eligible
            if one in self._followers
            and self._followers[one].has_forgotten(
                high_watermark=self.high_watermark, epoch_start=self.epoch_start
            )
        )

    def _tick(self, now_ms: int) -> Iterator[LeaderEffect]:
        for fetch in self.standing.values():
            self._note_known(fetch)
        gap_ms = now_ms - self._tick_ms
        self._now_ms, self._tick_ms = max(self._now_ms, now_ms), now_ms
        for follower, (_, deadline_ms) in sorted(self._parked.items()):
            if now_ms >= deadline_ms or self._is_unconfirmed(follower, now_ms):
                yield self._answer_parked(follower)
        if self._view is None:
            return
        if gap_ms > self._limits.time_ms_max // 2:
            # This broker was suspended, not its followers: do not count this time against them.
            for progress in self._followers.values():
                progress.caught_up_ms = min(progress.caught_up_ms + gap_ms, now_ms)
        if self._proposed_ms is not None and now_ms - self._proposed_ms < _PROPOSAL_MS:
            return
        self._proposed_ms = None  # the proposal or its answer was lost: propose again
        lagging = {
            follower
            for follower in self.isr - {self._me}
            if self._followers[follower].is_lagging(self._limits, self._log_end, now_ms)
        }
        doubtful = self._proposed - self.isr  # of an unanswered proposal: a new one settles it
        if lagging or doubtful or self._forgotten():
            yield self._propose(self.isr - lagging)
