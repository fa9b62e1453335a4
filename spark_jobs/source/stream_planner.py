"""Plans the batches of a streaming query on the driver: each batch's end offsets. Imports no Spark.

The state lives as long as the query's planning process: the beginning of a new query, the upper
limit of an AvailableNow run, the leases. All of it may be lost at any time. State that must not be
lost is in the offsets (:mod:`spark_jobs.source.stream_offsets`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from broker.errors import (
    HeadwaterError,
    OffsetOutOfRangeError,
    UnknownLeaseError,
    UnknownStreamError,
)
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source import positions as places
from spark_jobs.source.admission import admit
from spark_jobs.source.lookup import (
    PATIENCE_S,
    Backoff,
    CommittedEnds,
    Lookup,
    StreamPositions,
    check_named,
    without_times,
)
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.partitions import offset_at
from spark_jobs.source.stream_history import committed_of, noted, require_history
from spark_jobs.source.stream_offsets import QueryOffsets, StreamOffsets, recreated

_log = logging.getLogger("headwater.read")

_SAMPLES_MAX: Final = 8  # partitions from which records are read to estimate their size

Key = tuple[str, int]


class Holds(Protocol):
    """The leases of a query. Blocks on the network."""

    def hold(self, stream: str) -> HeadwaterError | None:
        """Make sure that a lease holds a stream; return the error if the lease before was lost."""


@dataclass(frozen=True, slots=True)
class _Begin:
    """The beginning of the next batch in one partition, and its limit."""

    start: Offset
    limit: Offset  # the high watermark, or the AvailableNow limit below it
    recorded: bool  # whether the checkpoint already has this beginning


class StreamPlanner:
    """Plans the batches of one query. One thread."""

    def __init__(
        self,
        options: SourceOptions,
        lookup: Lookup,
        holds: Holds,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._options = options
        self._lookup = lookup
        self._holds = holds
        self._patience_s = patience_s
        self._initial: QueryOffsets | None = None
        self._ceiling: Mapping[Key, Offset] | None = None
        self._seen: Mapping[str, StreamPositions] = {}
        self._now: Mapping[str, CommittedEnds] = {}
        self._turn = 0

    def initial(self) -> QueryOffsets:
        """Return the beginning of a new query; it does not change while this process lives.

        Raises:
            InvalidRequestError: the options do not fit the streams.
            UnknownStreamError: a stream does not exist.
        """
        if self._initial is None:
            found = {}
            for name in self._lookup.names(self._options.selection):
                self._holds.hold(name)
                stream = self._checked(self._lookup.positions(name, self._options.selection))
                found[name] = StreamOffsets(stream.uuid, self._starts(stream))
            self._initial = QueryOffsets(found, first=True)
        return self._initial

    def prepare_available_now(self) -> None:
        """From now on, plan no records that are committed after this call."""
        streams = {
            name: self._checked(self._lookup.positions(name, self._options.selection))
            for name in self._lookup.names(self._options.selection)
        }
        self._ceiling = {
            (name, number): offsets.end
            for name, stream in streams.items()
            for number, offsets in stream.ranges.items()
        }

    def latest(
        self, start: QueryOffsets, *, limited: bool, records_max: int | None = None
    ) -> QueryOffsets:
        """Return the end of the batch that begins at ``start``; ``start`` itself for no batch.

        Args:
            start: the end of the batch before, or :meth:`initial`.
            limited: whether the limits per trigger apply.
            records_max: the engine's own limit; None for the limit of the options.

        Raises:
            StreamRecreatedError, UnknownStreamError: a stream was created again, or is gone.
            ForeignHistoryError: the stream has lost records that the query has read.
            UnknownLeaseError: the lease was lost, and records of the next batch are gone.
            OffsetOutOfRangeError: records of the next batch are gone, or never existed.
        """
        lost = {name: self._holds.hold(name) for name in self._names(start)}
        begins = self._begins(start, lost)
        backlog = {key: begin.limit - begin.start for key, begin in begins.items()}
        limit = self._limit(begins, records_max) if limited else None
        self._turn += 1
        taken = backlog if limit is None else admit(backlog, limit, turn=self._turn)
        if not any(taken.values()) and not (start.first and self._drifts()):
            return start
        return self._ended(start, begins, taken)

    def require_history(self, end: QueryOffsets) -> None:
        """Check that a batch, planned now or again, belongs to the streams' present histories.

        Raises ForeignHistoryError; StreamRecreatedError, UnknownStreamError.
        """
        for name, offsets in sorted(end.streams.items()):
            if offsets.lineage_ids:
                require_history(self._lookup, name, offsets, self._lookup.committed(name))

    def reported(self) -> QueryOffsets | None:
        """Return the high watermarks that were read last, for the query's progress."""
        if not self._seen:
            return None
        return QueryOffsets(
            {
                name: StreamOffsets(
                    stream.uuid, {number: span.end for number, span in stream.ranges.items()}
                )
                for name, stream in self._seen.items()
            }
        )

    # ------------------------------------------------------------------ where a query begins

    def _starts(self, stream: StreamPositions) -> dict[int, Offset]:
        assert self._options.starting is not None, "the options of a stream have a default"
        asked = places.of_stream(self._options.starting, stream.name, option="startingOffsets")
        check_named(stream, asked)
        side = without_times(self._lookup, stream, asked)
        return {number: offset_at(side, number, stream.ranges) for number in stream.ranges}

    def _drifts(self) -> bool:
        """Tell whether a later call of :meth:`initial` in a new process may differ."""
        return self._options.starting != places.EARLIEST

    # ------------------------------------------------------------------ the next batch

    def _names(self, start: QueryOffsets) -> tuple[str, ...]:
        return tuple(sorted({*self._lookup.names(self._options.selection), *start.streams}))

    def _begins(
        self, start: QueryOffsets, lost: Mapping[str, HeadwaterError | None]
    ) -> dict[Key, _Begin]:
        """Read every stream's positions; wait if a high watermark is below the query's offsets."""
        backoff = Backoff(self._patience_s)
        while True:
            streams, committed = {}, {}
            for name in lost:
                try:
                    found = self._lookup.positions(name, self._options.selection)
                    now = self._lookup.committed(name)  # read later, to confirm the positions
                except UnknownStreamError:
                    if name in start.streams and self._options.fail_on_data_loss:
                        raise
                    _log.warning("stream_is_gone stream=%s; no more records of it are read", name)
                    continue
                if name in start.streams and not start.first:
                    require_history(self._lookup, name, start.streams[name], now)
                streams[name], committed[name] = committed_of(self._checked(found), now), now
            self._seen, self._now = streams, committed
            try:
                return {
                    (name, number): begin
                    for name, stream in streams.items()
                    for number, begin in self._stream_begins(stream, start, lost[name]).items()
                }
            except _BehindError as error:
                if start.first:
                    raise error.gone from None  # the options name offsets that never existed
                backoff.wait_for(error.gone)

    def _stream_begins(
        self, stream: StreamPositions, start: QueryOffsets, lost: HeadwaterError | None
    ) -> dict[int, _Begin]:
        read = start.streams.get(stream.name)
        if read is not None and read.uuid != stream.uuid:
            raise recreated(stream.name, read.uuid, stream.uuid)
        found = {}
        for number, span in stream.ranges.items():
            known = None if read is None else read.ends.get(number)
            begin = span.start if known is None else known
            recorded = known is not None and not start.first
            if begin > span.end:
                raise _BehindError(stream.name, number, begin, span)
            if begin < span.start:
                begin, recorded = self._after_loss(stream, number, begin, lost), False
            limit = span.end
            if self._ceiling is not None:
                limit = min(limit, max(begin, self._ceiling.get((stream.name, number), begin)))
            found[number] = _Begin(begin, limit, recorded)
        return found

    def _after_loss(
        self,
        stream: StreamPositions,
        number: int,
        begin: Offset,
        lost: HeadwaterError | None,
    ) -> Offset:
        """Return the offset after records that are gone; raises if failOnDataLoss is true."""
        span = stream.ranges[number]
        text = (
            f"records [{begin}, {span.start}) of {stream.name}/{number} are gone before this query "
            "has read them"
        )
        if not self._options.fail_on_data_loss:
            _log.warning(
                "data_loss %s; the query goes on after them, because failOnDataLoss is false", text
            )
            return span.start
        if lost is not None:
            raise UnknownLeaseError(f"the query's lease was lost: {text}", **lost.facts)
        raise OffsetOutOfRangeError(text, offset=begin, start=span.start, end=span.end)

    def _limit(self, begins: Mapping[Key, _Begin], records_max: int | None) -> int | None:
        """Return the limit of records in a batch; None for no limit."""
        options = self._options
        limits = [options.records_per_trigger_max if records_max is None else records_max]
        if options.bytes_per_trigger_max is not None:
            waiting = [key for key, begin in begins.items() if begin.limit > begin.start]
            if waiting:
                size = self._record_bytes(begins, waiting)
                limits.append(max(1, options.bytes_per_trigger_max // size))
        return min((limit for limit in limits if limit is not None), default=None)

    def _record_bytes(self, begins: Mapping[Key, _Begin], waiting: list[Key]) -> int:
        """Return the mean size of the next records, weighted by the partitions' backlogs."""
        largest = sorted(waiting, key=lambda key: begins[key].start - begins[key].limit)
        total = weight = 0
        for name, number in largest[:_SAMPLES_MAX]:
            begin = begins[name, number]
            size = self._lookup.bytes_per_record(self._seen[name], number, begin.start)
            total += size * (begin.limit - begin.start)
            weight += begin.limit - begin.start
        return max(1, total // weight)

    def _ended(
        self, start: QueryOffsets, begins: Mapping[Key, _Begin], taken: Mapping[Key, int]
    ) -> QueryOffsets:
        streams: dict[str, StreamOffsets] = {}
        for name in sorted({*start.streams, *self._seen}):
            before = start.streams.get(name)
            ends = {} if before is None else dict(before.ends)
            starts = {}
            for (of, number), begin in begins.items():
                if of != name or not (begin.recorded or start.first or taken[of, number]):
                    continue  # no record of a new partition was taken: it is new next time too
                ends[number] = Offset(begin.start + taken[of, number])
                if not begin.recorded:
                    starts[number] = begin.start
            if before is None and not ends:
                continue
            uuid = self._seen[name].uuid if before is None else before.uuid
            batch = StreamOffsets(uuid, ends, starts)
            now = self._now.get(name)
            if now is not None:
                batch = noted(None if start.first else before, batch, now)
            elif before is not None:
                batch = replace(batch, lineage_ids=before.lineage_ids)
            streams[name] = batch
        return QueryOffsets(streams)

    def _checked(self, stream: StreamPositions) -> StreamPositions:
        wanted = self._options.stream_uuid
        if wanted is not None and wanted != stream.uuid:
            raise recreated(stream.name, wanted, stream.uuid)
        return stream


class _BehindError(Exception):
    """A partition's end is below the query's offset: its leader is new, or records were lost."""

    def __init__(self, stream: str, number: int, begin: Offset, span: OffsetRange) -> None:
        super().__init__(stream, number, begin)
        self.gone = OffsetOutOfRangeError(
            f"{stream}/{number} ends at {span.end}, but the query begins at {begin}",
            stream=stream,
            partition=number,
            offset=begin,
            start=span.start,
            end=span.end,
        )
