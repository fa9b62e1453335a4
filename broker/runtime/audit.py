"""Records what happens at the doors: in the log at once, and in the stream of the audit soon.

A note never waits and never fails a call. What the stream cannot take waits in a bounded queue;
what does not fit there is counted, and the next record says how many are missing. The log has all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import structlog

from broker.codec.audit_record import AuditNote, encode_note
from broker.errors import HeadwaterError
from broker.model.access import Caller
from broker.ports.partition import PartitionWriter, RecordsOutcome
from broker.ports.system import Clock
from broker.runtime.inbox import Inbox

_log = structlog.get_logger(__name__)

_WAITING_MAX: Final = 10_000
_TOGETHER_MAX: Final = 256  # in one write
_LOOK_MS: Final = 250
_BACKOFF_MS: Final = 1_000

FindWriter = Callable[[], PartitionWriter]


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
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self._waiting: deque[AuditNote] = deque()
        self._lost = 0
        self._inbox = Inbox(waiting_max=1, wake=wake)
        self._under_way: list[bytes] = []  # encoded, and not known to be stored
        self._number = 0
        self._before = ""
        self._writing = False
        self._not_before_ms = 0
        self._told = False

    def note(
        self, *, caller: Caller, door: str, call: str, resources: Sequence[str], result: str
    ) -> None:
        """See ``AuditSink.note``."""
        one = AuditNote(
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
        _log.info(
            "audit",
            principal=one.principal,
            via=one.via,
            peer=one.peer,
            door=door,
            call=call,
            resources=list(resources),
            result=result,
        )
        if self._find_writer is None:
            return
        with self._lock:
            if len(self._waiting) >= self._waiting_max:
                self._lost += 1
            else:
                self._waiting.append(one)

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
            count = min(len(self._waiting), _TOGETHER_MAX)
            notes = [self._waiting.popleft() for _ in range(count)]
            lost, self._lost = (self._lost, 0) if notes else (0, self._lost)
        for one in notes:
            value, self._before = encode_note(
                one, chain=self._chain, number=self._number, before=self._before, lost=lost
            )
            self._number += 1
            lost = 0
            self._under_way.append(value)

    def _write(self, find_writer: FindWriter, now_ms: int) -> None:
        def done(outcome: RecordsOutcome | HeadwaterError) -> None:  # on a commit thread
            self._inbox.put("outcome", outcome)

        rows = pa.RecordBatch.from_pydict({"value": pa.array(self._under_way, pa.binary())})
        try:
            writer = find_writer()
            self._writing = True
            writer.submit_records(rows, None, done)
        except HeadwaterError as error:
            self._writing = False
            self._take(error, now_ms)

    def _take(self, outcome: object, now_ms: int) -> None:
        if not isinstance(outcome, HeadwaterError):
            self._under_way.clear()
            self._told = False
            return
        self._not_before_ms = now_ms + _BACKOFF_MS
        if not self._told:
            _log.warning("audit_not_stored", reason=outcome.message)
            self._told = True
