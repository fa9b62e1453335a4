"""Known ways to get replication and elections wrong, one switch each.

A mutant replaces one step of the pure machines of `broker/core` for the length of a `with`, and
where a shell asks the same question, that answer, too.
Its docstring says who got it wrong, or which row of the catalogue of pitfalls it is
(docs/replication.md).

The file is not split: it is a list, and each entry can be read alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, Final

from broker.core import election as election_module
from broker.core.election import ElectionCore
from broker.core.election_events import LogEndAnswered
from broker.core.metadata import broker_apply, partition_apply, partition_rules
from broker.core.replication import replica as replica_module
from broker.core.replication.effects import (
    AdvanceHighWatermark,
    ProposeLeadership,
    ResetLog,
    TruncateLog,
)
from broker.core.replication.events import LogAppended, LogSynced
from broker.core.replication.follower import PartitionFollower
from broker.core.replication.isr import FollowerProgress
from broker.core.replication.leader import PartitionLeader
from broker.core.replication.replica import PartitionReplica
from broker.model.offsets import Offset
from broker.runtime.partition import replication as replication_module
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

    def take(self: Any, message: Any, now_ms: int) -> Any:
        return original(self, replace(message, leader_epoch=self.leader_epoch), now_ms)

    original: Any = PartitionFollower._take_message
    return together(
        replaced(PartitionFollower, "_take_message", take),
        replaced(PartitionFollower, "_is_expected", lambda self, _, *phases: self.phase in phases),
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
        if isinstance(event, LogAppended):
            event = LogSynced(event.log_end)
        elif isinstance(event, LogSynced):
            event = replace(event, synced_end=max(event.synced_end, self._synced_end))
        return original(self, event)

    original: Any = PartitionLeader.step
    return replaced(PartitionLeader, "step", step)


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


def late_fetches_of_a_removed_log_count() -> Any:
    """Keep the leader epoch when replicas leave; they may come back with an empty log (0059)."""
    return replaced(partition_rules, "fenced", lambda before, after: after)


def same_epoch_after_restart() -> Any:
    """Let a restarted leader go on in the epoch that it had (Liftbridge; A25)."""

    def restarted(one: Any, broker: Any, *, keeps_data: bool) -> Any:
        if keeps_data and one.leader == broker:
            return one
        return original(one, broker, keeps_data=keeps_data)

    original: Any = broker_apply._restarted
    return replaced(broker_apply, "_restarted", restarted)


def leader_goes_on_after_a_restart() -> Any:
    """Let a restarted leader go on, in a new epoch, with its own disk alone (D14)."""

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
    """Name a restarted candidate although no proved replica has answered (D14)."""
    return _compared(lambda *_: True)


def one_answer_is_enough() -> Any:
    """Take the longest log of those that answered, however few they are (D14)."""

    def compared(state: Any, partition: Any, candidate: Any, answers: Any) -> bool:
        small = replace(partition, min_isr=1)
        return bool(original(state, small, candidate, answers))

    original: Any = partition_rules.is_compared
    return _compared(compared)


def isr_before_longer_logs() -> Any:
    """Compare the members of the ISR with each other only (D14)."""

    def compared(state: Any, partition: Any, candidate: Any, answers: Any) -> bool:
        isr_alone = replace(partition, eligible=()) if partition.isr else partition
        return bool(original(state, isr_alone, candidate, answers))

    original: Any = partition_rules.is_compared
    return _compared(compared)


def answers_of_former_processes() -> Any:
    """Accept the answer of a broker's process from before its disk was put back (D14)."""

    def compared(state: Any, partition: Any, candidate: Any, answers: Any) -> bool:
        newest = [
            replace(one, broker_epoch=state.brokers[one.broker].epoch)
            for one in answers
            if one.broker in state.brokers
        ]
        return bool(original(state, partition, candidate, newest))

    def take(self: Any, told: LogEndAnswered) -> Any:
        registered = self._state.brokers.get(told.answer.broker)
        if registered is not None:
            told = replace(told, answer=replace(told.answer, broker_epoch=registered.epoch))
        return take_log_end(self, told)

    def begin(self: Any, partition_id: Any, one: Any, before: Any, now_ms: int) -> Any:
        election = begin_election(self, partition_id, one, before, now_ms)
        if before is not None:
            election.answers = dict(before.answers)
        return election

    original: Any = partition_rules.is_compared
    take_log_end: Any = ElectionCore._take_log_end
    begin_election: Any = ElectionCore._begin
    return together(
        _compared(compared),
        replaced(ElectionCore, "_take_log_end", take),
        replaced(ElectionCore, "_begin", begin),
    )


def answers_of_followers() -> Any:
    """Compare with the log of a replica that may still acknowledge to the former leader (D14)."""

    def settled(self: Any) -> Any:
        return tuple(answer for _, (_, answer) in sorted(self.answers.items()))

    return replaced(election_module._OpenElection, "settled", settled)


def marks_cleared_too_early() -> Any:
    """Take a follower for proved as soon as its new process is heard (D14)."""

    def proved_epoch(self: Any, follower: Any) -> Any:
        progress = self._followers.get(follower)
        return 0 if progress is None else progress.broker_epoch

    return replaced(PartitionLeader, "_proved_epoch", proved_epoch)


def forgetting_follower_is_kept() -> Any:
    """Keep a follower in the ISR whose log ends below the end its leader had counted (D14)."""
    return replaced(PartitionLeader, "_forgotten", lambda _: frozenset())


def _compared(compared: Any) -> Any:
    return together(
        replaced(partition_rules, "is_compared", compared),
        replaced(election_module, "is_compared", compared),
    )


def act_on_a_view_of_a_former_life() -> Any:
    """Lead by a view of the metadata from before this process registered (A25)."""

    def take_view(self: Any, view: Any, now_ms: int) -> Any:
        if view is not None:
            mine = {**view.broker_epochs, self._me: self._broker_epoch}
            view = replace(view, broker_epochs=mine)
        return original(self, view, now_ms)

    original: Any = PartitionReplica._take_view
    return replaced(PartitionReplica, "_take_view", take_view)


def request_ids_repeat() -> Any:
    """Number requests from one in every process (found by this simulator)."""
    return replaced(replica_module, "first_request_id", lambda _: 1)


def followers_show_what_they_have() -> Any:
    """Let a follower serve everything that it has fetched (A20)."""

    def advance(self: Any, _: Offset) -> Any:
        known = self._facts.synced_end
        if known > self.high_watermark:
            self.high_watermark = known
            yield AdvanceHighWatermark(known)

    return replaced(PartitionFollower, "_advance", advance)


def leader_begins_below_the_table() -> Any:
    """Lead with a log that ends below the cold end (issue 10, B5)."""

    def confirm(self: Any, view: Any, now_ms: int) -> Any:
        self._confirmed_ms = now_ms
        return [ProposeLeadership(view.leader_epoch)]

    return replaced(PartitionReplica, "_confirm", confirm)


def log_end_says_enough() -> Any:
    """Elect a long log whose records another leader replaced, as if it had that leader's."""

    def undisputed_end(*_: Any, end: Offset, **__: Any) -> Offset:
        return end

    return together(
        replaced(replica_module, "undisputed_end", undisputed_end),
        replaced(replication_module, "undisputed_end", undisputed_end),
    )


def loss_is_not_recorded() -> Any:
    """Elect, and write nothing down."""

    def given_up(partition: Any, loss: Any) -> Any:
        return replace(original(partition, loss), losses=partition.losses)

    original: Any = partition_rules.given_up
    return replaced(partition_rules, "given_up", given_up)


def former_leader_leads_for_the_one_that_was_named() -> Any:
    """Let the former leader, which was given up, replace an unclean election's candidate."""

    def given_up(partition: Any, loss: Any) -> Any:
        last = partition.leader or partition.last_known_leader
        return replace(original(partition, loss), last_known_leader=last)

    original: Any = partition_rules.given_up
    return replaced(partition_rules, "given_up", given_up)


def cut_at_the_own_start() -> Any:
    """Cut a log down to its start although the leader does not know that either."""

    def align(self: Any, answer: Any, now_ms: int) -> Any:
        for effect in original(self, answer, now_ms):
            yield TruncateLog(self._facts.log_start) if isinstance(effect, ResetLog) else effect

    original: Any = PartitionFollower._align
    return replaced(PartitionFollower, "_align", align)


def write_what_comes() -> Any:
    """Take fetched batches wherever they begin (A26)."""
    return together(
        replaced(PartitionFollower, "_continues", lambda *_: True),
        replaced(PartitionFollower, "_is_expected", lambda self, _, *phases: self.phase in phases),
        replaced(PartitionFollower, "_take", _taken_anywhere(PartitionFollower._take)),
    )


def _taken_anywhere(take: Any) -> Any:
    def taken(self: Any, answer: Any, now_ms: int) -> Any:
        return take(self, replace(answer, start=self._facts.log_end), now_ms)

    return taken


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
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
        min_isr_for_all_only,
        isr_change_without_compare,
        any_folder_proves,
        elect_anybody,
        everybody_stays_eligible,
        last_replica_standing,
        ack_without_a_lease,
        lease_checked_too_early,
        drop_replicas_early,
        late_fetches_of_a_removed_log_count,
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
        followers_show_what_they_have,
        leader_begins_below_the_table,
        log_end_says_enough,
        loss_is_not_recorded,
        former_leader_leads_for_the_one_that_was_named,
        cut_at_the_own_start,
        write_what_comes,
    )
}

# In a mixed life of a house each of these breaks a promise, first known in this seed.
HOUSE_SEEDS: Final = {
    "truncate_to_high_watermark": 6,
    "no_alignment": 2,
    "align_one_step": 11,
    "unfenced_answers": 243,
    "expand_on_time": 13,
    "shrink_before_it_is_decided": 10,
    "ignore_pending_isr": 22,
    "leader_acks_before_sync": 7,
    "min_isr_for_all_only": 5,
    "any_folder_proves": 31,
    "elect_anybody": 18,
    "everybody_stays_eligible": 29,
    "last_replica_standing": 10,
    "ack_without_a_lease": 46,
    "lease_checked_too_early": 46,
    "drop_replicas_early": 11,
    "same_epoch_after_restart": 1,
    "restarts_leave_no_mark": 87,
    "candidate_without_a_comparison": 30,
    "one_answer_is_enough": 30,
}
# Faults that make a mistake likely to show; without an entry the seed draws them.
BIASED: Final[dict[str, frozenset[str]]] = {
    "candidate_without_a_comparison": frozenset({"put-back"}),
    "one_answer_is_enough": frozenset({"put-back"}),
    "lease_checked_too_early": frozenset({"pause"}),
}
# What the seed has to say: where no other fault strikes, publishers are fast, and lives without a
# mistake are slow to heal now and then.
REASONS: Final[defaultdict[str, str]] = defaultdict(
    str,
    candidate_without_a_comparison="has lost its records and is in",
    one_answer_is_enough="has lost its records and is in",
    lease_checked_too_early="long after|after the lease",
)
QUICK: Final = (
    "truncate_to_high_watermark",
    "no_alignment",
    "expand_on_time",
    "min_isr_for_all_only",
    "last_replica_standing",
    "same_epoch_after_restart",
)
