"""The workers of `make test`: every test is handed out once, two at most have a Spark session."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lanes import PROGRAMS, SESSION, LaneScheduling, lane_of
from projectfiles import ROOT

_TESTS = [
    *[f"tests/unit/test_{file}.py::test_{n}" for file in "abc" for n in range(9)],
    *[f"tests/sim/test_log_sim.py::test_{n}" for n in range(5)],
    *[f"tests/integration/cluster/test_a.py::test_{n}@cluster_a" for n in range(4)],
    *[f"tests/integration/flight/test_b.py::test_{n}" for n in range(4)],
    *[f"tests/integration/spark_jobs/test_{c}.py::test_{n}@session:{c}"
      for c in "cd" for n in range(4)],
    *[f"{path.removesuffix('/')}::test" for path in PROGRAMS],
]  # fmt: skip


@dataclass(eq=False)
class _Worker:
    """A worker as the scheduler knows it, and its commands."""

    number: int
    todo: list[int] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=f"gw{self.number}")

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.todo += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class _Run:
    """A run of all tests by so many workers, in an order of chance; ``crash`` ends one of them."""

    def __init__(
        self, config: pytest.Config, count: int, seed: int, tests: list[str] = _TESTS
    ) -> None:
        options = SimpleNamespace(loadscopereorder=True, maxprocesses=None, tx=["popen"] * count)
        plain = cast(
            "pytest.Config",
            SimpleNamespace(option=options, getvalue=lambda name: getattr(options, name)),
        )
        self.scheduling = LaneScheduling(plain)
        self.dice = random.Random(seed)
        self.order = self.dice.sample(tests, len(tests))
        self.workers = [_Worker(n) for n in range(count)]
        for worker in self.workers:
            self._add(worker)
        self.scheduling.schedule()

    def _add(self, worker: _Worker) -> None:
        self.scheduling.add_node(cast("Any", worker))
        self.scheduling.add_node_collection(cast("Any", worker), self.order)

    def steps(self) -> Iterator[_Worker]:
        """Let a worker end a test; it runs one only if it has the next, or knows there is none."""
        while able := [one for one in self.workers if len(one.todo) > (not one.shutting_down)]:
            worker = self.dice.choice(able)
            test = worker.todo.pop(0)
            worker.ran.append(self.order[test])
            self.scheduling.mark_test_complete(cast("Any", worker), test)
            yield worker

    def crash(self, worker: _Worker) -> str | None:
        """End a worker in the middle of a test; another takes its place. Return that test."""
        self.workers.remove(worker)
        lost: str | None = self.scheduling.remove_node(cast("Any", worker))
        self.workers.append(_Worker(len(_TESTS)))
        self._add(self.workers[-1])
        self.scheduling.schedule()
        return lost


@pytest.mark.parametrize("count", range(1, 8))
def test_every_test_is_handed_out_once(count: int, pytestconfig: pytest.Config) -> None:
    """This holds for any number of workers at any speed."""
    for seed in range(20):
        run = _Run(pytestconfig, count, seed)
        for _ in run.steps():
            pass
        ran = [test for worker in run.workers for test in worker.ran]
        assert sorted(ran) == sorted(_TESTS)
        assert run.scheduling.tests_finished
        assert len(_with_session(run)) == 1


@pytest.mark.parametrize("count", range(1, 9))
def test_many_spark_tests_are_shared_by_two_sessions(
    count: int, pytestconfig: pytest.Config
) -> None:
    """The fifth worker has the second one; no third is started, and a group stays together."""
    many = [f"tests/integration/spark_jobs/test_{unit}.py::test_{n}@{SESSION}:{unit}"
            for unit in range(60) for n in range(2)]  # fmt: skip
    for seed in range(10):
        run = _Run(pytestconfig, count, seed, _TESTS + many)
        for _ in run.steps():
            pass
        assert sorted(test for worker in run.workers for test in worker.ran) == sorted(
            _TESTS + many
        )
        assert len(_with_session(run)) == (2 if count >= 5 else 1)
        for one in run.workers:
            units = [test.partition(f"@{SESSION}:")[2] for test in one.ran]
            assert all(units.count(unit) % 2 == 0 for unit in units if unit)


def _with_session(run: _Run) -> list[_Worker]:
    return [one for one in run.workers if any(f"@{SESSION}:" in test for test in one.ran)]


def test_the_tests_of_a_crashed_worker_go_to_another(pytestconfig: pytest.Config) -> None:
    """This holds for the worker with Spark's session, too."""
    for seed in range(20):
        run = _Run(pytestconfig, 4, seed)
        ran, crashed = [], None
        for worker in run.steps():
            ran.append(worker.ran[-1])
            if f"@{SESSION}:" in ran[-1]:
                crashed = run.crash(worker)
                break
        ran += [worker.ran[-1] for worker in run.steps()]
        assert set(ran) == set(_TESTS)
        assert crashed in _TESTS


def test_the_programs_are_in_the_tree() -> None:
    """A path without a file would put its test into another lane."""
    for path in PROGRAMS:
        assert (ROOT / path).exists(), path
        assert lane_of(f"{path}::test") == "alone"
