"""The judge of a read names every difference."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from damagekit.truth import Truth

_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def _row(offset: int, value: bytes | None = b"v") -> dict[str, Any]:
    return {
        "partition": 0,
        "offset": offset,
        "timestamp": _BEGAN + timedelta(seconds=offset),
        "key": b"k",
        "value": value,
        "headers": [{"key": "h", "value": b"1"}],
        "subject": "in",
        "leader_epoch": 1,
        "reply_subject": "r",
        "correlation_id": "c",
    }


def _table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), ROW_SCHEMA)


def _truth() -> Truth:
    truth = Truth(_table(*(_row(offset) for offset in range(4))))
    truth.ack(4, [{"value": b"new"}])
    return truth


GOOD = [_row(0), _row(1), _row(2), _row(3), _row(4, b"new")]


def test_a_read_of_everything_does_not_differ() -> None:
    """All golden rows are compared bit for bit, and a newer row by its sent fields."""
    assert not _truth().difference(_table(*GOOD))
    assert not _truth().difference(_table(*GOOD[2:]), start=2)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (GOOD[:3], "3 rows"),
        (GOOD[:4], "it ends at 4"),
        ([*GOOD[:4], _row(4, b"other")], "value is b'other'"),
        ([*GOOD, _row(5, b"forged")], "nobody sent"),
        ([*GOOD[:4], _row(5, b"new")], "offset 5 where 4 was due"),
        ([*GOOD[:4], GOOD[4], GOOD[4]], "offset 4 where 5 was due"),
        ([_row(0), _row(1), _row(1), _row(3), GOOD[4]], "offset"),
        ([_row(0), _row(1), _row(2, None), _row(3), GOOD[4]], "value"),
    ],
)
def test_every_difference_is_told(rows: list[dict[str, Any]], told: str) -> None:
    """Fewer, other, more and doubled rows."""
    assert told in _truth().difference(_table(*rows))


@pytest.mark.parametrize(
    "field",
    [name for name in ROW_SCHEMA.names if name not in {"partition", "offset"}],
)
def test_every_field_of_a_row_is_compared(field: str) -> None:
    """Timestamp, headers, reply subject and correlation id as well."""
    changed: dict[str, Any] = {
        "timestamp": _BEGAN,
        "headers": [{"key": "h", "value": b"2"}],
        "leader_epoch": 2,
    }
    row = {**_row(2), field: changed.get(field, "other" if "s" in field or "id" in field else b"o")}
    if field in {"key", "value"}:
        row[field] = b"other"
    assert field in _truth().difference(_table(*GOOD[:2], row, *GOOD[3:]))


@pytest.mark.parametrize("field", ["timestamp", "leader_epoch", "correlation_id"])
def test_what_the_broker_gave_stays(field: str) -> None:
    """A field that only the broker set is the same at the second read as at the first."""
    truth = _truth()
    assert not truth.difference(_table(*GOOD))
    changed: dict[str, Any] = {"timestamp": _BEGAN, "leader_epoch": 2, "correlation_id": "x"}
    row = {**GOOD[4], field: changed[field]}
    assert f"{field} is" in truth.difference(_table(*GOOD[:4], row))


def test_an_offset_that_is_given_out_twice_is_told() -> None:
    """This holds below the golden end, and among later acknowledged records."""
    truth = _truth()
    truth.ack(4, [{"value": b"again"}])
    truth.ack(1, [{"value": b"again"}])
    assert len(truth.twice) == 2


def test_what_was_sent_without_an_answer_may_be_there() -> None:
    """Such a record may be there or not."""
    truth = _truth()
    truth.unsure.append(b"maybe")
    assert not truth.difference(_table(*GOOD, _row(5, b"maybe")))
    assert not truth.difference(_table(*GOOD))


def test_the_first_record_that_reaches_a_time() -> None:
    """It is the first record at or after the time, as for readers."""
    truth = _truth()
    assert truth.first_reaching(_BEGAN + timedelta(seconds=2)) == 2
    assert truth.first_reaching(_BEGAN + timedelta(seconds=1, milliseconds=1)) == 2
    assert truth.first_reaching(_BEGAN + timedelta(days=1)) == 4
