"""The runner over a cluster in memory: stories are told, reached, and healed afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cases import seeds
from chaoskit.cast import cast
from chaoskit.cluster import ChaosError
from chaoskit.fake_cluster import FakeCluster
from chaoskit.runner import ChaosRunner, Tally
from chaoskit.schedule import Schedule, plan
from chaoskit.stories import JETSTREAM_LOST_DATA, STORIES, Do, Evidence, Step, Story


def _run(cluster: FakeCluster, schedule: Schedule) -> tuple[Tally, list[str]]:
    said: list[str] = []
    runner = ChaosRunner(
        cluster, schedule, progress=lambda _: cluster.acked, say=said.append, clock=cluster
    )
    return runner.run(), said


def _only(name: str, *, brokers: int = 5) -> Schedule:
    stories = [story for story in STORIES if story.name == name]
    return plan(1, minutes=0, brokers=brokers, partitions=1, refused={}, stories=stories)


@pytest.mark.parametrize("brokers", [3, 5])
@pytest.mark.parametrize("seed", seeds(3))
def test_every_planned_story_is_told_and_reached(brokers: int, seed: int) -> None:
    """The evidence that a story wants is seen, and nothing is left broken."""
    cluster = FakeCluster(brokers)
    schedule = plan(seed, minutes=0, brokers=brokers, partitions=2, refused={})
    tally, said = _run(cluster, schedule)
    assert sorted(tally.told) == schedule.names()
    assert tally.unreached(schedule) == [], said
    assert cluster.is_clean()
    assert len([line for line in said if "skipped" in line]) == len(schedule.skipped)


def test_no_story_begins_after_the_time_but_each_is_told() -> None:
    """A busy machine takes longer for a story than the plan had thought."""
    cluster = FakeCluster(5)
    schedule = plan(1, minutes=40, brokers=5, partitions=1, refused={})
    short = replace(schedule, minutes=0)
    tally, said = _run(cluster, short)
    assert sum(tally.told.values()) == short.required_count < len(schedule.entries)
    assert sorted(tally.told) == schedule.names()
    assert any("time is over" in line for line in said)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_each_story_leaves_a_whole_cluster(story: Story) -> None:
    """Whatever its steps leave broken is healed after it."""
    cluster = FakeCluster(5, partitions=1)
    tally, _ = _run(cluster, _only(story.name))
    assert tally.told == {story.name: 1}
    assert cluster.is_clean()
    assert cluster.log


def test_jetstream_s_scenario_hits_five_brokers_in_order() -> None:
    """Two sleep, a third dies and returns, the two wake up, the other two sleep."""
    cluster = FakeCluster(5, partitions=1, factor=5)
    _run(cluster, _only(JETSTREAM_LOST_DATA))
    verbs = [line.split()[0] for line in cluster.log]
    assert (
        verbs == ["pause"] * 2 + ["kill", "start"] + ["resume"] * 2 + ["pause"] * 2 + ["resume"] * 2
    )
    names = [line.split()[1] for line in cluster.log]
    assert set(names[:2]) == set(names[4:6])
    assert set(names[:2]) | {names[2]} | set(names[6:8]) == set(cluster.brokers)


def test_a_kill_of_every_broker_is_counted() -> None:
    """It counts when no broker is left running; a story that kills one of three does not."""
    for name, count in (
        ("kill every broker, and again while they start", 2),
        ("kill the leader", 0),
    ):
        tally, _ = _run(FakeCluster(3, partitions=1), _only(name, brokers=3))
        assert tally.all_killed == count


def test_a_story_whose_point_was_missed_is_not_reached() -> None:
    """A told story is not reached if no leader changed, and the line says so."""
    nothing = Story(
        name="quiet", steps=(Step(Do.WAIT, ms=100),), evidence=frozenset({Evidence.FAILOVER})
    )
    schedule = plan(1, minutes=0, brokers=3, partitions=1, refused={}, stories=[nothing])
    tally, said = _run(FakeCluster(3, partitions=1), schedule)
    assert tally.told["quiet"] == 1
    assert tally.unreached(schedule) == ["quiet"]
    assert said[-1].endswith("NOT reached: no a later leader epoch")


def test_a_cluster_that_does_not_heal_fails_the_run() -> None:
    """Liveness is part of the promise: a partition that stays without a leader ends the run."""
    cluster = FakeCluster(3, partitions=1)
    cluster.heals = False
    with pytest.raises(ChaosError, match="not whole"):
        _run(cluster, _only("kill a follower", brokers=3))
    assert cluster.is_clean(), "everything is restored after the error"


def test_a_step_that_fails_still_restores() -> None:
    """An error in the middle of a story leaves no broker paused and no link cut."""
    bad = Story(
        name="bad",
        steps=(
            Step(Do.PAUSE, "f1"),
            Step(Do.CUT, "f2", "others"),
            Step(Do.KILL, "leader"),
            Step(Do.PAUSE, "f9"),
        ),
    )
    cluster = FakeCluster(3, partitions=1)
    schedule = plan(1, minutes=0, brokers=3, partitions=1, refused={}, stories=[bad])
    with pytest.raises(ChaosError, match="f9"):
        _run(cluster, schedule)
    assert cluster.is_clean()


def test_the_longest_time_without_acks_is_measured() -> None:
    """A leader that is away for a while shows as a stall of about that long."""
    cluster = FakeCluster(5, partitions=1)
    tally, _ = _run(cluster, _only("pause every broker"))
    (stall_s,) = tally.stalls_s["pause every broker"]
    assert 1.5 < stall_s < 5


def test_roles_are_given_to_replicas_first() -> None:
    """f1 and f2 are replicas of the partition whenever it has that many."""
    cluster = FakeCluster(5, partitions=1, factor=3)
    state = cluster.state()
    assert state is not None
    for seed in range(10):
        players = cast(STORIES[0], state, cluster.brokers, partition=0, seed=seed)
        assert {players.roles[one] for one in ("leader", "f1", "f2")} == {"a", "b", "c"}
        assert players.find("others") == ["b", "c", "d", "e"]
        assert players.find("rest") == ["b", "c", "d", "e"]
        assert players.pairs("leader", "clients") == [("a", "clients")]
        assert ("a", "a") not in players.pairs("all", "all")
