"""Plans an append: cuts ranges at watermarks, makes slices for tasks, reads claims. Pure."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.errors import GapError, OverlapError, StaleWatermarkError, TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.partitions import OffsetSlice

PREFIX: Final = "headwater-append"
_APP_ID: Final = re.compile(
    rf"{PREFIX}/(?P<app>[^/]+)/(?P<uuid>[^/]+)/(?P<partition>\d{{1,9}})"
    r"(?P<what>/start|/rows|/lineage_high|/lineage_low|/transform|/transform_end)?\Z"
)
_TERM_ID: Final = re.compile(
    rf"{PREFIX}/(?P<app>[^/]+)/(?P<uuid>[^/]+)/(?P<what>term|term_transform)\Z"
)
_HALF: Final = 1 << 64  # a lineage id has 128 bits, and a transaction's version 64 with a sign


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendClaim:
    """One appender's range of one partition of one stream, and the number of its rows."""

    start: Offset
    end: Offset
    rows_count: int
    lineage_id: str | None = None  # the leadership of ``end``; None: an old build appended
    transform: int | None = None  # what rejected the rows below ``end``; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformTerm:
    """The transform by which rows go to a pair of tables, decoded and rejected, for some time.

    A term ends when another transform begins the next one. Both tables hold the term, and a commit
    to either of them needs that of its plan. So nothing of an earlier term is committed later.
    """

    number: int = 0  # grows; 0: no transform has begun one
    transform: int | None = None  # see :func:`transform_number`


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendClaims:
    """Every claim in a table version, by (app, stream uuid, partition)."""

    of: Mapping[tuple[str, str, int], AppendClaim] = field(default_factory=dict)
    terms: Mapping[tuple[str, str], TransformTerm] = field(default_factory=dict)

    def term(self, app: str, uuid: str) -> TransformTerm:
        """Return the present term of one appender of one stream."""
        return self.terms.get((app, uuid), TransformTerm())

    def mine(self, app: str, uuid: str) -> dict[int, AppendClaim]:
        """Return the claims of one appender of one stream, by partition."""
        return {number: claim for (a, u, number), claim in self.of.items() if (a, u) == (app, uuid)}

    def others(self, app: str, uuid: str) -> list[tuple[str, int, OffsetRange]]:
        """Return (app, partition, range) of the claims of other appenders of the same stream."""
        return [
            (a, number, OffsetRange(claim.start, claim.end))
            for (a, u, number), claim in sorted(self.of.items())
            if u == uuid and a != app
        ]

    def strangers(self, app: str, uuid: str) -> list[str]:
        """Return the uuids of other streams that this appender has appended to the table."""
        return sorted({u for a, u, _ in self.of if a == app and u != uuid})


def app_ids(app: str, uuid: str, partition: int) -> tuple[str, str, str]:
    """Return the transaction ids of a partition: exclusive end, start, and count of rows."""
    end = f"{PREFIX}/{app}/{uuid}/{partition}"
    return end, f"{end}/start", f"{end}/rows"


def lineage_ids(app: str, uuid: str, partition: int) -> tuple[str, str]:
    """Return the transaction ids that together hold the lineage id of a partition's end."""
    end = f"{PREFIX}/{app}/{uuid}/{partition}"
    return f"{end}/lineage_high", f"{end}/lineage_low"


def transform_ids(app: str, uuid: str, partition: int) -> tuple[str, str]:
    """Return the transaction ids of a transform's number, and of the end at which it was noted."""
    end = f"{PREFIX}/{app}/{uuid}/{partition}"
    return f"{end}/transform", f"{end}/transform_end"


def term_ids(app: str, uuid: str) -> tuple[str, str]:
    """Return the transaction ids of a term's number, and of its transform's."""
    return f"{PREFIX}/{app}/{uuid}/term", f"{PREFIX}/{app}/{uuid}/term_transform"


def all_ids(app: str, uuid: str, partition: int) -> tuple[str, ...]:
    """Return every transaction id that a claim may have."""
    return (
        *app_ids(app, uuid, partition),
        *lineage_ids(app, uuid, partition),
        *transform_ids(app, uuid, partition),
    )


def transform_number(transform: object) -> int | None:
    """Return a transform's number in claims, 63 bits of the hash of its identity; None without one.

    Two transforms with one identity reject the same rows.
    """
    identity = getattr(transform, "identity", None)
    if identity is None:
        return None
    return int.from_bytes(hashlib.sha256(str(identity).encode()).digest()[:8]) >> 1


def claims_of(transactions: Mapping[str, int]) -> AppendClaims:
    """Read the claims from a version's transactions; other transactions are ignored.

    Raises:
        TableMismatchError: a claim is incomplete or not valid.
    """
    found: dict[tuple[str, str, int], dict[str, int]] = {}
    terms: dict[tuple[str, str], dict[str, int]] = {}
    for app_id, number in transactions.items():
        term = _TERM_ID.match(app_id)
        if term is not None:
            terms.setdefault((term["app"], term["uuid"]), {})[term["what"]] = number
        match = _APP_ID.match(app_id)
        if match is not None:
            key = (match["app"], match["uuid"], int(match["partition"]))
            found.setdefault(key, {})[match["what"] or "/end"] = number
    claims = {}
    for key, parts in found.items():
        start, end, rows = (parts.get(what, -1) for what in ("/start", "/end", "/rows"))
        if not 0 <= start <= end or rows < 0:
            raise TableMismatchError(
                f"the transactions of {key} claim [{start}, {end}) with {rows} rows",
                partition=key[2],
            )
        claims[key] = AppendClaim(
            start=Offset(start),
            end=Offset(end),
            rows_count=rows,
            lineage_id=_lineage_id(parts),
            # An old build moves the end and leaves the number of an earlier append.
            transform=parts.get("/transform") if parts.get("/transform_end") == end else None,
        )
    return AppendClaims(
        of=claims,
        terms={
            key: TransformTerm(number=parts.get("term", 0), transform=parts.get("term_transform"))
            for key, parts in terms.items()
        },
    )


def next_term(
    decoded: TransformTerm, rejected: TransformTerm, transform: int
) -> TransformTerm | None:
    """Return the term that both tables have to be in before a transform appends; None: they are.

    If the decoded table is in a term of this transform already, and the rejected one is not yet, it
    is that term.
    """
    if decoded.transform == transform and decoded.number > rejected.number:
        return decoded
    if decoded == rejected and decoded.transform == transform:
        return None
    return TransformTerm(number=max(decoded.number, rejected.number) + 1, transform=transform)


def require_term(planned: TransformTerm, found: TransformTerm) -> None:
    """Check that a table is still in the term for which the files were written.

    Raises:
        StaleWatermarkError: another transform has begun a term. Facts: expected, found.
    """
    if planned != found:
        raise StaleWatermarkError(
            "an append that decodes in another way (another schema, or other limits) has begun "
            "while rows were written for the same table. Nothing of this append was committed",
            expected=planned.number,
            found=found.number,
        )


def cut(
    ranges: Mapping[int, OffsetRange], claims: Mapping[int, AppendClaim]
) -> dict[int, OffsetRange]:
    """Return the part of each range that is not in the table yet; empty parts are left out.

    The first append of a partition may begin anywhere.

    Raises:
        GapError: a range begins above the watermark. Facts: partition, start, end.
    """
    found = {}
    for partition, wanted in sorted(ranges.items()):
        claim = claims.get(partition)
        if len(wanted) == 0:
            continue
        if claim is None:
            found[partition] = wanted
            continue
        if wanted.start > claim.end:
            raise GapError(
                f"partition {partition}: the table ends at {claim.end}, but the range to append is "
                f"{wanted}",
                partition=partition,
                start=int(claim.end),
                end=int(wanted.start),
            )
        if wanted.end > claim.end:
            found[partition] = OffsetRange(claim.end, wanted.end)
    return found


def require_apart(
    ranges: Mapping[int, OffsetRange], others: Iterable[tuple[str, int, OffsetRange]]
) -> None:
    """Check that no other appender has these offsets, because a row must be in a table once.

    Raises:
        OverlapError: another appender has some. Facts: partition, start, end, app.
    """
    for app, number, held in others:
        wanted = ranges.get(number)
        if wanted is not None and max(wanted.start, held.start) < min(wanted.end, held.end):
            raise OverlapError(
                f"partition {number}: {wanted} cannot be appended, because {app!r} has appended "
                f"{held} of the same stream to this table",
                partition=number,
                start=int(max(wanted.start, held.start)),
                end=int(min(wanted.end, held.end)),
                app=app,
            )


def require_unmoved(
    planned: Mapping[int, AppendClaim],
    found: Mapping[int, AppendClaim],
    partitions: Mapping[int, OffsetRange],
) -> None:
    """Check that the watermarks are still those for which the files were written.

    Raises:
        StaleWatermarkError: a watermark has moved, or is gone. Facts: partition, expected, found.
    """
    for partition in sorted(partitions):
        before, now = planned.get(partition), found.get(partition)
        if before != now:
            raise StaleWatermarkError(
                f"partition {partition} was at {_at(before)} and is at {_at(now)} now: another "
                "appender of the same name has committed",
                partition=partition,
                expected=None if before is None else int(before.end),
                found=None if now is None else int(now.end),
            )


def moved(
    app: str,
    uuid: str,
    claims: Mapping[int, AppendClaim],
    ranges: Mapping[int, OffsetRange],
    rows: Mapping[int, int],
    *,
    lineages: Mapping[int, str],
    transform: int | None = None,
) -> dict[str, int]:
    """Return the transactions that a commit sets: the claims of the partitions after it.

    ``lineages`` has, per partition, the lineage id of the leadership of its new end; ``transform``
    is the number of the transform that rejected the rows, in a table of rejected rows.
    """
    transactions = {}
    for partition, new in sorted(ranges.items()):
        end_id, start_id, rows_id = app_ids(app, uuid, partition)
        before = claims.get(partition)
        transactions[end_id] = int(new.end)
        transactions[rows_id] = (0 if before is None else before.rows_count) + rows[partition]
        if before is None:
            transactions[start_id] = int(new.start)
        number = int(lineages[partition], 16)
        for app_id, half in zip(
            lineage_ids(app, uuid, partition), divmod(number, _HALF), strict=True
        ):
            transactions[app_id] = half - _HALF // 2
        if transform is not None:
            number_id, noted_id = transform_ids(app, uuid, partition)
            transactions[number_id] = transform
            transactions[noted_id] = int(new.end)
    return transactions


def recounted(
    claims: AppendClaims, uuid: str, counts: Mapping[tuple[str, int], int]
) -> dict[str, int]:
    """Return the transactions that change the row counts of (app, partition) by ``counts``."""
    return {
        app_ids(app, uuid, number)[2]: claims.of[app, uuid, number].rows_count + change
        for (app, number), change in counts.items()
    }


def chunk(remaining: Mapping[int, OffsetRange], records_max: int) -> dict[int, OffsetRange]:
    """Return the first part of each range, in proportion, with about ``records_max`` in all.

    Never empty while records remain.
    """
    total = sum(len(offsets) for offsets in remaining.values())
    found = {}
    for number, offsets in sorted(remaining.items()):
        share = len(offsets)
        if total > records_max:
            share = min(share, max(1, len(offsets) * records_max // total))
        if share:
            found[number] = OffsetRange(offsets.start, Offset(offsets.start + share))
    return found


def slices(
    ranges: Mapping[int, OffsetRange],
    *,
    tasks: int,
    records_min: int,
    records_max: int,
    at: Mapping[int, Offset] | None = None,
) -> list[OffsetSlice]:
    """Cut ranges evenly into about ``tasks`` slices of at most ``records_max`` records.

    Slices are not made smaller than ``records_min`` only to have more tasks. A slice never crosses
    the offset ``at`` of its partition. Slices are in order and cover exactly the ranges.
    """
    total = sum(len(offsets) for offsets in ranges.values())
    if total == 0:
        return []
    share = max(-(-total // max(1, tasks)), records_min, 1)
    limit = min(share, records_max)
    found = []
    for partition, offsets in sorted(ranges.items()):
        point = (at or {}).get(partition)
        edges = [offsets.start, offsets.end]
        if point is not None and offsets.start < point < offsets.end:
            edges.insert(1, point)
        for low, high in itertools.pairwise(edges):
            pieces = -(-(high - low) // limit)
            bounds = [low + (high - low) * nth // max(1, pieces) for nth in range(pieces + 1)]
            found += [
                OffsetSlice(partition, Offset(start), Offset(end))
                for start, end in itertools.pairwise(bounds)
            ]
    return found


def _lineage_id(parts: Mapping[str, int]) -> str | None:
    high, low = parts.get("/lineage_high"), parts.get("/lineage_low")
    if high is None or low is None:
        return None
    return f"{(high + _HALF // 2) * _HALF + low + _HALF // 2:032x}"


def _at(claim: AppendClaim | None) -> str:
    return "no watermark" if claim is None else f"{claim.end} after {claim.rows_count} rows"
