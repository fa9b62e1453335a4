"""Turns are short, and become long while many threads wait for theirs."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from broker import turns
from broker.turns import TurnPace, brief_call, paced_turns
from simkit.waiting import wait_until

SHORTEST_S = TurnPace(0.0).turn_s


def test_turns_grow_while_the_looks_are_late() -> None:
    """Up to a bound that still lets others run."""
    pace = TurnPace(0.0)
    assert pace.look(0.051) == SHORTEST_S
    grown = [pace.look(float(second)) for second in range(1, 10)]
    assert grown[0] >= 4 * SHORTEST_S
    assert 0.02 <= grown[2] == grown[-1] <= 0.1


def test_turns_are_short_again_soon() -> None:
    """A second on time is enough."""
    pace = TurnPace(0.0)
    for second in range(1, 10):
        pace.look(float(second))
    shrunk = [pace.look(9.0 + 0.05 * count) for count in range(1, 21)]
    assert shrunk == sorted(shrunk, reverse=True)
    assert shrunk[-1] == SHORTEST_S


def test_a_long_turn_of_one_other_thread_does_not_keep_turns_long() -> None:
    """A look is later than the shortest ones if somebody else just has a turn."""
    pace, now_s = TurnPace(0.0), 0.0
    for _ in range(3):
        pace.look(now_s := now_s + 1.0)
    longest_s = pace.turn_s
    for _ in range(20):
        pace.look(now_s := now_s + 0.05 + 2 * pace.turn_s)
    assert pace.turn_s == SHORTEST_S < longest_s


def test_calls_in_a_row_lengthen_turns_once() -> None:
    """The first one that is late looks for all; the next look is due later."""
    pace = TurnPace(0.0)
    assert pace.wants_look(1.0)
    assert pace.look(1.0) > SHORTEST_S
    assert not pace.wants_look(1.0)
    assert not pace.wants_look(1.06)
    assert pace.wants_look(1.08)


def test_many_calls_lengthen_turns_at_once() -> None:
    """And keep them long until they have ended, however punctual the looks are."""
    pace = TurnPace(0.0)
    for _ in range(100):
        pace.begin_call()
    assert pace.wants_look(0.001)
    first_s = pace.look(0.001)
    assert first_s > SHORTEST_S
    assert not pace.wants_look(0.002)
    assert pace.look(0.051) > first_s
    long_s = max(pace.look(0.051 + 0.05 * count) for count in range(1, 9))
    assert 0.5 <= long_s <= 1.0
    for _ in range(100):
        pace.end_call()
    assert pace.look(0.501) < long_s


def test_a_busy_process_has_long_turns() -> None:
    """A thread that keeps its turn makes every look late."""
    before_s, over = sys.getswitchinterval(), threading.Event()

    def run() -> None:
        while not over.is_set():
            pow(3, 400_000)  # runs in C, for longer than a look may be late

    with paced_turns():
        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_until(lambda: sys.getswitchinterval() > SHORTEST_S, "a longer turn")
        finally:
            over.set()
            thread.join()
        wait_until(lambda: sys.getswitchinterval() == SHORTEST_S, "the shortest turn")
    assert sys.getswitchinterval() == before_s


def test_a_late_call_lengthens_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks may wait for its own turn for minutes."""
    before_s = sys.getswitchinterval()
    try:
        with brief_call():
            assert sys.getswitchinterval() == before_s  # no broker runs here
        monkeypatch.setattr(turns, "_pace", TurnPace(time.monotonic() - 1.0))
        with brief_call():
            grown_s = sys.getswitchinterval()
        with brief_call():
            assert sys.getswitchinterval() == grown_s > SHORTEST_S
    finally:
        sys.setswitchinterval(before_s)
