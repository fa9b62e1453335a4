"""Mistakes of shells that no life meets, or too seldom: a unit test notices each."""

from __future__ import annotations

from typing import Final

import pytest
from _pytest.outcomes import Failed

from broker.errors import HeadwaterError
from simkit.house.beneath import mutants as beneath
from simkit.mistakes import shells, standing
from simkit.mistakes.by_hand import calls_of

_UNIT: Final = "tests/unit/broker/runtime/"
_STANDING: Final = "tests/unit/broker/core/replication/test_standing.py::"
NOTICED_BY: Final = {
    "questions_are_numbered_from_one": _UNIT
    + "cluster/test_errands.py::test_no_two_processes_of_a_broker_share_the_number_of_a_question",
    "save_is_dropped_by_a_full_disk": _UNIT
    + "metadata/test_saving.py::test_a_save_that_met_a_full_disk_is_written_when_there_is_room",
    "member_is_not_remembered": _UNIT
    + "metadata/test_raft_rejoin_shell.py::test_a_group_does_not_begin_anew_beside_a_note_of_it",
    "one_round_is_enough": "tests/unit/broker/core/raft/test_rejoin.py"
    "::test_everybody_is_asked_twice",
    "former_fetches_confirm": _STANDING
    + "test_the_fetch_of_another_process_or_epoch_is_another_fetch",
    "new_fetches_are_confirmed_by_earlier_calls": _STANDING
    + "test_what_stands_since_the_call_was_sent_is_not_confirmed_by_its_answer",
    "silent_followers_stand_for_ever": _STANDING
    + "test_a_silent_follower_leaves_the_isr_as_late_as_without_roll_calls",
    "outsiders_stand": _STANDING + "test_a_follower_from_which_more_is_needed_is_answered_at_once",
    "hung_replicas_are_confirmed": _STANDING
    + "test_a_replica_that_does_not_finish_a_turn_is_left_out",
    "late_answers_confirm": _UNIT
    + "cluster/test_roll_calls.py::test_late_messages_and_second_copies_prove_nothing",
}
MUTANTS: Final = {**shells.BY_HAND, **beneath.BY_HAND, **standing.BY_HAND}


def _passes(test_id: str) -> bool:
    try:
        for call in calls_of(test_id):
            call()
    except (AssertionError, Failed, HeadwaterError):
        return False
    return True


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_unit_test_notices_each_mutant(mutant: str) -> None:
    """The test passes on the product, and fails with the mistake."""
    assert _passes(NOTICED_BY[mutant])
    with MUTANTS[mutant]():
        assert not _passes(NOTICED_BY[mutant])
