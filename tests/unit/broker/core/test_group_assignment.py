"""Partitions of a group's members: complete, balanced, and the same on every broker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.group_assignment import assign

MEMBERS = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from("xyz"), min_size=1, unique=True)
)
PARTITIONS = st.dictionaries(st.sampled_from("xyz"), st.integers(1, 9))


@given(MEMBERS, PARTITIONS)
def test_each_partition_has_one_member_that_asked_for_it(
    members: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    """No wanted partition is left over, and none has two members."""
    found = assign(members, partitions)
    given_out = [
        (stream, number)
        for member, streams in found.items()
        for stream, numbers in streams.items()
        for number in numbers
        if stream in members[member]
    ]
    asked = {stream for streams in members.values() for stream in streams}
    wanted = [(name, n) for name in partitions if name in asked for n in range(partitions[name])]
    assert sorted(given_out) == sorted(wanted)
    assert set(found) == set(members)


@given(st.integers(1, 6), st.integers(1, 20))
def test_equal_members_get_equal_shares(members: int, partitions: int) -> None:
    """Of one stream no member has two partitions more than another."""
    found = assign({f"m{one}": ["x"] for one in range(members)}, {"x": partitions})
    counts = [sum(map(len, streams.values())) for streams in found.values()]
    assert max(counts) - min(counts) <= 1


def test_ties_go_to_the_first_name() -> None:
    """As in Liftbridge: streams by name, then the member with the fewest partitions, then by id."""
    members = {"b": ["x", "y"], "a": ["x"], "c": ["y"]}
    assert assign(members, {"x": 3, "y": 2}) == {
        "a": {"x": [0, 2]},
        "b": {"x": [1], "y": [1]},
        "c": {"y": [0]},
    }
