"""A simulated broker: the shell around the production machines, without threads or sockets.

It does what the real one will: executes effects in order, writes and syncs one log, keeps the
retry table, answers publishers. It can be killed, cut from power, stopped and resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.acks import AckQueue
from broker.core.dedup import ProducerTable
from broker.core.metadata.commands import Command, encode
from broker.core.metadata.state import MetadataState
from broker.core.replication import effects as does
from broker.core.replication.replica import PartitionReplica
from broker.core.replication.view import view_of
from broker.errors import (
    DiskFullError,
    HeadwaterError,
    LogFailedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    SequenceGapError,
)
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import NO_PRODUCER, BrokerId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import LogPrefix
from simkit.cluster import commands, sightings
from simkit.cluster.control import (
    CONTROL,
    Heartbeat,
    HeartbeatAnswer,
    LeaderReport,
    LogEndAsked,
    LogEndTold,
    Proposal,
    ProposalAnswer,
    StatePush,
)
from simkit.cluster.log import ReplicaLog, prepared, remember
from simkit.cluster.oracle import Oracle
from simkit.cluster.process import SimProcess
from simkit.cluster.publish import Publish, PublishAnswer, Setting, Waiting
from simkit.cluster.table import Table, maintain
from simkit.network.world import Network, World

Answered = Callable[[Any, HeadwaterError | None], None]


class SimBroker(SimProcess):
    """One broker, through all its lives."""

    def __init__(
        self,
        name: str,
        world: World,
        network: Network,
        oracle: Oracle,
        log: ReplicaLog,
        setting: Setting,
    ) -> None:
        super().__init__(name, world, log)
        self._network = network
        self.oracle = oracle
        self._setting = setting
        network.join(name, self.receive)
        self._forget()

    def _forget(self) -> None:
        """Lose everything that is only in memory."""
        self._state = MetadataState()
        self._index = 0
        self._broker_epoch: BrokerEpoch | None = None
        self.replica: PartitionReplica | None = None
        self._lease_until_ms = 0
        self._proposals: dict[int, Answered] = {}
        self._proposal = 0
        self._syncing = self._sync_again = False
        self._asked: LeaderEpoch | None = None  # how far is your log, in this epoch?
        self._producers = ProducerTable()
        self._acks: AckQueue[Waiting] = AckQueue()

    # ------------------------------------------------------------------ lives

    @property
    def serves(self) -> bool:
        """Tell whether readers are answered here: by a leader with a lease."""
        leader = None if self.replica is None else self.replica.leader
        running = self.alive and not self.paused
        return running and leader is not None and not leader.is_fenced(self.clock_ms())

    def start(self) -> None:
        """Start a process on the disk as it is."""
        assert not self.alive, "one process at a time"
        self.alive, self.paused = True, False
        self._life += 1
        self._forget()
        self._clean = self.take_clean_stop()
        try:
            self.log.reopen()
        except (DiskFullError, LogFailedError):
            self.world.note("log cannot be opened yet", self.name)
            self.crash(power=False)
            self.world.at(150, self._start_again, self._life)
            return
        if self.log.damaged:
            self.unproved = True
            self.world.note("log found damaged", self.name)
        self.folder.append(self.session)
        self.world.note("started", self.name, self.log.facts().log_end)
        self._register()
        self._beat()
        self._tick()
        if self._setting.table is not None:
            self._later(50, self._maintain, self._setting.table)

    def _maintain(self, table: Table) -> None:
        maintain(self, table)
        self._later(self.world.rng.randrange(40, 160), self._maintain, table)

    def note_cold_end(self, end: Offset) -> None:
        """Tell the metadata that the table reaches this far; nobody waits for the answer."""
        self._propose(commands.cold_end(self._setting.partition_id, end), lambda *_: None)

    def crash(self, *, power: bool) -> None:
        """End the process, if any; with ``power`` also what the kernel still had to write."""
        if not self.alive:
            return
        self.world.note("power lost" if power else "killed", self.name)
        self.alive = False
        self._life += 1
        self._late.clear()
        self.log.end_process(power=power)
        if power and self.log.interval:
            self.forgot_life = self._life
        self._forget()

    def receive(self, sender: str, message: Any) -> None:
        """Take a message, now or after the pause."""
        if self.alive:
            self._run(self._life, self._receive, sender, message)

    # ------------------------------------------------------------------ metadata

    def _propose(self, command: Command, answered: Answered) -> None:
        self._proposal += 1
        self._proposals[self._proposal] = answered
        message = Proposal(self._proposal, self.session, encode(command))
        self._network.send(self.name, CONTROL, message)

    def _register(self) -> None:
        if self._broker_epoch is not None:
            return
        command = commands.registration(self.name, self.session, self.folder, clean=self._clean)
        self._propose(command, self._registered)
        self._later(300, self._register)

    def _registered(self, reply: Any, error: HeadwaterError | None) -> None:
        if error is not None:  # a newer process of this folder has registered
            self.world.note("registration refused", self.name)
            self.crash(power=False)
            self.world.at(50, self._start_again, self._life)
            return
        if self._broker_epoch is not None:
            return  # it was asked more than once, and answered before
        self._broker_epoch = reply["broker_epoch"]
        del self.folder[:-16]  # an old registration may still arrive late
        if not self.log.damaged:
            self.unproved = self.rotten
            self._open()
        self._take_state()

    def found_rot(self) -> None:
        """A read met damage: stop everything about this log, and note it for the next start.

        There it is set aside and fetched anew: under a new broker epoch, for what the metadata says
        of this one may change until the withdrawal is decided.
        """
        self.world.note("rot met while reading", self.name)
        for one in self._acks.abandon():
            self._refuse(one.publish, NotLeaderError("not any more"))
        self.log.mark_suspect()
        self.crash(power=False)
        self.world.at(1, self._start_again, self._life)

    def _is_replaced(self) -> bool:
        present, mine = self._state.brokers.get(self.name), self._broker_epoch
        return mine is not None and present is not None and present.epoch > mine

    def _open(self) -> None:
        """Stand by; a registration that was sent twice gave a newer epoch."""
        assert self._broker_epoch is not None
        self.replica = PartitionReplica(
            me=self.name,
            broker_epoch=self._broker_epoch,
            facts=self.log.facts,
            lease_until_ms=self._lease_until_ms,
            limits=self._setting.limits,
            timing=self._setting.timing,
            known_high_watermark=self.log.facts().log_start,
        )

    @property
    def is_behind(self) -> bool:
        """Tell whether the metadata has changed since this process heard of it."""
        return self._index < self.oracle.metadata_index

    @property
    def cold_end(self) -> Offset:
        """How far the table reaches, by the metadata that this process knows."""
        rows = self._state.partitions.get(self._setting.partition_id.stream_uuid)
        return Offset(0) if rows is None else rows[0].cold_end

    def _take_state(self) -> None:
        view = view_of(self._state, self._setting.partition_id)
        if self.log.damaged:
            self._repair()
        elif self.replica is not None and view is not None:
            self._do(self.replica.view_changed(view, self.clock_ms()))
            self._tell_log_end(at_once=False)

    def _tell_log_end(self, *, at_once: bool) -> None:
        """Answer at once, and once more as soon as the epoch of the question is heard of."""
        if self._asked is None or self.replica is None or self._broker_epoch is None:
            return
        view = self.replica.view
        known = LeaderEpoch(0) if view is None else view.leader_epoch
        if known < self._asked and not at_once:
            return
        if known >= self._asked:
            self._asked = None
        answer = commands.log_answer(self.name, self._broker_epoch, self.log)
        told = LogEndTold(self._setting.partition_id, answer, known)
        self._network.send(self.name, CONTROL, told)

    def _repair(self) -> None:
        """Leave ISR and eligible; only then throw the damaged log away and begin anew (D5)."""
        registered = self._state.brokers.get(self.name)
        rows = self._state.partitions.get(self._setting.partition_id.stream_uuid)
        if registered is None or registered.epoch != self._broker_epoch or rows is None:
            return
        if self.name in (*rows[0].isr, *rows[0].eligible) or rows[0].leader == self.name:
            self._withdraw()
            return
        self.world.note("D5 damaged log replaced", self.name)
        self._lose_disk()
        self.unproved = self.rotten = False
        # Under a new broker epoch: what this process had told the leader is of another log now.
        self.crash(power=False)
        self.world.at(1, self._start_again, self._life)

    def _withdraw(self) -> None:
        """Leave ISR and eligible: this log has lost records."""
        assert self._broker_epoch is not None
        partition_id = self._setting.partition_id
        command = commands.withdrawal(self.name, self._broker_epoch, partition_id)
        self._propose(command, lambda *_: None)

    def _beat(self) -> None:
        if self._broker_epoch is not None:
            beat = Heartbeat(self.name, self._broker_epoch, self.clock_ms(), self._index)
            self._network.send(self.name, CONTROL, beat)
        self._later(self._setting.election.session_ms // 6, self._beat)

    def _tick(self) -> None:
        if self.replica is not None:
            self._do(self.replica.tick(self.clock_ms()))
            self._settle()
        elif self.log.damaged:
            self._repair()
        self._later(50, self._tick)

    def _receive(self, sender: str, message: Any) -> None:
        match message:
            case StatePush():
                if message.index > self._index:
                    self._index, self._state = message.index, message.state
                    if self._is_replaced():
                        self.world.note("replaced by a late registration", self.name)
                        self.crash(power=False)
                        self.world.at(50, self._start_again, self._life)
                    else:
                        self._take_state()
            case HeartbeatAnswer():
                if message.granted and message.broker_epoch == self._broker_epoch:
                    until_ms = message.sent_ms + self._setting.election.lease_ms()
                    self._lease_until_ms = max(self._lease_until_ms, until_ms)
                    if self.replica is not None:
                        lease_ms = self._lease_until_ms
                        self._do(self.replica.lease_granted(lease_ms, self.clock_ms()))
                        self._settle()
            case ProposalAnswer():
                answered = self._proposals.pop(message.number, None)
                if answered is not None and message.session == self.session:
                    answered(message.reply, message.error)
            case LogEndAsked():
                self._asked = message.leader_epoch
                self._tell_log_end(at_once=True)
            case Publish():
                self._publish(message)
            case _:
                if self.replica is not None:
                    sightings.before_message(self, message)
                    effects = self.replica.message(message, self.clock_ms())
                    sightings.after_message(self, message)
                    self._do(effects)
                    self._settle()

    # ------------------------------------------------------------------ publishing

    def _publish(self, publish: Publish) -> None:
        leader = None if self.replica is None else self.replica.leader
        if leader is None:
            self._refuse(publish, NotLeaderError("not here"))
            return
        refusal = leader.refusal(publish.policy, self.clock_ms())
        if refusal is not None:
            self.world.note(f"refused publish {type(refusal).__name__}")
            self._refuse(publish, refusal)
            return
        base = self._known_base(publish)
        if isinstance(base, HeadwaterError):
            self._refuse(publish, base)
            return
        duplicate = base is not None
        if base is None:
            base = self._append(publish, leader.leader_epoch)
            if base is None:
                return
        else:
            self.world.note("retry recognised")
        waiting = Waiting(publish, base, leader.leader_epoch, duplicate)
        self._acks.add(publish.policy, Offset(base + 1), waiting)
        self._settle()

    def _known_base(self, publish: Publish) -> Offset | HeadwaterError | None:
        if publish.producer == NO_PRODUCER:
            return None
        try:
            return self._producers.find(publish.producer, publish.sequence, 1)  # type: ignore[arg-type]
        except SequenceGapError as error:
            return error

    def _append(self, publish: Publish, epoch: LeaderEpoch) -> Offset | None:
        before = self.log.last_epoch(self.log.facts().log_end)
        try:
            now_us = self.clock_ms() * 1000
            batch = prepared(publish.value, publish.producer, publish.sequence, now_us=now_us)
            base = self.log.append(batch, epoch)
        except DiskFullError as error:
            self.world.note("D8 disk full, refused")
            self._refuse(publish, error)
            return None
        leader = None if self.replica is None else self.replica.leader
        if leader is not None and leader.refusal(AckPolicy.ALL, self.clock_ms()) is not None:
            self.world.note("A11 record written while the ISR is below its minimum")
        stored = self.log.read(base, 1)
        self.oracle.led_to(base)
        self.oracle.written(stored, before)
        remember(self._producers, stored)
        assert self.replica is not None
        self._do(self.replica.appended(Offset(base + 1)))
        if self.log.interval:
            self._do(self.replica.synced(self.clock_ms()))
        if not self.log.interval or self.world.chance(0.2):
            self._sync_soon()
        return base

    def _rebuild_producers(self) -> None:
        facts = self.log.facts()
        known = ProducerTable.from_state(self.log.producers)
        self._producers = known.below(facts.log_start, batches_max=64)
        count = facts.log_end - facts.log_start
        remember(self._producers, self.log.read(facts.log_start, count))

    def _refuse(self, publish: Publish, error: HeadwaterError) -> None:
        answer = PublishAnswer(publish.number, Offset(0), LeaderEpoch(0), False, error)
        self._network.send(self.name, publish.client, answer)

    def _settle(self) -> None:
        """Answer whom the leader lets answer; asked right before, lease included."""
        leader = None if self.replica is None else self.replica.leader
        if leader is None:
            return
        if leader.is_fenced(self.clock_ms()):
            if len(self._acks):
                self.world.note("A13 fenced leader holds its acks back")
            return
        for one in self._acks.settled(
            synced_end=leader.leader_ack_end, high_watermark=leader.high_watermark
        ):
            fenced = self.clock_ms() >= self._lease_until_ms
            self.oracle.acked(
                policy=one.publish.policy, end=Offset(one.base + 1), log=self.log, fenced=fenced
            )
            answer = PublishAnswer(one.publish.number, one.base, one.leader_epoch, one.duplicate)
            self._network.send(self.name, one.publish.client, answer)

    # ------------------------------------------------------------------ effects

    def _sync_soon(self) -> None:
        if self._syncing:
            self._sync_again = True
            return
        self._syncing = True
        self._later(self.world.rng.randrange(self._setting.sync_ms_max + 1), self._synced)

    def _synced(self) -> None:
        self._syncing = False
        again, self._sync_again = self._sync_again, False
        try:
            self.log.sync()
        except LogFailedError:
            self._fail()
            return
        if self.replica is not None:
            self._do(self.replica.synced(self.clock_ms()))
            self._settle()
        if again:
            self._sync_soon()

    def _fail(self) -> None:
        """A failed fsync is never retried: the process ends and what was unsynced may be gone."""
        self.world.note("D2 fsync failed", self.name)
        self.crash(power=True)
        self.world.at(self.world.rng.randrange(50, 500), self._start_again, self._life)

    def _start_again(self, life: int) -> None:
        if life == self._life and not self.alive:
            self.start()

    def _do(self, effects: list[does.Effect]) -> None:
        life = self._life
        for effect in effects:
            if life != self._life or self.replica is None:
                return  # an effect before ended the process, or its log
            sightings.before_effect(self, effect)
            self._do_one(effect)

    def _do_one(self, effect: does.Effect) -> None:
        replica = self.replica
        assert replica is not None
        match effect:
            case does.SendToReplica(to, message):
                self._network.send(self.name, to, message)
            case does.SendRecords(to, request, high_watermark):
                self._send_records(to, request, high_watermark)
            case does.AppendStored(batches):
                self._append_stored(batches)
            case does.TruncateLog(end):
                self.world.note("truncated", self.name, end, self.log.facts().log_end)
                self._truncate(replica, end)
            case does.AdvanceHighWatermark(end):
                leads = replica.leader is not None
                self.oracle.shown(self.log, end, leads=leads, who=self.name)
            case does.ResetLog(start, prefix):
                self._reset(replica, start, prefix)
            case does.BeginLogAt(start):
                self._begin_at(start)
            case does.RefuseLeadership(log_end, cold_end):
                assert not log_end, f"{self.name} has {log_end} of {cold_end} in the table"
                self._withdraw()
            case does.ProposeIsr():
                self._propose_isr(effect)
            case does.ProposeLeadership(leader_epoch):
                self._confirm(leader_epoch)
            case does.ReportLeader(_, leader_epoch):
                assert self._broker_epoch is not None
                report = LeaderReport(
                    self._setting.partition_id, self.name, self._broker_epoch, leader_epoch
                )
                self._network.send(self.name, CONTROL, report)
            case does.StartLeading(leader_epoch):
                self.world.note("leads", self.name, leader_epoch)
                self._rebuild_producers()
                self.oracle.started_leading(leader_epoch, self.session)
            case does.StopLeading():
                for one in self._acks.abandon():
                    self._refuse(one.publish, NotLeaderError("not any more"))
            case does.ReportLostRecords(end, committed):
                assert self.oracle.gives_up, f"{self.name} gives up [{end}, {committed})"
                self.world.note("A10 lost records reported", self.name, end, committed)

    def _truncate(self, replica: PartitionReplica, end: Offset) -> None:
        """Cut; a disk without room for the epoch history is asked again."""
        if replica is not self.replica or replica.follower is None:
            return  # somebody else is followed by now, and has aligned from scratch
        if replica.follower.phase != "truncating":
            return
        try:
            self.log.truncate(max(end, self.log.facts().log_start))
        except DiskFullError:
            self.world.note("disk full, truncation waits")
            self._later(100, self._truncate, replica, end)
            return
        self._rebuild_producers()
        self._do(replica.truncated(self.clock_ms()))

    def _reset(self, replica: PartitionReplica, start: Offset, prefix: LogPrefix) -> None:
        """Begin anew where the leader's log does; a disk without room is asked again."""
        if replica is not self.replica or replica.follower is None:
            return
        if replica.follower.phase != "truncating":
            return
        sightings.begins_anew(self, start)
        try:
            self.log.replace(start, EpochHistory.of(prefix.epochs))
        except DiskFullError:
            self.world.note("disk full, a new log waits")
            self._later(100, self._reset, replica, start, prefix)
            return
        self.log.producers = prefix.producers
        self._rebuild_producers()
        self._do(replica.truncated(self.clock_ms()))

    def _begin_at(self, start: Offset) -> None:
        """Begin anew at the cold end, with all that is known of producers."""
        self.world.note("T log begins at the cold end", self.name, start)
        assert self.oracle.gives_up, f"{self.name} begins at {start} and nobody has accepted a loss"
        known = self._producers.to_state()
        self.log.replace(start, EpochHistory())
        self.log.producers = known

    def _send_records(self, to: BrokerId, request: Any, high_watermark: Offset) -> None:
        count = self._setting.fetch_count
        try:
            answer = commands.fetched(request, high_watermark, self.log, count)
        except OffsetOutOfRangeError:
            answer = commands.below_start(request, high_watermark, self.log, self._producers)
        self._network.send(self.name, to, answer)

    def _append_stored(self, batches: Any) -> None:
        assert self.replica is not None
        before = self.log.last_epoch(self.log.facts().log_end)
        try:
            self.log.append_stored(batches)
        except DiskFullError:
            self.world.note("disk full, follower waits")
            self._rebuild_producers()
            self._do(self.replica.failed_append(self.clock_ms()))
            return
        except LogFailedError:
            self._fail()
            return
        self.oracle.written(batches, before)
        remember(self._producers, batches)
        self._sync_soon()

    def _propose_isr(self, effect: does.ProposeIsr) -> None:
        assert self._broker_epoch is not None
        self.oracle.isr_proposed(self.name, effect.leader_epoch, effect.isr)
        command = commands.isr_change(
            self.name, self._broker_epoch, self._setting.partition_id, effect
        )

        def answered(_: Any, error: HeadwaterError | None) -> None:
            if self.replica is not None:
                epoch, now_ms = effect.partition_epoch, self.clock_ms()
                self._do(self.replica.isr_answered(epoch, accepted=error is None, now_ms=now_ms))

        self._propose(command, answered)

    def _confirm(self, leader_epoch: LeaderEpoch) -> None:
        """Promote: everything that the log shows is durable before the confirmation is sent."""
        assert self._broker_epoch is not None
        try:
            self.log.sync()
        except LogFailedError:
            self._fail()
            return
        command = commands.confirmation(
            self.name, self._broker_epoch, self._setting.partition_id, leader_epoch, self.log
        )
        self._propose(command, lambda *_: None)
