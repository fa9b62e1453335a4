"""Full reads from Arrow tables and from Spark frames are judged alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from checkkit.anomalies import Anomaly
from checkkit.arrow import (
    COLUMNS,
    Ends,
    by_partition,
    columns_by_partition,
    ends_of,
    reading_of_frame,
    reading_of_table,
    rows_of,
)
from checkkit.checker import judge
from checkkit.content import fingerprint
from checkkit.history import History
from checkkit.readings import NO_TIME, Reading, RowColumns, Source, of_log

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("subject", pa.string()),
        ("leader_epoch", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("reply_subject", pa.string()),
        ("correlation_id", pa.string()),
    ]
)
RECORDS: list[dict[str, Any]] = [
    {"key": None, "value": b"a", "headers": None, "reply_subject": "r"},
    {"key": b"", "value": None, "headers": [], "reply_subject": "", "correlation_id": "c\u00e9"},
    {"key": b"k", "value": b"", "headers": [{"key": "h", "value": None}]},
    {"key": b"k", "value": b"d", "headers": [{"key": "h", "value": b"1"}]},
]

TIMES_US = [1_000_001, 2, 1_700_000_000_000_003, 4]


class Part(NamedTuple):
    """One partition of a cut."""

    partition: int
    start: int
    cold_end: int
    hot_end: int


class Frame:
    """A Spark frame with the methods that the checker uses."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def select(self, *columns: str) -> Frame:
        """Return these columns."""
        return Frame(self._table.select(list(columns)))

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """Return the rows."""
        return self._table


def _table(order: list[int]) -> pa.Table:
    rows = [
        {
            **RECORDS[offset % 4],
            "partition": offset // 4,
            "offset": offset % 4,
            "subject": f"s.{offset // 4}",
            "leader_epoch": 3,
            "timestamp": TIMES_US[offset % 4],
        }
        for offset in order
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def _history() -> History:
    history = History()
    for partition in range(2):
        for offset, one in enumerate(RECORDS):
            pairs = one["headers"]
            content = fingerprint(
                key=one["key"],
                value=one["value"],
                headers=None if pairs is None else [(x["key"], x["value"]) for x in pairs],
                subject=f"s.{partition}",
                reply_subject=one.get("reply_subject"),
                correlation_id=one.get("correlation_id"),
            )
            sent_us = TIMES_US[offset] if offset % 2 else NO_TIME
            record = history.publish(
                content, partition=partition, at_ns=8 * partition + offset, timestamp_us=sent_us
            )
            history.ok(record, at_ns=100, offset=offset, leader_epoch=3)
    return history


ENDS = ends_of([Part(0, 0, 1, 4), Part(1, 0, 4, 4)])


def test_a_table_becomes_a_full_read() -> None:
    """Every row lands in its partition and tier, with the content that was published."""
    reading = reading_of_table(_table(list(range(8))), ENDS, name="unified", began_ns=200)
    assert [len(reading.parts[0].cold_rows), len(reading.parts[0].hot_rows)] == [1, 3]
    assert [len(reading.parts[1].cold_rows), len(reading.parts[1].hot_rows)] == [4, 0]
    verdict = judge(_history(), [reading])
    assert verdict.ok, str(verdict)


def test_a_frame_in_any_order_is_the_same_read() -> None:
    """Spark promises no order, and none is required; a lost row is found nevertheless."""
    table = _table([7, 0, 3, 5, 1, 6, 2, 4]).append_column("extra", pa.array([1] * 8))
    frame = reading_of_frame(Frame(table), ENDS, name="spark", began_ns=200)
    assert judge(_history(), [frame]).ok
    frame = reading_of_frame(Frame(table.slice(1)), ENDS, name="spark", began_ns=200)
    assert judge(_history(), [frame]).counts.keys() == {Anomaly.GAP, Anomaly.LOST}


def test_the_unified_read_is_compared_with_replicas_and_table() -> None:
    """Replicas, the table and the read of both tiers, all from Arrow, are one log."""
    table = _table(list(range(8)))
    found = columns_by_partition(table)
    replica = Reading.of(
        "a", 200, [of_log(number, rows, end=4) for number, rows in found.items()], Source.REPLICA
    )
    cold = reading_of_table(
        _table([0, 4, 5, 6, 7]), {0: Ends(0, 0, 1), 1: Ends(0, 0, 4)}, name="table", began_ns=200,
        source=Source.TABLE,
    )  # fmt: skip
    unified = reading_of_table(table, ENDS, name="unified", began_ns=200)
    verdict = judge(_history(), [replica, cold, unified])
    assert verdict.ok, str(verdict)
    bent = reading_of_table(_table([0, 1, 2, 3, 4, 5, 6, 6]), ENDS, name="unified", began_ns=200)
    assert Anomaly.UNIFIED_DIFFERS in judge(_history(), [replica, cold, bent]).counts


def test_rows_and_columns_say_the_same() -> None:
    """Row by row or in columns: the same offsets, contents and epochs."""
    table = _table(list(range(8)))
    rows = by_partition(table.to_batches())
    for number, columns in columns_by_partition(table).items():
        again = RowColumns.of(rows[number])
        assert again.offsets.tolist() == columns.offsets.tolist()
        assert again.leader_epochs.tolist() == columns.leader_epochs.tolist()
        assert again.timestamps_us.tolist() == columns.timestamps_us.tolist() == TIMES_US
        assert list(again.fingerprints) == list(columns.fingerprints)
    assert len(rows_of(table.to_batches()[0])) == 8
    assert set(COLUMNS) == set(table.column_names)


def test_a_partition_outside_the_cut_is_refused() -> None:
    """Rows of a partition that the cut does not have are no part of the read."""
    with pytest.raises(AssertionError, match="cut has not"):
        reading_of_table(_table(list(range(8))), {0: ENDS[0]}, name="unified", began_ns=1)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich"])
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_time_is_the_same_in_any_zone_and_unit(zone: str, unit: str) -> None:
    """Delta and Spark say it in their own way; it is one instant, to the microsecond."""
    table = _table(list(range(4)))
    place = table.schema.get_field_index("timestamp")
    theirs = table.column(place).cast(pa.timestamp(unit, tz=zone))
    found = columns_by_partition(table.set_column(place, "timestamp", theirs))
    assert found[0].timestamps_us.tolist() == TIMES_US


@pytest.mark.parametrize(
    ("column", "kinds"),
    [
        ("reply_subject", {Anomaly.FOREIGN, Anomaly.DAMAGED}),
        ("correlation_id", {Anomaly.FOREIGN, Anomaly.DAMAGED}),
        ("timestamp", {Anomaly.OTHER_TIME}),
    ],
)
def test_a_field_that_comes_back_changed_is_found(column: str, kinds: set[Anomaly]) -> None:
    """Reply subject and correlation id are content; a time that was sent is the row's."""
    table = _table(list(range(8)))
    place = table.schema.get_field_index(column)
    values = table.column(place).to_pylist()
    values[1] = 7 if column == "timestamp" else "other"
    changed = table.set_column(place, column, pa.array(values, table.schema.field(place).type))
    reading = reading_of_table(changed, ENDS, name="unified", began_ns=200)
    assert judge(_history(), [reading]).counts.keys() == kinds
