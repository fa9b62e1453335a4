"""What each test costs in CPU: ``make test PYTEST_ARGS=--cpu-report`` writes ``out/cpu.json``.

Seconds on the clock say little where five workers share two cores. So the seconds of CPU of a
worker and of all processes below it are read before and after each test: those that ended and
were waited for, and those that still run, such as Spark's JVM. What a shared server does counts
for the test during which it did it; a process that outlives its parent counts for nobody. What
making a fixture costs that several tests share counts for the fixture: ``FILE::(NAME)``.

Used by tests/conftest.py, only with that option.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SHOWN: Final = 30


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds, user and system, of a process, its children and theirs."""
    ticks, todo = 0, [pid]
    while todo:
        one = todo.pop()
        # The name in parentheses may hold spaces; times follow it at fixed places.
        stat = _read(Path(f"/proc/{one}/stat")).rpartition(")")[2].split()
        ticks += sum(int(field) for field in stat[11:15])
        with suppress(FileNotFoundError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, _read(thread / "children").split())
    return ticks / _TICKS


def _read(path: Path) -> str:
    """Return a file of /proc; "" if its process or thread has just ended."""
    try:
        return path.read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


class CpuReport:
    """The plugin; in a worker it counts, in the controller it collects and writes."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.tests_s: defaultdict[str, float] = defaultdict(float)
        self._shared_s = 0.0  # in fixtures that tests share
        self._rest_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count one test with its set-up and its end."""
        before_s = tree_cpu_s(os.getpid()) - self._shared_s
        result = yield
        self.tests_s[item.nodeid] += tree_cpu_s(os.getpid()) - self._shared_s - before_s
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Count a fixture that several tests share, without those that it asks for."""
        if fixturedef.scope == "function":
            return (yield)
        before_s = tree_cpu_s(os.getpid()) - self._shared_s
        try:
            return (yield)
        finally:
            took_s = tree_cpu_s(os.getpid()) - self._shared_s - before_s
            self.tests_s[f"{request.node.nodeid}::({fixturedef.argname})"] += took_s
            self._shared_s += took_s

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand a worker's counts to the controller; they leave out imports and the collection."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu_report"] = [dict(self.tests_s), tree_cpu_s(os.getpid())]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take a worker's counts."""
        tests_s, whole_s = getattr(node, "workeroutput", {}).get("cpu_report", ({}, 0.0))
        for test, seconds in tests_s.items():
            self.tests_s[test] += seconds
        self._rest_s += whole_s - sum(tests_s.values())

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Write everything, and show the sums of files."""
        files: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self.tests_s.items():
            files[test.partition("::")[0]] += seconds
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._target.write_text(
            json.dumps(
                {
                    "tests": dict(_largest_first(self.tests_s)),
                    "workers_besides_tests": self._rest_s,
                },
                indent=1,
            ),
            encoding="utf-8",
        )
        told = terminalreporter
        told.section(f"CPU: {sum(files.values()):.0f} s in tests, {self._rest_s:.0f} s beside")
        for name, seconds in _largest_first(files)[:_SHOWN]:
            told.write_line(f"{seconds:8.1f} s  {name}")
        told.write_line(f"of each test: {self._target}")


def _largest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])
