"""The names of everything that can be wrong with a history, and the sum of what was found.

The names follow jepsen.tests.kafka and Redpanda's chaos checker where those have one; each
anomaly's comment is its definition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Anomaly(Enum):
    """What is wrong. *Full read*: of a replica, of the table, of both tiers at a cut, of a copy."""

    # A full read against what publishers were told.
    LOST = "lost"  # an acknowledged record is in no row
    DOUBLED = "doubled"  # one record, published under one id, stands at several offsets
    MOVED = "moved"  # a record stands elsewhere than its ack says, or in another partition
    DAMAGED = "damaged"  # the row at an acknowledged offset holds what nobody sent
    FOREIGN = "foreign"  # a row holds what nobody sent
    OTHER_TIME = "other_time"  # a row has another timestamp than the one its record was sent with
    ABORTED = "aborted"  # a record is visible all of whose attempts surely failed (G1a)
    SENT_ORDER = "sent_order"  # two records of an ordered producer stand the other way round
    REAL_TIME_ORDER = "real_time_order"  # at or below a record acked before this one was sent
    EPOCH = "epoch"  # leader epochs fall with the offset, or contradict the ack
    # A full read taken for itself.
    GAP = "gap"  # an offset inside the range is missing, and no hole explains it
    OVERLAP = "overlap"  # an offset is there twice
    OUTSIDE = "outside"  # a row outside the range that was read
    UNSORTED = "unsorted"  # a reader that promises offset order breaks it
    # Full reads against each other.
    END_WENT_BACK = "end_went_back"  # a later read of the same ends or starts lower
    REWRITTEN = "rewritten"  # an offset holds other content, or a time, than in an earlier read
    DIVERGED = "diverged"  # two replicas differ: bytes, time, leader epoch, or where they end
    TABLE_DIFFERS = "table_differs"  # the table is not the log's beginning
    UNIFIED_DIFFERS = "unified_differs"  # a read of both tiers is not what the replicas hold
    # Answers to publishers taken for themselves.
    ACK_CHANGED = "ack_changed"  # a retry was acknowledged at another offset than before
    ACK_SHARED = "ack_shared"  # two records were acknowledged at one offset
    ACK_UNSENT = "ack_unsent"  # an ack for what was never sent
    FALSE_DUPLICATE = "false_duplicate"  # a record sent once was called a duplicate
    SEND_BACK = "send_back"  # an ordered producer's acked offsets fall (nonmonotonic send)
    EPOCH_BACK = "epoch_back"  # acks of an older epoch after those of a newer one
    TWO_LEADERS = "two_leaders"  # two processes act as leader in one leader epoch
    # Consumers.
    POLL_SKIP = "poll_skip"  # a consumer was led past offsets that hold records
    POLL_BACK = "poll_back"  # a consumer was given an offset again, or an older one
    INCONSISTENT = "inconsistent"  # two observers saw two contents, or times, at one offset
    WITHDRAWN = "withdrawn"  # what was shown as committed is not in the log in the end
    HIDDEN_TRUNCATION = "hidden_truncation"  # read past a truncation without being told
    UNSEEN = "unseen"  # a consumer that follows to the end never got an acknowledged record
    HIGH_WATERMARK_BACK = "high_watermark_back"  # a leader's high watermark fell


# What one full read cannot show: it takes consumers, leaders, or other copies.
OF_RUNS: Final = frozenset(
    {
        Anomaly.DIVERGED,
        Anomaly.TABLE_DIFFERS,
        Anomaly.UNIFIED_DIFFERS,
        Anomaly.SEND_BACK,
        Anomaly.EPOCH_BACK,
        Anomaly.TWO_LEADERS,
        Anomaly.POLL_SKIP,
        Anomaly.POLL_BACK,
        Anomaly.INCONSISTENT,
        Anomaly.WITHDRAWN,
        Anomaly.HIDDEN_TRUNCATION,
        Anomaly.UNSEEN,
        Anomaly.HIGH_WATERMARK_BACK,
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise, with the facts to look at."""

    kind: Anomaly
    partition: int | None
    offset: int | None
    detail: str

    def __str__(self) -> str:
        where = "" if self.partition is None else f" partition {self.partition}"
        if self.offset is not None:
            where += f" offset {self.offset}"
        return f"{self.kind.value}:{where} {self.detail}"


@dataclass(slots=True)
class Verdict:
    """What a check found; ``counts`` counts all, ``examples`` shows the first few of each kind."""

    counts: dict[Anomaly, int] = field(default_factory=dict)
    examples: list[Violation] = field(default_factory=list)

    @classmethod
    def of(cls, violations: Iterable[Violation]) -> Verdict:
        """Build a verdict."""
        verdict = cls()
        verdict.add(violations)
        return verdict

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.counts

    @property
    def lost(self) -> int:
        """Acked records that are not where their ack says."""
        kinds = (Anomaly.LOST, Anomaly.MOVED, Anomaly.DAMAGED)
        return sum(self.counts.get(one, 0) for one in kinds)

    @property
    def doubled(self) -> int:
        """Records or offsets that occur more than once."""
        return sum(self.counts.get(one, 0) for one in (Anomaly.DOUBLED, Anomaly.OVERLAP))

    @property
    def diverged(self) -> int:
        """Places at which copies of one log are not the same."""
        kinds = (Anomaly.DIVERGED, Anomaly.TABLE_DIFFERS, Anomaly.UNIFIED_DIFFERS)
        return sum(self.counts.get(one, 0) for one in kinds)

    def add(self, violations: Iterable[Violation], *, examples_max: int = 5) -> None:
        """Count violations and keep the first of each kind."""
        for one in violations:
            count = self.counts.get(one.kind, 0)
            if count < examples_max:
                self.examples.append(one)
            self.counts[one.kind] = count + 1

    def __str__(self) -> str:
        counts = ", ".join(f"{kind.value} {count}" for kind, count in self.counts.items())
        return "\n  ".join([counts or "ok", *map(str, self.examples)])
