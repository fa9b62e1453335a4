"""Where a member's read of a partition begins, and which terms a member may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import pyarrow as pa

from broker.errors import InvalidRequestError, NoPositionError, TruncatedError
from broker.model.groups import NO_LEADER_EPOCH, SESSION_MS_MAX, SESSION_MS_MIN, ToldClaim
from broker.model.offsets import Offset
from headwater.client.fetch import Fetch

OffsetReset = Literal["earliest", "latest", "error"]


class Opening:
    """Opens the reads of one consumer: where a claim begins, and what its position means."""

    def __init__(
        self,
        fetch: Callable[..., Fetch],
        high_watermark: Callable[[str, int], Offset],
        *,
        reset: OffsetReset,
        columns: Sequence[str] | None,
    ) -> None:
        self.reset = reset
        self.high_watermark = high_watermark
        self._fetch = fetch
        self._columns = None if columns is None else tuple(columns)
        lacks_offset = self._columns is not None and "offset" not in self._columns
        self._read = (*(self._columns or ()), "offset") if lacks_offset else self._columns

    def open(self, claim: ToldClaim) -> Fetch:
        """Return a read of a claim that has a position, or begins at the earliest record.

        Its rows always have the column ``offset``.

        Raises:
            NoPositionError: the group has no position, and may not choose one.
            TruncatedError: the position was reached in a history that is lost.
        """
        at = claim.position
        if at is None and self.reset == "error":
            raise NoPositionError(
                f"the group has no position in {claim.stream}/{claim.partition}: seek, or set "
                "auto_offset_reset to earliest or latest",
                stream=claim.stream,
                partition=claim.partition,
            )
        if at is not None and at.lost:
            raise TruncatedError(
                f"the group's position {at.offset} in {claim.stream}/{claim.partition} was reached "
                "in a history that the stream does not have any more: seek, or reset the group",
                stream=claim.stream,
                partition=claim.partition,
                offset=at.offset,
                leader_epoch=at.leader_epoch,
                end=at.offset,
            )
        known = at is not None and at.offset > 0 and at.leader_epoch != NO_LEADER_EPOCH
        return self._fetch(
            claim.stream,
            claim.partition,
            "earliest" if at is None else int(at.offset),
            columns=self._read,
            follow=True,
            stream_uuid=claim.stream_uuid,
            leader_epoch=at.leader_epoch if known and at is not None else None,
        )

    def asked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of such a read with the columns that the application asked for."""
        return rows if self._read == self._columns else rows.select(list(self._columns or ()))


def check_terms(
    streams: Sequence[str], group: str, reset: str, session_ms: int, commit_ms: int | None
) -> None:
    """Refuse terms of a membership that no broker accepts; raises InvalidRequestError."""
    if not group or not streams:
        raise InvalidRequestError("a member needs a group and at least one stream")
    if reset not in get_args(OffsetReset):
        raise InvalidRequestError(
            f"auto_offset_reset must be earliest, latest or error, not {reset!r}",
            field="auto_offset_reset",
        )
    if not SESSION_MS_MIN <= session_ms <= SESSION_MS_MAX:
        raise InvalidRequestError(
            f"session_ms must be {SESSION_MS_MIN} to {SESSION_MS_MAX}, not {session_ms}",
            field="session_ms",
        )
    if commit_ms is not None and commit_ms < 0:
        raise InvalidRequestError(
            f"commit_ms must not be negative, and is {commit_ms}; None means no automatic commits",
            field="commit_ms",
        )
