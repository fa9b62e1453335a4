"""Stores the events of the metadata's outbox in the activity stream, on the broker that leads it.

The leader of the stream does it, not the controller: it needs no message to another broker, its
leader epoch fences it, and its log recognises an event that was stored before by its message id.
So an event is stored once, unless more than a day lies between two attempts; a reader can tell by
the id. The order in the stream is that of the ids. A failure holds up all later events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import structlog

from broker.codec.nats.conditions import MESSAGE_ID
from broker.codec.schema import HEADERS_TYPE
from broker.core.metadata.commands import TrimActivity
from broker.errors import HeadwaterError
from broker.model.activity import ACTIVITY_STREAM, ActivityEvent
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.ports.partition import RecordsOutcome
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.inbox import Inbox
from broker.runtime.metadata.metadata_log import SharedMetadata
from broker.runtime.partition.driver import PartitionDriver

_log = structlog.get_logger(__name__)

_EVENTS_MAX: Final = 256  # in one write
_LOOK_MS: Final = 250
_PROPOSE_MS: Final = 5_000
_BACKOFF_MS_MIN: Final = 1_000
_BACKOFF_MS_MAX: Final = 10_000

EncodeEvent = Callable[[ActivityEvent], bytes]


@dataclass(frozen=True, slots=True)
class _Leading:
    stream_uuid: StreamUuid
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class _Stored:
    """The outcome of a write of the events up to ``through``."""

    leading: _Leading
    through: int
    error: HeadwaterError | None


class ActivityWriter:
    """A pump. One thread takes turns; outcomes come on any thread."""

    def __init__(
        self,
        metadata: SharedMetadata,
        replicas: HostedPartitions,
        *,
        encode: EncodeEvent,
        wake: Callable[[], None],
    ) -> None:
        """``encode`` returns the value of an event's record; ``wake`` asks for a turn."""
        self._metadata = metadata
        self._replicas = replicas
        self._encode = encode
        self._inbox = Inbox(waiting_max=1, wake=wake)
        self._leading: _Leading | None = None
        self._through = 0  # id of the newest event that this leadership has stored
        self._writing = False
        self._backoff_ms = 0
        self._not_before_ms = 0
        self._trimmed_ms = 0  # when the last trim was proposed

    def turn(self, now_ms: int) -> int:
        """Take an outcome, begin the next write; return the time of the next turn."""
        found = self._inbox.take()
        if found is not None:
            self._take(found[1], now_ms)
        state = self._metadata.state
        outbox, stream = state.activity, state.streams.get(ACTIVITY_STREAM)
        if outbox is None or not outbox.open or not outbox.events or stream is None:
            return now_ms + _LOOK_MS
        driver = self._replicas.find(PartitionId(stream.uuid, PartitionNumber(0)))
        if driver is None or not driver.leads or self._writing or now_ms < self._not_before_ms:
            return now_ms + _LOOK_MS
        leading = _Leading(stream.uuid, driver.reads.leader_epoch)
        if leading != self._leading:
            self._leading, self._through = leading, 0
        due = [one for one in outbox.events if one.id > self._through][:_EVENTS_MAX]
        if due:
            self._write(driver, leading, due)
        elif now_ms - self._trimmed_ms >= _BACKOFF_MS_MIN:
            self._trim(leading, now_ms)  # the proposal before was lost
        return now_ms + _LOOK_MS

    def _write(
        self, driver: PartitionDriver, leading: _Leading, events: Sequence[ActivityEvent]
    ) -> None:
        through = events[-1].id

        def done(outcome: RecordsOutcome | HeadwaterError) -> None:  # on a commit thread
            error = outcome if isinstance(outcome, HeadwaterError) else None
            self._inbox.put(_Stored, _Stored(leading, through, error))

        ids = [f"activity-{one.id}" for one in events]
        # In the record, too: a log that is opened again reads the ids that it knows from there.
        named = [[{"key": MESSAGE_ID, "value": one.encode()}] for one in ids]
        rows = pa.RecordBatch.from_pydict(
            {
                "value": pa.array([self._encode(one) for one in events], pa.binary()),
                "headers": pa.array(named, HEADERS_TYPE),
            }
        )
        self._writing = True
        try:
            driver.writes.submit_own(rows, ids, done)
        except HeadwaterError as error:
            self._inbox.put(_Stored, _Stored(leading, through, error))

    def _take(self, outcome: _Stored, now_ms: int) -> None:
        self._writing = False
        if outcome.error is not None:
            self._backoff_ms = min(max(_BACKOFF_MS_MIN, 2 * self._backoff_ms), _BACKOFF_MS_MAX)
            self._not_before_ms = now_ms + self._backoff_ms
            _log.warning(
                "activity_not_stored", reason=outcome.error.message, again_ms=self._backoff_ms
            )
            return
        self._backoff_ms = 0
        if outcome.leading == self._leading:
            self._through = max(self._through, outcome.through)
            self._trim(outcome.leading, now_ms)

    def _trim(self, leading: _Leading, now_ms: int) -> None:
        """Let the metadata forget what is stored; if this is lost, it is done again."""
        self._trimmed_ms = now_ms
        command = TrimActivity(stream_uuid=leading.stream_uuid, through=self._through)
        self._metadata.propose_soon(command, lambda _: None, timeout_ms=_PROPOSE_MS)
