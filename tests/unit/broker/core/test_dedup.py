"""Retries are recognised exactly once, and a write that did not happen leaves no trace."""

from __future__ import annotations

import pytest

from broker.core.dedup import MessageIdWindow, ProducerTable, find_repeats
from broker.errors import MetadataCorruptError, SequenceGapError
from broker.model.ids import ProducerId
from broker.model.offsets import Offset

P = ProducerId(7)


def test_the_next_sequence_is_new_and_a_stored_one_is_found() -> None:
    """A producer's next batch is stored; the same batch again answers with its offset."""
    table = ProducerTable()
    assert table.find(P, 0, 10) is None
    table.add(P, 0, 10, Offset(100))
    assert table.find(P, 10, 5) is None
    table.add(P, 10, 5, Offset(110))
    assert table.find(P, 0, 10) == 100
    assert table.find(P, 10, 5) == 110


@pytest.mark.parametrize(("sequence", "count"), [(11, 5), (3, 2), (0, 9), (9, 3)])
def test_a_skipped_or_reshaped_sequence_is_refused(sequence: int, count: int) -> None:
    """Neither a gap nor a batch cut differently may be stored: it would lose or double records."""
    table = ProducerTable()
    table.add(P, 0, 10, Offset(0))
    with pytest.raises(SequenceGapError) as caught:
        table.find(P, sequence, count)
    assert caught.value.facts["expected"] == 10


def test_an_unknown_producer_may_only_begin() -> None:
    """In the middle of its sequence it may have been forgotten: storing again could double."""
    with pytest.raises(SequenceGapError) as caught:
        ProducerTable().find(P, 10, 5)
    assert caught.value.facts["expected"] == 0


def test_a_rolled_back_batch_is_new_again() -> None:
    """After a failed write the same batch is not taken for a duplicate."""
    table = ProducerTable()
    table.add(P, 0, 10, Offset(0))
    table.add(P, 10, 10, Offset(10))
    table.forget_from(P, Offset(10))
    assert table.find(P, 10, 10) is None
    assert table.find(P, 0, 10) == 0


def test_producer_state_survives_its_bytes() -> None:
    """The state written beside the log gives the same answers when it is read back."""
    table = ProducerTable()
    for sequence in range(0, 1000, 10):
        table.add(P, sequence, 10, Offset(sequence * 2))
    again = ProducerTable.from_state(table.to_state())
    assert again.find(P, 990, 10) == 1980
    assert again.find(P, 1000, 1) is None
    with pytest.raises(SequenceGapError):
        again.find(P, 0, 10)  # too old to be known, and not the next


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"v":2,"producers":[]}', b'{"v":1,"producers":[[1]]}']
)
def test_damaged_producer_state_is_named(data: bytes) -> None:
    """Anything but a state raises one typed error."""
    with pytest.raises(MetadataCorruptError):
        ProducerTable.from_state(data)


def test_a_message_id_counts_within_its_window_only() -> None:
    """The id is known until the window has passed, and can be stored again after it."""
    window = MessageIdWindow(window_us=1_000, ids_max=10)
    window.add("a", Offset(5), now_us=10_000)
    assert window.find("a", 10_999) == 5
    assert window.find("a", 11_000) is None
    window.expire(11_000)
    assert len(window) == 0


def test_the_window_is_bounded_and_says_when_it_forgot_early() -> None:
    """Beyond its bound the oldest id goes, and that is counted, not silent."""
    window = MessageIdWindow(window_us=1_000_000, ids_max=2)
    for number in range(4):
        window.add(str(number), Offset(number), now_us=number)
    window.expire(4)
    assert window.forgotten_early == 2
    assert window.find("1", 4) is None
    assert window.find("2", 4) == 2


def test_repeats_are_found_in_the_window_and_inside_the_batch() -> None:
    """A row may repeat a stored record or an earlier row; rows without an id never repeat."""
    window = MessageIdWindow(window_us=1_000, ids_max=10)
    window.add("old", Offset(3), now_us=0)
    repeats = find_repeats(window, ["x", None, "old", "x", None, "y"], now_us=1)
    assert repeats.stored == {2: 3}
    assert repeats.inside == {3: 0}
