"""A pump's turns can be taken by hand, or by a thread when it is woken and when they are due."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from broker.adapters.clock import SystemClock
from broker.ports.pumps import NEVER_MS, Drive, Driven, PumpTurn
from broker.runtime.background import Background
from broker.runtime.pumps import on_threads, wait_for_answer


class Hand:
    """A pump that takes turns when a test says so."""

    def __init__(self) -> None:
        self.turns: dict[str, PumpTurn] = {}
        self.woken: list[str] = []

    def drive(self) -> Drive:
        """Return what hands pumps to this hand."""

        def take_over(name: str, turn: PumpTurn) -> Driven:
            self.turns[name] = turn
            return _Handed(self, name)

        return take_over


class _Handed:
    def __init__(self, hand: Hand, name: str) -> None:
        self._hand = hand
        self._name = name

    def start(self) -> None:
        """Start nothing: the test takes the turns."""

    def wake(self) -> None:
        """Record the wake-up."""
        self._hand.woken.append(self._name)

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop nothing."""


def test_a_thread_takes_a_turn_when_woken_and_when_it_is_due() -> None:
    """Also a pump whose turns are never due by themselves."""
    taken: queue.SimpleQueue[int] = queue.SimpleQueue()
    waits = iter((NEVER_MS, 0, NEVER_MS))

    def turn(now_ms: int) -> int:
        taken.put(now_ms)
        wait_ms = next(waits, NEVER_MS)
        return wait_ms if wait_ms == NEVER_MS else now_ms + wait_ms

    driven = on_threads(SystemClock(), lambda _: None)("one", turn)
    driven.start()
    taken.get(timeout=60)
    driven.wake()
    taken.get(timeout=60)
    taken.get(timeout=60)  # the turn before said that it was due at once
    driven.stop()


def test_what_comes_during_a_turn_is_for_the_next_one() -> None:
    """A wake within the turn is not forgotten."""
    taken: queue.SimpleQueue[int] = queue.SimpleQueue()
    woken = threading.Event()

    def turn(now_ms: int) -> int:
        if not woken.is_set():
            woken.set()
            driven.wake()
        taken.put(now_ms)
        return NEVER_MS

    driven = on_threads(SystemClock(), lambda _: None)("one", turn)
    driven.start()
    taken.get(timeout=60)
    taken.get(timeout=60)
    driven.stop()


def test_a_turn_that_raises_is_the_last_and_its_owner_hears() -> None:
    """The owner ends the process, because a broker without this thread would not react any more."""
    crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    taken: list[int] = []

    def turn(now_ms: int) -> int:
        taken.append(now_ms)
        raise AssertionError("a bug")

    driven = on_threads(SystemClock(), crashes.put)("one", turn)
    driven.start()
    assert str(crashes.get(timeout=60)) == "a bug"
    driven.stop()
    assert len(taken) == 1


def test_a_pump_that_never_began_stops() -> None:
    """A broker whose start failed is stopped, too."""
    on_threads(SystemClock(), lambda _: None)("one", lambda _: NEVER_MS).stop()


def test_the_background_ticks_on_time_and_follows_late_replicas_when_told() -> None:
    """The first tick comes an interval after the start; a reconcile only for a reason."""
    ticks: list[int] = []
    reconciled: list[None] = []
    hand = Hand()
    background = Background(
        tick_ms=50, tick=ticks.append, reconcile=lambda: reconciled.append(None), drive=hand.drive()
    )
    assert hand.turns["ticker"](1000) == 1050
    assert ticks == []
    hand.turns["ticker"](1050)
    hand.turns["ticker"](1100)
    assert ticks == [0, 1]
    assert hand.turns["late"](1000) == NEVER_MS
    background.reconcile_soon()
    assert hand.woken == ["late"]
    hand.turns["late"](1001)
    hand.turns["late"](1002)
    assert len(reconciled) == 1


def test_a_caller_waits_for_a_pump_that_answers() -> None:
    """Its turns are taken where it waits: when they are due, after a wake, and now and then."""
    turns: list[int] = []

    def begin(wake: Callable[[], None], answered: Callable[[str], None]) -> PumpTurn:
        def turn(now_ms: int) -> int:
            turns.append(now_ms)
            if len(turns) == 2:
                threading.Thread(target=wake).start()
            if len(turns) == 3:
                answered("done")
            return now_ms if len(turns) == 1 else NEVER_MS

        return turn

    assert wait_for_answer(SystemClock(), begin) == "done"
    assert len(turns) == 3
