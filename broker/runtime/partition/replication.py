"""The role of a replica: views of the metadata, messages of other replicas, and timers.

Views and messages come on any thread and wait for the owner's turn. The ``ReplicaShell`` takes them
there; a damaged log has no shell, and its replica has no role.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core.replication.leader import PartitionLeader
from broker.core.replication.view import PartitionView, Role
from broker.errors import HeadwaterError, NotLeaderError
from broker.model.epochs import LeaderEpoch
from broker.model.lineage import Lineage, undisputed_end
from broker.model.offsets import Offset
from broker.model.replica_messages import ReplicaMessage, size_of
from broker.runtime.partition.commits import Commits
from broker.runtime.partition.committed import CommittedEnd
from broker.runtime.partition.context import PartitionContext
from broker.runtime.partition.id_recovery import IdRecovery
from broker.runtime.partition.leadership_gate import Gatekeeper
from broker.runtime.partition.queue import Deferred, Newest, OwnerCall
from broker.runtime.partition.replica_shell import (
    NEVER_MS,
    ReplicaIdentity,
    ReplicaLinks,
    ReplicaShell,
)


class Replication:
    """Implements ``ReplicaOwner``. Owner: the partition's turns, unless a method says otherwise.

    The class is not split: what other threads read here, and what turns do, is one replica's state.
    """

    def __init__(
        self,
        context: PartitionContext,
        identity: ReplicaIdentity,
        *,
        links: ReplicaLinks,
        committed: CommittedEnd,
        commits: Commits,
        gate: Gatekeeper,
        ids_slice_bytes: int,
    ) -> None:
        """Begin without a role; the first :meth:`take_view` gives the replica one."""
        self._me = identity.me
        self._name = context.name
        self._flushes_always = context.stream.config.flush == "always"
        self._clock = context.clock
        self._counters = context.counters
        self._queue = context.queue
        self._local = context.local
        self._health = context.health
        self._commits = commits
        self._gate = gate
        self._views = Newest(context.queue, self._take_view)
        self._postponed = Deferred()
        self.ids = IdRecovery(context, self.later, slice_bytes=ids_slice_bytes)
        self._tick_queued = False  # so that only one is queued
        self._quiet_ms, self._ticked_ms, self._due_ms = identity.quiet_ms, 0, 0
        self._may_rest = identity.may_rest
        self.rests = False  # whether no timer runs: the ticker passes over it most of the time
        self.shell: ReplicaShell | None = None  # None: the log was found damaged
        if not context.health.is_damaged:
            self.shell = ReplicaShell(
                owner=self,
                name=context.name,
                local=context.local,
                config=context.stream.config,
                identity=identity,
                links=links,
                clock=context.clock,
                committed=committed,
                room=context.room,
            )
            context.health.when_failed(lambda _: self.end())

    # ------------------------------------------------------------------ any thread reads

    @property
    def view(self) -> PartitionView | None:
        """The newest view of the partition's metadata."""
        return None if self.shell is None else self.shell.view

    @property
    def role(self) -> Role:
        """The present role of this replica."""
        return "none" if self.shell is None else self.shell.role

    @property
    def leader(self) -> PartitionLeader | None:
        """The leader core while this replica leads; only for reading."""
        return None if self.shell is None else self.shell.leader

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition, according to its own metadata.

        The only replica counts as leader even after a failure: no other broker can report why.
        """
        if self._health.failure is not None:
            return self._health.is_only_copy
        return self.shell is not None and self.shell.role == "leader"

    def misses_leader(self, leader_epoch: LeaderEpoch) -> bool:
        """See ``ReplicaShell.misses_leader``; a replica that has failed hears nobody."""
        if self.shell is None or self._health.failure is not None:
            return False
        return self.shell.misses_leader(leader_epoch)

    @property
    def lineage(self) -> Lineage:
        """The log's starts of leadership, according to the view."""
        view = self.view
        return () if view is None else view.lineage

    @property
    def newest_committed(self) -> Offset | None:
        """The high watermark, or None while an earlier leader may have shown more (KIP-207)."""
        leader = self._unfenced()
        return None if leader is None else leader.newest_committed

    @property
    def whole_end(self) -> Offset | None:
        """The end of a leader's log, or None while another leader may have stored more.

        A leader was elected with every committed record, and knows late which ones these are.
        """
        end = self._local.log_end  # first: the lease holds after it was read
        leader = self._unfenced()
        return None if leader is None or leader.is_doubted else end

    def _unfenced(self) -> PartitionLeader | None:
        shell, leader, now_ms = self.shell, self.leader, self._clock.monotonic_ms()
        if shell is None or leader is None:
            return None
        # A replica that rests has not taken the broker's newest lease.
        fenced = now_ms >= shell.granted_until_ms if self.rests else leader.is_fenced(now_ms)
        return None if fenced else leader

    @property
    def synced_position(self) -> tuple[LeaderEpoch, Offset]:
        """The last record's leader epoch and the log end, for an election."""
        log = self._local.log
        if not self._local.is_there:
            return LeaderEpoch(0), Offset(0)
        end = log.synced_end if self._flushes_always else log.log_end
        return (log.epochs.epoch_of(Offset(end - 1)) if end else LeaderEpoch(0)), end

    def undisputed_end(self, lineage: Lineage, end: Offset) -> Offset:
        """Return up to which offset, at most ``end``, this log may lead if the ISR is gone."""
        log = self._local.log
        if not self._local.is_there:  # one that waits for room has no record
            return end
        return undisputed_end(lineage, log.epochs, start=log.log_start, end=end)

    # ------------------------------------------------------------------ from any thread

    def take_view(self, view: PartitionView | None) -> OwnerCall:
        """Queue the newest view of the metadata; :meth:`view_taken` waits until it is applied."""
        return self._views.begin(view)

    def view_taken(self, call: OwnerCall) -> None:
        """Wait until the view is applied. Blocks."""
        self._queue.result_of(call)

    def deliver(self, message: ReplicaMessage) -> None:
        """Take a message of another replica, or drop it. Does not block."""
        if not self._queue.offer(lambda: self._message(message), size_of(message)):
            self._counters.dropped_messages += 1

    def tick(self) -> None:
        """Queue a tick of the replica if a timer is due. Does not block."""
        self._gate.tick()
        if not self._tick_queued and self._clock.monotonic_ms() >= self._due_ms:
            self._tick_queued = True
            self._queue.post(self._tick)

    @property
    def waiting_turn(self) -> int | None:
        """See ``StandingReplica``."""
        return self._queue.waiting_turn

    def wake(self) -> None:
        """See ``StandingReplica``: the next tick looks at the timers."""
        self._due_ms = 0
        self.rests = False

    # ------------------------------------------------------------------ in a turn

    def settle(self) -> None:
        """Answer the publishers that the leader allows."""
        self._commits.settle(self.leader)

    def end_turn(self, *, idle: bool) -> None:
        """Note when the next timer is due; ``idle``: the partition has no other work either."""
        self.rests = idle and self._has_no_timer()
        self._due_ms = self._next_due_ms()

    def end(self) -> None:
        """Let no fetch stand any more: the log has failed or is closed. Any thread."""
        self.rests = self._may_rest = False
        if self.shell is not None:
            self.shell.end()

    def _take_view(self, view: PartitionView | None) -> None:
        self._health.is_only_copy = view is not None and view.replicas == (self._me,)
        if self.shell is not None and self._health.failure is None:
            self.shell.view_changed(view)
            self._gate.view_taken(self.view, leads=self.shell.role == "leader")
            self.settle()

    def _message(self, message: ReplicaMessage) -> None:
        if self.shell is not None and self._health.failure is None:
            self.shell.message(message)
            self.settle()

    def _tick(self) -> None:
        self._tick_queued = False
        self._ticked_ms = self._clock.monotonic_ms()
        due = self._postponed.due(self._ticked_ms)
        if self.shell is None or self._health.failure is not None:
            return
        for function in due:
            function()
        self.shell.tick()
        self.settle()

    def _has_no_timer(self) -> bool:
        return (
            self._may_rest
            and self.shell is not None
            and self.shell.rests
            and not len(self._commits)
            and self._postponed.due_ms is None
            and self._gate.due_ms is None
        )

    def _next_due_ms(self) -> int:
        if len(self._commits):
            return 0  # perhaps they wait only for a renewed lease
        if self.rests:  # until it is woken, or its followers' fetches have stood long enough
            leader_ms = None if self.leader is None else self.leader.due_ms
            return NEVER_MS if leader_ms is None else leader_ms
        shell_ms = None if self.shell is None else self.shell.due_ms
        regular_ms = self._ticked_ms + self._quiet_ms
        due_ms = (regular_ms, shell_ms, self._postponed.due_ms, self._gate.due_ms)
        return min(one for one in due_ms if one is not None)

    # ------------------------------------------------------------------ for the shell

    def begin_leading(self) -> None:
        """See ``ReplicaOwner``: publishes wait until the message ids are read."""
        self.ids.begin()

    def end_leading(self) -> None:
        """See ``ReplicaOwner``: publishers must retry at the next leader, with the same ids."""
        reason = f"this broker stopped leading {self._name} before the commit"
        self._commits.abandon(NotLeaderError(reason))
        self._local.end_leading()

    def fail(self, error: HeadwaterError) -> None:
        """See ``ReplicaOwner``."""
        self._health.fail(error)

    def later(self, delay_ms: int, function: Callable[[], None]) -> None:
        """See ``ReplicaOwner``."""
        if delay_ms == 0:
            self._queue.post(function)
        else:
            self._postponed.add(self._clock.monotonic_ms() + delay_ms, function)
