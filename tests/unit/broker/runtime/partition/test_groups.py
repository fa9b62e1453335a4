"""Planning one group: how far the log must be committed before a call is answered."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker.codec.record_batch import prepare
from broker.core.dedup import ProducerTable
from broker.core.message_ids import MessageIdWindow, digest_of
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.runtime.partition.groups import CommitGroup, RecordsWrite

NOW_US = 1_700_000_000_000_000
START = Offset(10)


def _group() -> CommitGroup:
    """Return a group on a log of ten records, with the message id "old" at offset 3."""
    window = MessageIdWindow(window_us=1_000_000, ids_max=10)
    window.add(digest_of("old"), Offset(3), NOW_US)
    return CommitGroup(
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
