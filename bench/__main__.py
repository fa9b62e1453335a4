"""``python -m bench``: measures Headwater and its peers, keeps every sample, prints a table.

All sides run on one machine, in turns; the table has medians with their ranges. ``--scale 0.05`` is
a quick trial, and its figures mean nothing. ``--report FILE`` prints the table of an earlier run
without measuring. ``--all`` runs every measure with every peer in one sitting, which goes on after
an interruption. ``--smoke`` takes minutes and names the ratios that moved since the last such run.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil

from bench import machine
from bench.peers.kafka import Kafka
from bench.peers.nats_tools import PeerTools, find_tools
from bench.processes import BenchError
from bench.recorder import Recorder, load_figures
from bench.report.cluster_rows import CLUSTER_ROWS
from bench.report.liftbridge_rows import LIFTBRIDGE_ROWS
from bench.report.moved import compared, moved
from bench.report.rows import ROWS
from bench.report.secure_rows import SECURE_ROWS
from bench.report.table import render, render_beside, render_headlines, replace_between
from bench.servers import settings
from bench.session import Session
from bench.stats import Summary
from broker.errors import HeadwaterError

_ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = _ROOT / "bench" / "results"
_SITTING: Final = _ROOT / "out/bench/all.json"  # of `--all`, until every measure is finished
_README: Final = _ROOT / "README.md"  # the short table
_PAGE: Final = _ROOT / "docs" / "performance.md"  # the whole table
# Errors from outside that end one measure; any other error is a bug of the benchmark and ends the
# run.
EXPECTED: Final = (
    BenchError, HeadwaterError, AssertionError, OSError, ValueError, subprocess.SubprocessError,
    psutil.Error,
)  # fmt: skip
MEASURES: Final = (
    "publish", "ingest", "latency", "catch_up", "tiering", "spark", "spark_log", "planning",
    "proving", "memory", "group_commits", "compaction", "encryption", "query",
)  # fmt: skip
# Measures with three brokers each; they run only by name, as in `make bench-cluster`.
CLUSTER_MEASURES: Final = (
    "cluster_publish", "cluster_latency", "cluster_failover", "cluster_cut", "cluster_partitions",
    "cluster_raft",
)  # fmt: skip
# Needs Go, for Liftbridge itself and its client; runs only by name, as in `make bench-liftbridge`.
LIFTBRIDGE_MEASURES: Final = ("liftbridge",)
# Has no peer but ourselves without security; runs only by name, as in `make bench-secure`.
SECURE_MEASURES: Final = ("secure",)
# An hour; runs only by name.
SOAK_MEASURES: Final = ("soak",)
EVERY_MEASURE: Final = (
    *MEASURES, *CLUSTER_MEASURES, *LIFTBRIDGE_MEASURES, *SECURE_MEASURES, *SOAK_MEASURES,
)  # fmt: skip
# What a change of the log, the front doors or the client moves; each has a peer in the same run.
SMOKE_MEASURES: Final = ("publish", "ingest", "latency", "catch_up")
SMOKE_SCALE: Final = 0.05
SMOKE_REPEAT: Final = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen measures; return 1 if one could not be finished, 2 if none could begin."""
    options = _options(arguments)
    if options.report is not None:
        _report(load_figures(options.report), write=options.write_readme)
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    options.cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=options.cache))
    try:
        failed = _measure(options, work)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.smoke and not failed:
        return _smoke_report(options.out)
    return 1 if failed else 0


def _measure(options: argparse.Namespace, work: Path) -> bool:
    without_nats = {*LIFTBRIDGE_MEASURES, *SECURE_MEASURES}
    alone = options.only is not None and set(options.only) <= without_nats
    tools = PeerTools(None, None, "not used") if alone else find_tools(options.cache / "bin")
    print(f"peer tools: {tools.why}", flush=True)
    kafka = Kafka.find(options.cache / "kafka") if options.kafka else None
    facts = {
        **machine.facts(work),
        "settings": settings(),
        "peer_tools": tools.why,
        "kafka": "4.3.1" if kafka else "not run",
        "scale": options.scale,
        "repeat": options.repeat,
        "disk_before": machine.sync_summary(work),
    }
    try:
        recorder = (Recorder.resumed if options.all else Recorder)(options.out, facts)
    except ValueError as error:
        raise BenchError(str(error)) from error
    if recorder.finished:
        print(f"going on with {options.out}: finished are {', '.join(recorder.finished)}")
    session = Session(
        work=work,
        scale=options.scale,
        repeat=options.repeat,
        recorder=recorder,
        tools=tools,
        kafka=kafka,
        kills=options.kills,
    )
    failed = False
    names = options.only or (EVERY_MEASURE if options.all else MEASURES)
    for name in names:
        if name not in (*recorder.finished, *options.without):
            failed |= not _run_one(name, session)
    recorder.fact("disk_after", machine.sync_summary(work))
    recorder.save()
    kept, left = options.out, [name for name in names if name not in recorder.finished]
    if options.all and left:
        failed = True
        print(f"\nnot finished: {', '.join(left)}; the next run with --all measures them")
    elif options.all:  # the sitting is over: the next one begins anew
        # A trial is not kept among the results, and report/plots.py draws it apart from the site.
        folder = RESULTS if options.scale >= 1 else _SITTING.parent
        kept = folder / f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H%M%S}-all.json"
        shutil.move(options.out, kept)
    print(f"\nraw samples: {kept}\n")
    whole = options.scale >= 1 and not options.only and not options.without and not failed
    _report(recorder.figures(), write=whole or options.write_readme)
    return failed


def _run_one(name: str, session: Session) -> bool:
    """Run one measure; its samples are kept even if it fails later."""
    print(f"\n{name}", flush=True)
    start = time.monotonic()
    session.recorder.begin(name)
    module = importlib.import_module(f"bench.measures.{name}")
    try:
        module.run(session)
    except EXPECTED as error:
        session.recorder.failed(name, error)
        print(f"  {name} failed: {error}", file=sys.stderr, flush=True)
        return False
    else:
        session.recorder.end(name)
    finally:
        session.recorder.save()
    print(f"  {name} took {time.monotonic() - start:.0f} s", flush=True)
    return True


def _smoke_report(out: Path) -> int:
    """Compare a smoke run with the last one before it; return 1 if a ratio got worse."""
    earlier = sorted(path for path in RESULTS.glob("*-smoke.json") if path.name < out.name)
    if not earlier:
        print("no smoke run is kept yet: this one is what the next is compared with")
        return 0
    before, now = load_figures(earlier[-1]), load_figures(out)
    found = moved(ROWS, before, now)
    print(f"{compared(ROWS, before, now)} ratios compared with {earlier[-1].name}")
    print("\n".join(one.text() for one in found) or "none moved by more than noise")
    return 0 if all(one.better for one in found) else 1


def _report(figures: dict[str, Summary], *, write: bool) -> None:
    rows = (*ROWS, *LIFTBRIDGE_ROWS, *SECURE_ROWS)
    table = render(rows, figures)
    clusters = render_beside(CLUSTER_ROWS, figures)
    measured = any(row.measured(figures) for row in rows)
    shown = [table] if measured else []
    print("\n\n".join([*shown, clusters]).strip())
    if not write:
        return
    headlines = render_headlines(ROWS, figures) if measured else ""
    _write(_README, {"bench": headlines})
    _write(_PAGE, {"bench": table if measured else "", "bench-cluster": clusters})


def _write(path: Path, tables: Mapping[str, str]) -> None:
    """Put tables between the markers of their names; an empty one leaves what is there."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for name, table in tables.items():
        if not table:
            continue
        try:
            text = replace_between(text, name, table)
        except ValueError as error:
            print(f"\n{path.name}: table not written: {error}", file=sys.stderr)
            continue
        path.write_text(text, encoding="utf-8")
        print(f"\ntable {name!r} written to {path.name}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    now = dt.datetime.now(dt.UTC)
    add, names = parser.add_argument, EVERY_MEASURE
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    all_help = "every measure with Kafka and Liftbridge, in out/bench/all.json until all is done"
    which.add_argument("--all", action="store_true", help=all_help)
    smoke_help = f"{', '.join(SMOKE_MEASURES)} at scale {SMOKE_SCALE}, compared with the last such"
    which.add_argument("--smoke", action="store_true", help=smoke_help)
    without_help = "leave these out; with --all they are left for the next run"
    add("--without", nargs="+", choices=names, default=[], metavar="NAME", help=without_help)
    add("--scale", type=float, default=1.0, help="multiply all record counts")
    add("--repeat", type=int, default=3, help="turns per side (default 3)")
    add("--kills", type=int, default=30, help="kills of a cluster's leader (default 30)")
    add("--kafka", action="store_true", help="run Kafka too (Java, Maven)")
    add("--out", type=Path, help="default: bench/results/<time>.json")
    cache_help = "folder for built tools and the run's data, on the disk that is measured"
    add("--cache", type=Path, default=_ROOT / "out" / "bench", help=cache_help)
    add("--report", type=Path, help="print the table of this result file and exit")
    write_help = "write the tables into README.md and docs/performance.md after a partial run too"
    add("--write-readme", action="store_true", help=write_help)
    options = parser.parse_args(arguments)
    if not 0 < options.scale <= 100 or not 1 <= options.repeat <= 100:
        parser.error("--scale must be above 0 and at most 100, --repeat must be 1 to 100")
    if not 1 <= options.kills <= 1000:
        parser.error("--kills must be 1 to 1000")
    options.cache = Path(Path(options.cache).resolve())
    if options.smoke:
        options.only, options.scale = list(SMOKE_MEASURES), SMOKE_SCALE
        options.repeat = SMOKE_REPEAT
    options.kafka |= options.all
    if options.out is None:
        name = f"{now:%Y-%m-%dT%H%M%S}{'-smoke' if options.smoke else ''}.json"
        options.out = _SITTING if options.all else RESULTS / name
    return options


def _interrupt(number: int, frame: FrameType | None) -> Any:
    """Raise SystemExit on SIGTERM, so that ``with`` blocks end the servers."""
    del frame
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
