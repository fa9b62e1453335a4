"""The records that a member of a group is given, and where they are."""

from __future__ import annotations

import pyarrow as pa

from broker.model.epochs import LeaderEpoch
from broker.model.groups import ToldClaim
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from headwater.client.fetch import Fetched
from headwater.client.group.opening import Opening
from headwater.client.group.records import records_of

CLAIM = ToldClaim(stream="s", stream_uuid=StreamUuid("u"), partition=0, epoch=1)


def test_records_of_a_compacted_range_have_their_own_offsets() -> None:
    """Key compaction has removed records before, between and behind them."""
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "offset": [23, 30]})
    fetched = Fetched(rows, Offset(0), Offset(40), Offset(50), LeaderEpoch(1))
    assert [one.offset for one, _ in records_of(CLAIM, fetched)] == [23, 30]


def test_offsets_are_read_and_not_shown_unless_asked_for() -> None:
    """Without the column nobody knows where a record of a compacted range is."""
    asked: list[object] = []

    def fetch(*_: object, columns: object, **__: object) -> None:
        asked.append(columns)

    for columns in (None, ["value"], ["offset", "value"]):
        opening = Opening(fetch, lambda *_: Offset(0), reset="earliest", columns=columns)  # type: ignore[arg-type]
        opening.open(CLAIM)
        rows = pa.RecordBatch.from_pydict({"value": [b"a"], "offset": [23]})
        shown = opening.asked(rows).schema.names
        assert shown == (["value"] if columns == ["value"] else ["value", "offset"])
    assert asked == [None, ("value", "offset"), ("offset", "value")]
