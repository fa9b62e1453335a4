"""Known ways to get wrong what replication has to do with the table; see ``mutants.py``.

They run in lives with a table (``tiered``): cold ends, log starts above 0, logs that begin anew,
and elections of replicas that have not everything. Two are of streams that sync now and then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from broker.core.metadata import partition_rules
from broker.core.replication.effects import ProposeLeadership, ResetLog, TruncateLog
from broker.core.replication.follower import PartitionFollower
from broker.core.replication.replica import PartitionReplica
from simkit.cluster import commands as cluster_commands
from simkit.cluster.broker import SimBroker
from simkit.cluster.log import NO_PRODUCERS, ModelLog
from simkit.cluster.operator import Operator
from simkit.cluster.process import SimProcess
from simkit.replacing import Mutant, replaced


def leader_begins_below_the_table() -> Any:
    """Lead with a log that ends below the cold end (issue 10, B5)."""

    def confirm(self: Any, view: Any, now_ms: int) -> Any:
        self._confirmed_ms = now_ms
        return [ProposeLeadership(view.leader_epoch)]

    return replaced(PartitionReplica, "_confirm", confirm)


def cold_end_learned_after_the_election() -> Any:
    """Elect by the cold end that was noted, and look at the table later."""
    return replaced(Operator, "learn_cold_end", lambda _: None)


def epochs_of_a_log_without_the_records() -> Any:
    """Begin at the cold end with the epochs of a log that never had the records of the table."""

    def begin_at(self: Any, start: Any) -> None:
        epochs = self.log.facts().epochs
        original(self, start)
        self.log.replace(start, epochs)

    original: Any = SimBroker._begin_at
    return replaced(SimBroker, "_begin_at", begin_at)


def loss_is_not_recorded() -> Any:
    """Elect, and write nothing down."""

    def given_up(partition: Any, loss: Any) -> Any:
        return replace(original(partition, loss), losses=partition.losses)

    original: Any = partition_rules.given_up
    return replaced(partition_rules, "given_up", given_up)


def former_leader_leads_for_the_one_that_was_named() -> Any:
    """Let who led last take over from an unclean election's candidate, given up as it was."""

    def given_up(partition: Any, loss: Any) -> Any:
        last = partition.leader or partition.last_known_leader
        return replace(original(partition, loss), last_known_leader=last)

    original: Any = partition_rules.given_up
    return replaced(partition_rules, "given_up", given_up)


def frees_what_is_committed() -> Any:
    """Free what all replicas have, shipped or not."""

    def cold_end(self: Any) -> Any:
        return original.fget(self) if self.replica is None else self.replica.high_watermark

    original: Any = SimBroker.__dict__["cold_end"]
    return replaced(SimBroker, "cold_end", property(cold_end))


def reset_keeps_old_records() -> Any:
    """Move the old records up to the leader's start instead of dropping them."""

    def replace_log(self: Any, start: Any, epochs: Any) -> None:
        kept = self._batches[-start:] if start else []
        original(self, start, epochs)
        self._batches, self._start = kept, start - len(kept)

    original: Any = ModelLog.replace
    return replaced(ModelLog, "replace", replace_log)


def reset_to_the_log_end() -> Any:
    """Let a follower begin at the leader's end: what lies between is in no table."""

    def below_start(request: Any, high_watermark: Any, log: Any, producers: Any) -> Any:
        answer = original(request, high_watermark, log, producers)
        return replace(answer, start=answer.log_end)

    original: Any = cluster_commands.below_start
    return replaced(cluster_commands, "below_start", below_start)


def reset_forgets_producers() -> Any:
    """Begin anew without the retry table of what was before (A24)."""

    def below_start(request: Any, high_watermark: Any, log: Any, producers: Any) -> Any:
        answer = original(request, high_watermark, log, producers)
        return replace(answer, prefix=replace(answer.prefix, producers=NO_PRODUCERS))

    original: Any = cluster_commands.below_start
    return replaced(cluster_commands, "below_start", below_start)


def cut_at_the_own_start() -> Any:
    """Cut a log down to its start although the leader does not know that either."""

    def align(self: Any, answer: Any, now_ms: int) -> Any:
        for effect in original(self, answer, now_ms):
            yield TruncateLog(self._facts.log_start) if isinstance(effect, ResetLog) else effect

    original: Any = PartitionFollower._align
    return replaced(PartitionFollower, "_align", align)


def cold_end_vouches_for_the_own_log() -> Any:
    """Take what a restarted replica holds below the cold end for committed, before it aligns."""

    def opened(self: Any) -> None:
        original(self)
        facts = self.log.facts()
        self.replica._known = min(max(self.cold_end, facts.log_start), facts.log_end)

    original: Any = SimBroker._open
    return replaced(SimBroker, "_open", opened)


def clean_stop_believed_twice() -> Any:
    """Leave the note of a clean stop where it is, and ask no session of it."""
    return replaced(SimProcess, "take_clean_stop", lambda self: self.clean_stop is not None)


def every_end_is_a_clean_stop() -> Any:
    """Believe that a process which was killed had synced what it had written."""
    return replaced(SimProcess, "take_clean_stop", lambda _: True)


INTERVAL_MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant for mutant in (clean_stop_believed_twice, every_end_is_a_clean_stop)
}

# Where the hunt for each begins, so that it takes seconds; `make mutants` begins at 0.
FIRST_SEEDS: Final = {
    "leader_begins_below_the_table": 12,
    "cold_end_learned_after_the_election": 29,
    "epochs_of_a_log_without_the_records": 53,
    "former_leader_leads_for_the_one_that_was_named": 3783,
    "reset_keeps_old_records": 36,
    "reset_to_the_log_end": 3,
    "reset_forgets_producers": 735,
    "cut_at_the_own_start": 12,
    "cold_end_vouches_for_the_own_log": 126,
}

TIER_MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        leader_begins_below_the_table,
        cold_end_learned_after_the_election,
        epochs_of_a_log_without_the_records,
        loss_is_not_recorded,
        former_leader_leads_for_the_one_that_was_named,
        frees_what_is_committed,
        reset_keeps_old_records,
        reset_to_the_log_end,
        reset_forgets_producers,
        cut_at_the_own_start,
        cold_end_vouches_for_the_own_log,
    )
}
