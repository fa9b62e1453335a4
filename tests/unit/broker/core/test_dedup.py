"""Retries are recognised exactly once, and a write that did not happen leaves no trace."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.core.dedup import ProducerPlan, ProducerTable
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
    """In the middle of its sequence it may be a forgotten one: its retry would be stored twice."""
    with pytest.raises(SequenceGapError) as caught:
        ProducerTable().find(P, 10, 5)
    assert caught.value.facts["expected"] == 0


def test_what_a_group_plans_is_found_and_in_no_table_before_it_is_written() -> None:
    """A later batch of the group follows on it; a failed write leaves the table as it was."""
    table = ProducerTable()
    table.add(P, 0, 10, Offset(0))
    plan = ProducerPlan(table)
    assert plan.find(P, 10, 10) is None
    plan.add(P, 10, 10, Offset(10))
    assert plan.find(P, 20, 1) is None
    assert plan.find(P, 10, 10) == 10, "twice in one group"
    assert plan.find(P, 0, 10) == 0
    for sequence, count in [(10, 9), (0, 9), (21, 1), (15, 5)]:
        with pytest.raises(SequenceGapError) as caught:
            plan.find(P, sequence, count)
        assert caught.value.facts["expected"] == 20
    assert table.find(P, 10, 10) is None, "the same batch is new after a write that failed"
    plan.apply()
    assert table.find(P, 10, 10) == 10
    assert table.find(P, 0, 10) == 0


def test_a_window_refused_as_a_whole_takes_nothing_from_what_is_remembered() -> None:
    """The window has as many batches as a producer may have in flight; none loses its place."""
    table = ProducerTable()
    for number in range(64):
        table.add(P, number, 1, Offset(number))
    plan = ProducerPlan(table)
    for number in range(64, 128):
        assert plan.find(P, number, 1) is None
        plan.add(P, number, 1, Offset(number))
    assert [table.find(P, number, 1) for number in range(64)] == list(range(64))
    assert table.find(P, 64, 1) is None


def test_producers_are_forgotten_whole_by_one_budget_of_bytes() -> None:
    """The longest silent producer goes first; a forgotten one may only begin anew."""
    table = ProducerTable(bytes_max=8_000)
    for round_ in range(64):
        for producer in range(5):
            table.add(ProducerId(producer), round_, 1, Offset(round_ * 5 + producer))
    assert len(table) == 5
    assert table.size_bytes <= 8_000
    table.add(ProducerId(9), 0, 1, Offset(999))
    assert table.size_bytes <= 8_000
    with pytest.raises(SequenceGapError):
        table.find(ProducerId(0), 64, 1)
    assert table.find(ProducerId(4), 0, 1) == 4
    assert table.find(ProducerId(9), 0, 1) == 999


def test_a_full_table_of_producers_costs_what_it_says() -> None:
    """The budget is about real bytes."""
    tracemalloc.start()
    table = ProducerTable(bytes_max=500_000)
    for producer in range(500):
        for number in range(64):
            table.add(ProducerId(1 << 40 | producer), number, 1, Offset(1 << 40 | number))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) > 300
    assert table.size_bytes <= 500_000
    assert size < 625_000


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


def _three_producers(*, bytes_max: int) -> ProducerTable:
    """Three producers of one batch each; the first one is used again."""
    table = ProducerTable(bytes_max=bytes_max)
    for producer in (1, 2, 1, 3):
        number = ProducerId(producer)
        table.add(number, table.expected(number), 1, Offset(producer))
    return table


def test_the_producer_that_was_silent_for_longest_is_forgotten_first() -> None:
    """The last one is never forgotten, however little room there is. A forgotten one needs none."""
    whole = _three_producers(bytes_max=1 << 20)
    table = _three_producers(bytes_max=whole.size_bytes - 1)
    assert [table.expected(ProducerId(one)) for one in (1, 2, 3)] == [2, 0, 1]
    assert table.size_bytes == whole.size_bytes - _one_batch().size_bytes
    tiny = _three_producers(bytes_max=1)
    assert [tiny.expected(ProducerId(one)) for one in (1, 2, 3)] == [0, 0, 1]
    assert (whole.forgotten, table.forgotten, tiny.forgotten) == (0, 1, 3)
    assert tiny.size_bytes == _one_batch().size_bytes


def _one_batch() -> ProducerTable:
    table = ProducerTable()
    table.add(P, 0, 1, Offset(0))
    return table


@pytest.mark.parametrize("begins", [0, 30])
def test_a_producer_that_begins_anew_has_only_its_new_batches(begins: int) -> None:
    """It may begin below or above its last sequence; older batches are forgotten."""
    table = ProducerTable()
    for base in (10, 15):
        table.add(P, base, 5, Offset(base))
    table.add(P, begins, 5, Offset(100))
    assert table.stored(P, begins, 5) == 100
    assert table.stored(P, begins - 5, 5) is None
    assert table.expected(P) == begins + 5


def test_a_table_below_an_offset_has_the_newest_batches_below_it() -> None:
    """The batch at the offset is left out, and no more older batches are kept than wanted."""
    table = ProducerTable()
    for base in range(0, 50, 10):
        table.add(P, base, 10, Offset(base))
    below = table.below(Offset(40), batches_max=2)
    assert [below.stored(P, base, 10) for base in (10, 20, 30, 40)] == [None, 20, 30, None]
    assert below.expected(P) == 40


@pytest.mark.parametrize("version", [0, 2])
def test_producer_state_of_another_version_is_refused(version: int) -> None:
    """Older and newer versions: their numbers have an unknown meaning."""
    with pytest.raises(MetadataCorruptError, match="version"):
        ProducerTable.from_state(b'{"v": %d, "producers": []}' % version)
