"""Is what a table was filled with still what its stream holds?

A stream can lose its newest records and give their offsets to others: everything was restored from
an older copy, or an operator accepted a loss. A table that was filled before ends in the records
that were lost, and an appender that believed its watermark alone would go on above the new ones.
So each append notes under which leadership the end of its ranges was committed, and the broker is
asked whether that is a position of the history that it has now: before anything is planned, and
again when the rows have been read, for they are read for a while.

What was appended by versions that noted nothing is believed.
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
    """Asks the broker of one stream. Blocks on the network; keeps nothing."""

    def __init__(self, source: Source) -> None:
        """Bind; makes no request."""
        self._source = source

    def require(self, claims: Mapping[int, AppendClaim], *, uri: str) -> None:
        """Check that a table's ends are of the history that the stream has now.

        Raises:
            ForeignHistoryError: they are not. Facts: stream, partition, lineage_id, end.
            StreamRecreatedError, UnknownStreamError: the stream is another, or gone.
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
        """Return under which leadership each range that was read has been committed.

        ``before`` is what :meth:`now` said before the rows were read; errors as for ``require``.
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
                    f"{uri} was to be filled up to {ranges[number].end} of "
                    f"{self._source.stream}/{number}, which ends at {after[number][1]}: records "
                    "that were read are not there any more",
                    stream=self._source.stream,
                    partition=number,
                    end=int(ranges[number].end),
                )
        return {number: (after if number in late else before)[number][0] for number in ranges}

    def now(self) -> dict[int, tuple[str, int]]:
        """Return what is committed now, and under which leaderships.

        Raises:
            StreamRecreatedError, UnknownStreamError: the stream is another, or gone.
            NotLeaderError: a leader took over just now, and the broker has yet to hear who it is.
        """
        name = self._source.stream
        found = client_of(self._source.server).high_watermarks([name])[name]
        if found.stream_uuid != self._source.stream_uuid:
            raise StreamRecreatedError(
                f"stream {name!r} is now {found.stream_uuid}",
                expected=self._source.stream_uuid,
                found=found.stream_uuid,
            )
        positions = {}
        pairs = zip(found.lineage_ids, found.offsets, strict=True)
        for number, (lineage_id, end) in enumerate(pairs):
            if lineage_id is None:
                raise NotLeaderError(f"nobody knows yet under whom {name}/{number} is committed")
            positions[number] = (lineage_id, int(end))
        return positions

    def _require(self, held: Positions, uri: str) -> None:
        # A broker is asked about all partitions at once: the others are where they are.
        here = self.now()
        asked = [held.get(number, (here[number][0], 0)) for number in sorted(here)]
        try:
            client_of(self._source.server).check_history(
                self._source.stream, self._source.stream_uuid, asked
            )
        except ForeignHistoryError as error:
            raise ForeignHistoryError(
                f"{uri} holds records of {self._source.stream!r} that the stream has not, and may "
                f"have others in their place: {error.message}. Fill another table",
                uri=uri,
                **error.facts,
            ) from error
