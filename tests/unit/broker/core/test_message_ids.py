"""Message ids are recognised within their window, whatever their digests have in common."""

from __future__ import annotations

from struct import pack

import pytest

from broker.core.id_budget import fair_level
from broker.core.message_ids import (
    NO_BOUND,
    Digest,
    IdPlan,
    MessageIdWindow,
    digest_of,
    digests_of,
    find_repeats,
)
from broker.model.offsets import Offset


def test_an_id_that_a_group_plans_is_in_no_window_before_it_is_written() -> None:
    """Only within the group itself it is recognised at once."""
    window = MessageIdWindow(window_us=1_000, ids_max=10)
    plan = IdPlan(window)
    plan.add_all([(digest_of("a"), Offset(5)), (None, Offset(6))])
    assert plan.find_all([digest_of("b"), None, digest_of("a")], 10) == {2: 5}
    assert window.find(digest_of("a"), 10) is None
    plan.apply(10)
    assert window.find(digest_of("a"), 10) == 5


def test_a_message_id_counts_within_its_window_only() -> None:
    """The id is known until the window has passed, and can be stored again after it."""
    window = MessageIdWindow(window_us=1_000, ids_max=10)
    window.add(digest_of("a"), Offset(5), now_us=10_000)
    assert window.find(digest_of("a"), 10_999) == 5
    assert window.find(digest_of("a"), 11_000) is None
    window.expire(11_000)
    assert len(window) == 0


def test_the_window_is_bounded_and_says_when_it_forgot_early() -> None:
    """Beyond its bound the oldest id goes, and that is counted, not silent."""
    window = MessageIdWindow(window_us=1_000_000, ids_max=2)
    for number in range(4):
        window.add(digest_of(str(number)), Offset(number), now_us=number)
    window.expire(4)
    assert window.forgotten_early == 2
    assert window.find(digest_of("1"), 4) is None
    assert window.find(digest_of("2"), 4) == 2


def test_repeats_are_found_in_the_window_and_inside_the_batch() -> None:
    """A row may repeat a stored record or an earlier row; rows without an id never repeat."""
    window = MessageIdWindow(window_us=1_000, ids_max=10)
    window.add(digest_of("old"), Offset(3), now_us=0)
    repeats = find_repeats(window, digests_of(["x", None, "old", "x", None, "y"]), now_us=1)
    assert repeats.stored == {2: 3}
    assert repeats.inside == {3: 0}


def test_ids_expire_in_the_order_of_their_newest_use() -> None:
    """An id that was stored again, after its window, is the newest one."""
    window = MessageIdWindow(window_us=10, ids_max=2)
    window.add(digest_of("a"), Offset(1), 1)
    window.add(digest_of("b"), Offset(2), 2)
    window.add(digest_of("a"), Offset(3), 12)
    window.expire(12)
    assert (window.find(digest_of("a"), 12), window.find(digest_of("b"), 12)) == (3, None)
    assert (len(window), window.oldest_offset()) == (1, 3)


def test_digests_that_agree_in_half_of_their_bits_are_of_two_ids() -> None:
    """They have one slot and one tag; a repeat of each gets the offset of its own record."""
    window = MessageIdWindow(window_us=1_000, ids_max=10)
    alike = [Digest(pack("=IIQ", 77, 1, high)) for high in range(3)]
    for offset, digest in enumerate(alike[:2]):
        window.add(digest, Offset(offset), 1)
    window.expire(1)
    assert [window.find(one, 1) for one in alike] == [0, 1, None]


def test_a_full_index_begins_again_at_its_first_slot() -> None:
    """Digests whose slot is the last one go on at the first, in the old index and the new."""
    window = MessageIdWindow(window_us=1_000, ids_max=10_000)
    last = [Digest(pack("=IIQ", 127, 1, high)) for high in range(60)] + [
        Digest(pack("=IIQ", 127, high, 0)) for high in range(2, 200, 2)
    ]  # the first index has 128
    for offset, digest in enumerate(last):
        window.add(digest, Offset(offset), 1)
        window.expire(1)
        assert [window.find(one, 1) for one in last[: offset + 1]] == list(range(offset + 1))


class Counted:
    """A room that a test makes smaller."""

    def __init__(self) -> None:
        self.allowed = NO_BOUND
        self.told: list[int] = []

    def resized(self, size_bytes: int) -> int:
        """Note the size."""
        self.told.append(size_bytes)
        return self.allowed


def test_a_window_that_has_to_shrink_forgets_its_oldest_ids() -> None:
    """It forgets as many as needed, the oldest first, and counts them."""
    room = Counted()
    window = MessageIdWindow(window_us=1_000, ids_max=1_000_000, room=room)
    ids = [digest_of(str(number)) for number in range(40_000)]
    for offset, digest in enumerate(ids):
        window.add(digest, Offset(offset), offset // 100)
    assert room.told[-1] == window.size_bytes
    room.allowed = window.size_bytes // 2
    window.expire(400)
    assert room.told[-1] == window.size_bytes <= room.allowed
    assert 15_000 < len(window) == 40_000 - window.forgotten_early
    first = window.oldest_offset()
    assert first == window.forgotten_early
    assert [window.find(ids[offset], 400) for offset in (first - 1, first)] == [None, first]


def test_who_grows_beyond_its_room_gives_way_at_once() -> None:
    """It does not wait until the window is looked at again."""
    room = Counted()
    window = MessageIdWindow(window_us=1_000, ids_max=1_000_000, room=room)
    room.allowed = 500_000
    for number in range(40_000):
        window.add(digest_of(str(number)), Offset(number), 1)
        assert window.size_bytes <= room.allowed
    assert window.forgotten_early + len(window) == 40_000
    assert len(window) > 4_000


@pytest.mark.parametrize("count", [1, 100, 40_000])
def test_a_cleared_window_has_no_memory(count: int) -> None:
    """It frees its memory, and takes new ids."""
    window = MessageIdWindow(window_us=1_000, ids_max=1_000_000)
    for number in range(count):
        window.add(digest_of(str(number)), Offset(number), 1)
    window.clear()
    assert (len(window), window.size_bytes, window.oldest_offset()) == (0, 0, None)
    assert window.find(digest_of("0"), 1) is None
    window.add(digest_of("0"), Offset(7), 1)
    assert window.find(digest_of("0"), 1) == 7


@pytest.mark.parametrize(
    ("sizes", "bytes_max", "level"),
    [
        ([], 100, 100),
        ([40, 60], 100, 60),
        ([10, 200], 100, 90),
        ([10, 200, 300], 100, 45),
        ([50, 50, 50], 100, 33),
        ([5, 20, 80, 90], 100, 37),
    ],
)
def test_the_largest_windows_give_way(sizes: list[int], bytes_max: int, level: int) -> None:
    """All of them shrink to one level, the highest at which the sum fits."""
    assert fair_level(sizes, bytes_max) == level
    assert sum(min(one, level) for one in sizes) <= bytes_max
