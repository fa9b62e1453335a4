"""The questions of planning to the broker: which streams exist, what they hold, where a time is.

A broker that restarts does not answer for seconds. :func:`patiently` repeats calls during that
time, so that a query does not end because of a restart. Errors that waiting cannot change are
raised at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from broker.errors import (
    FencedError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StreamRecreatedError,
    UnavailableError,
    UnknownPartitionError,
)
from broker.model.cut import Cut
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.source.positions import AtMs, Positions
from spark_jobs.source.selection import Selection

if TYPE_CHECKING:
    from headwater.client import Client

PATIENCE_S: Final = 60.0  # for a broker that restarts
CONTACT_S: Final = 4.0  # for a broker that has not answered yet: perhaps there is none
_CONTACT_CALL_S: Final = 2.0
_WAIT_FIRST_S: Final = 0.1
_WAIT_MAX_S: Final = 2.0
_SAMPLE_RECORDS: Final = 256

_log = logging.getLogger("headwater.read")
_never = threading.Event()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StreamPositions:
    """The present range ``[earliest, high watermark)`` of every partition of the read."""

    name: str
    uuid: StreamUuid
    ranges: Mapping[int, OffsetRange]


@dataclass(frozen=True, slots=True)
class CommittedEnds:
    """The high watermarks of all partitions of a stream, by number, with their leaderships."""

    uuid: StreamUuid
    ends: tuple[Offset, ...]
    lineage_ids: tuple[str, ...]


class Lookup(Protocol):
    """The questions that planning asks. Blocks on the network."""

    def names(self, selection: Selection) -> tuple[str, ...]:
        """Return the streams of the read."""

    def uuid(self, name: str) -> StreamUuid:
        """Return the uuid of the stream with this name; raises UnknownStreamError."""

    def positions(self, name: str, selection: Selection) -> StreamPositions:
        """Return the ranges of a stream; raises UnknownStreamError, UnknownPartitionError."""

    def offset_at(self, stream: StreamPositions, partition: int, at: AtMs) -> Offset:
        """Return the first offset at or after a time; raises OffsetOutOfRangeError if none is."""

    def bytes_per_record(self, stream: StreamPositions, partition: int, start: Offset) -> int:
        """Return the rough size in Arrow of the records from an offset on."""

    def committed(self, name: str) -> CommittedEnds:
        """Return the present high watermarks; raises UnknownStreamError."""

    def check_history(self, name: str, uuid: StreamUuid, ends: Sequence[tuple[str, int]]) -> None:
        """Confirm that these ends, of all partitions, belong to the stream's present history.

        Raises ForeignHistoryError, StreamRecreatedError, UnknownStreamError.
        """


class BrokerLookup:
    """Lookup over a client."""

    def __init__(self, client: Client, *, patience_s: float = PATIENCE_S) -> None:
        self._client = client
        self._patience_s = patience_s

    def names(self, selection: Selection) -> tuple[str, ...]:
        """Return the streams of the read; see the port."""
        if selection.pattern is None:
            return selection.names
        streams = self._patiently(self._client.streams)
        return selection.matching(stream.name for stream in streams)

    def uuid(self, name: str) -> StreamUuid:
        """Return the uuid of the stream with this name; see the port."""
        return self._patiently(lambda: self._client.stream(name)).uuid

    def positions(self, name: str, selection: Selection) -> StreamPositions:
        """Return the ranges of a stream; see the port."""
        found = self._patiently(lambda: self._client.describe(name))
        ranges = {
            part.partition: OffsetRange(part.start, part.high_watermark)
            for part in found.partitions
        }
        return StreamPositions(name, found.stream.uuid, selected(name, ranges, selection))

    def offset_at(self, stream: StreamPositions, partition: int, at: AtMs) -> Offset:
        """Return the first offset with a timestamp at or after a time; see the port."""
        from broker.codec.flight.protocol import (  # noqa: PLC0415  (it loads pyarrow)
            BATCH_BYTES_MIN,
            AtTime,
        )

        def ask() -> Offset | None:
            with self._client.fetch(
                stream.name,
                partition,
                AtTime(at.timestamp_ms * 1000),
                columns=["offset"],
                stream_uuid=stream.uuid,
                batch_bytes_max=BATCH_BYTES_MIN,
            ) as fetched:
                for batch in fetched:
                    return batch.base_offset
            return None

        found = self._patiently(ask)
        end = stream.ranges[partition].end
        if found is not None:
            return min(found, end)
        if at.or_latest:
            return end
        raise OffsetOutOfRangeError(
            f"{stream.name}/{partition} has no record with a timestamp at or after "
            f"{at.timestamp_ms} ms; with startingOffsetsByTimestampStrategy=latest the read "
            "begins at the end",
            offset=end,
            start=stream.ranges[partition].start,
            end=end,
        )

    def bytes_per_record(self, stream: StreamPositions, partition: int, start: Offset) -> int:
        """Return the mean size of the next few records; see the port."""
        end = min(stream.ranges[partition].end, Offset(start + _SAMPLE_RECORDS))

        def ask() -> int:
            rows = size = 0
            with self._client.fetch(
                stream.name, partition, start, end, stream_uuid=stream.uuid
            ) as fetched:
                for one in fetched:
                    rows += one.batch.num_rows
                    size += one.batch.get_total_buffer_size()
            return max(1, size // max(1, rows))

        return self._patiently(ask)

    def committed(self, name: str) -> CommittedEnds:
        """Return the present high watermarks; see the port."""

        def ask() -> CommittedEnds:
            found = self._client.high_watermarks([name])[name]
            known = tuple(one for one in found.lineage_ids if one is not None)
            if len(known) < len(found.lineage_ids):
                raise NotLeaderError(
                    f"a partition of {name} has a new leader that the broker does not know yet"
                )
            return CommittedEnds(found.stream_uuid, found.offsets, known)

        return self._patiently(ask)

    def check_history(self, name: str, uuid: StreamUuid, ends: Sequence[tuple[str, int]]) -> None:
        """Confirm that these ends belong to the present history; see the port."""
        self._patiently(lambda: self._client.check_history(name, uuid, ends))

    def _patiently(self, call: Callable[[], _T]) -> _T:
        return patiently(call, self._patience_s)


class Backoff:
    """Waits between attempts, longer each time, until ``patience_s`` is over."""

    def __init__(
        self, patience_s: float, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience_s = patience_s
        self._monotonic_s = monotonic_s
        self._never = threading.Event()
        self._until_s: float | None = None
        self._wait_s = _WAIT_FIRST_S

    def progressed(self) -> None:
        """Reset after a success: the next failure counts as the first."""
        self._until_s, self._wait_s = None, _WAIT_FIRST_S

    def wait(self, error: BaseException) -> None:
        """Wait before another attempt; raises ``error`` if time is over, or waiting cannot help."""
        if not may_pass(error):
            raise error
        self.wait_for(error)

    def wait_for(self, error: BaseException) -> None:
        """Wait before another attempt, for any error; raises the error when time is over."""
        now_s = self._monotonic_s()
        if self._until_s is None:
            self._until_s = now_s + self._patience_s
        if now_s >= self._until_s:
            raise error
        _log.info("read_waits seconds=%.1f error=%s", self._wait_s, error)
        self._never.wait(min(self._wait_s, max(0.0, self._until_s - now_s)))
        self._wait_s = min(_WAIT_MAX_S, 2 * self._wait_s)


def patiently(call: Callable[[], _T], patience_s: float = PATIENCE_S) -> _T:
    """Repeat a call while the broker does not answer, up to ``patience_s``; return its result."""
    backoff = Backoff(patience_s)
    while True:
        try:
            return call()
        except (UnavailableError, FencedError) as error:
            backoff.wait(error)


def make_contact(client: Client, patience_s: float = CONTACT_S) -> None:
    """Return once a broker answers the first request; a wrong address is reported soon.

    :func:`patiently` waits longer, for brokers that have answered before. A broker is asked at
    least once, for two seconds.

    Raises:
        NoAnswerError: no broker has answered within ``patience_s``.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        left_s = deadline_s - time.monotonic() if patience_s else _CONTACT_CALL_S
        timeout_ms = int(1000 * max(_WAIT_FIRST_S, min(_CONTACT_CALL_S, left_s)))
        try:
            client.call("brokers", {}, timeout_ms=timeout_ms)
        except UnavailableError:
            if time.monotonic() + 2 * _WAIT_FIRST_S >= deadline_s:
                raise
            _never.wait(_WAIT_FIRST_S)
        else:
            return


def may_pass(error: BaseException) -> bool:
    """Tell whether the same call may succeed a little later."""
    if isinstance(error, StreamRecreatedError):
        return False
    return isinstance(error, UnavailableError | FencedError) and error.retriable


def selected(
    name: str, ranges: Mapping[int, OffsetRange], selection: Selection
) -> dict[int, OffsetRange]:
    """Return the ranges of a stream's partitions that a read selects.

    Raises:
        UnknownPartitionError: the read names another partition.
    """
    if selection.assigned is not None:
        for number in sorted(selection.assigned[name] - set(ranges)):
            raise UnknownPartitionError.of(name, number, len(ranges))
    return {number: span for number, span in ranges.items() if selection.takes(name, number)}


def positions_of_cut(cut: Cut, selection: Selection) -> StreamPositions:
    """Return the ranges of a cut's partitions, as if the stream still were as it was then. Pure.

    Raises:
        UnknownPartitionError: the read names a partition that the cut does not have.
    """
    ranges = {part.partition: OffsetRange(part.start, part.end) for part in cut.partitions}
    return StreamPositions(cut.stream, cut.stream_uuid, selected(cut.stream, ranges, selection))


def without_times(lookup: Lookup, stream: StreamPositions, side: Positions) -> str | dict[int, Any]:
    """Return a bound with a time replaced by the offsets at that time."""
    if not isinstance(side, AtMs):
        return side
    return {number: lookup.offset_at(stream, number, side) for number in stream.ranges}


def check_named(stream: StreamPositions, side: Positions) -> None:
    """Raise InvalidRequestError for offsets that do not name every partition of the read."""
    if isinstance(side, dict) and set(side) != set(stream.ranges):
        raise InvalidRequestError(
            f"offsets are given for partitions {sorted(side)}, but stream {stream.name} has "
            f"{sorted(stream.ranges)}; name each of them"
        )
