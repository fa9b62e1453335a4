"""Records what happens at the doors: in the log at once, and in the stream of the audit soon.

A note never waits and never fails a call. What the stream cannot take waits in bounded queues, one
for each principal, which are emptied in turn; strangers have one together. When they are full, the
one that has the largest share of the place gives up its newest note. So a flood of refusals leaves
other principals' notes alone. Notes that are given up are counted, and the next record says how
many are missing. The log has all.

What the stream refuses for its size is sent in smaller pieces. A single record that is refused so
is replaced by a short one in the same place of the chain; if that is refused, too, it is counted as
missing. So nothing that was noted can keep later notes from the stream.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import structlog

from broker.codec.audit_record import AuditNote, bounded, encode_note, in_place_of
from broker.errors import HeadwaterError, RecordTooLargeError
from broker.model.access import Caller
from broker.ports.partition import PartitionWriter, RecordsOutcome
from broker.ports.system import Clock
from broker.runtime.inbox import Inbox

_log = structlog.get_logger(__name__)

_WAITING_MAX: Final = 10_000
_WAITING_WEIGHT_MAX: Final = 16 * 1024 * 1024  # characters, of up to four bytes
_TOGETHER_MAX: Final = 256  # in one write
_LOOK_MS: Final = 250
_BACKOFF_MS: Final = 1_000

FindWriter = Callable[[], PartitionWriter]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chained:
    """A note with its place in the chain, as the stream gets it."""

    note: AuditNote
    number: int
    before: str
    lost: int
    value: bytes
    is_substitute: bool = False


class _OwnNotes:
    """The notes of one principal."""

    def __init__(self) -> None:
        self.notes: deque[AuditNote] = deque()
        self.weight = 0


class _FairQueues:
    """Notes that wait, by principal. The owner locks."""

    def __init__(self, count_max: int, weight_max: int) -> None:
        self._count_max = count_max
        self._weight_max = weight_max
        self._queues: dict[str, _OwnNotes] = {}  # none is empty; the next in turn is first
        self._count = 0
        self._weight = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def put(self, note: AuditNote) -> int:
        """Add a note; return how many notes were given up for it, itself perhaps."""
        queue = self._queues.setdefault(note.principal, _OwnNotes())
        queue.notes.append(note)
        self._count_on(queue, 1, note.weight)
        given_up = 0
        while self._count > self._count_max or self._weight > self._weight_max:
            principal = max(self._queues, key=self._share)
            self._out(principal, self._queues[principal].notes.pop())
            given_up += 1
        return given_up

    def _share(self, principal: str) -> float:
        queue = self._queues[principal]
        return max(len(queue.notes) / self._count_max, queue.weight / self._weight_max)

    def take(self, count_max: int) -> list[AuditNote]:
        """Remove and return the next notes, of each principal in turn, the oldest first."""
        taken: list[AuditNote] = []
        while self._queues and len(taken) < count_max:
            principal = next(iter(self._queues))
            queue = self._queues[principal]
            taken.append(queue.notes.popleft())
            self._out(principal, taken[-1])
            if queue.notes:  # behind the others
                self._queues[principal] = self._queues.pop(principal)
        return taken

    def _out(self, principal: str, note: AuditNote) -> None:
        queue = self._queues[principal]
        self._count_on(queue, -1, -note.weight)
        if not queue.notes:
            del self._queues[principal]

    def _count_on(self, queue: _OwnNotes, count: int, weight: int) -> None:
        self._count += count
        self._weight += weight
        queue.weight += weight


class Audit:
    """Implements ``AuditSink``, and is a pump. Notes come on any thread, turns on one."""

    def __init__(
        self,
        clock: Clock,
        *,
        broker: str,
        chain: str,
        find_writer: FindWriter | None,
        waiting_max: int = _WAITING_MAX,
        waiting_weight_max: int = _WAITING_WEIGHT_MAX,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """``chain`` names this process; ``find_writer`` makes the stream if it is not there.

        It raises HeadwaterError while the stream takes no records. Without it only the log is
        written. ``wake`` is called when the outcome of a write has come.
        """
        self._clock = clock
        self._broker = broker
        self._chain = chain
        self._find_writer = find_writer
        self._lock = threading.Lock()
        self._waiting = _FairQueues(waiting_max, waiting_weight_max)
        self._lost = 0
        self._inbox = Inbox(waiting_max=1, wake=wake)
        self._under_way: list[_Chained] = []  # not known to be stored
        self._together = _TOGETHER_MAX  # records of the next write
        self._number = 0
        self._before = ""
        self._writing = False
        self._not_before_ms = 0
        self._told = False

    def note(
        self, *, caller: Caller, door: str, call: str, resources: Sequence[str], result: str
    ) -> None:
        """See ``AuditSink.note``."""
        one = bounded(
            AuditNote(
                at_us=self._clock.now_us(),
                broker=self._broker,
                principal=caller.principal,
                via=caller.via,
                peer=caller.peer,
                door=door,
                call=call,
                resources=tuple(resources),
                result=result,
            )
        )
        _log.info(
            "audit",
            principal=one.principal,
            via=one.via,
            peer=one.peer,
            door=one.door,
            call=one.call,
            resources=list(one.resources),
            result=one.result,
        )
        if self._find_writer is None:
            return
        with self._lock:
            self._lost += self._waiting.put(one)

    def turn(self, now_ms: int) -> int:
        """Store what waits; return the time of the next turn."""
        found = self._inbox.take()
        if found is not None:
            self._writing = False
            self._take(found[1], now_ms)
        if self._find_writer is None or self._writing or now_ms < self._not_before_ms:
            return now_ms + _LOOK_MS
        if not self._under_way:
            self._encode()
        if self._under_way:
            self._write(self._find_writer, now_ms)
        return now_ms + _LOOK_MS

    def _encode(self) -> None:
        with self._lock:
            notes = self._waiting.take(self._together)
            lost, self._lost = (self._lost, 0) if notes else (0, self._lost)
        for one in notes:
            self._chain_on(one, lost)
            lost = 0

    def _chain_on(self, note: AuditNote, lost: int, *, is_substitute: bool = False) -> None:
        number, before = self._number, self._before
        value, self._before = encode_note(
            note, chain=self._chain, number=number, before=before, lost=lost
        )
        self._number += 1
        self._under_way.append(
            _Chained(
                note=note,
                number=number,
                before=before,
                lost=lost,
                value=value,
                is_substitute=is_substitute,
            )
        )

    def _write(self, find_writer: FindWriter, now_ms: int) -> None:
        def done(outcome: RecordsOutcome | HeadwaterError) -> None:  # on a commit thread
            self._inbox.put("outcome", outcome)

        values = [one.value for one in self._under_way[: self._together]]
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        try:
            writer = find_writer()
            self._writing = True
            writer.submit_records(rows, None, done)
        except HeadwaterError as error:
            self._writing = False
            self._take(error, now_ms)

    def _take(self, outcome: object, now_ms: int) -> None:
        if not isinstance(outcome, HeadwaterError):
            del self._under_way[: self._together]
            self._together = min(2 * self._together, _TOGETHER_MAX)
            self._told = False
            return
        if not self._told:
            _log.warning("audit_not_stored", reason=outcome.message)
            self._told = True
        if not isinstance(outcome, RecordTooLargeError):
            self._not_before_ms = now_ms + _BACKOFF_MS
        elif (sent := min(self._together, len(self._under_way))) > 1:
            self._together = sent // 2
        else:
            self._replace_first()

    def _replace_first(self) -> None:
        """Put a short record in the place of one that the stream never takes; else leave it out.

        The refused record was not stored, so the chain goes on from the record before it. (If an
        earlier try of it was stored and its answer lost, ``audit verify`` reports both records.)
        """
        first, *others = self._under_way
        self._under_way.clear()
        self._number, self._before = first.number, first.before
        lost = first.lost
        if first.is_substitute:
            lost += 1
        else:
            self._chain_on(in_place_of(first.note, first.value), lost, is_substitute=True)
            lost = 0
        for one in others:
            self._chain_on(one.note, one.lost + lost, is_substitute=one.is_substitute)
            lost = 0
        if lost:
            with self._lock:
                self._lost += lost
