"""``make damage``: damage every file and folder of a broker and of its tables, and look again.

Prints a line for each bad case and a table of counts by what was damaged and how; the raw results
go to ``out/damage.json``. Exits with 1 when a case was silent, crashed, hung or untyped.
``--list`` names the cases, ``--only`` chooses some, ``--replay`` tells one with all it saw.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def main(arguments: list[str] | None = None) -> int:
    """Run the catalogue or a part of it; return 0 when every case was exact or named."""
    from damagekit import campaign, report
    from damagekit.catalogue import cases_of
    from damagekit.choice import chosen
    from damagekit.golden import RETENTIONS

    given = _parse(arguments)
    began_s = time.monotonic()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="headwater-damage-"))
    worlds, scratch = folder / "worlds", folder / "cases"
    shutil.rmtree(scratch, ignore_errors=True)  # of a run before that was ended
    campaign.build_worlds(worlds, given.seed)
    every = [case for retention in RETENTIONS for case in cases_of(worlds, retention)]
    if given.spark:
        every = [case for case in every if case.is_for_spark]
    cases = chosen(
        every,
        only=given.only,
        replay=given.replay,
        cases=given.cases,
        seed=given.seed,
        slice_only=given.slice,
        cover_only=given.cover,
    )
    print(
        f"damage: {len(cases)} of {len(every)} cases, seed {given.seed}, files in {folder}, "
        f"worlds built in {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    if given.list:
        print("\n".join(case.name for case in cases))
        return 0
    keep = bool(given.replay) or given.keep
    results = report.Results()
    if given.spark:
        from damagekit.spark_pass import run_with_spark

        running = run_with_spark(worlds, scratch, cases)
    else:
        running = campaign.run_all(
            worlds, scratch, cases, side_by_side=given.side_by_side, keep=keep
        )
    for result in running:
        results.add(result)
        if given.replay:
            print("\n".join(str(look) for look in result.looks))
        elif not result.is_good:
            print(f"{result.case.name}\n    {result.why()[:400]}", flush=True)
        if len(results) % 100 == 0:
            print(
                f"  … {len(results)} of {len(cases)}, {time.monotonic() - began_s:.0f} s",
                flush=True,
            )
    print(results.table())
    results.write(given.json or ROOT / "out" / "damage.json", seed=given.seed)
    print(f"damage: {results.summary()}, {time.monotonic() - began_s:.0f} s, seed {given.seed}")
    if not keep and given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if results.good else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        metavar="TEXT",
        action="append",
        default=[],
        help="cases whose name matches this regular expression; several: all of them",
    )
    parser.add_argument("--cases", type=int, default=0, help="so many, drawn by the seed")
    parser.add_argument(
        "--slice", action="store_true", help="each kind of thing with each damage once"
    )
    parser.add_argument(
        "--cover",
        action="store_true",
        help="each kind of thing, and each pair of damage, place, state and retention, once",
    )
    parser.add_argument("--replay", metavar="CASE", default="", help="one case, and all it saw")
    parser.add_argument(
        "--spark", action="store_true", help="read the lake's cases with Spark instead"
    )
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--side-by-side", type=int, default=2, help="cases at a time")
    parser.add_argument("--json", type=Path, help="where the raw results go")
    parser.add_argument("--folder", type=Path, help="keep worlds here, and use them again")
    parser.add_argument("--keep", action="store_true", help="keep the files of each case")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
