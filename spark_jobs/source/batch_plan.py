"""The plan of a batch read: streams, their incarnations and offset ranges, fixed once and held.

Two questions to the broker may have two answers: records arrive, retention deletes records, a
stream is created again. So the plan is made once, with the DataFrame (``load()``), and every action
uses it. The lease is taken before the positions are looked up. So the records of the plan exist
until they are read, as long as the lease is valid.

A server of Spark Connect keeps no DataFrame. It analyses the client's plan again for every mention
in a statement, and whenever the plan has left its cache; it cannot tell two DataFrames apart. So
there only positions that the options fix are stable, and all others are refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from broker.errors import (
    FencedError,
    HeadwaterError,
    InvalidCutError,
    InvalidRequestError,
    UnavailableError,
    UnknownLeaseError,
)
from broker.model.cut import Cut
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import OffsetRange
from headwater.reads.lease_keeper import LEASE_TTL_MS_DEFAULT
from spark_jobs.source import left, partitions, task_history
from spark_jobs.source.lookup import (
    CONTACT_S,
    PATIENCE_S,
    BrokerLookup,
    make_contact,
    patiently,
    positions_of_cut,
    without_times,
)
from spark_jobs.source.options import NOW, SourceOptions
from spark_jobs.source.partitions import HistoryPositions, LeftRecords, OffsetSlice
from spark_jobs.source.positions import is_explicit, of_stream
from spark_jobs.source.stream_offsets import recreated

if TYPE_CHECKING:
    from headwater.client import Client

# Spark sets this in its Python processes: the id of a Connect session's artifacts, or "default".
# A planner's process has no other sign that its session is one of Spark Connect.
_ARTIFACTS: Final = "SPARK_JOB_ARTIFACT_UUID"
_NO_SESSION: Final = "default"

_log = logging.getLogger("headwater.read")


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The ranges of one stream that are read."""

    stream: str
    uuid: StreamUuid
    ranges: Mapping[int, OffsetRange]
    lease_id: LeaseId | None  # None: the caller holds a lease, or only ranges are returned
    # If the stream may lack records: its slices, and the records that each still has.
    left: tuple[tuple[OffsetSlice, LeftRecords], ...] | None = None
    history: HistoryPositions | None = None  # which the tasks check; None: it is not known


def make_plan(
    given: SourceOptions, client: Client, *, patience_s: float = PATIENCE_S
) -> tuple[StreamPlan, ...]:
    """Take leases for the streams of a read and fix their ranges. Blocks.

    Raises:
        NoAnswerError: no broker answers the first question, within seconds.
        HeadwaterError: a stream or partition does not exist, or offsets do not fit; then no lease
            is held.
    """
    make_contact(client, min(patience_s, CONTACT_S))
    lookup = BrokerLookup(client, patience_s=patience_s)
    cut = given.cut
    if cut is not None:
        patiently(lambda: client.check_cut(cut), patience_s)
    made: list[StreamPlan] = []
    try:
        names = lookup.names(given.selection)
        made.extend(_stream_plan(given, client, lookup, name, patience_s) for name in names)
        return tuple(_with_left(given, client, plan, made, patience_s) for plan in made)
    except BaseException:
        drop(made, client)
        raise


def at_moment(given: SourceOptions, client: Client) -> SourceOptions:
    """Take the cut that option ``asOf`` names and prove its table; return options that read it.

    Blocks. The cut's lease is held for :data:`LEASE_TTL_MS_DEFAULT`, and each task renews it.

    Raises:
        UnknownStreamError, InvalidCutError, OffsetOutOfRangeError: as ``headwater.read(as_of=)``.
        CorruptDataError: the table is not what was committed; a subclass says why.
    """
    # Only this planning loads pyarrow.
    from headwater.reads.as_of import AtOffsets, narrowed, parse_as_of, proved_table  # noqa: PLC0415

    name = given.selection.single
    assert name is not None, "the options were checked"
    assert given.as_of is not None, "the caller has checked this"
    moment = None if given.as_of == NOW else parse_as_of(given.as_of)
    make_contact(client)
    if isinstance(moment, Cut):
        if moment.stream != name:
            raise InvalidCutError(f"the cut is of stream {moment.stream!r}, not of {name!r}")
        client.check_cut(moment)  # first: it tells a stream that was created again
        proved_table(moment, client)
        return given.of_cut(moment)
    cut = client.cut(name, ttl_ms=LEASE_TTL_MS_DEFAULT)
    try:
        if isinstance(moment, AtOffsets | None):  # to look a time up, narrowed() proves the table
            proved_table(cut, client)
        return given.of_cut(cut if moment is None else narrowed(cut, moment, client))
    except BaseException:
        _drop(cut.lease.lease_id, client)
        raise


def drop(plans: list[StreamPlan] | tuple[StreamPlan, ...], client: Client) -> None:
    """End the leases of a plan that will not be read."""
    for plan in plans:
        _drop(plan.lease_id, client)


def require_fixed(given: SourceOptions) -> None:
    """Refuse a read in Spark Connect whose options do not fix the positions.

    Raises:
        InvalidRequestError: with the options to use instead.
    """
    if not in_connect() or is_fixed(given):
        return
    name = given.selection.single or "flights"
    raise InvalidRequestError(
        "Spark Connect may plan a DataFrame again at any time, so a read with an open start or "
        "end would change, and a self-join would read two moments. Fix the read in the client: "
        f'.option("cut", headwater.cut("{name}").save()), or startingOffsets and endingOffsets as '
        "numbers together with streamUuid; or use headwater.read or headwater.sql",
        stream=name,
    )


def is_fixed(given: SourceOptions) -> bool:
    """Tell whether the options alone fix the rows of the read."""
    if given.cut is not None:
        return True
    name = given.selection.single
    if name is None or given.stream_uuid is None or given.starting is None:
        return False
    return is_explicit(of_stream(given.starting, name, option="startingOffsets")) and is_explicit(
        of_stream(given.ending, name, option="endingOffsets")
    )


def in_connect() -> bool:
    """Tell whether this process plans for a session of Spark Connect."""
    return os.environ.get(_ARTIFACTS, _NO_SESSION) != _NO_SESSION


def slices_of(
    given: SourceOptions, plan: StreamPlan, plans: Sequence[StreamPlan]
) -> list[OffsetSlice]:
    """Return the slices of one stream of a read; large streams get more of ``minPartitions``."""
    total = sum(len(span) for one in plans for span in one.ranges.values())
    size = sum(map(len, plan.ranges.values()))
    return partitions.plan(
        plan.ranges,
        partitions_min=-(-given.partitions_min * size // max(1, total)),
        records_max=given.records_per_partition_max,
    )


def _with_left(
    given: SourceOptions,
    client: Client,
    plan: StreamPlan,
    plans: Sequence[StreamPlan],
    patience_s: float,
) -> StreamPlan:
    """Return the plan with what is left of each slice, if its stream may lack records."""
    if given.compacted_rows is not None:
        return replace(plan, left=left.from_text(given.compacted_rows))
    if given.lease is not None or given.emit == "ranges":
        return plan  # headwater.read has counted them; a range that is only named is not read
    stream = patiently(lambda: client.stream(plan.stream), patience_s)
    if not left.may_lack_records(stream):
        return plan
    counted = [
        left.count_left(client, plan.stream, plan.uuid, piece, patience_s=patience_s)
        for piece in slices_of(given, plan, plans)
    ]
    return replace(plan, left=tuple((one.piece, one.left) for one in counted))


def _stream_plan(
    given: SourceOptions, client: Client, lookup: BrokerLookup, name: str, patience_s: float
) -> StreamPlan:
    lease_id = _lease(given, client, name, patience_s)
    try:
        uuid, ranges = _ranges(given, lookup, name)
    except BaseException:
        _drop(lease_id, client)
        raise
    return StreamPlan(name, uuid, ranges, lease_id, history=_history(given, client, name, ranges))


def _lease(given: SourceOptions, client: Client, name: str, patience_s: float) -> LeaseId | None:
    """Return the lease for reading a stream: the cut's lease, or a new one."""
    if given.lease is not None or given.emit == "ranges":
        return None
    if given.cut is not None:
        saved = given.cut.lease.lease_id
        with suppress(UnknownLeaseError):
            patiently(lambda: client.renew_lease(saved, ttl_ms=LEASE_TTL_MS_DEFAULT), patience_s)
            return saved
    lease = patiently(lambda: client.take_lease(name, ttl_ms=LEASE_TTL_MS_DEFAULT), patience_s)
    return lease.lease_id


def _history(
    given: SourceOptions, client: Client, name: str, ranges: Mapping[int, OffsetRange]
) -> HistoryPositions | None:
    """Return where the records of a plan end in the stream's present history.

    Who holds a lease or a cut has the positions. The broker is asked once for others. None if it
    does not tell: commits come between any two looks of a broker at a busy stream.
    """
    if given.emit == "ranges" or given.history_positions is not None:
        return given.history_positions
    if given.cut is not None:
        return task_history.of_cut(given.cut)
    if given.lease is not None:
        return None
    try:
        return task_history.of_ranges(ranges, BrokerLookup(client, patience_s=0).committed(name))
    except (UnavailableError, FencedError) as error:
        _log.info("history_not_told stream=%s: %s", name, error)
        return None


def _drop(lease_id: LeaseId | None, client: Client) -> None:
    if lease_id is not None:
        with suppress(HeadwaterError):  # the lease expires by itself
            client.drop_lease(lease_id)


def _ranges(
    given: SourceOptions, lookup: BrokerLookup, name: str
) -> tuple[StreamUuid, dict[int, OffsetRange]]:
    """Return the ranges of a stream; asks the broker only for positions that options leave open.

    The words and times of a read of a cut are those of the cut: the stream may have more by now.
    """
    assert given.starting is not None, "the options of a batch read have a default"
    starting = of_stream(given.starting, name, option="startingOffsets")
    ending = of_stream(given.ending, name, option="endingOffsets")
    uuid = given.stream_uuid if given.cut is None else given.cut.stream_uuid
    if is_explicit(starting) and is_explicit(ending):
        ranges = partitions.resolve(name, starting, ending, None)
        return lookup.uuid(name) if uuid is None else uuid, ranges
    if given.cut is not None:
        stream = positions_of_cut(given.cut, given.selection)
    else:
        stream = lookup.positions(name, given.selection)
        if uuid not in {None, stream.uuid}:
            raise recreated(name, str(uuid), stream.uuid)
    return stream.uuid, partitions.resolve(
        name,
        without_times(lookup, stream, starting),
        without_times(lookup, stream, ending),
        stream.ranges,
    )
