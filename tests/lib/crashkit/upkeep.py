"""OPTIMIZE and VACUUM of the stream's table, all the time, while everything else is killed.

Our own job runs whole, with its tasks in this process; delta-rs does the same to the table as a
stranger would. VACUUM keeps nothing: harsher than the job allows, so that a query finds files gone
which it has planned to read.
"""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import deltalake

from broker.errors import HeadwaterError
from crashkit.running import count
from spark_jobs.jobs import compact
from spark_jobs.jobs.job import Report
from tiering.read.lake import Lake, storage_options_of
from tiering.table.delta_maintenance import MaintainedTable

_EVERY_S: Final = (8.0, 40.0)
_DEADLINE_S: Final = 20.0


class _TasksHere:
    """Stands for Spark where a job only hands out tasks: they run here, one after the other."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._made: Callable[[], Iterator[Any]] = lambda: iter(())

    def parallelize(self, tasks: Iterable[Any], _count: int) -> _TasksHere:
        """Take the tasks."""
        self._made = lambda: iter(tasks)
        return self

    def mapPartitions(self, run: Callable[[Iterator[Any]], Iterator[Any]]) -> _TasksHere:  # noqa: N802
        """Take what each of them does."""
        tasks = self._made
        self._made = lambda: run(tasks())
        return self

    def collect(self) -> list[Any]:
        """Run them."""
        return list(self._made())


class Upkeep:
    """Looks after one stream's table in a thread of its own, until it is stopped."""

    def __init__(self, url: str, stream: str, table_uri: str, *, seed: str) -> None:
        self._url, self._stream, self._table_uri = url, stream, table_uri
        self._random = random.Random(seed)
        self._turn = threading.Lock()  # held while the table is being changed
        self._ending = threading.Event()
        self.done: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    @property
    def failure(self) -> str | None:
        """What is wrong with it; its trace is on stderr."""
        began = self._thread.ident is not None
        over = began and not self._thread.is_alive() and not self._ending.is_set()
        return "the upkeep of the table ended by itself" if over else None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def pause(self) -> None:
        """Let what is under way finish, and begin nothing new. Blocks."""
        self._turn.acquire()

    def resume(self) -> None:
        """Go on."""
        self._turn.release()

    def stop(self) -> None:
        """End the thread. Blocks."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._random.uniform(*_EVERY_S)):
            name = self._random.choice(["compact", "compact", "delta-rs OPTIMIZE"])
            with self._turn:
                self._try(name, self._compact if name == "compact" else self._optimize)
                self._try("VACUUM", self._vacuum)

    def _try(self, name: str, act: Callable[[], bool]) -> None:
        """Do one thing; what is killed around us may fail it, and nothing else."""
        try:
            if act():
                count(self.done, name)
        except (HeadwaterError, deltalake.exceptions.DeltaError, OSError) as error:
            count(self.failed, f"{name}: {type(error).__name__}")

    def _compact(self) -> bool:
        words = ["--server", self._url, "--stream", self._stream, "--target-mib", "4"]
        report = Report("compact", io.StringIO())
        done = compact.run(_TasksHere(), compact.PARSER.parse_args(words), report)  # type: ignore[arg-type]
        return int(done.get("bytes_rewritten", 0)) > 0

    def _optimize(self) -> bool:
        done = self._table().optimize(target_bytes=4 * 1024 * 1024)
        return int(done.get("numFilesRemoved", 0)) > 0

    def _vacuum(self) -> bool:
        return len(self._table().vacuum(retain_hours=0, dry_run=False).paths) > 0

    def _table(self) -> MaintainedTable:
        lake = Lake.open(self._table_uri).with_deadline(_DEADLINE_S)
        return MaintainedTable(lake.store, storage_options_of(lake.store))
