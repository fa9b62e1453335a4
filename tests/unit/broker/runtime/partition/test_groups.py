"""Planning one group: how far the log must be committed before a call is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import prepare
from broker.core.dedup import ProducerTable
from broker.core.message_ids import MessageIdWindow, digest_of
from broker.errors import (
    NotLeaderError,
    PartitionsAddedError,
    SequenceGapError,
    from_wire,
    may_be_stored,
    to_wire,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import ProducerId
from broker.model.offsets import Offset
from broker.runtime.partition.groups import BatchesWrite, CommitGroup, RecordsWrite

NOW_US = 1_700_000_000_000_000
START = Offset(10)


def _group() -> CommitGroup:
    """Return a group on a log of ten records, with the message id "old" at offset 3."""
    window = MessageIdWindow(window_us=1_000_000, ids_max=10)
    window.add(digest_of("old"), Offset(3), NOW_US)
    return CommitGroup(
        partitions_count=1,
        producers=ProducerTable(),
        window=window,
        start=START,
        leader_epoch=LeaderEpoch(1),
        now_us=NOW_US,
        encode=lambda batch: prepare(batch, now_us=NOW_US),
    )


def _write(*message_ids: str | None, heard: list[Any]) -> RecordsWrite:
    batch = pa.RecordBatch.from_pydict({"value": [b"v"] * len(message_ids)})
    return RecordsWrite(batch, prepare(batch, now_us=NOW_US), message_ids, heard.append, 1)


@pytest.mark.parametrize(
    ("message_ids", "offsets", "end"),
    [
        (["new", "old"], [10, 3], 11),
        (["old", "new"], [3, 10], 11),
        (["a", "b", "old", "a"], [10, 11, 3, 10], 12),
        (["old"], [3], 4),
        ([None, "old", None], [10, 3, 11], 12),
    ],
)
def test_a_call_waits_for_the_highest_of_its_records(
    message_ids: list[str | None], offsets: list[int], end: int
) -> None:
    """A repeat at any place of the call does not lower the offset that the call waits for."""
    heard: list[Any] = []
    group = _group()
    group.add(_write(*message_ids, heard=heard))
    (answer,) = group.answers()
    assert answer.end == end
    answer.tell()
    assert [int(one) for one in heard[0].offsets] == offsets


def test_a_repeat_within_the_group_waits_for_the_first() -> None:
    """Two calls of one turn carry one record: both are answered when it is committed."""
    heard: list[Any] = []
    group = _group()
    for _ in range(2):
        group.add(_write("new", heard=heard))
    assert [answer.end for answer in group.answers()] == [11, 11]
    assert len(group.batches) == 1
    assert group.duplicates_count == 1


def test_a_batch_that_was_placed_by_fewer_partitions_is_refused() -> None:
    """But not one that is stored already: its answer was lost. A higher number is a newer view."""
    group = _group()
    object.__setattr__(group, "partitions_count", 4)
    rows = pa.RecordBatch.from_pydict({"value": [b"v"]})
    batch = replace(
        prepare(rows, now_us=NOW_US), producer_id=ProducerId(7), base_sequence=0, placed_by=4
    )
    heard: list[Any] = []
    for placed_by, sequence in ((4, 0), (2, 0), (2, 1), (2, 5), (8, 1), (None, 2)):
        one = replace(batch, placed_by=placed_by, base_sequence=sequence)
        group.add(BatchesWrite([one], heard.extend, 1))
    for answer in group.answers():
        answer.tell()
    first, again, late, gap, newer, other = heard
    assert (first.base_offset, first.duplicate) == (10, False)
    assert (again.base_offset, again.duplicate) == (10, True)
    assert isinstance(late, PartitionsAddedError)
    assert isinstance(gap, PartitionsAddedError)  # not the gap that the refusal before has made
    assert late.partitions_count == 4
    assert (newer.base_offset, other.base_offset) == (11, 12)


def test_records_whose_commit_nobody_sees_may_be_stored() -> None:
    """Their publisher hears it: without ids a repeat would be a second record."""
    heard: list[Any] = []
    group = _group()
    group.add(_write(None, heard=heard))
    (answer,) = group.answers()
    answer.abandon(NotLeaderError("this broker stopped leading", leader="b"))
    (error,) = heard
    assert isinstance(error, NotLeaderError)
    assert error.facts["leader"] == "b"
    assert may_be_stored(error)
    told = from_wire(to_wire(error))
    assert told is not None
    assert may_be_stored(told)
    assert not may_be_stored(NotLeaderError("it is led elsewhere"))


def test_a_batch_whose_commit_nobody_sees_may_be_stored() -> None:
    """The next leader may refuse to look for it. A batch that the group refused is not stored."""
    rows = pa.RecordBatch.from_pydict({"value": [b"v"]})
    batch = replace(prepare(rows, now_us=NOW_US), producer_id=ProducerId(7), base_sequence=0)
    heard: list[Any] = []
    group = _group()
    group.add(BatchesWrite([batch, replace(batch, base_sequence=5)], heard.extend, 1))
    (answer,) = group.answers()
    answer.abandon(NotLeaderError("this broker stopped leading"))
    lost, refused = heard
    assert isinstance(lost, NotLeaderError)
    assert may_be_stored(lost)
    assert isinstance(refused, SequenceGapError)
    assert not may_be_stored(refused)
