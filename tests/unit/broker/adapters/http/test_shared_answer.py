"""Callers who wait at the same time share an answer, and none gets one that is older."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.adapters.http.shared_answer import SharedAnswer

WAIT_S = 60


class Source:
    """Counts how often it is asked; stands still while it is told to."""

    def __init__(self) -> None:
        self.made = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.broken = False

    def make(self) -> bytes:
        """Return the number of this answer."""
        self.made += 1
        number = self.made
        self.begun.release()
        assert self.go_on.wait(WAIT_S)
        if self.broken:
            self.broken = False
            raise RuntimeError("the source fails")
        return str(number).encode()


def wait_until_waiting(shared: SharedAnswer, count: int) -> None:
    """Wait until so many callers wait."""
    pause = threading.Event()
    for _ in range(WAIT_S * 1_000):
        if shared.waiting >= count:
            return
        pause.wait(0.001)
    raise AssertionError(f"{shared.waiting} of {count} callers wait")


def test_who_asks_while_an_answer_is_made_shares_the_next_one() -> None:
    """The one that is being made may miss what they have seen happen."""
    source = Source()
    shared = SharedAnswer(source.make, used_s=lambda: 0.0)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(shared.get)
        assert source.begun.acquire(timeout=WAIT_S)
        others = [pool.submit(shared.get) for _ in range(8)]
        wait_until_waiting(shared, 8)
        source.go_on.set()
        assert first.result(WAIT_S) == b"1"
        assert {one.result(WAIT_S) for one in others} == {b"2"}
    assert source.made == 2


def test_an_answer_is_never_older_than_the_question() -> None:
    """One after the other, each is made anew."""
    source = Source()
    source.go_on.set()
    shared = SharedAnswer(source.make, used_s=lambda: 0.0)
    assert [shared.get() for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_failure_is_of_one_caller_and_the_next_tries_itself() -> None:
    """Whoever waits gets an answer."""
    source = Source()
    source.broken = True
    shared = SharedAnswer(source.make, used_s=lambda: 0.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared.get)
        assert source.begun.acquire(timeout=WAIT_S)
        second = pool.submit(shared.get)
        wait_until_waiting(shared, 1)
        source.go_on.set()
        with pytest.raises(RuntimeError, match="the source fails"):
            first.result(WAIT_S)
        assert second.result(WAIT_S) == b"2"


def test_the_rest_is_nine_times_as_long_as_the_work_but_at_most_two_seconds() -> None:
    """By two clocks of the test. Waiting for a processor is no work, and makes no rest longer."""
    now, used = [0.0], [0.0]
    begun: list[float] = []

    def make(seconds: float) -> bytes:
        begun.append(now[0])
        now[0] += 3 * seconds
        used[0] += seconds
        return b"x"

    lengths = iter([0.01, 0.5, 0.0])
    shared = SharedAnswer(lambda: make(next(lengths)), now_s=lambda: now[0], used_s=lambda: used[0])
    shared.get()
    assert shared.rest_s() == pytest.approx(0.09)
    now[0] += 0.0901
    shared.get()
    assert shared.rest_s() == pytest.approx(2.0)
    now[0] += 2.0001
    shared.get()
    assert begun == pytest.approx([0.0, 0.1201, 3.6202])


def test_nobody_is_answered_during_the_rest_and_the_next_answer_begins_by_itself() -> None:
    """Nobody has to wake the one who waits for it."""
    now = [0.0]
    used = iter([0.0, 0.01, 0.01, 0.01])
    made: list[float] = []

    def make() -> bytes:
        made.append(now[0])
        return b"x"

    shared = SharedAnswer(make, now_s=lambda: now[0], used_s=lambda: next(used))
    shared.get()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(shared.get)
        wait_until_waiting(shared, 1)
        now[0] = 0.05
        assert not second.done()
        now[0] = 0.1
        assert second.result(WAIT_S) == b"x"
    assert made == [0.0, 0.1]
