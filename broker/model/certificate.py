"""A certificate: the proof of a read that its rows are complete, per partition."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from broker.model.offsets import Offset


@dataclass(frozen=True, slots=True)
class Hole:
    """A range that lacks records, ``[start, end)``, and the recorded cause.

    ``missing_count`` is the number of missing records; None: all of the range. A range that lacks
    records without a recorded cause is a gap, which is an error.
    """

    start: Offset
    end: Offset
    reason: Literal["retention", "compaction", "erasure", "purge"]
    missing_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCertificate:
    """The proof for one partition: ``[start, end)`` is complete, each offset occurs once."""

    partition: int
    start: Offset
    end: Offset
    cold_count: int
    hot_count: int
    digest: str | None = None  # hex SHA-256 over [start, end); only if ``form`` is ``full``
    holes: tuple[Hole, ...] = ()

    @property
    def records_count(self) -> int:
        """Number of records that are proved present, in both tiers."""
        return self.cold_count + self.hot_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The proof that comes with a read of one cut.

    ``form`` is ``counts`` (file statistics, transactions, batch headers) or ``full`` (every byte
    read again and compared with the ledger).
    """

    stream: str
    stream_uuid: str
    table_version: int | None
    form: Literal["counts", "full"]
    partitions: tuple[PartitionCertificate, ...]
    files_count: int
    files_bytes: int
    reader: str = ""  # the principal that read, as the broker knows it; "": it asked nobody

    @property
    def records_count(self) -> int:
        """Number of records that are proved present, in all partitions."""
        return sum(part.records_count for part in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; without ``reader`` if the broker asked nobody."""
        values = dataclasses.asdict(self)
        if not self.reader:
            del values["reader"]
        return values
