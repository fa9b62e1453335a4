"""One replica of a partition in any role: the state machine that a shell drives.

The machine derives the replica's role from views of the metadata, and has at most one leader or
follower at a time. Their messages carry this process's broker epoch. The shell owns the log: it
performs the effects in order, and reports when the log has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from broker.core.events import TickElapsed
from broker.core.replication.effects import (
    AdvanceHighWatermark,
    BeginLogAt,
    Effect,
    LogFacts,
    ProposeLeadership,
    RefuseLeadership,
    ReportLostRecords,
    SendToReplica,
    StartLeading,
    StopLeading,
    TruncateLog,
)
from broker.core.replication.events import (
    AppendRefused,
    IsrAnswered,
    LeaderEvent,
    LeaseGranted,
    LogAppended,
    LogSynced,
    LogTruncated,
    MessageCame,
    ReplicaEvent,
    RequestCame,
    ViewChanged,
)
from broker.core.replication.follower import FollowerTiming, PartitionFollower
from broker.core.replication.isr import LagLimits
from broker.core.replication.leader import PartitionLeader
from broker.core.replication.standing import StandingFetch
from broker.core.replication.view import PartitionView, Role
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.lineage import undisputed_end
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    ReplicaMessage,
)

_NEW_PATIENCE = 2  # a new partition's follower waits as long as after this many mute leaders
_CONFIRM_MS = 300  # a candidate confirms again after this


def first_request_id(broker_epoch: BrokerEpoch) -> int:
    """Return the first request id of a process.

    The processes of a broker have different request ids. A late answer to a former process, in the
    same leader epoch, describes a log that the crash may have cut. So it must not be taken for an
    answer to this process.
    """
    return (broker_epoch << 32) + 1


class PartitionReplica:
    """A replica in its present role. One owner drives it, one event at a time.

    ``facts`` reads the state of the log; it must not block.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        broker_epoch: BrokerEpoch,
        facts: Callable[[], LogFacts],
        lease_until_ms: int,
        limits: LagLimits | None = None,
        timing: FollowerTiming | None = None,
        known_high_watermark: Offset | None = None,
    ) -> None:
        """Start without a role, with an open, healthy log that is synced to its end.

        ``known_high_watermark`` must be about the records of this log. The cold end must not be
        passed: until this log is aligned, the table may hold other records at the same offsets.
        """
        self._me = me
        self._broker_epoch = broker_epoch
        self._facts = facts
        self._limits = limits or LagLimits()
        self._timing = timing or FollowerTiming()
        self._lease_until_ms = lease_until_ms
        self._known = known_high_watermark or Offset(0)
        self._request_id = first_request_id(broker_epoch)
        self._confirmed_ms: int | None = None
        self._mute_leaders = 0  # leaders in a row that never sent this replica a message
        self.view: PartitionView | None = None
        self.role: Role = "none"
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None

    @property
    def high_watermark(self) -> Offset:
        """The first offset that is not committed, as far as this replica knows."""
        active = self.leader or self.follower
        return self._known if active is None else active.high_watermark

    @property
    def standing(self) -> Collection[StandingFetch]:
        """The fetches that stand: this replica's own one, or its followers'."""
        if self.leader is not None:
            return self.leader.standing.values()
        own = None if self.follower is None else self.follower.standing
        return () if own is None else (own,)

    @property
    def rests(self) -> bool:
        """Whether time alone changes nothing while roll calls confirm all standing fetches."""
        if self.leader is not None:
            return self.leader.rests
        return self.follower is not None and self.follower.standing is not None

    def step(self, event: ReplicaEvent) -> list[Effect]:
        """Take one event; return the effects, which the shell performs in this order."""
        match event:
            case MessageCame(message, now_ms):
                return self._take_message(message, now_ms)
            case LogSynced() if self.follower is not None:
                return self.follower.step(event)
            case LogAppended() | LogSynced() | IsrAnswered():
                return self._lead(event)
            case TickElapsed(now_ms):
                return self._tick(event, now_ms)
            case LeaseGranted(until_ms):
                self._lease_until_ms = max(self._lease_until_ms, until_ms)
                return self._lead(event)
            case ViewChanged(view, now_ms):
                return self._take_view(view, now_ms)
            case LogTruncated(now_ms) if self.role == "candidate":
                return self._confirm_changed(now_ms)
            case LogTruncated() | AppendRefused():
                return [] if self.follower is None else self.follower.step(event)

    # ------------------------------------------------------------------ metadata

    def _take_view(self, view: PartitionView | None, now_ms: int) -> list[Effect]:
        if view is None:
            self.view = None
            return self._leave_role("none")
        if view.broker_epochs.get(self._me) != self._broker_epoch:
            # The view is older than this process's registration: it may describe a former process,
            # whose leader epoch this process must not continue. Or the view is newer: another
            # process of this broker has registered.
            return self._leave_role("none") if self.view is not None else []
        old = self.view
        if old is not None and view.partition_epoch < old.partition_epoch:
            return []  # views may come out of order; the partition epoch orders them
        self.view = view
        role = view.role_of(self._me)
        same = old is not None and old.leader_epoch == view.leader_epoch and role == self.role
        if same:
            if self.leader is not None:
                return self._lead(ViewChanged(view, now_ms))
            return []
        return [*self._leave_role(role), *self._take_role(view, now_ms)]

    def _leave_role(self, role: Role) -> list[Effect]:
        effects: list[Effect] = []
        self._known = self.high_watermark
        if self.leader is not None:
            effects.append(StopLeading(self.leader.leader_epoch))
        if self.follower is not None:
            self._request_id = self.follower.next_request_id
            self._mute_leaders = 0 if self.follower.has_heard else self._mute_leaders + 1
        self.leader = self.follower = None
        self._confirmed_ms = None
        self.role = role
        return effects

    def _take_role(self, view: PartitionView, now_ms: int) -> list[Effect]:
        facts = self._facts()
        if self.role == "leader":
            assert facts.synced_end == facts.log_end, "a leader must begin with a synced log"
            self.leader = PartitionLeader(
                self._me,
                view.leader_epoch,
                facts.synced_end,
                view=view,
                epochs=facts.epochs,
                known_high_watermark=max(self._known, view.floor),
                limits=self._limits,
                lease_until_ms=self._lease_until_ms,
                now_ms=now_ms,
                sparse_end=lambda: self._facts().sparse_end,
            )
            known = self.leader.high_watermark
            return [
                StartLeading(view.leader_epoch),
                *([AdvanceHighWatermark(known)] if known > self._known else []),
                *self._lead(LogSynced(facts.synced_end, now_ms)),
            ]
        if self.role == "candidate":
            return self._confirm(view, now_ms)
        if self.role == "follower":
            assert view.leader is not None, "a follower needs a leader"
            self.follower = PartitionFollower(
                me=self._me,
                broker_epoch=self._broker_epoch,
                leader=view.leader,
                leader_epoch=view.leader_epoch,
                facts=self._facts,
                high_watermark=self._known,
                now_ms=now_ms,
                timing=self._timing,
                mute_leaders=self._patience(view),
                first_request_id=self._request_id,
            )
            return self.follower.start(now_ms)
        return []

    def _patience(self, view: PartitionView) -> int:
        """Return for how many mute leaders the follower's patience is set.

        A new partition gets more patience: a stream may have a thousand partitions, whose replicas
        all open their logs at the same time.
        """
        return max(self._mute_leaders, _NEW_PATIENCE if view.leader_epoch == 1 else 0)

    def _confirm(self, view: PartitionView, now_ms: int) -> list[Effect]:
        """Confirm that this replica is ready to lead. Its log must not end below the view's floor.

        A leader whose log ends there would give offsets of the table, or of purged records, to
        other records. After an unclean election, the log begins anew at the floor. In any other
        election each candidate had synced all committed records, so this log has lost records.
        """
        self._confirmed_ms = now_ms
        facts = self._facts()
        if view.is_unclean:
            return self._confirm_unclean(view, facts)
        if facts.log_end >= view.floor:
            return [ProposeLeadership(view.leader_epoch)]
        return [RefuseLeadership(facts.log_end, view.floor)]

    def _confirm_unclean(self, view: PartitionView, facts: LogFacts) -> list[Effect]:
        """Confirm with the part of the log that may be the partition's, not below the floor.

        This replica may have led, and stored records that its successor did not get. The successor
        committed others at their offsets, which may be in the table, or with readers. So only a
        log without these records leads: it ends where the successor began.
        """
        end = undisputed_end(view.lineage, facts.epochs, start=facts.log_start, end=facts.log_end)
        effects: list[Effect] = []
        if end < self._known:  # an earlier operator had given up what this log shows
            effects.append(ReportLostRecords(end, self._known))
            self._known = end
        if end < view.floor:
            return [*effects, BeginLogAt(view.floor, kept_end=end)]
        if end < facts.log_end:
            return [*effects, TruncateLog(end)]
        return [*effects, ProposeLeadership(view.leader_epoch)]

    def _confirm_changed(self, now_ms: int) -> list[Effect]:
        """Confirm with the log that was cut, or that begins at the floor; it may wait for room.

        The records below its start are committed: they are in the table, or were purged. Earlier
        the old log was there, whose records at these offsets may be others.
        """
        assert self.view is not None, "a candidate has a view"
        self._known = max(self._known, self._facts().log_start)
        effects = self._confirm(self.view, now_ms)
        return [AdvanceHighWatermark(self._known), *effects]

    # ------------------------------------------------------------------ peers, time

    def _take_message(self, message: ReplicaMessage, now_ms: int) -> list[Effect]:
        if isinstance(message, FetchRequest | EpochEndRequest):
            if self.leader is not None:
                return self._lead(RequestCame(message, now_ms))
            return [SendToReplica(message.follower, not_leader(message))]
        if self.follower is None:
            return []
        return self.follower.step(MessageCame(message, now_ms))

    @property
    def due_ms(self) -> int | None:
        """When a tick has work that cannot wait for the next regular tick; None if never."""
        if self.follower is not None:
            return self.follower.due_ms
        if self._confirmed_ms is not None:
            return self._confirmed_ms + _CONFIRM_MS
        return None if self.leader is None else self.leader.due_ms

    def _tick(self, tick: TickElapsed, now_ms: int) -> list[Effect]:
        """Handle the passing of time: the timers of the present role."""
        if self.follower is not None:
            return self.follower.step(tick)
        if self._confirmed_ms is not None and now_ms - self._confirmed_ms >= _CONFIRM_MS:
            assert self.view is not None, "a candidate has a view"
            return self._confirm(self.view, now_ms)
        return self._lead(tick)

    def _lead(self, event: LeaderEvent) -> list[Effect]:
        return [] if self.leader is None else list[Any](self.leader.step(event))


def not_leader(request: FetchRequest | EpochEndRequest) -> ReplicaMessage:
    """Refuse a request. The refusal has the request's epoch, so that its sender accepts it."""
    if isinstance(request, EpochEndRequest):
        return EpochEndAnswer(
            leader_epoch=request.leader_epoch,
            request_id=request.request_id,
            epoch=request.epoch,
            refusal="not_leader",
        )
    return FetchAnswer(
        leader_epoch=request.leader_epoch,
        request_id=request.request_id,
        start=request.fetch_from,
        high_watermark=Offset(0),
        log_end=Offset(0),
        refusal="not_leader",
    )
