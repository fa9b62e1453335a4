"""Run tests against a planted bug, in processes of their own; remember what was seen.

The working tree is only read: the file with the bug is in a folder of its own, and the processes of
a trial load it in place of the product's (``site/planted_text.py``).
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from plantkit.lines import PlantedLine, files_of, known_tests, planted_text
from plantkit.nursery import HUNG
from plantkit.planting import SITE
from projectfiles import ROOT

Outcome = Literal["noticed", "survived", "broken"]

TRIAL_S: Final = 600
BASELINE_S: Final = 1_800
SEEDS: Final = 100  # of a simulation, where a bug names one
# What tests and product load from outside; not pysyncobj, which tests/conftest.py has to load.
LIBRARIES: Final = (
    "_pytest.config", "_pytest.python", "_pytest.terminal", "_pytest.monkeypatch",
    "pytest_timeout", "xdist.plugin", "hypothesis", "hypothesis.stateful",
    "_hypothesis_pytestplugin", "hypothesis.strategies", "numpy", "pyarrow",
    "pyarrow.compute", "pyarrow.dataset",
    "pyarrow.flight", "pyarrow.parquet", "pyarrow.ipc", "crc32c", "deltalake", "boto3", "botocore",
    "fastavro", "structlog", "psutil", "prometheus_client",
    "asyncio", "concurrent.futures", "multiprocessing", "sqlite3", "ssl", "http.server", "tomllib",
    "google.protobuf", "unittest.mock",
)  # fmt: skip
_NURSERY: Final = Path(__file__).with_name("nursery.py")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one bug."""

    name: str
    outcome: Outcome
    told: str  # the test that failed, or what is wrong
    seconds: float

    def __str__(self) -> str:
        return f"{self.outcome}: {self.name} ({self.told}), {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Run:
    """How a run of tests ended."""

    status: int
    output: str


class Nursery:
    """A process from which runs of tests are forked. Owner: one thread at a time."""

    def __init__(self, libraries: Sequence[str]) -> None:
        """Start it with pytest and other libraries. It ends with this process, or at `close`."""
        self._process = subprocess.Popen(
            [sys.executable, str(_NURSERY), "pytest", *libraries],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={one: value for one, value in os.environ.items() if not one.startswith("PYTEST_")},
        )
        self._answer()

    def run(self, asked: dict[str, object]) -> int:
        """Run tests; return pytest's exit status, or HUNG. Blocks."""
        assert self._process.stdin is not None, "it has a pipe"
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None, "it has a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the nursery ended with {self._process.wait()}; see above")
        return line.strip()

    def close_input(self) -> None:
        """Let it end, and with it the run that is under way, as when this process is killed."""
        assert self._process.stdin is not None, "it has a pipe"
        self._process.stdin.close()

    def close(self) -> None:
        """End it, and wait until it has ended."""
        assert self._process.stdout is not None, "it has a pipe"
        self.close_input()
        self._process.wait()
        self._process.stdout.close()


class Nurseries:
    """A few nurseries, each made when it is needed. Any thread may ask."""

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        """Begin with none."""
        self._libraries = libraries
        self._idle: queue.SimpleQueue[Nursery] = queue.SimpleQueue()

    @contextmanager
    def one(self) -> Iterator[Nursery]:
        """Lend one that is idle, or a new one."""
        try:
            found = self._idle.get_nowait()
        except queue.Empty:
            found = Nursery(self._libraries)
        try:
            yield found
        finally:
            self._idle.put(found)

    def close(self) -> None:
        """End all of them."""
        while not self._idle.empty():
            self._idle.get_nowait().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where trials run: the tree, a folder for texts with bugs, and processes to fork from."""

    root: Path = ROOT
    folder: Path
    nurseries: Nurseries

    def tests_without_a_bug(self, tests: Iterable[str]) -> str | None:
        """Run the tests as they are; return what failed, or None. Blocks."""
        files = sorted(set(files_of(tuple(tests), self.root)))
        done = self._pytest(files, {}, BASELINE_S)
        return None if done.status == 0 else _failed_test(done.output) or done.output[-2_000:]

    def try_one(self, bug: PlantedLine) -> Trial:
        """Plant a bug and run its tests. Blocks; raises PlantListError if it cannot be planted."""
        began_s = time.monotonic()
        text = self.folder / f"{hashlib.sha256(bug.title.encode()).hexdigest()[:16]}.py"
        text.write_text(planted_text(bug, self.root), encoding="utf-8")
        loaded = text.with_name(f"{text.name}.loaded")
        loaded.unlink(missing_ok=True)
        planted = {"PLANTED_MODULE": bug.module, "PLANTED_TEXT": str(text)}
        done = self._pytest(files_of(bug.tests, self.root), planted, TRIAL_S)
        outcome, told = _judged(done, loaded=loaded.exists())
        return Trial(bug.name, outcome, told, time.monotonic() - began_s)

    def _pytest(self, files: Iterable[str], planted: dict[str, str], timeout_s: float) -> Run:
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".txt") as output:
            asked = {
                "root": str(self.root),
                "arguments": [
                    "-q", "-x", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", *files,
                ],
                "environment": {
                    **planted,
                    "PYTHONPATH": os.pathsep.join([str(SITE), str(self.root)]),
                    "HEADWATER_SIM_SEEDS": str(SEEDS),
                    "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
                },
                "path": [str(SITE), str(self.root)],
                "output": output.name,
                "timeout_s": timeout_s,
            }  # fmt: skip
            with self.nurseries.one() as nursery:
                status = nursery.run(asked)
            return Run(status, Path(output.name).read_text(encoding="utf-8", errors="replace"))


def _judged(done: Run, *, loaded: bool) -> tuple[Outcome, str]:
    # A bug because of which no test can even be loaded shows nothing about the tests, and so does
    # a run that does not end: perhaps the machine was busy.
    if done.status == HUNG:
        return "broken", f"no end within {TRIAL_S} s"
    if done.status == 1:
        return "noticed", _failed_test(done.output) or "a test failed"
    if done.status == 0:
        return "survived", "every test passed" if loaded else "no test loads the file"
    return "broken", f"exit {done.status}: {' '.join(done.output.split()[-30:])}"


def _failed_test(output: str) -> str | None:
    found = _FAILED.search(output)
    return None if found is None else found[1].rpartition("/")[2]


class Memory:
    """Trials that are over, in a file: a run that was interrupted goes on where it was.

    A trial is known by the bug, the file that it changes and the files of its tests.
    """

    def __init__(self, path: Path, root: Path = ROOT) -> None:
        """Read what is there; a last line that was cut off is left out."""
        self._path = path
        self._root = root
        self._tests = known_tests(root)
        self._known: dict[str, Trial] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            try:
                one = json.loads(line)
                key = one.pop("key")
                self._known[key] = Trial(**one)
            except (ValueError, KeyError, TypeError):
                continue

    def find(self, bug: PlantedLine) -> Trial | None:
        """Return the bug's trial, if nothing has changed since."""
        return self._known.get(self._key(bug))

    def add(self, bug: PlantedLine, trial: Trial) -> None:
        """Remember a bug that was noticed; the others are tried again."""
        if trial.outcome != "noticed":
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps({"key": self._key(bug), **asdict(trial)}) + "\n")

    def _key(self, bug: PlantedLine) -> str:
        files = [bug.file, *files_of(bug.tests, self._root, known=self._tests)]
        texts = (self._root / one.partition("::")[0] for one in files)
        parts = [repr(bug), *(path.read_text(encoding="utf-8") for path in texts)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def try_all(
    ground: Ground, bugs: Iterable[PlantedLine], *, at_once: int
) -> Iterator[tuple[PlantedLine, Trial]]:
    """Yield each bug with its trial as they end, ``at_once`` at a time. Blocks."""
    left = iter(bugs)
    running: dict[Future[Trial], PlantedLine] = {}
    with ThreadPoolExecutor(at_once) as pool:
        while True:
            while len(running) < at_once and (bug := next(left, None)) is not None:
                running[pool.submit(ground.try_one, bug)] = bug
            if not running:
                return
            for one in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(one), one.result()
