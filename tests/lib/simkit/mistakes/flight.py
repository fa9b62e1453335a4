"""Known ways to get a publishing call over Flight wrong; lives with calls have to notice each.

A mutant replaces one step of the product's `ServedPut` for the length of a ``with``. Its docstring
is the bug.
"""

from __future__ import annotations

from typing import Any, Final

from broker.adapters.flight.served_put import ServedPut
from broker.codec.flight.protocol import encode_ack
from broker.errors import HeadwaterError
from broker.model.records import AckPolicy, AppendResult
from simkit.replacing import Mutant, replaced


def answered_before_it_is_stored() -> Any:
    """Answer a batch when it is queued, with the place in the log that it will probably get."""

    def submit(self: Any, prepared: Any, place: int, size: int) -> None:
        reads = self._handle.reads
        records = prepared.records_count
        guess = AppendResult(
            base_offset=reads.log_end, records_count=records, leader_epoch=reads.leader_epoch
        )
        self._handle.writes.submit([prepared], lambda _: None, policy=self._policy)
        self._tell((place, size, guess))

    return replaced(ServedPut, "_submit", submit)


def answered_when_it_is_written() -> Any:
    """Submit without an ack policy, and answer when the batch is written."""

    def submit(self: Any, prepared: Any, place: int, size: int) -> None:
        done = self._done(place, size)
        self._handle.writes.submit([prepared], done, policy=AckPolicy.NONE)

    return replaced(ServedPut, "_submit", submit)


def answered_as_outcomes_come() -> Any:
    """Send each outcome when it is known, whichever batch it belongs to."""

    def heard(self: Any, news: Any) -> None:
        if isinstance(news[2], AppendResult | HeadwaterError):
            news = (self._answered_batches, *news[1:])
        original(self, news)

    original: Any = ServedPut.heard
    return replaced(ServedPut, "heard", heard)


def retry_is_answered_twice() -> Any:
    """Answer a batch that was stored before as a duplicate, and as a batch of its own."""

    def answer(self: Any, outcome: Any) -> None:
        original(self, outcome)
        if isinstance(outcome, AppendResult) and outcome.duplicate:
            self._write(encode_ack(outcome))

    original: Any = ServedPut.answer
    return replaced(ServedPut, "answer", answer)


def retry_is_not_answered() -> Any:
    """Count a batch that was stored before as answered, and say nothing."""

    def answer(self: Any, outcome: Any) -> None:
        if not (isinstance(outcome, AppendResult) and outcome.duplicate):
            original(self, outcome)

    original: Any = ServedPut.answer
    return replaced(ServedPut, "answer", answer)


def refusal_is_not_answered() -> Any:
    """Drop a batch that is refused before it is submitted, and give its place to the next."""

    def take(self: Any, batch: Any, metadata: Any, size: int) -> bool:
        try:
            self._prepare(batch, metadata, size)
        except HeadwaterError:
            return True
        return bool(original(self, batch, metadata, size))

    original: Any = ServedPut.take
    return replaced(ServedPut, "take", take)


def alone_though_others_wait() -> Any:
    """Take a batch for one that comes alone while earlier ones are not answered."""

    def comes_alone(self: Any, size: int, waited_us: float) -> bool:
        return waited_us > 0 and size > 0

    return replaced(ServedPut, "comes_alone", comes_alone)


def bound_is_one_too_high() -> Any:
    """Take one batch more than may be under way."""

    def has_room(self: Any, size: int) -> bool:
        return size > 0 and self.inflight_batches <= self._config.put_inflight_batches_max

    return replaced(ServedPut, "has_room", has_room)


def ends_before_the_last_answer() -> Any:
    """End a call when its client has finished, though batches are not answered."""
    return replaced(ServedPut, "is_over", property(lambda self: self._end is not None))


def acknowledged_under_none() -> Any:
    """Acknowledge batches under NONE, which may be lost."""

    def answer(self: Any, outcome: Any) -> None:
        policy, self._policy = self._policy, AckPolicy.ALL
        original(self, outcome)
        self._policy = policy

    original: Any = ServedPut.answer
    return replaced(ServedPut, "answer", answer)


def sequences_are_dropped() -> Any:
    """Store each batch as one of no producer, so that a retry is stored again."""

    def prepare(self: Any, batch: Any, metadata: Any, size: int) -> Any:
        return original(self, batch, None if metadata and len(metadata) > 8 else metadata, size)

    original: Any = ServedPut._prepare
    return replaced(ServedPut, "_prepare", prepare)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        answered_before_it_is_stored,
        answered_when_it_is_written,
        answered_as_outcomes_come,
        retry_is_answered_twice,
        retry_is_not_answered,
        refusal_is_not_answered,
        alone_though_others_wait,
        bound_is_one_too_high,
        ends_before_the_last_answer,
        acknowledged_under_none,
        sequences_are_dropped,
    )
}

# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final = {
    "acknowledged_under_none": 1,
    "alone_though_others_wait": 11,
    "answered_as_outcomes_come": 11,
    "answered_before_it_is_stored": 2,
    "answered_when_it_is_written": 2,
    "bound_is_one_too_high": 1,
    "ends_before_the_last_answer": 11,
    "refusal_is_not_answered": 4,
    "retry_is_answered_twice": 2,
    "retry_is_not_answered": 2,
    "sequences_are_dropped": 2,
}
