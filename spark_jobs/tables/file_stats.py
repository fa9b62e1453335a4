"""The statistics of one data file, in the form of Delta's log. Pure.

Bounds may be wider than the values, never narrower. Timestamps are kept in milliseconds and rounded
outwards. For long texts the lower bound is cut, and the upper bound is left out. A bound that has
no exact form in JSON is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_TEXT_MAX: Final = 32
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class WrittenStats:
    """Counts and bounds of the rows in a file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._bounds = {name: _Bounds() for name in columns}
        self.rows_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows; they have all the columns."""
        self.rows_count += rows.num_rows
        for name, bounds in self._bounds.items():
            bounds.add(rows.column(name))

    def to_json(self) -> str:
        """Return the statistics as text for an add action."""
        found = {name: bounds.texts() for name, bounds in self._bounds.items()}
        return json.dumps(
            {
                "numRecords": self.rows_count,
                "minValues": {name: low for name, (low, _) in found.items() if low is not None},
                "maxValues": {name: high for name, (_, high) in found.items() if high is not None},
                "nullCount": {
                    name: bounds.nulls
                    for name, bounds in self._bounds.items()
                    if bounds.nulls is not None
                },
            }
        )


class _Bounds:
    def __init__(self) -> None:
        self.nulls: int | None = 0
        self._kind: pa.DataType | None = None
        self._least: Any = None
        self._greatest: Any = None
        self._bounded = True

    def add(self, values: pa.Array) -> None:
        self._kind = kind = values.type
        if pt.is_nested(kind):
            self.nulls = None  # Delta counts nulls of nested types per leaf
            return
        assert self.nulls is not None
        self.nulls += values.null_count
        if not self._bounded or values.null_count == len(values):
            return
        if pt.is_date32(kind):
            values = values.view(pa.int32())
        elif pt.is_timestamp(kind):
            values = values.view(pa.int64())
        elif pt.is_floating(kind):
            self._bounded = not pc.any(pc.is_nan(values)).as_py()  # in Spark NaN is the greatest
        elif not (pt.is_integer(kind) or pt.is_string(kind)):
            self._bounded = False
        if not self._bounded:
            return
        found = pc.min_max(values)
        least, greatest = found["min"].as_py(), found["max"].as_py()
        self._least = least if self._least is None else min(self._least, least)
        self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)

    def texts(self) -> tuple[Any, Any]:
        """Return both bounds as JSON values; None for a bound that is left out."""
        if not self._bounded or self._least is None or self._kind is None:
            return None, None
        if pt.is_timestamp(self._kind):
            zone = "Z" if self._kind.tz is not None else ""
            return _moment(self._least // 1000, zone), _moment(-(-self._greatest // 1000), zone)
        if pt.is_date32(self._kind):
            return _day(self._least), _day(self._greatest)
        low, high = _value(self._least), _value(self._greatest)
        if isinstance(low, str) and pt.is_string(self._kind):
            low = low[:_TEXT_MAX]
        if isinstance(high, str) and len(high) > _TEXT_MAX:
            high = None
        return low, high


def _value(found: Any) -> Any:
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return found


def _day(days: int) -> str | None:
    try:
        return (_EPOCH.date() + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _moment(milliseconds: int, zone: str) -> str | None:
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{text}{zone}"
