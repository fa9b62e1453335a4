"""When the leader of an idle partition asks for a pause."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.core.idleness import ASK_AGAIN_MS, Idleness


def step(watch: Idleness, now_ms: int, **changes: Any) -> bool:
    """Look at a partition that takes records and pauses after a second."""
    facts = {"after_ms": 1_000, "takes_records": True, "records_count": 0, "watched": False}
    return watch.step(now_ms, **{**facts, **changes})


def test_it_is_due_after_the_time_and_is_asked_again_later() -> None:
    """Not at each look: the answer takes a moment."""
    watch = Idleness()
    times = [one for one in range(0, 20_000, 250) if step(watch, one)]
    assert times == [1_000, 1_000 + ASK_AGAIN_MS, 1_000 + 2 * ASK_AGAIN_MS, 16_000]


def test_a_record_begins_the_time_anew() -> None:
    """Also after the leader has asked: the pause may have been refused."""
    watch = Idleness()
    assert not step(watch, 0)
    assert not step(watch, 900, records_count=1)
    assert not step(watch, 1_800, records_count=1)
    assert step(watch, 1_900, records_count=1)
    assert not step(watch, 2_000, records_count=2)
    assert step(watch, 3_000, records_count=2)


@pytest.mark.parametrize("stopped", [{"takes_records": False}, {"after_ms": None}])
def test_what_is_paused_or_never_pauses_is_left_alone(stopped: dict[str, Any]) -> None:
    """A resumed partition gets its whole time."""
    watch = Idleness()
    assert not any(step(watch, one, **stopped) for one in range(0, 5_000, 250))
    if "takes_records" in stopped:
        assert not step(watch, 5_000)
        assert not step(watch, 5_999)
        assert step(watch, 6_000)
    else:
        assert step(watch, 5_000)


def test_a_watched_partition_waits_for_its_watcher_only() -> None:
    """The time of idleness goes on meanwhile."""
    watch = Idleness()
    assert not any(step(watch, one, watched=True) for one in range(0, 5_000, 250))
    assert step(watch, 5_000)


def test_it_is_never_early_whatever_comes() -> None:
    """A random life, beside a model that keeps every event."""
    rng, watch = random.Random(3), Idleness()
    now_ms = since_ms = count = 0
    begun = False
    for _ in range(5_000):
        now_ms += rng.randrange(400)
        takes = rng.random() < 0.97
        new = rng.random() < 0.1
        count += new
        if not takes:
            begun = False
        elif new or not begun:
            since_ms, begun = now_ms, True
        if step(watch, now_ms, takes_records=takes, records_count=count):
            assert takes
            assert now_ms - since_ms >= 1_000
