"""A broker on a folder and a lake, and what is known to be acknowledged by it: read and written.

Whatever is asked of it is a look: exact, named, or one of the bad kinds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from broker.errors import HeadwaterError, InvalidRequestError, NoAnswerError, leaves
from broker.model.cut import Cut
from damagekit.golden import World
from damagekit.outcomes import Look, Outcome
from damagekit.readers import Reader
from damagekit.spawner import Broker, Ended, Spawner
from damagekit.truth import Row, Truth
from headwater.client import Client

_BATCHES: Final = 3
_BATCH_RECORDS: Final = 4
_SEND_S: Final = 90.0
# Many a damage keeps a broker from taking or shipping records for ever. Where there is none, each
# look has to be exact, also on a machine that stands still for some seconds.
_RETRY_MS: Final = 1_500
_FLUSH_MS: Final = 6_000
_PATIENT_MS: Final = 60_000
_ANSWER_S: Final = 60.0
_BEGAN: Final = datetime(2025, 1, 1, tzinfo=UTC)

Truths = Mapping[str, Mapping[int, Truth]]  # stream -> partition -> what it holds


@dataclass(slots=True)
class Site:
    """One data folder over the lives of its broker."""

    spawner: Spawner
    data: Path
    lake: Path
    truths: Truths
    say: Callable[[str], None]
    cuts: Mapping[str, Mapping[str, Cut]] = field(default_factory=dict)
    name: str = ""
    unknown: Outcome = Outcome.SILENT  # how to take it that nobody knows a stream
    pause_s: float = 0.0  # before each batch: a broker looks at its promises once a second
    is_patient: bool = False  # nothing is damaged
    looks: list[Look] = field(default_factory=list)
    broker: Broker | None = None
    _writes: int = 0

    @property
    def log(self) -> Path:
        """Where its broker prints to."""
        return self.data.with_name(f"{self.data.name}.log")

    # ------------------------------------------------------------------ lives

    def start(self, phase: str) -> bool:
        """Start the broker; False, and a look, when it refuses or dies."""
        self.say(f"{self.name} {phase}")
        broker = self.spawner.start(self.data, self.lake, self.log)
        if broker.wait_ready():
            self.broker = broker
            _wait_for_answer(broker)
            return True
        self._note_end(phase, broker.ended())
        return False

    def end(self, phase: str, *, politely: bool) -> None:
        """End the broker, by asking or at once; one that ended by itself has a look for it."""
        self.note_log(phase)
        broker, self.broker = self.broker, None
        assert broker is not None, "it does not run"
        self.say(f"{self.name} {phase}: {'stop' if politely else 'kill'}")
        if not politely:
            broker.kill()
            return
        ended = broker.stop()
        if ended.code != 0:
            self._note_end(phase, ended)

    def note_log(self, phase: str) -> None:
        """Note it when the broker has ended, or has logged an error without a type."""
        assert self.broker is not None, "it does not run"
        if self.broker.has_ended():
            self._note_end(phase, self.broker.ended())
            return
        names = leaves()
        for told in self.broker.tracebacks():
            error = told.partition(": ")[2].partition(":")[0].rpartition(".")[2]
            if error not in names:
                self.add(phase, "log", "", Outcome.UNTYPED, error, told[-300:])

    def _note_end(self, phase: str, ended: Ended) -> None:
        known = ended.error in leaves()
        outcome = Outcome.NAMED if known and not ended.is_crash else Outcome.CRASH
        detail = ended.reason if known else (ended.traceback or f"exit code {ended.code}")
        self.add(phase, "start", "", outcome, ended.error, detail[-400:])

    # ------------------------------------------------------------------ reading and writing

    def look(self, phase: str, concerned: Callable[[str], bool] = lambda _: True) -> None:
        """Read each stream, in every way those that are concerned."""
        assert self.broker is not None, "it does not run"
        with Client(self.broker.url) as client:
            reader = Reader(client, phase, self.cuts, self.looks, self.say, self.unknown)
            for stream, parts in self.truths.items():
                if concerned(stream):
                    reader.look_at(stream, parts)
                else:
                    reader.full(stream, parts)

    def publish(self, phase: str) -> None:
        """Send more to every partition; note every acknowledgement."""
        assert self.broker is not None, "it does not run"
        self._writes += 1
        with Client(self.broker.url) as client:
            for stream, parts in self.truths.items():
                for number, truth in parts.items():
                    self._guarded(
                        phase,
                        "publish",
                        stream,
                        lambda s=stream, n=number, t=truth: self._send(client, s, n, t),  # type: ignore[misc]
                    )
                    if truth.twice:
                        detail = f"partition {number}: {truth.twice[0]}"
                        self.add(phase, "publish", stream, Outcome.SILENT, "", detail)

    def flush(self, phase: str) -> None:
        """Ship every stream."""
        assert self.broker is not None, "it does not run"
        timeout_ms = _PATIENT_MS if self.is_patient else _FLUSH_MS
        with Client(self.broker.url) as client:
            for stream in self.truths:
                self._guarded(
                    phase,
                    "flush",
                    stream,
                    lambda s=stream: client.tier_flush(s, timeout_ms=timeout_ms),  # type: ignore[misc]
                )

    def _send(self, client: Client, stream: str, number: int, truth: Truth) -> None:
        retry_ms = _PATIENT_MS if self.is_patient else _RETRY_MS
        with client.producer(stream, number, retry_ms_max=retry_ms) as producer:
            for batch in range(_BATCHES):
                time.sleep(self.pause_s)
                place = f"{self.name}/{self._writes}/{stream}/{number}/{batch}"
                rows = [_record(f"{place}/{one}", one) for one in range(_BATCH_RECORDS)]
                try:
                    sent = [_sendable(row) for row in rows]
                    result = producer.send(sent).result(timeout=_SEND_S)
                except InvalidRequestError:
                    raise  # the one kind of error that leaves nothing in the log
                except HeadwaterError:
                    truth.unsure += [row["value"] for row in rows]
                    raise
                truth.ack(int(result.base_offset), rows)

    def _guarded(self, phase: str, what: str, stream: str, do: Callable[[], Any]) -> None:
        self.say(f"{phase}: {what} {stream}")
        try:
            do()
        except HeadwaterError as error:
            detail = error.message[:200]
            self.add(phase, what, stream, Outcome.NAMED, type(error).__name__, detail)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what we look for
            name, detail = type(error).__name__, str(error)[:300]
            self.add(phase, what, stream, Outcome.UNTYPED, name, detail)
        else:
            self.add(phase, what, stream, Outcome.EXACT)

    def add(
        self,
        phase: str,
        reader: str,
        stream: str,
        outcome: Outcome,
        error: str = "",
        detail: str = "",
    ) -> None:
        """Note a look."""
        self.looks.append(
            Look(
                phase=f"{self.name} {phase}".strip(),
                reader=reader,
                stream=stream,
                outcome=outcome,
                error=error,
                detail=detail,
            )
        )


def _wait_for_answer(broker: Broker) -> None:
    """Wait for a first connection, for which a busy machine may take too long; looks tell more."""
    deadline_s = time.monotonic() + _ANSWER_S
    with Client(broker.url) as client:
        while time.monotonic() < deadline_s and not broker.has_ended():
            try:
                client.streams()
            except NoAnswerError:
                time.sleep(0.02)
            except HeadwaterError:
                return
            else:
                return


def _record(name: str, number: int) -> Row:
    """Return a record whose every other one brings a time of its own."""
    sent = {
        "key": b"new",
        "value": name.encode(),
        "reply_subject": f"reply.{number}" if number % 3 else None,
        "correlation_id": f"c {name}" if number % 2 else None,
    }
    return {**sent, "timestamp": _BEGAN + timedelta(seconds=number)} if number % 2 else sent


def _sendable(row: Row) -> dict[str, Any]:
    """Return a row as the client takes it: a time in microseconds."""
    if "timestamp" not in row:
        return dict(row)
    return {**row, "timestamp": int(row["timestamp"].timestamp() * 1_000_000)}


def truths_of(world: World) -> Truths:
    """Return what every partition of a world holds."""
    found: dict[str, dict[int, Truth]] = {}
    for (stream, number), table in world.expected().items():
        found.setdefault(stream, {})[number] = Truth(table)
    return found
