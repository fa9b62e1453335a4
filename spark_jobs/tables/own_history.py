"""Checks that the records in a table are still in its stream.

A stream can lose its newest records and give their offsets to new ones, if all data was restored
from an older copy, or an operator accepted a loss. A table that was filled before then ends with
lost records, and an appender that used only its watermark would skip the new ones. So each append
notes the lineage id of the leadership under which the end of each range was committed. The broker
is asked whether that position belongs to its present history: before an append is planned, and
again after the rows were read, because reading takes a while.

Ranges that an old build appended have no lineage id and cannot be checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import ForeignHistoryError, NotLeaderError, StreamRecreatedError
from broker.model.offsets import OffsetRange
from spark_jobs.clients import client_of
from spark_jobs.tables.model import Source
from spark_jobs.tables.plan import AppendClaim

Positions = Mapping[int, tuple[str, int]]  # lineage id and exclusive end, by partition


class OwnHistory:
    """Asks the broker about one stream. Blocks on the network; has no state."""

    def __init__(self, source: Source) -> None:
        """Keep the source; makes no request."""
        self._source = source

    def require(self, claims: Mapping[int, AppendClaim], *, uri: str) -> None:
        """Check that a table's ends belong to the stream's present history.

        Raises:
            ForeignHistoryError: an end does not belong. Facts: stream, partition, lineage_id, end.
            StreamRecreatedError, UnknownStreamError: the stream was created again, or is gone.
        """
        held = {
            number: (claim.lineage_id, int(claim.end))
            for number, claim in claims.items()
            if claim.lineage_id is not None
        }
        if held:
            self._require(held, uri)

    def noted(
        self, ranges: Mapping[int, OffsetRange], before: Positions, *, uri: str
    ) -> dict[int, str]:
        """Return the lineage id of the leadership under which each range was committed.

        ``before`` is the result of :meth:`now` before the rows were read; errors as for
        :meth:`require`.
        """
        self._require(
            {
                number: (before[number][0], min(before[number][1], int(offsets.end)))
                for number, offsets in ranges.items()
            },
            uri,
        )
        late = [n for n, offsets in ranges.items() if before[n][1] < int(offsets.end)]
        after = self.now() if late else {}
        for number in late:
            if after[number][1] < int(ranges[number].end):
                raise ForeignHistoryError(
                    f"rows of {self._source.stream}/{number} up to {ranges[number].end} were read "
                    f"for {uri}, but the partition ends at {after[number][1]} now: records that "
                    "were read have been lost since",
                    stream=self._source.stream,
                    partition=number,
                    end=int(ranges[number].end),
                )
        return {number: (after if number in late else before)[number][0] for number in ranges}

    def now(self) -> dict[int, tuple[str, int]]:
        """Return the present high watermarks with the lineage ids of their leaderships.

        Raises:
            StreamRecreatedError, UnknownStreamError: the stream was created again, or is gone.
            NotLeaderError: a partition has a new leader that the broker does not know yet.
        """
        name = self._source.stream
        found = client_of(self._source.server).high_watermarks([name])[name]
        if found.stream_uuid != self._source.stream_uuid:
            raise StreamRecreatedError(
                f"stream {name!r} was created again: its uuid is {found.stream_uuid} now, not "
                f"{self._source.stream_uuid}",
                expected=self._source.stream_uuid,
                found=found.stream_uuid,
            )
        positions = {}
        pairs = zip(found.lineage_ids, found.offsets, strict=True)
        for number, (lineage_id, end) in enumerate(pairs):
            if lineage_id is None:
                raise NotLeaderError(
                    f"{name}/{number} has a new leader that the broker does not know yet"
                )
            positions[number] = (lineage_id, int(end))
        return positions

    def _require(self, held: Positions, uri: str) -> None:
        # The broker takes a position for every partition; (lineage id, 0) is always valid.
        here = self.now()
        asked = [held.get(number, (here[number][0], 0)) for number in sorted(here)]
        try:
            client_of(self._source.server).check_history(
                self._source.stream, self._source.stream_uuid, asked
            )
        except ForeignHistoryError as error:
            raise ForeignHistoryError(
                f"{uri} holds records of {self._source.stream!r} that the stream has lost, and the "
                f"stream may have other records in their place: {error.message}. Use another table",
                uri=uri,
                **error.facts,
            ) from error
