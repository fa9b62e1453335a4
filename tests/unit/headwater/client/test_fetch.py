"""A fetch checks each batch of a broker against the one before it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker.codec.flight.protocol import ReadRequest, RowsMark
from broker.errors import (
    EnvelopeError,
    GapError,
    HeadwaterError,
    OverlapError,
    StaleLeaderEpochError,
    UnavailableError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from headwater.client.fetch import Fetch

Read = tuple[pa.RecordBatch, bytes]


class FakeConnection:
    """Answers a do_get with prepared batches."""

    def __init__(self, *answers: Read | BaseException) -> None:
        self._answers = list(answers)
        self.cancelled = False

    def get(self, request: ReadRequest) -> FakeConnection:
        """Open the read."""
        return self

    def read(self) -> Read | None:
        """Return the next answer."""
        if not self._answers:
            return None
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def cancel(self) -> None:
        """Note the call."""
        self.cancelled = True

    def again(self, error: HeadwaterError) -> bool:
        """Offer no further broker."""
        return False

    def progressed(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def lost(self) -> None:
        """Do nothing."""


def rows(base: int, end: int, *, count: int | None = None, epoch: int = 1) -> Read:
    """Return a reply batch for ``[base, end)``."""
    batch = pa.RecordBatch.from_pydict({"n": list(range(end - base if count is None else count))})
    return batch, RowsMark(Offset(base), Offset(end), Offset(100), LeaderEpoch(epoch)).to_bytes()


def left(base: int, end: int, count: int, *, told: int | None = None) -> Read:
    """Return what key compaction left of ``[base, end)``."""
    batch = pa.RecordBatch.from_pydict({"n": list(range(count))})
    told = count if told is None else told
    mark = RowsMark(Offset(base), Offset(end), Offset(100), LeaderEpoch(1), told)
    return batch, mark.to_bytes()


def fetch(*answers: Read | BaseException, **request: Any) -> Fetch:
    """Begin a read that gets these answers."""
    connection: Any = FakeConnection(*answers)
    return Fetch(connection, ReadRequest(stream="s", partition=0, **request))


@pytest.mark.parametrize("follow", [False, True])
def test_contiguous_batches_pass(follow: bool) -> None:
    """A range that arrives whole ends without an error."""
    found = fetch(rows(3, 5), rows(5, 9), start=3, end=Offset(9), follow=follow)
    assert [(item.base_offset, item.end_offset) for item in found] == [(3, 5), (5, 9)]
    assert found.position == 9


@pytest.mark.parametrize(
    "answers",
    [
        [rows(4, 9)],
        [rows(3, 5), rows(6, 9)],
        [rows(3, 5)],
        [rows(3, 9, count=5)],
        [rows(3, 9, count=7)],
        [],
    ],
)
def test_missing_rows_are_a_gap(answers: list[Read]) -> None:
    """Rows are missing at the head, between batches, at the tail, inside a batch, or all."""
    with pytest.raises(GapError):
        list(fetch(*answers, start=3, end=Offset(9)))


def test_what_compaction_left_is_told_apart_from_missing_rows() -> None:
    """The broker says how many rows are left of a range, perhaps none; the ranges still join."""
    found = list(fetch(left(3, 6, 1), left(6, 8, 0), rows(8, 9), start=3, end=Offset(9)))
    assert [item.removed_count for item in found] == [2, 2, 0]
    with pytest.raises(GapError):
        list(fetch(left(3, 9, 2, told=3), start=3, end=Offset(9)))
    with pytest.raises(GapError):
        list(fetch(left(4, 9, 2), start=3, end=Offset(9)))


@pytest.mark.parametrize("answers", [[rows(2, 9)], [rows(3, 6), rows(5, 9)], [rows(3, 10)]])
def test_rows_that_were_not_asked_for_are_an_overlap(answers: list[Read]) -> None:
    """Such rows come before the start, twice, or beyond the end."""
    with pytest.raises(OverlapError):
        list(fetch(*answers, start=3, end=Offset(9)))


def test_an_older_leader_is_not_believed() -> None:
    """Leader epochs never fall with the offset: such rows are of a log that was cut."""
    found = fetch(rows(3, 5, epoch=2), rows(5, 9, epoch=1), start=3, end=Offset(9))
    assert next(found).leader_epoch == 2
    with pytest.raises(StaleLeaderEpochError):
        next(found)


def test_a_symbolic_start_is_taken_from_the_first_batch() -> None:
    """What "earliest" means is known once it has come."""
    found = fetch(rows(7, 8), rows(8, 9), start="earliest")
    assert found.position is None
    assert [item.base_offset for item in found] == [7, 8]


def test_noise_instead_of_a_mark_is_refused() -> None:
    """A batch without its offsets is refused."""
    with pytest.raises(EnvelopeError):
        next(fetch((rows(0, 1)[0], b"")))


@pytest.mark.parametrize("start", ["earliest", 0])
def test_a_batch_that_an_interrupt_has_cost_is_read_again(start: Any) -> None:
    """Arrow waits in C++, so Ctrl-C comes once the batch has come, which nobody gets."""

    class Interrupted(FakeConnection):
        def get(self, request: ReadRequest) -> FakeConnection:
            """Answer from the start of the read."""
            first = 0 if request.start == "earliest" else int(request.start)  # type: ignore[arg-type]
            self._answers = [rows(base, base + 2) for base in range(first, 6, 2)]
            return self

        def read(self) -> Read | None:
            answer = super().read()
            if interrupts:
                raise interrupts.pop()
            return answer

    connection: Any = Interrupted()
    interrupts: list[BaseException] = [KeyboardInterrupt()]
    found = Fetch(connection, ReadRequest(stream="s", partition=0, start=start))
    with pytest.raises(KeyboardInterrupt):
        next(found)
    assert next(found).base_offset == 0
    interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        next(found)
    assert [one.base_offset for one in found] == [2, 4]
    assert connection.cancelled


@pytest.mark.parametrize("follow", [False, True])
def test_errors_of_the_broker_are_raised(follow: bool) -> None:
    """The error comes after the batches that were sent before it."""
    found = fetch(rows(0, 1), UnavailableError("gone"), start=0, follow=follow)
    assert next(found).end_offset == 1
    with pytest.raises(UnavailableError):
        next(found)


def test_a_cancelled_read_ends_without_an_error() -> None:
    """A reader that wants no more rows has no gap."""
    with fetch(rows(0, 1), UnavailableError("cancelled"), start=0, end=Offset(9)) as found:
        next(found)
        found.cancel()
        assert list(found) == []
