"""A store is probed before the first write, until it has answered whether it fences writers."""

from __future__ import annotations

import pytest

from broker.errors import HeadwaterError, RemoteTierUnavailableError, UnfencedStoreError
from simkit.wall_clock import WallClock
from tiering.store.fence import Fence


class Store:
    """A store that answers as set and counts the probes."""

    def __init__(self, error: HeadwaterError | None) -> None:
        self.error = error
        self.probes_count = 0

    def probe(self) -> None:
        """Answer."""
        self.probes_count += 1
        if self.error is not None:
            raise self.error


class Hands(WallClock):
    """A clock that is moved by hand."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        """Return the time that was set."""
        return self.now_ms


def test_a_store_that_fences_is_asked_once() -> None:
    """The first answer stands for the life of the process."""
    store = Store(None)
    fence = Fence(store.probe, Hands())
    for _ in range(3):
        fence.require()
    assert store.probes_count == 1
    assert fence.error is None


def test_a_store_that_is_away_is_asked_again_after_a_pause() -> None:
    """Not every thread that wants to write waits for a timeout of its own."""
    store, clock = Store(RemoteTierUnavailableError("no answer")), Hands()
    fence = Fence(store.probe, clock)
    for _ in range(3):
        with pytest.raises(RemoteTierUnavailableError, match="no answer"):
            fence.require()
    assert store.probes_count == 1
    assert fence.error is not None
    clock.now_ms += 1_000
    store.error = None
    fence.require()
    assert store.probes_count == 2
    assert fence.error is None


def test_a_store_that_does_not_fence_is_never_written_to() -> None:
    """It is not asked again: such a store does not change."""
    store, clock = Store(UnfencedStoreError("ignores conditional PUT")), Hands()
    fence = Fence(store.probe, clock)
    for _ in range(3):
        clock.now_ms += 10_000
        with pytest.raises(UnfencedStoreError):
            fence.require()
    assert store.probes_count == 1
