"""Checks that the records which a batch read names are still in its stream, while tasks read them.

A stream can lose its newest records and give their offsets to new ones, if all data was restored
from an older copy, or an operator accepted a loss. A DataFrame that was kept meanwhile names only
offsets, and would return the new records. So its plan has a history position for each partition
(broker/model/lineage.py), and its tasks ask the broker whether the stream still holds them: after
the first batch was read and before it is returned, after the last one, and in between once a
second. A task that reads little asks once.

A plan without history positions cannot be checked. Streaming queries have none: their checkpoint is
checked when a batch is planned.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from broker.errors import FencedError, ForeignHistoryError, InvalidRequestError, UnavailableError
from broker.model.cut import Cut
from broker.model.ids import StreamUuid
from broker.model.lineage import is_lineage_id
from broker.model.offsets import OFFSET_MAX, OffsetRange
from broker.model.stream import PARTITIONS_MAX
from spark_jobs.source.lookup import PATIENCE_S, CommittedEnds, patiently
from spark_jobs.source.partitions import HistoryPositions, SliceTask

if TYPE_CHECKING:
    from headwater.client import Client

_CHECKED_S: Final = 1.0  # how long an answer counts while more is read
_AWAY_S: Final = 60.0  # how long a broker is left alone that did not answer and is not needed

_log = logging.getLogger("headwater.read")
_T = TypeVar("_T")


def of_cut(cut: Cut) -> HistoryPositions | None:
    """Return the positions at which a read of a cut ends; None if the cut has no lineage ids."""
    found = [(part.lineage_id, int(part.end)) for part in cut.partitions]
    known = tuple((lineage_id, end) for lineage_id, end in found if lineage_id is not None)
    return known if len(known) == len(found) else None


def of_ranges(ranges: Mapping[int, OffsetRange], now: CommittedEnds) -> HistoryPositions:
    """Return the positions at which ranges end that were committed as ``now`` tells."""
    return tuple(
        (lineage_id, min(int(end), int(ranges[number].end) if number in ranges else 0))
        for number, (lineage_id, end) in enumerate(zip(now.lineage_ids, now.ends, strict=True))
    )


def to_text(positions: HistoryPositions) -> str:
    """Return the option ``historyPositions``: [[lineage id, end], …], one for each partition."""
    return json.dumps(positions, separators=(",", ":"))


def from_text(text: str) -> HistoryPositions:
    """Parse the option.

    Raises:
        InvalidRequestError: it is anything else.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise _malformed() from cause
    if not isinstance(rows, list) or not 1 <= len(rows) <= PARTITIONS_MAX:
        raise _malformed()
    return tuple(_position(row) for row in rows)


def checked(
    batches: Iterable[_T],
    tasks: Sequence[SliceTask],
    client: Client,
    *,
    asks_broker: Callable[[], bool],
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Iterator[_T]:
    """Yield the batches of some tasks while their streams have the history of the plan. Blocks.

    ``asks_broker`` tells whether a broker has sent rows. If it has not, all rows are of the table,
    whose commits were proved, and a broker that is away does not matter.

    Raises:
        ForeignHistoryError: a stream has lost records that the tasks name. Facts: stream,
            partition, lineage_id, end.
        StreamRecreatedError, UnknownStreamError: a stream was created again, or is gone.
        UnavailableError: a broker that has sent rows does not answer any more.
    """
    histories = {
        (task.stream, task.stream_uuid): task.history
        for task in tasks
        if task.history is not None and task.stream_uuid is not None
    }
    valid_until_s = -math.inf
    due = bool(histories)  # whether something was read since the last answer
    for batch in batches:
        due = bool(histories)
        if due and monotonic_s() >= valid_until_s:
            answered = _require(client, histories, patient=asks_broker())
            valid_until_s = monotonic_s() + (_CHECKED_S if answered else _AWAY_S)
            due = False
        yield batch
    if due:
        _require(client, histories, patient=asks_broker())


def _require(
    client: Client,
    histories: Mapping[tuple[str, StreamUuid], HistoryPositions],
    *,
    patient: bool,
) -> bool:
    """Ask about each stream; return whether a broker answers, which it must if ``patient``."""
    for (stream, uuid), positions in histories.items():
        try:
            patiently(
                lambda: client.check_history(stream, uuid, positions),  # noqa: B023 - called now
                PATIENCE_S if patient else 0,
            )
        except ForeignHistoryError as error:
            raise ForeignHistoryError(
                f"this read names records of {stream!r} that the stream has lost, and the stream "
                f"may have other records in their place: {error.message}. Read it anew",
                **error.facts,
            ) from error
        except (UnavailableError, FencedError) as error:
            if patient:
                raise
            _log.info("history_not_checked stream=%s, rows are of the table: %s", stream, error)
            return False
    return True


def _position(row: object) -> tuple[str, int]:
    if not isinstance(row, list) or len(row) != 2:
        raise _malformed()
    lineage_id, end = row
    if not isinstance(lineage_id, str) or not is_lineage_id(lineage_id):
        raise _malformed()
    if type(end) is not int or not 0 <= end <= OFFSET_MAX:
        raise _malformed()
    return lineage_id, end


def _malformed() -> InvalidRequestError:
    return InvalidRequestError(
        "historyPositions is set by headwater.read and headwater.sql; leave it out"
    )
