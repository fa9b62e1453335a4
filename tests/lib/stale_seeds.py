"""Prints at the end of a run which known seeds of simulations are stale, ready to be pasted.

A hunt that had to leave its known seed (`simkit/seed_hunt.py`) passes, but costs more than it has
to. So the run says at which seed the mutant died. The notes reach the controller of several workers
as properties of the tests' reports; a JUnit file has them, too.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest
from _pytest.terminal import TerminalReporter

_PROPERTY: Final = "stale known seed"


class StaleSeeds:
    """The plugin; where tests run it collects, where the summary is written it prints."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[Any]:
        """Give what a test found stale to its report."""
        hunts = sys.modules.get("simkit.seed_hunt")
        if hunts is not None and call.when == "call":
            for one in hunts.take_stale():
                item.user_properties.append((_PROPERTY, f"{one.table}\t{one.line}\t{one.why}"))
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the lines of each table."""
        tables: defaultdict[str, list[str]] = defaultdict(list)
        for report in [
            one for outcome in ("passed", "failed") for one in terminalreporter.getreports(outcome)
        ]:
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY and report.when == "call":
                    table, line, why = str(value).split("\t")
                    tables[table].append(f"    {line}  # {why}")
        if tables:
            terminalreporter.section("known seeds that are stale")
            for table, lines in sorted(tables.items()):
                terminalreporter.write_line(table)
                for line in sorted(lines):
                    terminalreporter.write_line(line)
