"""Few threads at a time, in the order in which they asked."""

from __future__ import annotations

import threading

import pytest

from broker.adapters.reading.turns import Turns
from simkit.waiting import wait_until

WAIT_S = 60.0


def test_threads_come_in_the_order_in_which_they_asked() -> None:
    """One that comes again waits behind those that asked before."""
    turns, done = Turns(1), []

    def work(number: int) -> None:
        for again in range(2):
            with turns.take():
                done.append((again, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    with turns.take():
        for count, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda count=count: len(turns._waiting) == count, "it waits")  # type: ignore[misc]
    for thread in threads:
        thread.join(WAIT_S)
    first = [number for again, number in done if not again]
    assert first == list(range(10))
    assert done.index((1, 0)) >= 10  # all others were before it


def test_as_many_as_there_may_be_are_at_it_at_a_time() -> None:
    """The third one waits until one of two has ended."""
    turns, begun, end = Turns(2), threading.Semaphore(0), threading.Event()

    def work() -> None:
        with turns.take():
            begun.release()
            end.wait(WAIT_S)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=WAIT_S)
    assert begun.acquire(timeout=WAIT_S)
    wait_until(lambda: len(turns._waiting) == 1, "the third one waits")
    assert not begun.acquire(blocking=False)
    end.set()
    assert begun.acquire(timeout=WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)


def test_an_error_ends_a_turn() -> None:
    """The next one gets its turn."""
    turns = Turns(1)
    with pytest.raises(ZeroDivisionError), turns.take():
        _ = 1 // 0
    with turns.take():
        pass
