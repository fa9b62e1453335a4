"""What every test run needs: an order, lanes, properties without a stopwatch, lean JVMs."""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
from collections.abc import Generator, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import lean_jvm
from broker.adapters.raft_pysyncobj.pinned import sockets_kept
from cases import ASKED
from quickkit.left_out import LIST, function_of, left_out
from stale_seeds import StaleSeeds

if TYPE_CHECKING:
    from lanes import LaneScheduling

# Eight thousand collected tests are objects that stay. Looking through them for garbage was half of
# the 12 s of CPU of a collection, which each worker makes, and a tenth of what simulations cost. So
# the garbage collector pauses until they are there, and then leaves them alone.
gc.disable()

# A deadline per example fails on a busy two-core machine, not on a slow function.
# `make quick` asks for fewer examples: see tests/lib/cases.py.
settings.register_profile("headwater", deadline=None, max_examples=ASKED or settings().max_examples)
settings.load_profile("headwater")

for _name, _value in lean_jvm.environment().items():
    os.environ.setdefault(_name, _value)

with sockets_kept():  # its first import breaks socket.inet_ntop, wherever a test does it
    import pysyncobj.syncobj  # noqa: F401

# The seed of the order; workers inherit it. 0 keeps the order of the files.
ORDER = "HEADWATER_TEST_ORDER"
os.environ.setdefault(ORDER, str(random.SystemRandom().randrange(1, 100_000)))


_ROOT = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """What tests/lib/cpu_report.py and tests/lib/memory_folders.py describe."""
    parser.addoption(
        "--failed-to",
        metavar="FOLDER",
        help="run in memory where there is room; keep in FOLDER what failed tests have written",
    )
    parser.addoption(
        "--cpu-report",
        nargs="?",
        const=str(_ROOT / "out/cpu.json"),
        metavar="FILE",
        help="write the CPU seconds of each test and of all processes that it starts",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest takes note of where folders are to be
def pytest_configure(config: pytest.Config) -> None:
    """Name known seeds that are stale; count CPU seconds and run in memory if that is asked for."""
    config.pluginmanager.register(StaleSeeds())
    target = config.getoption("--cpu-report")
    if target:
        from cpu_report import CpuReport

        config.pluginmanager.register(CpuReport(Path(target)))
    failed_to = config.getoption("--failed-to")
    if failed_to and not hasattr(config, "workerinput") and not config.option.collectonly:
        from memory_folders import MemoryFolders

        folders = MemoryFolders(Path(failed_to))
        config.pluginmanager.register(folders)
        config.option.basetemp = str(folders.begin())


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on the project's disk, for tests of what a file system on a disk does."""
    (_ROOT / "out").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="on-disk-", dir=_ROOT / "out"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def pytest_report_header() -> list[str]:
    """Say how to have this order again, and what is left out."""
    name = os.environ.get(LIST)
    told = [f"left out: the {len(left_out(name))} functions of tests/{name}.txt"] if name else []
    return [f"order: {ORDER}={os.environ[ORDER]}", *told]


def pytest_collection_finish() -> None:
    """Collect garbage from now on, among what tests make."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin elsewhere in a folder.

    So on a fresh clone workers do not all compile the same files at the same time.
    """
    report = yield
    if isinstance(collector, pytest.Dir) and "PYTEST_XDIST_WORKER" in os.environ:
        place = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        first = len(report.result) * place // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files, and the tests of each file, in a random order; group those that share."""
    if name := os.environ.get(LIST):
        too_long = left_out(name)
        items[:] = [item for item in items if function_of(item.nodeid) not in too_long]
    items.sort(key=lambda item: item.path)  # workers collect them in different orders
    seed = int(os.environ[ORDER])
    if seed:
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        dice = random.Random(seed)
        dice.shuffle(files)
        for tests in files:
            dice.shuffle(tests)
        items[:] = [test for tests in files for test in tests]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_seconds_max, reverse=True)  # what may take long begins first
        for item in items:
            name = item.path.relative_to(item.config.rootpath).as_posix()
            shares = _shares_with_its_file(item)
            if "spark" in getattr(item, "fixturenames", ()):
                group = name if shares else f"{name}::{getattr(item, 'originalname', item.name)}"
                item.add_marker(pytest.mark.xdist_group(f"session:{group}"))
            elif shares:
                item.add_marker(pytest.mark.xdist_group(name))


def _shares_with_its_file(item: pytest.Item) -> bool:
    """Return whether tests of the file share a fixture, such as a cluster: one worker makes it."""
    info = getattr(item, "_fixtureinfo", None)
    named = info.name2fixturedefs.values() if info is not None else ()
    return any(definitions[-1].scope in ("module", "class") for definitions in named)


def _seconds_max(item: pytest.Item) -> float:
    """Return how long a slow test may take; 0 for the others."""
    limit = item.get_closest_marker("timeout")
    own = float(limit.args[0]) if limit is not None else 300.0
    return own if item.get_closest_marker("slow") is not None else 0.0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling | None:
    """Give the workers of `make test` lanes; another ``--dist`` stays as it is."""
    from lanes import LaneScheduling

    return LaneScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None
