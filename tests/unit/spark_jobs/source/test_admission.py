"""Limits per trigger: never exceeded, no partition starves, and every record comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.source.admission import admit

BACKLOGS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9)), st.integers(0, 10**12), max_size=8
)


def test_shares_are_in_proportion() -> None:
    """A partition with nine times the backlog gets about nine times the records."""
    assert admit({("s", 0): 900, ("s", 1): 100}, 100) == {("s", 0): 90, ("s", 1): 10}


def test_a_small_backlog_beside_a_huge_one_is_served() -> None:
    """Its share would round down to nothing in each batch."""
    assert admit({("s", 0): 10**9, ("s", 1): 1}, 10)["s", 1] == 1


def test_partitions_take_turns_below_one_record_each() -> None:
    """With a limit of one, N partitions get one record each in N batches."""
    backlog = {("s", number): 5 for number in range(3)}

    served = [max((key for key, n in admit(backlog, 1, turn=t).items() if n)) for t in range(3)]

    assert set(served) == set(backlog)


@given(backlog=BACKLOGS, limit=st.integers(1, 10**12), turn=st.integers(0, 1000))
def test_the_limit_is_used_and_never_exceeded(
    backlog: dict[tuple[str, int], int], limit: int, turn: int
) -> None:
    """The sum is the limit, or the whole backlog; no partition gives more than it has."""
    taken = admit(backlog, limit, turn=turn)

    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= taken[key] <= backlog[key] for key in backlog)
