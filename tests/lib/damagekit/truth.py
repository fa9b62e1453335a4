"""The expected content of a stream, from acknowledgements, and the check of a read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Row = Mapping[str, Any]


@dataclass(slots=True)
class Truth:
    """One partition: the rows of the golden world, and the rows sent since."""

    golden: pa.Table
    acked: dict[int, Row] = field(default_factory=dict)  # offset -> the fields that were sent
    unsure: list[bytes] = field(default_factory=list)  # values of batches whose outcome is unknown
    seen: dict[int, Row] = field(default_factory=dict)  # offset -> all fields, as first read
    twice: list[str] = field(default_factory=list)  # acks of offsets that were given out before

    @property
    def golden_end(self) -> int:
        """First offset after the golden rows."""
        return int(self.golden.num_rows)

    @property
    def end(self) -> int:
        """First offset after everything acknowledged."""
        return max([self.golden_end - 1, *self.acked]) + 1

    def ack(self, base_offset: int, rows: list[Row]) -> None:
        """Note an acknowledgement."""
        for offset, row in enumerate(rows, base_offset):
            if offset < self.golden_end or offset in self.acked:
                self.twice.append(f"offset {offset} was acknowledged twice")
            self.acked[offset] = row

    def upto(self, end: int) -> Truth:
        """Return the truth of an earlier moment."""
        return Truth(self.golden.slice(0, end))

    def first_reaching(self, stamp: Any) -> int:
        """Return the first golden offset whose timestamp is at or after ``stamp``."""
        for offset, found in enumerate(self.golden.column("timestamp").to_pylist()):
            if found >= stamp:
                return offset
        return self.golden_end

    def difference(self, found: pa.Table, *, start: int = 0) -> str:
        """Say how a read of ``[start, end)`` differs; empty when it does not."""
        wanted = self.golden.slice(start)
        old = found.slice(0, wanted.num_rows)
        if old.num_rows < wanted.num_rows:
            return f"{found.num_rows} rows, {self.end - start} were acknowledged"
        if not old.equals(wanted):
            return _first_difference(wanted, old)
        return self._difference_above(found.slice(wanted.num_rows).to_pylist(), start)

    def _difference_above(self, rows: list[dict[str, Any]], start: int) -> str:
        """Compare the rows after the golden rows."""
        offset = max(self.golden_end, start)
        for row in rows:
            if row["offset"] != offset:
                return f"offset {row['offset']} where {offset} was due"
            sent = self.acked.get(offset)
            if sent is None and row["value"] not in self.unsure:
                return f"a row at offset {offset} that nobody sent"
            for name, value in (sent or {}).items():
                if row[name] != value:
                    return f"offset {offset}: {name} is {row[name]!r}, {value!r} was sent"
            for name, value in self.seen.setdefault(offset, row).items():
                if row[name] != value:  # what the broker gave: time, epoch
                    return f"offset {offset}: {name} is {row[name]!r}, {value!r} was read before"
            offset += 1
        return "" if offset >= self.end else f"it ends at {offset}, acknowledged is {self.end}"


def _first_difference(wanted: pa.Table, found: pa.Table) -> str:
    for one, other in zip(wanted.to_pylist(), found.to_pylist(), strict=True):
        if one != other:
            names = [name for name in one if one[name] != other[name]]
            pairs = ", ".join(f"{name} {other[name]!r} not {one[name]!r}" for name in names)
            return f"offset {one['offset']}: {pairs}"[:300]
    return "the same rows in other types"
