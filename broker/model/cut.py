"""A cut: one consistent position in a stream, and its saved form.

A cut names, at one instant, the table version ``v``, and for each partition the cold end ``C`` in
that version and the hot end ``H`` (the high watermark). The rows of the cut are exactly the rows of
``[start, C)`` in the table at ``v`` and the rows of ``[C, H)`` in the log. The lease keeps both
ranges readable.

A cut may be narrowed to an earlier moment (AS OF an offset or a time). Then each partition also
names an end ``E <= H``: a read of the partition ends there. ``E`` may be in either tier.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import InvalidCutError
from broker.model.certificate import Hole, PartitionCertificate
from broker.model.cut_positions import CutPosition
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid, is_uuid
from broker.model.offsets import OFFSET_MAX, Offset

_FORMAT_VERSION: Final = 2  # version 1 had no lineage ids
_FORMATS_READ: Final = (1, 2)
_PREFIX: Final = "hwcut1."
_TEXT_BYTES_MAX: Final = 1024 * 1024
_OPTIONAL: Final = {"table_version", "table_digest", "keys_from", "until", "lineage_id"}
_TEXTS: Final = {
    "cluster", "stream", "stream_uuid", "subject", "table_uri", "table_digest", "lineage_id",
    "lease_id",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCut:
    """The part of a cut in one partition: ``start <= cold_end <= hot_end``.

    A read returns ``[start, end)``: first ``[start, cold_stop)`` from the table, then
    ``[cold_end, hot_stop)`` from the log. Without ``until`` it reads both tiers to their ends.
    """

    partition: int
    start: Offset  # first offset that the table still holds
    cold_end: Offset  # first offset not in the table version
    hot_end: Offset  # first offset not committed when the cut was taken
    leader_epoch: LeaderEpoch
    until: Offset | None = None  # first offset that is not read; None means hot_end
    lineage_id: str | None = None  # of the leadership that committed hot_end
    purged_end: Offset = Offset(0)  # noqa: RUF009 - records below it were purged from both tiers

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.cold_end <= self.hot_end <= OFFSET_MAX:
            raise InvalidCutError(
                f"partition {self.partition}: start {self.start}, cold end {self.cold_end} and "
                f"hot end {self.hot_end} are not in order"
            )
        if not 0 <= self.purged_end <= self.start:
            raise InvalidCutError(
                f"partition {self.partition}: records below {self.purged_end} were purged, but the "
                f"cut starts at {self.start}"
            )
        if self.until is not None and not self.start <= self.until <= self.hot_end:
            raise InvalidCutError(
                f"partition {self.partition}: the cut is narrowed to {self.until}, which is "
                f"outside [{self.start}, {self.hot_end}]"
            )

    @property
    def end(self) -> Offset:
        """First offset that is not read."""
        return self.hot_end if self.until is None else self.until

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The ranges below ``start`` whose records are gone for a recorded reason."""
        holes: list[Hole] = []
        if self.purged_end:
            holes.append(Hole(Offset(0), self.purged_end, "purge"))
        if self.start > self.purged_end:
            holes.append(Hole(self.purged_end, self.start, "retention"))
        return tuple(holes)

    @property
    def empty_proof(self) -> PartitionCertificate:
        """The certificate before anything is read: of the empty range at ``start``."""
        return PartitionCertificate(
            partition=self.partition,
            start=self.start,
            end=self.start,
            cold_count=0,
            hot_count=0,
            holes=self.holes,
        )

    @property
    def cold_stop(self) -> Offset:
        """First offset that is not read from the table."""
        return min(self.cold_end, self.end)

    @property
    def hot_stop(self) -> Offset:
        """First offset that is not read from the log, which is read from ``cold_end``."""
        return max(self.cold_end, self.end)

    @property
    def records_count(self) -> int:
        """Number of offsets that the cut covers in this partition."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A reader's right, limited in time, that no data it needs is deleted."""

    lease_id: LeaseId
    expires_us: int  # on the broker's wall clock; renew the lease well before this time


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A serialisable position; the same cut gives the same rows for as long as its lease holds."""

    cluster: str
    stream: str
    stream_uuid: StreamUuid
    subject: str
    table_uri: str
    table_version: int | None  # None: the stream has no table yet, all records are in the log
    partitions: tuple[PartitionCut, ...]  # one per partition, by number
    taken_us: int
    lease: Lease
    table_digest: str | None = None  # hex SHA-256 of the commit that made the table version
    keys_from: int | None = None  # see Stream.keys_from; None: each key is in one partition

    def __post_init__(self) -> None:
        if [part.partition for part in self.partitions] != list(range(len(self.partitions))):
            raise InvalidCutError("a cut must name every partition once, in order")
        if not is_uuid(self.stream_uuid):
            raise InvalidCutError(f"not a stream uuid: {self.stream_uuid!r}")
        if self.table_version is None and any(
            part.cold_end > part.start for part in self.partitions
        ):
            raise InvalidCutError("a cut with cold records must name a table version")
        if self.keys_from is not None and not 0 < self.keys_from < len(self.partitions):
            raise InvalidCutError(
                f"a cut of {len(self.partitions)} partitions cannot have grown from "
                f"{self.keys_from}"
            )

    @property
    def records_count(self) -> int:
        """Number of offsets that the cut covers in all partitions."""
        return sum(part.records_count for part in self.partitions)

    @property
    def positions(self) -> tuple[CutPosition, ...]:
        """The lineage id and the hot end of each partition, by number."""
        return tuple(CutPosition(part.lineage_id, part.hot_end) for part in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, without unset fields that older builds do not know."""
        body = dataclasses.asdict(self)
        if body["keys_from"] is None:
            del body["keys_from"]
        for part in body["partitions"]:
            if part["until"] is None:
                del part["until"]
            if not part["purged_end"]:
                del part["purged_end"]
        return {"v": _FORMAT_VERSION, **body}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cut:
        """Rebuild a cut; raises InvalidCutError for anything else."""
        try:
            body = dict(values)
            if body.pop("v") not in _FORMATS_READ:
                raise InvalidCutError(
                    f"cut format {values['v']!r} is not known; this build reads the formats "
                    f"{', '.join(map(str, _FORMATS_READ))}"
                )
            parts, lease = body.pop("partitions"), body.pop("lease")
            for one in (body, lease, *parts):
                _check_types(one)
            body["partitions"] = tuple(PartitionCut(**part) for part in parts)
            body["lease"] = Lease(**lease)
            return cls(**body)
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            raise InvalidCutError(f"not a cut: {cause}") from cause

    def save(self) -> str:
        """Return one line of text that :meth:`load` turns back into this cut."""
        body = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return f"{_PREFIX}{hashlib.sha256(body.encode()).hexdigest()[:16]}.{body}"

    @classmethod
    def load(cls, text: str) -> Cut:
        """Parse the text of :meth:`save`; raises InvalidCutError for damaged or other text."""
        text = text.strip()
        if not text.startswith(_PREFIX) or len(text) > _TEXT_BYTES_MAX:
            raise InvalidCutError(
                f"not a saved cut: a saved cut begins with {_PREFIX} and has at most "
                f"{_TEXT_BYTES_MAX} characters"
            )
        digest, _, body = text[len(_PREFIX) :].partition(".")
        if hashlib.sha256(body.encode()).hexdigest()[:16] != digest:
            raise InvalidCutError("the saved cut is damaged: its checksum does not match")
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as cause:
            raise InvalidCutError("the saved cut is not JSON") from cause
        if not isinstance(values, dict):
            raise InvalidCutError("the saved cut is not an object")
        return cls.from_dict(values)


def _check_types(values: dict[str, Any]) -> None:
    """Refuse a JSON value of another type than its field's: the others are whole numbers."""
    for name, value in values.items():
        if value is None and name in _OPTIONAL:
            continue
        expected = str if name in _TEXTS else int
        if type(value) is not expected:
            raise InvalidCutError(f"not a cut: {name} must be {expected.__name__}, not {value!r}")
