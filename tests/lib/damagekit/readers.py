"""Every way to read a stream that has a promise of its own; each compared with the truth.

Nothing here judges an error: a typed one is *named*, any other one is *untyped*. A stream of which
nobody knows any more is no answer but a loss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from broker.codec.flight.protocol import AtTime
from broker.codec.schema import ROW_SCHEMA
from broker.errors import HeadwaterError, UnknownStreamError
from broker.model.cut import Cut
from damagekit.outcomes import Look, Outcome
from damagekit.truth import Truth
from headwater.client import Client
from headwater.reads.as_of import narrowed
from headwater.reads.history import History
from headwater.reads.verification import verify_cut

_TTL_MS: Final = 60_000
# A follower that was given nothing for so long has had all there is. A machine that stands still
# gives nothing for some seconds. A damaged stream costs that time at each look at it.
_IDLE_S: Final = 5.0

Parts = Mapping[int, Truth]


@dataclass(slots=True)
class Reader:
    """Reads streams through one client, and keeps the results."""

    client: Client
    phase: str
    cuts: Mapping[str, Mapping[str, Cut]]  # moment -> stream -> saved cut, at its place of now
    looks: list[Look] = field(default_factory=list)
    say: Callable[[str], None] = lambda _: None
    unknown: Outcome = Outcome.SILENT  # how to take it that nobody knows a stream any more

    def look_at(self, stream: str, parts: Parts) -> None:
        """Read a stream in every way."""
        self._try("read", stream, lambda: self._full(stream, parts))
        self._try("verify", stream, lambda: self._verified(stream, parts))
        for number, truth in parts.items():
            self._try("subscribe", stream, lambda n=number, t=truth: self._follow(stream, n, t))  # type: ignore[misc]
            for share in (0.3, 0.9):
                self._try(
                    "from a time",
                    stream,
                    lambda n=number, t=truth, s=share: self._from_time(stream, n, t, s),  # type: ignore[misc]
                )
        self._try("as of a time", stream, lambda: self._as_of_time(stream, parts))
        for moment, of_streams in self.cuts.items():
            if stream in of_streams:
                cut = of_streams[stream]
                self._try(
                    f"saved cut ({moment})",
                    stream,
                    lambda c=cut: self._history(c, parts),  # type: ignore[misc]
                )

    def full(self, stream: str, parts: Parts) -> None:
        """Read a stream in one way, with its certificate."""
        self._try("read", stream, lambda: self._full(stream, parts))

    def _try(self, reader: str, stream: str, read: Callable[[], str]) -> None:
        self.say(f"{self.phase}: {reader} {stream}")
        try:
            difference = read()
        except UnknownStreamError as error:
            self._note(reader, stream, self.unknown, error, "nobody knows the stream any more")
        except HeadwaterError as error:
            self._note(reader, stream, Outcome.NAMED, error, error.message[:200])
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what we look for
            self._note(reader, stream, Outcome.UNTYPED, error, str(error)[:300])
        else:
            outcome = Outcome.SILENT if difference else Outcome.EXACT
            self._note(reader, stream, outcome, None, difference)

    def _note(
        self, reader: str, stream: str, outcome: Outcome, error: Exception | None, detail: str
    ) -> None:
        name = "" if error is None else type(error).__name__
        self.looks.append(
            Look(
                phase=self.phase,
                reader=reader,
                stream=stream,
                outcome=outcome,
                error=name,
                detail=detail,
            )
        )

    # ------------------------------------------------------------------ the ways to read

    def _cut(self, stream: str) -> Cut:
        return self.client.cut(stream, ttl_ms=_TTL_MS, owner="damage")

    def _full(self, stream: str, parts: Parts) -> str:
        cut = self._cut(stream)
        if len(cut.partitions) != len(parts):
            return f"{len(cut.partitions)} partitions of {len(parts)}"
        return self._history(cut, parts, whole=True)

    def _history(self, cut: Cut, parts: Parts, *, whole: bool = False) -> str:
        read = History(self.client, cut)
        rows = _by_partition(read.batches())
        certificate = read.certificate()
        for part in cut.partitions:
            truth = parts[part.partition]
            found = rows.get(part.partition, ROW_SCHEMA.empty_table())
            wanted = truth if whole else truth.upto(int(part.end))
            if difference := wanted.difference(found):
                return f"partition {part.partition}: {difference}"
        if certificate.records_count != sum(table.num_rows for table in rows.values()):
            return f"certified {certificate.records_count} other rows"
        return ""

    def _verified(self, stream: str, parts: Parts) -> str:
        certificate = verify_cut(self.client, self._cut(stream))
        for one in certificate.partitions:
            truth = parts[one.partition]
            if one.end < truth.end:
                return f"partition {one.partition}: verified up to {one.end} of {truth.end}"
        return ""

    def _follow(self, stream: str, number: int, truth: Truth) -> str:
        batches: list[pa.RecordBatch] = []
        with self.client.fetch(stream, number, "earliest", follow=True) as fetched:
            alarm = _Alarm(fetched.cancel)
            for one in fetched:
                alarm.restart()
                batches.append(one.batch)
                if one.base_offset + one.batch.num_rows >= truth.end:
                    break
            alarm.end()
        found = pa.Table.from_batches(batches, ROW_SCHEMA)
        return truth.difference(found) and f"partition {number}: {truth.difference(found)}"

    def _from_time(self, stream: str, number: int, truth: Truth, share: float) -> str:
        stamps = truth.golden.column("timestamp")
        if not len(stamps):
            return ""
        stamp = stamps[int(share * len(stamps))]
        start = truth.first_reaching(stamp.as_py())
        with self.client.fetch(stream, number, AtTime(int(stamp.value))) as fetched:
            batches = [one.batch for one in fetched]
        found = pa.Table.from_batches(batches, ROW_SCHEMA)
        if found.num_rows and found.column("offset")[0].as_py() != start:
            return f"partition {number}: it begins at {found.column('offset')[0]}, not {start}"
        difference = truth.difference(found, start=start)
        return difference and f"partition {number}: {difference}"

    def _as_of_time(self, stream: str, parts: Parts) -> str:
        stamps = parts[0].golden.column("timestamp")
        stamp = stamps[len(stamps) // 2]
        cut = narrowed(self._cut(stream), AtTime(int(stamp.value)), self.client)
        for part in cut.partitions:
            due = parts[part.partition].first_reaching(stamp.as_py())
            if part.end != due:
                return f"partition {part.partition}: the time is at {part.end}, it was at {due}"
        return self._history(cut, parts)


class _Alarm:
    """Cancels a follow that is given nothing any more: there is no other end to it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer = self._started()

    def restart(self) -> None:
        self._timer.cancel()
        self._timer = self._started()

    def end(self) -> None:
        self._timer.cancel()

    def _started(self) -> threading.Timer:
        timer = threading.Timer(_IDLE_S, self._ring)
        timer.daemon = True
        timer.start()
        return timer


def placed(cut: Cut, old_lake: str, new_lake: str) -> Cut:
    """Return a saved cut for a lake that was copied elsewhere; nothing else changes."""
    return replace(cut, table_uri=cut.table_uri.replace(old_lake, new_lake))


def _by_partition(batches: Iterator[pa.RecordBatch]) -> dict[int, pa.Table]:
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        if batch.num_rows:
            found.setdefault(batch.column("partition")[0].as_py(), []).append(batch)
    return {number: pa.Table.from_batches(some, ROW_SCHEMA) for number, some in found.items()}
