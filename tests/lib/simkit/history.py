"""What clients sent and heard, and what a read found: the two halves that the checker compares.

A record is known by the fingerprint of its content, so every content must be sent under one name
only; contents themselves are not kept. A send without an answer is *unknown*: the record may be
stored, once. Times are monotonic nanoseconds of one process, taken before a send and after an ack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Headers = Sequence[tuple[str, bytes | None]] | None


def fingerprint(*, key: bytes | None, value: bytes | None, headers: Headers, subject: str) -> bytes:
    """Return 16 bytes that differ when any byte differs, or null stands for empty."""
    digest = hashlib.blake2b(digest_size=16)
    _absorb(digest, key)
    _absorb(digest, value)
    _absorb(digest, subject.encode())
    digest.update(b"-" if headers is None else b"%d" % len(headers))
    for name, text in headers or ():
        _absorb(digest, name.encode())
        _absorb(digest, text)
    return digest.digest()


def _absorb(digest: hashlib.blake2b, part: bytes | None) -> None:
    digest.update(b"n" if part is None else b"b%d:" % len(part))
    digest.update(part or b"")


class Kind(Enum):
    """What is wrong; see history_checker.py for the exact meaning of each."""

    LOST = "lost"
    DOUBLED = "doubled"
    MOVED = "moved"
    DAMAGED = "damaged"
    FOREIGN = "foreign"
    ABORTED = "aborted"
    GAP = "gap"
    OVERLAP = "overlap"
    OUTSIDE = "outside"
    UNSORTED = "unsorted"
    SENT_ORDER = "sent_order"
    REAL_TIME_ORDER = "real_time_order"
    EPOCH = "epoch"
    ACK_CHANGED = "ack_changed"
    ACK_SHARED = "ack_shared"
    ACK_UNSENT = "ack_unsent"
    FALSE_DUPLICATE = "false_duplicate"
    END_WENT_BACK = "end_went_back"
    REWRITTEN = "rewritten"
    TABLE_DIFFERS = "table_differs"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, with the facts to look at."""

    kind: Kind
    partition: int | None
    offset: int | None
    detail: str

    def __str__(self) -> str:
        where = "" if self.partition is None else f" partition {self.partition}"
        if self.offset is not None:
            where += f" offset {self.offset}"
        return f"{self.kind.value}:{where} {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record at its first send. ``sequence`` orders the records of one producer."""

    name: str
    producer: str
    sequence: int
    partition: int
    fingerprint: bytes
    at_ns: int


@dataclass(slots=True)
class Fate:
    """What became of a sent record, as far as its producer heard."""

    sent: Sent
    attempts: int = 1
    offset: int | None = None  # of the first ack
    leader_epoch: int | None = None
    acked_ns: int | None = None
    refused: str | None = None  # an error that proves that nothing was stored


class History:
    """Everything that clients did. One thread at a time; the caller locks."""

    def __init__(self) -> None:
        self.fates: dict[str, Fate] = {}
        self.by_fingerprint: dict[bytes, Fate] = {}
        self.violations: list[Violation] = []  # seen while recording
        self.acked_count = 0
        self._ordered: set[str] = set()
        self._owners: dict[tuple[int, int], str] = {}  # (partition, offset) -> acked record

    def expect_order(self, producer: str) -> None:
        """Declare that a producer's records keep their sequence within each partition."""
        self._ordered.add(producer)

    def keeps_order(self, producer: str) -> bool:
        """Tell whether the producer's records must keep their sequence."""
        return producer in self._ordered

    def send(self, sent: Sent) -> None:
        """Note a first send; the same name or content twice is a mistake of the test."""
        assert sent.name not in self.fates, f"record {sent.name} is sent as new twice"
        assert sent.fingerprint not in self.by_fingerprint, f"{sent.name}: content is not unique"
        fate = Fate(sent)
        self.fates[sent.name] = fate
        self.by_fingerprint[sent.fingerprint] = fate

    def retry(self, name: str) -> None:
        """Note that a record is sent once more."""
        self.fates[name].attempts += 1

    def refuse(self, name: str, error: str) -> None:
        """Note a refusal that proves that no attempt was stored: only of a first attempt."""
        fate = self.fates[name]
        if fate.attempts == 1 and fate.acked_ns is None:
            fate.refused = error

    def ack(
        self,
        name: str,
        *,
        partition: int,
        offset: int,
        at_ns: int,
        duplicate: bool = False,
        leader_epoch: int | None = None,
    ) -> None:
        """Note an acknowledgement; contradictions between acks are violations at once."""
        fate = self.fates.get(name)
        if fate is None:
            self._note(Kind.ACK_UNSENT, partition, offset, f"{name} was never sent")
            return
        if partition != fate.sent.partition:
            self._note(Kind.MOVED, partition, offset, f"{name} was sent to {fate.sent.partition}")
            return
        if duplicate and fate.attempts == 1:
            self._note(Kind.FALSE_DUPLICATE, partition, offset, f"{name} was sent only once")
        if fate.offset is not None:
            if fate.offset != offset:
                self._note(
                    Kind.ACK_CHANGED, partition, offset, f"{name} was acked at {fate.offset} first"
                )
            return
        fate.offset, fate.leader_epoch, fate.acked_ns = offset, leader_epoch, at_ns
        self.acked_count += 1
        owner = self._owners.setdefault((partition, offset), name)
        if owner != name:
            self._note(Kind.ACK_SHARED, partition, offset, f"acked to {owner} and to {name}")

    def _note(self, kind: Kind, partition: int, offset: int, detail: str) -> None:
        self.violations.append(Violation(kind, partition, offset, detail))


class Row(NamedTuple):
    """One row that a read returned."""

    offset: int
    fingerprint: bytes
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReading:
    """A read of one partition: the cold rows are those of the table, the hot ones of the log."""

    partition: int
    start: int
    cold_end: int
    hot_end: int
    cold_rows: Sequence[Row]
    hot_rows: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One read of one cut. ``began_ns`` is before the cut was taken."""

    name: str
    began_ns: int
    parts: Mapping[int, PartReading]
    sorted_by_offset: bool = True  # the reader promises this order (Spark does not)

    @classmethod
    def of(cls, name: str, began_ns: int, parts: Iterable[PartReading]) -> Reading:
        """Build a reading from its partitions."""
        return cls(name=name, began_ns=began_ns, parts={one.partition: one for one in parts})


@dataclass(slots=True)
class Verdict:
    """What a check found; ``counts`` counts all, ``examples`` shows the first few of each kind."""

    counts: dict[Kind, int] = field(default_factory=dict)
    examples: list[Violation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.counts

    @property
    def lost(self) -> int:
        """Acked records that are not where their ack says."""
        return sum(self.counts.get(one, 0) for one in (Kind.LOST, Kind.MOVED, Kind.DAMAGED))

    @property
    def doubled(self) -> int:
        """Records or offsets that occur more than once."""
        return sum(self.counts.get(one, 0) for one in (Kind.DOUBLED, Kind.OVERLAP))

    def add(self, violations: Iterable[Violation], *, examples_max: int = 5) -> None:
        """Count violations and keep the first of each kind."""
        for one in violations:
            count = self.counts.get(one.kind, 0)
            if count < examples_max:
                self.examples.append(one)
            self.counts[one.kind] = count + 1

    def merge(self, other: Verdict) -> None:
        """Add what another verdict found."""
        for kind, count in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
        self.examples += other.examples

    def __str__(self) -> str:
        counts = ", ".join(f"{kind.value} {count}" for kind, count in self.counts.items())
        return "\n  ".join([counts or "ok", *map(str, self.examples)])
