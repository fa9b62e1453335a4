"""Every known mistake of the pure machines is noticed by a unit test, named here.

Where a house notices it as well, the table in `tests/lib/simkit/mistakes/README.md` says in which
life. Some mistakes are planted into a machine that has a second barrier behind them: here the
mistake is alone, so the test is one of the first barrier.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import pytest
from _pytest.outcomes import Failed

from simkit.mistakes import cores
from simkit.mistakes.by_hand import calls_of
from simkit.replacing import replaced

_CORE: Final = "tests/unit/broker/core/"
_REPLICA: Final = _CORE + "replication/test_replica.py::test_"
_UNCLEAN: Final = _CORE + "replication/test_unclean_leaders.py::test_"
_TABLE: Final = _CORE + "replication/test_replica_and_table.py::test_"
_PARTITIONS: Final = _CORE + "metadata/test_partitions.py::test_"
_RESTARTS: Final = _CORE + "metadata/test_restarts.py::test_"
_ELECTION: Final = _CORE + "test_election.py::test_"
_LEADER: Final = _CORE + "replication/test_leader.py::test_"
_WALKS: Final = _REPLICA + "alignment_walks_back_to_the_newest_common_epoch"
_COMPARED: Final = _RESTARTS + "a_leader_that_restarted_is_compared_before_it_leads_again"

NOTICED_BY: Final = {
    "truncate_to_high_watermark": _WALKS,
    "no_alignment": _WALKS,
    "align_one_step": _WALKS,
    "unfenced_answers": _REPLICA + "answers_of_other_epochs_and_requests_are_dropped",
    "no_epoch_in_acks": _REPLICA + "a_fetch_that_does_not_fit_is_refused_and_counts_for_nothing",
    "expand_on_high_watermark_alone": _REPLICA + "a_follower_below_the_epoch_s_start_does_not_join",
    "expand_on_time": _REPLICA + "a_follower_below_the_epoch_s_start_does_not_join",
    "shrink_before_it_is_decided": _REPLICA
    + "a_proposed_member_counts_until_the_controller_has_decided",
    "ignore_pending_isr": _REPLICA + "a_proposed_member_counts_until_the_controller_has_decided",
    "leader_acks_before_sync": _LEADER + "syncing_advances_once_and_only_forward",
    "min_isr_for_all_only": _REPLICA + "below_min_isr_nothing_is_committed_and_all_is_refused",
    "isr_change_without_compare": _PARTITIONS + "an_isr_change_is_compared_inside_apply",
    "any_folder_proves": _PARTITIONS + "a_folder_that_is_not_the_last_session_s_proves_nothing",
    "elect_anybody": _PARTITIONS + "an_unclean_election_is_asked_for_and_recorded",
    "everybody_stays_eligible": _PARTITIONS
    + "a_replica_that_leaves_an_isr_which_commits_without_it_is_not_eligible",
    "last_replica_standing": _PARTITIONS + "replicas_that_leave_below_min_isr_stay_eligible",
    "ack_without_a_lease": _REPLICA
    + "a_lease_that_is_over_stops_commits_until_it_is_granted_again",
    "lease_checked_too_early": _REPLICA
    + "a_lease_that_is_over_stops_commits_until_it_is_granted_again",
    "drop_replicas_early": _PARTITIONS + "old_replicas_leave_when_all_new_ones_are_in_sync",
    "late_fetches_of_a_removed_log_count": _PARTITIONS
    + "replicas_that_leave_are_fenced_by_a_new_leader_epoch",
    "same_epoch_after_restart": _PARTITIONS + "a_leader_that_restarts_gets_a_new_epoch",
    "leader_goes_on_after_a_restart": _COMPARED,
    "restarts_leave_no_mark": _COMPARED,
    "candidate_without_a_comparison": _COMPARED,
    "one_answer_is_enough": _RESTARTS
    + "of_all_that_restarted_so_many_answer_that_one_cannot_have_forgotten",
    "isr_before_longer_logs": _ELECTION
    + "a_partition_without_enough_answers_goes_offline_and_comes_back_with_them",
    "answers_of_former_processes": _RESTARTS + "an_answer_of_a_former_process_counts_for_nobody",
    "answers_of_followers": _ELECTION + "answers_of_who_still_follows_or_has_ended_compare_nobody",
    "marks_cleared_too_early": _LEADER + "a_follower_that_forgot_what_was_counted_is_proposed_out",
    "forgetting_follower_is_kept": _LEADER
    + "a_follower_that_forgot_what_was_counted_is_proposed_out",
    "act_on_a_view_of_a_former_life": _REPLICA
    + "roles_follow_the_metadata_and_old_views_are_ignored",
    "request_ids_repeat": _REPLICA
    + "a_late_answer_to_the_former_process_is_not_taken_for_one_to_this_process",
    "followers_show_what_they_have": _REPLICA
    + "fetched_records_are_reported_when_they_are_durable",
    "leader_begins_below_the_table": _REPLICA
    + "a_candidate_below_the_cold_end_begins_there_or_does_not_lead",
    "log_end_says_enough": _UNCLEAN
    + "records_that_another_leader_replaced_are_cut_before_the_candidate_confirms",
    "loss_is_not_recorded": _PARTITIONS + "an_unclean_election_is_asked_for_and_recorded",
    "former_leader_leads_for_the_one_that_was_named": _PARTITIONS
    + "who_was_given_up_does_not_lead_in_the_place_of_the_one_that_was_named",
    "cut_at_the_own_start": _TABLE + "a_log_without_anything_of_the_leader_s_is_given_up",
    "write_what_comes": _REPLICA + "a_gap_an_overlap_or_an_epoch_of_the_future_is_never_written",
}


def _passes(test_id: str) -> bool:
    try:
        for call in calls_of(test_id):
            call()
    except (
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        Failed,
    ):
        return False
    return True


def test_every_mistake_names_a_test() -> None:
    """None is left out, and none is named that there is not."""
    assert NOTICED_BY.keys() == cores.MUTANTS.keys()


@pytest.mark.parametrize("mutant", NOTICED_BY)
def test_a_unit_test_notices_each_mistake(mutant: str) -> None:
    """The test passes on the product, and fails with the mistake."""
    assert _passes(NOTICED_BY[mutant])
    with replaced(cores, "_no_divergence", nullcontext), cores.MUTANTS[mutant]():
        assert not _passes(NOTICED_BY[mutant])
