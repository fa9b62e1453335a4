"""Which test runs when, and beside which others: four lanes for the workers of `make test`.

A worker has a lane of its own and helps in the others when that is empty. So two workers have a
session of Spark each, and what waits for time-outs and elections leaves its core to what computes.
Tests come in a random order, by a seed that the header of a run shows; those that may take long
begin first, so that none is left at the end.

Used by tests/conftest.py. Nothing here is loaded where pytest runs without workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    import pytest

SESSION: Final = "session"  # need a session of Spark: two workers at most, for each costs a JVM
ALONE: Final = "alone"  # programs that start servers and JVMs of their own
WAITS: Final = "waits"  # real servers: mostly waiting
COMPUTES: Final = "computes"  # everything else

# Paths of the lane of programs; a test compares them with the tree.
PROGRAMS: Final = (
    "tests/integration/test_notebook.py",
    "tests/integration/test_demo.py",
    "tests/damage/test_damage_slice.py",
    "tests/integration/spark_jobs/jvm/test_race.py",
    "tests/integration/spark_jobs/test_job_command.py",
    "tests/integration/spark_jobs/test_source_connect.py",
    "tests/integration/test_examples.py",
    "tests/integration/test_plant_drill.py",
    "tests/integration/test_crash_slice.py",
    "tests/integration/test_chaos_slice.py",
    "tests/packaging/",
)
_WAITING: Final = ("tests/integration/", "cluster_")
# By turns: the first worker, the second, the third …
_LANES: Final = (
    (SESSION, ALONE, WAITS, COMPUTES),
    (ALONE, WAITS, COMPUTES),
    (WAITS, ALONE, COMPUTES),
    (COMPUTES, WAITS, ALONE),
    (SESSION, WAITS, ALONE, COMPUTES),
)
_SESSIONS_MAX: Final = 2
# A second session starts for so many units only: what starts it is 12 s of CPU, a unit 2 s.
_WORTH_A_SESSION: Final = 20
_QUEUED: Final = 2  # a worker needs to know the test after the one that it runs


def lane_of(unit: str) -> str:
    """Return the lane of a unit of work: a test, a file of quick tests, or a group."""
    if unit.startswith(f"{SESSION}:"):
        return SESSION
    if unit.startswith(PROGRAMS):
        return ALONE
    return WAITS if unit.startswith(_WAITING) else COMPUTES


class LaneScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist ships no types
    """Hands a worker the next unit of its lane; two workers at most have a session of Spark."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the order is that of the collection
        self._with_session: list[Any] = []

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of a test: its group; else itself where tests are long; else its file."""
        scope: str = super()._split_scope(nodeid)
        is_quick = scope == nodeid and nodeid.startswith(("tests/unit/", "tests/tidy/"))
        return nodeid.partition("::")[0] if is_quick else scope

    def _reschedule(self, node: Any) -> None:
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < _QUEUED:
            if self._next_for(node) is None:
                node.shutdown()
            else:
                self._assign_work_unit(node)

    def _assign_work_unit(self, node: Any) -> None:
        unit = self._next_for(node)
        if unit is None:
            return
        if lane_of(unit) == SESSION and node not in self._with_session:
            self._with_session.append(node)
        self._forget_finished(node)
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _next_for(self, node: Any) -> str | None:
        """Return the unit that a worker gets next, or None if there is none for it."""
        first: dict[str, str] = {}
        sessions_left = 0
        for unit in self.workqueue:
            lane = lane_of(unit)
            first.setdefault(lane, unit)
            sessions_left += lane == SESSION
        number = int(node.gateway.id.removeprefix("gw"))
        own = _LANES[number % len(_LANES)]
        if not self._may_use_session(node, own, sessions_left):
            first.pop(SESSION, None)
        lanes = (*own, SESSION)  # the last: its worker may have crashed
        return next((first[lane] for lane in lanes if lane in first), None)

    def _may_use_session(self, node: Any, own: tuple[str, ...], sessions_left: int) -> bool:
        """Tell whether a worker has a session, or another one may be started for it."""
        have = [one for one in self._with_session if one in self.nodes]
        if node in have or not have:
            return True
        is_worth_it = sessions_left >= _WORTH_A_SESSION and len(have) < _SESSIONS_MAX
        return is_worth_it and own[0] == SESSION

    def _forget_finished(self, node: Any) -> None:
        """Forget what a worker has done, which is counted again after each test."""
        mine = self.assigned_work[node]
        for unit in [unit for unit, tests in mine.items() if all(tests.values())]:
            del mine[unit]
