"""Known ways to get replication wrong, one switch each. The simulation has to catch every one.

A mutant replaces one step of the production machines, or of the shell around them, for the length
of a `with`. Its docstring says who got it wrong, or which row of the catalogue it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from broker.core import election as election_module
from broker.core import leader as leader_module
from broker.core.election import ElectionCore
from broker.core.isr import FollowerProgress
from broker.core.leader import PartitionLeader
from broker.core.metadata import broker_apply, partition_apply, partition_rules
from broker.core.replication import replica as replica_module
from broker.core.replication.effects import AdvanceHighWatermark, SendToReplica, TruncateLog
from broker.core.replication.follower import PartitionFollower
from broker.core.replication.replica import PartitionReplica
from broker.errors import LogFailedError
from broker.model.offsets import Offset
from simkit.cluster.broker import SimBroker
from simkit.cluster.log import ModelLog
from simkit.replacing import Mutant, replaced, together


def _no_divergence() -> Any:
    return replaced(PartitionLeader, "_divergence_of", lambda *_: None)


def truncate_to_high_watermark() -> Any:
    """Cut a restarted follower at its own high watermark (Kafka before KIP-101, Liftbridge; A1)."""

    def start(self: Any, now_ms: int) -> Any:
        if self.high_watermark < self._facts.log_end:
            self.phase, self._fetch_after_truncation = "truncating", True
            return [TruncateLog(self.high_watermark)]
        return self._fetch(now_ms)

    return replaced(PartitionFollower, "start", start)


def no_alignment() -> Any:
    """Fetch at once in a new epoch, whatever the tail holds."""
    return together(
        replaced(PartitionFollower, "start", PartitionFollower._fetch), _no_divergence()
    )


def align_one_step() -> Any:
    """Believe the first answer about an epoch (KIP-101 without KIP-279; A2)."""

    def align(self: Any, answer: Any, now_ms: int) -> Any:
        facts = self._facts
        cut = min(facts.log_end, answer.end)
        self._fetch_after_truncation = True
        if cut >= facts.log_end and facts.epochs.latest <= answer.known_epoch:
            yield from self._fetch(now_ms)
            return
        self.phase = "truncating"
        yield TruncateLog(Offset(cut))

    return together(replaced(PartitionFollower, "_align", align), _no_divergence())


def unfenced_answers() -> Any:
    """Take answers of any epoch and any request (A3)."""

    def message(self: Any, message: Any, now_ms: int) -> Any:
        return original(self, replace(message, leader_epoch=self.leader_epoch), now_ms)

    original: Any = PartitionFollower.message
    return together(
        replaced(PartitionFollower, "message", message),
        replaced(PartitionFollower, "_is_expected", lambda self, _, phase: self.phase == phase),
        _no_divergence(),
    )


def no_epoch_in_acks() -> Any:
    """Count a fetch of an older leader epoch as an ack of this one (pysyncobj's S2; A4)."""

    def refusal(self: Any, request: Any) -> Any:
        return original(self, replace(request, leader_epoch=self.leader_epoch))

    original: Any = PartitionLeader._refusal_of
    return together(replaced(PartitionLeader, "_refusal_of", refusal), _no_divergence())


def expand_on_high_watermark_alone() -> Any:
    """Let a follower join at the high watermark, below the epoch's start (rule R4; A5)."""

    def may_join(self: Any, limits: Any, *, high_watermark: Offset, **_: Any) -> bool:
        return self.synced_end is not None and self.synced_end >= high_watermark

    return replaced(FollowerProgress, "may_join", may_join)


def expand_on_time() -> Any:
    """Let a follower join because it was heard lately (Liftbridge)."""
    return replaced(
        FollowerProgress, "may_join", lambda self, *_, **__: self.synced_end is not None
    )


def shrink_before_it_is_decided() -> Any:
    """Act on a shrunk ISR before the controller has taken it (A6)."""

    def propose(self: Any, isr: Any) -> Any:
        proposal = original(self, isr)
        self.isr = frozenset(isr) & self.isr
        self._proposed = frozenset()
        return proposal

    original: Any = PartitionLeader._propose
    return replaced(PartitionLeader, "_propose", propose)


def ignore_pending_isr() -> Any:
    """Compute the high watermark over the ISR without the proposed one (KIP-497)."""

    def propose(self: Any, isr: Any) -> Any:
        proposal = original(self, isr)
        self._proposed = frozenset()
        return proposal

    original: Any = PartitionLeader._propose
    return replaced(PartitionLeader, "_propose", propose)


def leader_acks_before_sync() -> Any:
    """Count the leader's own log as it is written (NATS, Kafka by default; D1)."""

    def step(self: Any, event: Any) -> Any:
        if isinstance(event, leader_module.LogAppended):
            event = leader_module.LogSynced(event.log_end)
        elif isinstance(event, leader_module.LogSynced):
            event = replace(event, synced_end=max(event.synced_end, self._synced_end))
        return original(self, event)

    original: Any = PartitionLeader.step
    return replaced(PartitionLeader, "step", step)


def follower_acks_before_sync() -> Any:
    """Report records as synced as soon as they are written (Liftbridge, Kafka; D1)."""

    def fetch(self: Any, now_ms: int) -> Any:
        (send,) = original(self, now_ms)
        request = replace(send.message, synced_end=send.message.fetch_from)
        return [SendToReplica(send.to, request)]

    def append_stored(self: Any, batches: Any) -> None:
        append(self, batches)
        if self.replica is not None and self.replica.follower is not None:
            self._do(self.replica.synced(self.clock_ms()))

    original: Any = PartitionFollower._fetch
    append: Any = SimBroker._append_stored
    return together(
        replaced(PartitionFollower, "_fetch", fetch),
        replaced(SimBroker, "_append_stored", append_stored),
    )


def min_isr_for_all_only() -> Any:
    """Move the high watermark with too small an ISR, as acks below ALL would allow (A11)."""

    def advance(self: Any) -> Any:
        minimum, self._min_isr = self._min_isr, 1
        try:
            yield from list(original(self))
        finally:
            self._min_isr = minimum

    original: Any = PartitionLeader._advance
    return replaced(PartitionLeader, "_advance", advance)


def isr_change_without_compare() -> Any:
    """Apply an ISR change whatever leader and epochs it was made under (Liftbridge; A7)."""

    def change_isr(state: Any, present: Any, command: Any) -> Any:
        if present.leader is None:
            return original(state, present, command)
        members = {*command.isr, present.leader} & set(present.replicas)
        return partition_rules.with_isr(present, members)

    original: Any = partition_apply._change_isr
    return replaced(partition_apply, "_change_isr", change_isr)


def any_folder_proves(keeps: bool = True) -> Any:
    """Believe that a broker which registers again still has its data (KIP-903; A8, D14)."""

    def restarted(one: Any, broker: Any, *, keeps_data: bool) -> Any:
        return original(one, broker, keeps_data=keeps)

    original: Any = broker_apply._restarted
    return replaced(broker_apply, "_restarted", restarted)


def elect_anybody() -> Any:
    """Elect any living replica when no member of the ISR is left (unclean by default; A10)."""

    def candidates(state: Any, partition: Any) -> Any:
        clean = original(state, partition)
        living = (one for one in partition.replicas if partition_rules.may_lead(state, one))
        return clean or tuple(living)

    original: Any = partition_rules.candidates
    return together(
        replaced(partition_rules, "candidates", candidates),
        replaced(election_module, "candidates", candidates),
    )


def everybody_stays_eligible() -> Any:
    """Keep replicas eligible that left an ISR which was large enough to commit without them."""

    def without(partition: Any, broker: Any, *, keeps_data: bool) -> Any:
        if not keeps_data or broker not in partition.isr:
            return original(partition, broker, keeps_data=keeps_data)
        large = replace(partition, min_isr=99)
        return replace(original(large, broker, keeps_data=True), min_isr=partition.min_isr)

    original: Any = partition_rules.without
    return replaced(partition_rules, "without", without)


def last_replica_standing() -> Any:
    """Commit alone with a shrunk ISR and elect the one that left before (KIP-966; A12)."""

    def with_isr(partition: Any, isr: Any) -> Any:
        changed = original(partition, isr)
        left = (set(partition.isr) | set(partition.eligible)) - set(changed.isr)
        return replace(changed, eligible=tuple(sorted(left)))

    original: Any = partition_rules._with_isr
    return replaced(partition_rules, "_with_isr", with_isr)


def ack_without_a_lease() -> Any:
    """Acknowledge although the session may be over (A13)."""
    return replaced(PartitionLeader, "is_fenced", lambda *_: False)


def lease_checked_too_early() -> Any:
    """Look at the clock when the record arrives, not when the ack leaves (A13)."""

    def is_fenced(self: Any, now_ms: int) -> bool:
        return self._lease_until_ms is not None and self._tick_ms >= self._lease_until_ms

    return replaced(PartitionLeader, "is_fenced", is_fenced)


def drop_replicas_early() -> Any:
    """Finish a reassignment before the new replicas have everything (A23)."""

    def reassigned(partition: Any) -> Any:
        if not partition.target or partition.status != "online":
            return partition
        isr = tuple(sorted(partition.target))
        done = replace(partition, isr=tuple(sorted({*isr, partition.leader})), eligible=())
        return original(done)

    original: Any = partition_rules._reassigned
    return replaced(partition_rules, "_reassigned", reassigned)


def forget_retries() -> Any:
    """Store what a producer sends, retry or not (A24)."""
    return replaced(SimBroker, "_known_base", lambda *_: None)


def retry_table_of_the_old_leader() -> Any:
    """Do not cut the retry table with the log (A24)."""

    def rebuild(self: Any) -> None:
        if not len(self._producers._batches):
            original(self)

    original: Any = SimBroker._rebuild_producers
    return replaced(SimBroker, "_rebuild_producers", rebuild)


def same_epoch_after_restart() -> Any:
    """Let a restarted leader go on in the epoch that it had (Liftbridge; A25)."""

    def restarted(one: Any, broker: Any, *, keeps_data: bool) -> Any:
        if keeps_data and one.leader == broker:
            return one
        return original(one, broker, keeps_data=keeps_data)

    original: Any = broker_apply._restarted
    return replaced(broker_apply, "_restarted", restarted)


def leader_goes_on_after_a_restart() -> Any:
    """Let a restarted leader go on, in a new epoch, with what its disk says (D14)."""

    def restarted(one: Any, broker: Any, *, keeps_data: bool) -> Any:
        if keeps_data and one.leader == broker:
            return broker_apply._continued(one, broker)
        return original(one, broker, keeps_data=keeps_data)

    original: Any = broker_apply._restarted
    return replaced(broker_apply, "_restarted", restarted)


def restarts_leave_no_mark() -> Any:
    """Trust a process that restarted like the one before it (D14)."""

    def restarted(partition: Any, broker: Any) -> Any:
        return replace(original(partition, broker), restarted=())

    original: Any = partition_rules.restarted
    return replaced(partition_rules, "restarted", restarted)


def candidate_without_a_comparison() -> Any:
    """Name one that has restarted although nobody who knows has answered (D14)."""
    return _compared(lambda *_: True)


def one_answer_is_enough() -> Any:
    """Take the longest log of those that answered, however few they are (D14)."""

    def compared(state: Any, partition: Any, candidate: Any, answers: Any) -> bool:
        small = replace(partition, min_isr=1)
        return bool(original(state, small, candidate, answers))

    original: Any = partition_rules.is_compared
    return _compared(compared)


def isr_before_longer_logs() -> Any:
    """Compare the members of the ISR with each other and with nobody else (D14)."""

    def compared(state: Any, partition: Any, candidate: Any, answers: Any) -> bool:
        isr_alone = replace(partition, eligible=()) if partition.isr else partition
        return bool(original(state, isr_alone, candidate, answers))

    original: Any = partition_rules.is_compared
    return _compared(compared)


def answers_of_former_processes() -> Any:
    """Believe what a broker's process told before its disk was put back (D14)."""

    def compared(state: Any, partition: Any, candidate: Any, answers: Any) -> bool:
        newest = [
            replace(one, broker_epoch=state.brokers[one.broker].epoch)
            for one in answers
            if one.broker in state.brokers
        ]
        return bool(original(state, partition, candidate, newest))

    def told(self: Any, partition_id: Any, answer: Any, **facts: Any) -> Any:
        registered = self._state.brokers.get(answer.broker)
        if registered is not None:
            answer = replace(answer, broker_epoch=registered.epoch)
        return log_end_told(self, partition_id, answer, **facts)

    def begin(self: Any, partition_id: Any, one: Any, before: Any, now_ms: int) -> Any:
        race = begin_race(self, partition_id, one, before, now_ms)
        if before is not None:
            race.answers = dict(before.answers)
        return race

    original: Any = partition_rules.is_compared
    log_end_told: Any = ElectionCore.log_end_told
    begin_race: Any = ElectionCore._begin
    return together(
        _compared(compared),
        replaced(ElectionCore, "log_end_told", told),
        replaced(ElectionCore, "_begin", begin),
    )


def answers_of_followers() -> Any:
    """Compare with the log of a replica that may still acknowledge to the former leader (D14)."""

    def settled(self: Any) -> Any:
        return tuple(answer for _, (_, answer) in sorted(self.answers.items()))

    return replaced(election_module._Race, "settled", settled)


def marks_cleared_too_early() -> Any:
    """Take a follower for proved as soon as its new process is heard (D14)."""

    def proved_epoch(self: Any, follower: Any) -> Any:
        progress = self._followers.get(follower)
        return 0 if progress is None else progress.broker_epoch

    return replaced(PartitionLeader, "_proved_epoch", proved_epoch)


def forgetting_follower_is_kept() -> Any:
    """Keep a follower in the ISR that ends below what its leader had counted from it (D14)."""
    return replaced(PartitionLeader, "_forgotten", lambda _: frozenset())


def _compared(compared: Any) -> Any:
    return together(
        replaced(partition_rules, "is_compared", compared),
        replaced(election_module, "is_compared", compared),
    )


def act_on_a_view_of_a_former_life() -> Any:
    """Lead by what the metadata said before this process registered (A25)."""

    def view_changed(self: Any, view: Any, now_ms: int) -> Any:
        if view is not None:
            mine = {**view.broker_epochs, self._me: self._broker_epoch}
            view = replace(view, broker_epochs=mine)
        return original(self, view, now_ms)

    original: Any = PartitionReplica.view_changed
    return replaced(PartitionReplica, "view_changed", view_changed)


def request_ids_repeat() -> Any:
    """Number requests from one in every process (found by this simulator)."""
    return replaced(replica_module, "first_request_id", lambda _: 1)


def write_what_comes() -> Any:
    """Append fetched batches wherever they begin (A26)."""

    def append_stored(self: Any, batches: Any) -> None:
        for batch in batches:
            header = replace(batch.header, base_offset=Offset(len(self._batches)))
            append(self, [replace(batch, header=header)])

    def take(self: Any, answer: Any, now_ms: int) -> Any:
        return original(self, replace(answer, start=self._facts.log_end), now_ms)

    append: Any = ModelLog.append_stored
    original: Any = PartitionFollower._take
    return together(
        replaced(ModelLog, "append_stored", append_stored),
        replaced(PartitionFollower, "_take", take),
        replaced(PartitionFollower, "_continues", lambda *_: True),
        replaced(PartitionFollower, "_is_expected", lambda self, _, phase: self.phase == phase),
    )


def retry_fsync() -> Any:
    """Sync once more after a failure and believe it: the pages are clean, and gone (D2)."""

    def sync(self: Any) -> None:
        try:
            original(self)
        except LogFailedError:
            self.lost_from = min(self.__dict__.get("lost_from", 1 << 60), self._synced)
            original(self)

    def end_process(self: Any, *, power: bool) -> None:
        lost_from = self.__dict__.pop("lost_from", None)
        if power and lost_from is not None and lost_from < len(self._batches):
            del self._batches[lost_from:]
            self._synced = min(self._synced, lost_from)
        end(self, power=power)

    original: Any = ModelLog.sync
    end: Any = ModelLog.end_process
    return together(
        replaced(ModelLog, "sync", sync), replaced(ModelLog, "end_process", end_process)
    )


def followers_show_what_they_have() -> Any:
    """Let a follower serve everything that it has fetched (A20)."""

    def advance(self: Any, _: Offset) -> Any:
        known = self._facts.synced_end
        if known > self.high_watermark:
            self.high_watermark = known
            yield AdvanceHighWatermark(known)

    return replaced(PartitionFollower, "_advance", advance)


def serve_a_damaged_log() -> Any:
    """Take rot for a torn tail: cut it, say nothing and stay electable (NATS #7549; D5)."""

    def rot(self: Any) -> bool:
        if not self._synced:
            return False
        del self._batches[self._synced // 2 :]
        self._synced = len(self._batches)
        self._epochs = self._epochs.truncated(Offset(self._synced))
        self.changes += 1
        return True

    def registered(self: Any, reply: Any, error: Any) -> None:
        self.rotten = False
        original(self, reply, error)

    original: Any = SimBroker._registered
    return together(replaced(ModelLog, "rot", rot), replaced(SimBroker, "_registered", registered))


LATE_FAULTS: Final = frozenset({"power", "all", "balance", "crash"})
FORGETFUL_FAULTS: Final = frozenset({"restore", "crash", "one-way", "pause", "clog"})
# Random seeds meet these too seldom: they need late copies of messages and certain faults.
BIASED: Final = {
    "unfenced_answers": LATE_FAULTS,
    "request_ids_repeat": LATE_FAULTS,
    "answers_of_former_processes": FORGETFUL_FAULTS,
    "forgetting_follower_is_kept": FORGETFUL_FAULTS,
    "isr_change_without_compare": frozenset({"stop", "clog", "pause", "one-way"}),
}
# Where the hunt for a rare one begins, so that it takes seconds; `make mutants` begins at 0.
FIRST_SEEDS: Final = {"request_ids_repeat": 612}

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        truncate_to_high_watermark,
        no_alignment,
        align_one_step,
        unfenced_answers,
        no_epoch_in_acks,
        expand_on_high_watermark_alone,
        expand_on_time,
        shrink_before_it_is_decided,
        ignore_pending_isr,
        leader_acks_before_sync,
        follower_acks_before_sync,
        min_isr_for_all_only,
        isr_change_without_compare,
        any_folder_proves,
        elect_anybody,
        everybody_stays_eligible,
        last_replica_standing,
        ack_without_a_lease,
        lease_checked_too_early,
        drop_replicas_early,
        forget_retries,
        retry_table_of_the_old_leader,
        same_epoch_after_restart,
        leader_goes_on_after_a_restart,
        restarts_leave_no_mark,
        candidate_without_a_comparison,
        one_answer_is_enough,
        isr_before_longer_logs,
        answers_of_former_processes,
        answers_of_followers,
        marks_cleared_too_early,
        forgetting_follower_is_kept,
        act_on_a_view_of_a_former_life,
        request_ids_repeat,
        write_what_comes,
        retry_fsync,
        followers_show_what_they_have,
        serve_a_damaged_log,
    )
}
