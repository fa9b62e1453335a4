"""Code that every job shares: arguments, session, progress, the result as JSON, exit status.

A job is a module of this package with ``PARSER`` (argparse), ``run(spark, args, report)`` and
``main``; it is started by ``headwater job NAME``, by ``python -m`` or by ``spark-submit FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from broker.errors import HeadwaterError, InvalidConfigError, InvalidRequestError
from spark_jobs.failures import jvm_watched
from spark_jobs.source.options import SERVER_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same as those of the command `headwater`: see headwater/cli/README.md.
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1  # data is damaged, or does not fit: a person has to look
EXIT_USAGE: Final = 2  # the request or the configuration is wrong; argparse uses 2 as well
EXIT_TRY_LATER: Final = 3  # the request is not wrong: run the job again

Facts = Mapping[str, Any]  # JSON values only


class Stop:
    """Whether the job was asked to end. A long job checks this between batches."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal: str | None = None

    @contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """In this block SIGTERM asks the job to end; a second SIGTERM ends the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can handle signals; other callers set the event
            return

        def ask(number: int, _frame: object) -> None:
            self.signal = signal.Signals(number).name
            self.event.set()
            signal.signal(signal.SIGTERM, before)

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True, slots=True)
class Report:
    """Prints the progress of a job for people: lines on stderr, never on stdout."""

    name: str
    out: TextIO
    stop: Stop = field(default_factory=Stop)

    def progress(self, text: str, **facts: object) -> None:
        """Print one line: a short text, then ``name=value`` facts."""
        tail = "".join(f" {name}={value}" for name, value in facts.items())
        print(f"{self.name}: {text}{tail}", file=self.out, flush=True)


Run = Callable[["SparkSession", argparse.Namespace, Report], Facts]


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments of all jobs; each job adds its own."""
    made = argparse.ArgumentParser(prog=f"headwater job {name}", description=description)
    made.add_argument(
        "--server",
        default=os.environ.get(SERVER_VARIABLE),
        help=f"the broker, grpc://host:port (default: ${SERVER_VARIABLE}, else on this machine)",
    )
    made.add_argument(
        "--master", default=None, help="Spark's master (default: spark-submit's, else local[*])"
    )
    made.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting"
    )
    made.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    made.add_argument(
        "--result", type=Path, default=None, metavar="FILE", help="write the result as JSON to FILE"
    )
    return made


def run_job(
    name: str,
    made: argparse.ArgumentParser,
    run: Run,
    argv: Sequence[str] | None = None,
    *,
    check: Callable[[argparse.Namespace], object] = lambda _args: None,
) -> int:
    """Run one job from the command line; return the exit status. A typed error is one line.

    ``check`` refuses wrong arguments before Spark starts, which takes seconds.
    """
    args = made.parse_args(argv)
    report = Report(name, sys.stderr)
    conf = {}
    for item in args.conf:
        key, equals, value = item.partition("=")
        if not equals:
            made.error(f"--conf takes NAME=VALUE, not {item!r}")
        conf[key] = value
    try:
        check(args)
        with report.stop.on_sigterm(), jvm_watched():
            facts = dict(run(_session(name, args.master, conf), args, report))
    except HeadwaterError as error:
        print(f"{name}: {type(error).__name__}: {error.message}", file=sys.stderr)
        _write(args.result, {"ok": False, "error": type(error).__name__, "message": error.message})
        return exit_status(error)
    told = {"ok": not facts.get("remaining"), **facts}
    _write(args.result, told)
    if args.json:
        print(json.dumps(told), flush=True)
    else:
        for key, value in facts.items():
            if value is not None:
                print(f"{key:>24}  {_for_people(key, value)}", flush=True)
    if not facts.get("ok", True):
        return EXIT_FAILED  # a check that found damage
    return EXIT_TRY_LATER if facts.get("remaining") else EXIT_OK  # stopped before its end


def _for_people(name: str, value: object) -> str:
    if name == "version" and value == -1:
        return "no table"
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{each}: {_for_people(each, one)}" for each, one in value.items()) or "none"
        )
    if isinstance(value, list):
        return "; ".join(_for_people(name, one) for one in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def exit_status(error: HeadwaterError) -> int:
    """Return the exit status for an error that ended a job; schedulers retry only on 3."""
    if error.retriable:
        return EXIT_TRY_LATER
    wrong = isinstance(error, InvalidRequestError | InvalidConfigError)
    return EXIT_USAGE if wrong else EXIT_FAILED


def _session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    from spark_jobs.session import build_session  # noqa: PLC0415  (--help starts no Spark)

    if master is None and not under_spark_submit():
        master = "local[*]"
    return build_session(f"headwater-{name}", master, conf=conf)


def under_spark_submit() -> bool:
    """Tell whether spark-submit started this process; then its JVM waits for a connection."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _write(path: Path | None, facts: Facts) -> None:
    if path is None:
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(dict(facts), indent=1))
    draft.replace(path)
