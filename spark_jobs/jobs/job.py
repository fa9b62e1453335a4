"""What every job shares: arguments, session, progress, the result as JSON, exit status.

A job is a module of this package with ``PARSER`` (argparse), ``run(spark, args, report)`` and
``main``; it is started by ``headwater job NAME``, by ``python -m`` or by ``spark-submit FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from broker.errors import HeadwaterError
from spark_jobs.source.options import SERVER_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2  # argparse's own

Facts = Mapping[str, Any]  # JSON values only


@dataclass(frozen=True, slots=True)
class Report:
    """Where a job tells how far it is: one line for people on stderr, never on stdout."""

    name: str
    out: TextIO

    def progress(self, text: str, **facts: object) -> None:
        """Print one line: what was done, then ``name=value`` facts."""
        tail = "".join(f" {name}={value}" for name, value in facts.items())
        print(f"{self.name}: {text}{tail}", file=self.out, flush=True)


Run = Callable[["SparkSession", argparse.Namespace, Report], Facts]


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all jobs have; a job adds its own."""
    made = argparse.ArgumentParser(prog=f"headwater job {name}", description=description)
    made.add_argument(
        "--server",
        default=os.environ.get(SERVER_VARIABLE),
        help=f"the broker, grpc://host:port (default: ${SERVER_VARIABLE}, else this machine's)",
    )
    made.add_argument(
        "--master", default=None, help="Spark's master (default: spark-submit's, else local[*])"
    )
    made.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting"
    )
    made.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    made.add_argument(
        "--result", type=Path, default=None, metavar="FILE", help="write the result there as JSON"
    )
    return made


def run_job(
    name: str, made: argparse.ArgumentParser, run: Run, argv: Sequence[str] | None = None
) -> int:
    """Run one job from the command line; return the exit status. Errors are one line, typed."""
    args = made.parse_args(argv)
    report = Report(name, sys.stderr)
    conf = {}
    for item in args.conf:
        key, equals, value = item.partition("=")
        if not equals:
            made.error(f"--conf takes NAME=VALUE, not {item!r}")
        conf[key] = value
    try:
        facts = dict(run(_session(name, args.master, conf), args, report))
    except HeadwaterError as error:
        print(f"{name}: {type(error).__name__}: {error.message}", file=sys.stderr)
        _write(args.result, {"ok": False, "error": type(error).__name__, "message": error.message})
        return EXIT_FAILED
    _write(args.result, {"ok": True, **facts})
    if args.json:
        print(json.dumps({"ok": True, **facts}), flush=True)
    else:
        for key, value in facts.items():
            print(f"{key:>24}  {value}", flush=True)
    return EXIT_OK


def _session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    from spark_jobs.session import build_session  # noqa: PLC0415  (--help starts no Spark)

    # spark-submit hands its own master and settings over through the environment of the JVM.
    return build_session(f"headwater-{name}", master or "local[*]", conf=conf)


def _write(path: Path | None, facts: Facts) -> None:
    if path is None:
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(dict(facts), indent=1))
    draft.replace(path)
