"""A chaos run as data: which stories, in which order, with which pauses; all out of one seed.

Stories are dealt like cards: every one of them before any comes again, so that a run which is long
enough reaches each. What the machine or the cluster cannot do is named, with the reason, and left
out. The same seed deals the same run; what happens inside the brokers is theirs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from chaoskit.stories import STORIES, Do, Need, Step, Story

_JITTER: Final = (0.7, 1.4)
_HEALING_MS: Final = 4_000  # what coming back takes, for the estimate only
_GAP_MS: Final = (300, 2_000)


@dataclass(frozen=True, slots=True)
class Entry:
    """One story as it will be told: its waits drawn, its partition chosen, its cast shuffled."""

    story: Story
    gap_ms: int  # of quiet before it
    partition: int
    cast_seed: int

    @property
    def estimated_ms(self) -> int:
        """How long it takes, about."""
        waits = sum(step.ms for step in self.story.steps if step.do in {Do.WAIT, Do.NATS})
        return self.gap_ms + waits + _HEALING_MS


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to do, and what cannot be done here."""

    seed: int
    entries: tuple[Entry, ...]
    skipped: Mapping[str, str]  # story -> why
    required_count: int  # stories that are told however long they take; each story is among them
    minutes: float  # after them, no story begins later than this

    @property
    def estimated_ms(self) -> int:
        """How long all of it takes, about."""
        return sum(entry.estimated_ms for entry in self.entries)

    def names(self) -> list[str]:
        """Return the stories to reach, each once."""
        return sorted({entry.story.name for entry in self.entries})


def plan(
    seed: int,
    *,
    minutes: float,
    brokers: int,
    partitions: int,
    refused: Mapping[Need, str],
    stories: Sequence[Story] = STORIES,
    times: int = 0,
) -> Schedule:
    """Deal the stories for so many minutes, but each at least once.

    Args:
        seed: what everything is drawn from.
        minutes: how long the run should take, about.
        brokers: how many the cluster has.
        partitions: how many the stream has; a story is about one of them.
        refused: what this machine does not permit, and why; see permits.py.
        stories: what may be told.
        times: how many are told in all at least, however short the time is.
    """
    rng = random.Random(seed)
    skipped = {story.name: why for story in stories if (why := _obstacle(story, brokers, refused))}
    possible = [story for story in stories if story.name not in skipped]
    entries: list[Entry] = []
    left_ms, wanted = minutes * 60_000, max(times, len(possible))
    while possible and (left_ms > 0 or len(entries) < wanted):
        deck = list(possible)
        rng.shuffle(deck)
        for story in deck:
            if left_ms <= 0 and len(entries) >= wanted:
                break
            entry = Entry(
                story=_jittered(story, rng),
                gap_ms=rng.randint(*_GAP_MS),
                partition=rng.randrange(partitions),
                cast_seed=rng.getrandbits(32),
            )
            entries.append(entry)
            left_ms -= entry.estimated_ms
    return Schedule(seed, tuple(entries), skipped, min(wanted, len(entries)), minutes)


def _obstacle(story: Story, brokers: int, refused: Mapping[Need, str]) -> str:
    """Say why a story cannot be told; empty when it can."""
    if brokers < story.brokers_min:
        return f"needs {story.brokers_min} brokers, there are {brokers}"
    for need in sorted(story.needs & refused.keys(), key=lambda one: one.value):
        return f"needs {need.value}: {refused[need]}"
    return ""


def _jittered(story: Story, rng: random.Random) -> Story:
    steps: list[Step] = []
    for step in story.steps:
        draws = step.do in {Do.WAIT, Do.NATS, Do.SLOW}
        steps.append(replace(step, ms=round(step.ms * rng.uniform(*_JITTER))) if draws else step)
    return replace(story, steps=tuple(steps))
