"""Plans an append: cuts ranges at watermarks, makes slices for tasks, reads claims. Pure.

The file is not split: every function reads or makes the claims of the one format.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.errors import (
    GapError,
    OverlapError,
    SchemaMismatchError,
    StaleWatermarkError,
    TableMismatchError,
)
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
    """The transform by which an appender's rows go to a pair of tables, for some time.

    A term ends when the appender begins the next one. Both tables, decoded and rejected, hold the
    term, and a commit to either of them needs that of its plan. So nothing of an earlier term is
    committed later. The numbers of all appenders of a stream are one sequence: of two transforms
    that may judge the same records, only that of the highest number appends.
    """

    number: int = 0  # grows; 0: no transform has begun one
    transform: int | None = None  # see :func:`transform_number`


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A range of which only the rejected rows are committed, and who can append the rest."""

    app: str  # an appender that may append this range, under its own claim
    began_by: str  # the appender that committed the rejected rows; its pins know the decode
    partition: int
    offsets: OffsetRange
    transform: int | None  # what rejected the rows; None: not known
    since: Offset | None  # first offset of the rejected claim, if ``app`` has no claim yet


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendClaims:
    """Every claim in a table version, by (app, stream uuid, partition)."""

    of: Mapping[tuple[str, str, int], AppendClaim] = field(default_factory=dict)
    terms: Mapping[tuple[str, str], TransformTerm] = field(default_factory=dict)

    def term(self, app: str, uuid: str) -> TransformTerm:
        """Return the present term of one appender of one stream."""
        return self.terms.get((app, uuid), TransformTerm())

    def other_terms(self, app: str, uuid: str) -> dict[str, TransformTerm]:
        """Return the present terms of the other appenders of a stream, by name."""
        return {a: term for (a, u), term in self.terms.items() if u == uuid and a != app}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFence:
    """What an append was planned for: no commit of it may meet another transform's."""

    app: str
    uuid: str
    transform: int | None  # None: it has no number
    ranges: Mapping[int, OffsetRange]
    decoded: AppendClaims  # the claims of the decoded table when the append was planned

    def meets(self, app: str) -> bool:
        """Tell whether another appender may append some of these offsets.

        It appends above its watermark, and anywhere where it has none.
        """
        return any(
            (claim := self.decoded.of.get((app, self.uuid, number))) is None
            or claim.end < wanted.end
            for number, wanted in self.ranges.items()
        )

    def is_rival(self, app: str, term: TransformTerm) -> bool:
        """Tell whether another appender may judge some of these records in another way."""
        return term.transform != self.transform and self.meets(app)


def next_term(fence: AppendFence, rejected: AppendClaims) -> TransformTerm | None:
    """Return the term that both tables have to be in before the append; None: they are.

    Its number is above that of each rival: rivals plan by their own numbers, and two appends of
    which each saw the other's number lower cannot be. If the decoded table is in such a term of
    this transform already, and the rejected one is not yet, it is that term.
    """
    app, uuid, transform = fence.app, fence.uuid, fence.transform
    ours = fence.decoded.term(app, uuid), rejected.term(app, uuid)
    others = [
        *fence.decoded.other_terms(app, uuid).items(),
        *rejected.other_terms(app, uuid).items(),
    ]
    rivals = max((term.number for name, term in others if fence.is_rival(name, term)), default=0)
    decoded = ours[0]
    if decoded.transform == transform and decoded.number > rivals:
        if decoded == ours[1]:
            return None
        if decoded.number > ours[1].number:
            return decoded
    numbers = [term.number for term in (*ours, *(term for _, term in others))]
    return TransformTerm(number=max(numbers) + 1, transform=transform)


def require_term(fence: AppendFence, planned: AppendClaims, found: AppendClaims) -> None:
    """Check that a table is still in the terms for which the files were written.

    Raises:
        StaleWatermarkError: this appender, or one that may append the same offsets in another way,
            has begun a term. Facts: expected, found, app.
    """
    before = {fence.app: planned.term(fence.app, fence.uuid)}
    before |= planned.other_terms(fence.app, fence.uuid)
    now = {fence.app: found.term(fence.app, fence.uuid)}
    now |= found.other_terms(fence.app, fence.uuid)
    for app, term in sorted(now.items()):
        earlier = before.get(app, TransformTerm())
        if term != earlier and (app == fence.app or fence.is_rival(app, term)):
            raise StaleWatermarkError(
                f"an append of {app!r} that decodes in another way (another schema, or other "
                "limits) has begun while rows were written for the same table. Nothing of this "
                "append was committed",
                expected=earlier.number,
                found=term.number,
                app=app,
            )


def require_own_term(
    planned: AppendClaims, found: AppendClaims, app: str, uuid: str, *, below: int | None
) -> None:
    """Check that a term may begin: the appender is in that of the plan, and all are ``below``.

    Raises:
        StaleWatermarkError: another append has begun a term. Facts: expected, found.
    """
    highest = max((each.number for each in found.other_terms(app, uuid).values()), default=0)
    before, now = planned.term(app, uuid), found.term(app, uuid)
    if before != now or (below is not None and highest >= below):
        raise StaleWatermarkError(
            "another append has begun a term at the same time",
            expected=before.number,
            found=max(highest, now.number),
        )


def begun(decoded: AppendClaims, rejected: AppendClaims, uuid: str) -> list[Begun]:
    """Return the ranges of a stream of which only the rejected rows are committed.

    They are appended by the appender that began them. If another one, which decodes in the same
    way, has appended a part of them meanwhile, what lies above that part is the other one's: a
    claim has no holes.
    """
    found: list[Begun] = []
    for (app, stream, number), claim in sorted(rejected.of.items()):
        if stream != uuid:
            continue
        own = decoded.of.get((app, uuid, number))
        held = {
            OffsetRange(other.start, other.end): name
            for (name, u, n), other in decoded.of.items()
            if (u, n) == (uuid, number)
        }
        held |= {each.offsets: each.app for each in found if each.partition == number}
        low, by = claim.start if own is None else own.end, app
        for offsets, name in [*sorted(held.items(), key=lambda each: each[0].start), (None, "")]:
            end = claim.end if offsets is None else min(offsets.start, claim.end)
            if low < end:
                is_new = own is None and by == app
                found.append(
                    Begun(
                        app=by,
                        began_by=app,
                        partition=number,
                        offsets=OffsetRange(low, end),
                        transform=claim.transform,
                        since=claim.start if is_new else None,
                    )
                )
                own = own or claim  # its first claim is this one
            if offsets is not None and offsets.end > low:
                low, by = offsets.end, app if own is None else name
    return found


def covered(
    fence: AppendFence, rejected: AppendClaims, ahead: Mapping[int, AppendClaim], uri: str
) -> dict[int, list[AppendClaim]]:
    """Return what other appenders have begun at the beginnings of an append's ranges.

    Their rejected rows are in the table of rejected rows already, and this transform rejects the
    same ones. ``ahead`` has this appender's own claims there.

    Raises:
        SchemaMismatchError: another transform has rejected them, or they are not at the beginning.
            Facts: uri, partition, start, end, app, begun.
        OverlapError: another appender may have rejected rows there, and it cannot be known which.
    """
    found: dict[int, list[AppendClaim]] = {}
    for (app, uuid, number), claim in sorted(
        rejected.of.items(), key=lambda each: (each[0][2], each[1].start)
    ):
        wanted = fence.ranges.get(number)
        if uuid != fence.uuid or app == fence.app or wanted is None:
            continue
        low, high = max(wanted.start, claim.start), min(wanted.end, claim.end)
        if low >= high:
            continue
        own = fence.decoded.of.get((app, uuid, number))
        if own is not None and low < own.end:
            require_apart(fence.ranges, [(app, number, OffsetRange(claim.start, claim.end))])
        ends = [each.end for each in (*found.get(number, ()), *known(ahead, number))]
        if (
            fence.transform is None
            or claim.transform != fence.transform
            or (low > max([wanted.start, *ends]))
        ):
            raise SchemaMismatchError(
                f"an append of {app!r} of partition {number} was interrupted after the rejected "
                f"records of {OffsetRange(low, high)} were committed to {uri}, and this append "
                "cannot go on from there: a record could be lost or doubled. Run the job of "
                f"{app!r} again, which finishes that append; then append the rest. If the rows of "
                "the first table were removed on purpose, remove the second table, too",
                uri=uri,
                partition=number,
                start=int(low),
                end=int(high),
                app=app,
                begun=True,
            )
        found.setdefault(number, []).append(claim)
    return found


def known(claims: Mapping[int, AppendClaim], number: int) -> list[AppendClaim]:
    """Return the claim of a partition, if there is one."""
    return [claims[number]] if number in claims else []


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
