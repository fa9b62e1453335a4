"""The judge of groups names each thing that can be wrong, and nothing else."""

from __future__ import annotations

import pytest

from checkkit.check_groups import GivenUp, GroupAnomaly, GroupHistory, judge_group

P, A, B = "s/0", "a", "b"


def read_by_two() -> GroupHistory:
    """Return a history without a mistake: a reads and commits 4 of 6, b goes on there."""
    history = GroupHistory()
    history.give(P, A, epoch=1, start=0, end=4, at=1)
    history.commit(P, A, epoch=1, offset=4, at=2).confirmed_at = 3
    history.give(P, A, epoch=1, start=4, end=6, at=4)
    history.give(P, B, epoch=2, start=4, end=9, at=6)
    return history


def kinds(history: GroupHistory, end: int | None = 9) -> set[GroupAnomaly]:
    """Return what is wrong."""
    return {one.kind for one in judge_group(history, None if end is None else {P: end})}


def test_a_history_without_a_mistake_has_none() -> None:
    """What was given and not committed comes again; an unconfirmed commit may count or not."""
    assert kinds(read_by_two()) == set()
    history = read_by_two()
    history.commit(P, B, epoch=2, offset=9, at=7)
    history.give(P, A, epoch=3, start=4, end=9, at=9)
    history.give(P, B, epoch=4, start=9, end=10, at=11)
    assert kinds(history, 10) == set()


def test_one_process_reads_under_a_claim() -> None:
    """Two under one, or the older one after the newer."""
    history = read_by_two()
    history.give(P, A, epoch=2, start=9, end=10, at=7)
    assert kinds(history) == {GroupAnomaly.TWO_READERS}
    history = read_by_two()
    history.give(P, A, epoch=1, start=6, end=7, at=7)
    assert kinds(history) == {GroupAnomaly.OLD_READER}


@pytest.mark.parametrize(
    ("start", "kind"), [(3, GroupAnomaly.AGAIN), (5, GroupAnomaly.SKIPPED), (4, None)]
)
def test_the_next_owner_begins_at_the_position(start: int, kind: GroupAnomaly | None) -> None:
    """Not below what was confirmed, not above all that was sent."""
    history = read_by_two()
    history.given[-1] = type(history.given[-1])(P, B, 2, start, 9, 6)
    assert kinds(history, None) == ({kind} if kind else set())


def test_within_a_claim_no_offset_is_left_out_or_comes_again() -> None:
    """Unless the application sought, or was told that it had lost the partition."""
    back, history = read_by_two(), read_by_two()
    back.give(P, B, epoch=2, start=8, end=12, at=7)
    history.give(P, B, epoch=2, start=10, end=12, at=7)
    assert kinds(back, None) == kinds(history, None) == {GroupAnomaly.STEP}
    history.choose(P, epoch=2, offset=10, at=6)
    assert kinds(history, None) == set()
    history = read_by_two()
    history.lost.append((P, 2, 7))
    history.give(P, B, epoch=2, start=4, end=9, at=8)
    assert kinds(history) == set()
    history.given[-1] = type(history.given[-1])(P, B, 2, 3, 9, 8)
    assert kinds(history) == {GroupAnomaly.AGAIN}


def test_everything_is_given_to_somebody() -> None:
    """Up to the end that is known."""
    assert kinds(read_by_two(), 10) == {GroupAnomaly.UNSEEN}
    assert {one.kind for one in judge_group(GroupHistory(), {P: 1})} == {GroupAnomaly.UNSEEN}


def test_commits_of_former_owners_are_fenced() -> None:
    """Begun after the new owner has read, and confirmed."""
    history = read_by_two()
    late = history.commit(P, A, epoch=1, offset=6, at=7)
    assert kinds(history) == set()
    late.confirmed_at = 8
    assert kinds(history) == {GroupAnomaly.UNFENCED}


def test_nothing_is_committed_that_was_not_given() -> None:
    """Not above the newest record of the claim."""
    history = read_by_two()
    history.commit(P, B, epoch=2, offset=10, at=7).confirmed_at = 8
    assert kinds(history) == {GroupAnomaly.AHEAD}


def test_who_is_heard_is_not_expelled() -> None:
    """While an answered heartbeat lets it believe in its claims."""
    history = read_by_two()
    history.heartbeats[A] = [(10, 12), (18, 21)]
    history.expelled.append((A, 20, 10))
    assert kinds(history) == set()
    history.expelled.append((A, 19, 10))
    assert kinds(history) == {GroupAnomaly.EXPELLED_ALIVE}


def test_who_asks_for_its_position_has_to_know_what_was_committed_before() -> None:
    """What is committed between the question and the first record may come again."""
    history = read_by_two()
    history.commit(P, A, epoch=1, offset=6, at=4).confirmed_at = 5
    assert kinds(history) == {GroupAnomaly.AGAIN}
    history.asked.append((P, B, 4))
    assert kinds(history) == set()
    history.asked.append((P, B, 5))
    assert kinds(history) == {GroupAnomaly.AGAIN}


def test_liftbridges_members_are_fenced_less() -> None:
    """The former owner may have records in its hands, and commits them; all else holds."""
    history = read_by_two()
    history.give(P, A, epoch=1, start=6, end=7, at=7)
    history.commit(P, A, epoch=1, offset=7, at=8).confirmed_at = 9
    assert kinds(history) == {GroupAnomaly.OLD_READER, GroupAnomaly.UNFENCED}
    assert judge_group(history, {P: 9}, fenced=False) == []
    history.give(P, B, epoch=1, start=9, end=10, at=10)
    history.commit(P, A, epoch=1, offset=11, at=11).confirmed_at = 12
    found = {one.kind for one in judge_group(history, {P: 12}, fenced=False)}
    assert found == {
        GroupAnomaly.TWO_READERS,
        GroupAnomaly.STEP,
        GroupAnomaly.AHEAD,
        GroupAnomaly.UNSEEN,
    }


def test_notes_of_members_may_come_in_any_order() -> None:
    """Each process has its own; their times order them."""
    history = read_by_two()
    history.given.reverse()
    assert kinds(history) == set()


def test_a_position_in_what_an_operator_gave_up_goes_back() -> None:
    """To where the log went on, in claims that begin afterwards, and not below."""
    history = read_by_two()
    history.commit(P, B, epoch=2, offset=9, at=7).confirmed_at = 8
    history.give(P, A, epoch=3, start=5, end=9, at=11)
    assert kinds(history) == {GroupAnomaly.AGAIN}
    history.given_up.append(GivenUp(P, 5, since=9, until=10))
    assert kinds(history) == set()
    history.given_up[:] = [GivenUp(P, 6, since=9, until=10)]
    assert kinds(history) == {GroupAnomaly.AGAIN}
    for other in (GivenUp(P, 5, since=12, until=13), GivenUp(P, 5, since=6, until=7)):
        history.given_up[:] = [other]  # after the claim began, before the commit was confirmed
        assert kinds(history) == {GroupAnomaly.AGAIN}
    history.given_up[:] = [GivenUp("s/1", 5, since=9, until=10)]
    assert kinds(history) == {GroupAnomaly.AGAIN}
