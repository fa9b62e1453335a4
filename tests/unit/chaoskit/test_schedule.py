"""The plan of a chaos run: every story is dealt, what cannot be told is named, seeds repeat."""

from __future__ import annotations

import pytest

from chaoskit.schedule import plan
from chaoskit.stories import (
    GROUPS,
    JETSTREAM_LOST_DATA,
    OUTSIDERS,
    STORIES,
    Do,
    Evidence,
    Need,
    Step,
    Story,
)

ROLES = {"leader", "controller", "now", *(f"f{number}" for number in range(1, 5))}


def test_a_run_of_any_length_deals_every_story() -> None:
    """Even a run of zero minutes tells each story once."""
    short = plan(1, minutes=0, brokers=5, partitions=3, refused={})
    assert short.names() == sorted(story.name for story in STORIES)
    assert len(short.entries) == len(STORIES)
    assert not short.skipped


def test_a_long_run_deals_the_stories_evenly() -> None:
    """No story comes twice as often as another one, and the time is used."""
    long = plan(1, minutes=60, brokers=5, partitions=3, refused={})
    names = [entry.story.name for entry in long.entries]
    counts = {name: names.count(name) for name in names}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert 55 * 60_000 <= long.estimated_ms <= 65 * 60_000
    assert {entry.partition for entry in long.entries} == {0, 1, 2}


def test_a_run_can_be_so_many_stories() -> None:
    """A count instead of minutes: the stories asked for, evenly, and not one more."""
    chosen = [story for story in STORIES if story.name.startswith("kill every broker")]
    made = plan(1, minutes=0, brokers=3, partitions=2, refused={}, stories=chosen, times=20)
    names = [entry.story.name for entry in made.entries]
    assert len(names) == 20
    assert {names.count(story.name) for story in chosen} == {6, 7}


def test_the_same_seed_deals_the_same_run() -> None:
    """A plan is its seed; another seed is another plan."""
    one, same, other = (
        plan(seed, minutes=5, brokers=5, partitions=3, refused={}) for seed in (7, 7, 8)
    )
    assert one == same
    assert one.entries != other.entries


def test_what_cannot_be_told_is_skipped_with_its_reason() -> None:
    """Three brokers on a machine without small disks: both reasons are named."""
    made = plan(1, minutes=0, brokers=3, partitions=1, refused={Need.SMALL_DISKS: "not root"})
    assert made.skipped[JETSTREAM_LOST_DATA] == "needs 5 brokers, there are 3"
    assert made.skipped["fill the leader's disk"].endswith("small disk for each broker: not root")
    assert made.names() == sorted(story.name for story in STORIES if story.name not in made.skipped)


def test_jitter_keeps_the_steps() -> None:
    """Only the lengths of the pauses are drawn anew."""
    for entry in plan(3, minutes=0, brokers=5, partitions=1, refused={}).entries:
        written = next(story for story in STORIES if story.name == entry.story.name)
        for drawn, step in zip(entry.story.steps, written.steps, strict=True):
            assert (drawn.do, drawn.who, drawn.to) == (step.do, step.who, step.to)
            assert 0.5 * step.ms <= drawn.ms <= 1.5 * step.ms


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_story_is_well_formed(story: Story) -> None:
    """Its roles exist, a wiped broker is dead before, and a full disk is asked for."""
    for step in story.steps:
        for role in (step.who, step.to):
            assert not role or role in ROLES | GROUPS | OUTSIDERS, role
        assert (step.do in {Do.CUT, Do.SLOW}) == bool(step.who and step.to)
    named = {step.who for step in story.steps} | {step.to for step in story.steps}
    assert ("f3" not in named and "f4" not in named) or story.brokers_min == 5
    for place, step in enumerate(story.steps):
        if step.do is Do.WIPE:
            assert Step(Do.KILL, step.who) in story.steps[:place]
    fills = any(step.do is Do.FILL for step in story.steps)
    assert fills == (Need.SMALL_DISKS in story.needs)
    assert ("clients" in named) == (Need.CLIENT_LINKS in story.needs)


def test_every_kind_of_fault_and_evidence_occurs() -> None:
    """No fault is defined and never told; names are their own."""
    told = {step.do for story in STORIES for step in story.steps}
    assert told == set(Do) - {Do.HEAL}
    assert set.union(*(set(story.evidence) for story in STORIES)) == set(Evidence)
    assert len({story.name for story in STORIES}) == len(STORIES)


def test_the_scenario_of_jetstream_is_told_as_it_was() -> None:
    """Pause two of five, power-fail a third, restart it, resume the two, pause the others."""
    story = next(one for one in STORIES if one.name == JETSTREAM_LOST_DATA)
    deeds = [(step.do, step.who) for step in story.steps if step.do is not Do.WAIT]
    assert deeds == [
        (Do.PAUSE, "f1"),
        (Do.PAUSE, "f2"),
        (Do.KILL, "f3"),
        (Do.START, "f3"),
        (Do.RESUME, "f1"),
        (Do.RESUME, "f2"),
        (Do.PAUSE, "f4"),
        (Do.PAUSE, "leader"),
        (Do.RESUME, "f4"),
        (Do.RESUME, "leader"),
    ]
    assert story.brokers_min == 5
