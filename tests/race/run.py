"""``make race``: Spark drivers and a delta-rs writer append to one table on S3; nothing is lost.

    python tests/race/run.py --commits 200 --drivers 3
    python tests/race/run.py --commits 20 --drivers 2 --stock    # Delta's own log store: loses

Every writer is a process. Their PUTs go through a proxy that holds each log file until a rival's
PUT of the same version is there, too, or a moment has passed: each version is contested. Prints one
summary line; exit code 0 when no acknowledged commit is lost or doubled. With ``--stock`` the
drivers use the scheme s3, which has Delta's own log store on the same file system, and exit code 0
means that commits were lost: the race can fail.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]

BUCKET = "race"
_KEY = "tables/contested"
_MEETING_SECONDS = 0.4
_START_SECONDS_MAX = 900


class Writer:
    """A child process, and the commits that it reports. It appends once for each line it gets."""

    def __init__(
        self, process: subprocess.Popen[str], log: Path, acked: Callable[[], None]
    ) -> None:
        self.process = process
        self.log = log
        self.acked: list[tuple[int, int]] = []
        self.ready = threading.Event()
        self._told = acked
        self._ordering = threading.Lock()
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def order(self, appends: int) -> None:
        """Ask for so many more appends; a writer that has died is found by its exit code."""
        assert self.process.stdin is not None
        with self._ordering, suppress(BrokenPipeError):
            self.process.stdin.write("append\n" * appends)
            self.process.stdin.flush()

    def finish(self) -> int:
        """Wait until it has finished its work; return its exit code."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait()
        self._reader.join()
        return code

    def stop(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.finish()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready"):
                self.ready.set()
            elif line.startswith("["):
                writer, number = json.loads(line)
                self.acked.append((writer, number))
                self._told()
        self.ready.set()


@dataclass(frozen=True)
class Outcome:
    """What the writers were told against what the table holds."""

    acked: int
    lost: int
    doubled: int
    versions: int
    failed: int

    def __str__(self) -> str:
        return (
            f"{self.acked} acked, {self.lost} lost, {self.doubled} doubled, "
            f"{self.versions} versions, {self.failed} writers failed"
        )


def race(folder: Path, *, commits: int, drivers: int, stock: bool) -> Outcome:
    """Run one race with all its servers below ``folder``."""
    import lean_jvm
    from headwater.local.embedded import moto_environment, start_moto
    from simkit.servers.s3_proxy import Break, Rule, s3_proxy

    with ExitStack() as stack:
        moto = stack.enter_context(start_moto(folder / "moto", bucket=BUCKET))
        proxy = stack.enter_context(s3_proxy(moto.address, meeting_s=_MEETING_SECONDS))
        direct = {**os.environ, **moto_environment(moto.address)}
        os.environ.update(moto_environment(moto.address))
        _create_table()
        proxy.always(Rule(Break.MEET, "PUT", f"{_KEY}/_delta_log/0"))
        lean = lean_jvm.environment()
        contested = {**direct, **lean, "AWS_ENDPOINT_URL": proxy.address}
        scheme = "s3" if stock else "s3a"
        each = -(-commits // (drivers + 1))
        rust = _start(folder, ["rust", f"s3://{BUCKET}/{_KEY}", "0"], contested, lambda: None)
        stack.callback(rust.stop)
        sparks = []
        paces = itertools.count(1)  # one append of delta-rs for each round of the drivers

        def pace() -> None:
            if next(paces) % drivers == 0:
                rust.order(1)

        for number in range(1, drivers + 1):
            one = _start(
                folder, ["spark", f"{scheme}://{BUCKET}/{_KEY}", str(number)], contested, pace
            )
            stack.callback(one.stop)
            sparks.append(one)
        for one in (rust, *sparks):
            if not one.ready.wait(_START_SECONDS_MAX) or one.process.poll() is not None:
                raise SystemExit(f"a writer did not start: {one.log.read_text()[-2000:]}")
        for one in (rust, *sparks):
            one.order(1 if one is rust else each)
        failed = sum(one.finish() != 0 for one in (*sparks, rust))
        writers = (*sparks, rust)
        return _outcome([acked for one in writers for acked in one.acked], failed)


def _start(
    folder: Path, arguments: list[str], env: dict[str, str], acked: Callable[[], None]
) -> Writer:
    log = folder / f"writer-{arguments[2]}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("writer.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=env,
        )
    return Writer(process, log, acked)


def _create_table() -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    schema = pa.schema([pa.field("writer", pa.int64()), pa.field("number", pa.int64())])
    DeltaTable.create(
        f"s3://{BUCKET}/{_KEY}", schema=schema, configuration={"delta.checkpointInterval": "50"}
    )


def _outcome(acked: list[tuple[int, int]], failed: int) -> Outcome:
    from deltalake import DeltaTable

    table = DeltaTable(f"s3://{BUCKET}/{_KEY}")
    rows = table.to_pyarrow_table()
    stored = Counter(zip(rows["writer"].to_pylist(), rows["number"].to_pylist(), strict=True))
    return Outcome(
        acked=len(acked),
        lost=sum(stored[row] == 0 for row in acked),
        doubled=sum(count > 1 for count in stored.values()),
        versions=table.version(),
        failed=failed,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run one race; see the top of this file for the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=200, help="in all, at least")
    parser.add_argument("--drivers", type=int, default=3, help="Spark drivers beside delta-rs")
    parser.add_argument("--stock", action="store_true", help="Delta's own log store; has to lose")
    parser.add_argument("--folder", type=Path, help="for logs; kept")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="headwater-race-"))
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    found = race(folder, commits=given.commits, drivers=given.drivers, stock=given.stock)
    took_s = time.monotonic() - began_s
    store = "stock" if given.stock else "ours"
    print(f"race: {given.drivers} drivers and delta-rs, {store}: {found}, {took_s:.0f} s")
    if given.stock:
        return 0 if found.lost else 1
    good = found.lost == found.doubled == found.failed == 0 and found.acked >= given.commits
    if not good:
        print(f"race: FAILED; logs are in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
