"""``make plant``: plant bugs in the product's lines, one at a time, and see that tests notice each.

Each bug of ``tests/plants/lists`` is tried with the fast tests that should notice it. Prints what
survived; exits with 1 if a bug survived, and with 2 if a list does not fit the tree, or if the
tests fail without a bug. A run that was interrupted goes on where it was. The tree is only read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]


def main(arguments: list[str] | None = None) -> int:
    """Try the bugs that were asked for; return 0 when each was noticed."""
    from plantkit.generate import drawn
    from plantkit.lines import LISTS, PlantListError, lists, planted_text
    from plantkit.trials import LIBRARIES, Ground, Memory, Nurseries, try_all

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="bugs with this in 'LIST: NAME (FILE)'")
    parser.add_argument("--list", action="store_true", help="name the bugs, and try none")
    parser.add_argument("--at-once", type=int, default=2, help="trials at a time")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs saw")
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not run the tests without a bug first"
    )
    parser.add_argument("--generate", type=int, default=0, help="draw so many changes instead")
    parser.add_argument("--seed", type=int, default=1, help="of the changes that are drawn")
    parser.add_argument("--lists", type=Path, default=LISTS, help="the folder of the lists")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree that is tried")
    parser.add_argument("--memory", type=Path, default=ROOT / "out" / "plants.jsonl")
    given = parser.parse_args(arguments)
    try:
        bugs = [one for one in lists(given.lists) if given.only in one.title]
        if given.generate:
            bugs = drawn(bugs, given.generate, seed=given.seed, root=given.root)
        for one in bugs:
            planted_text(one, given.root)
    except PlantListError as cause:
        print(f"plant: {cause}")
        return 2
    if given.list:
        for one in bugs:
            print(f"{one.title}: {one.breaks}")
        return 0
    if given.fresh:
        given.memory.unlink(missing_ok=True)
    memory = Memory(given.memory, given.root)
    left = [one for one in bugs if memory.find(one) is None]
    print(f"plant: {len(bugs)} bugs, {len(bugs) - len(left)} noticed before", flush=True)
    bad = []
    with (
        tempfile.TemporaryDirectory(prefix="headwater-plants-") as folder,
        closing(Nurseries(LIBRARIES if (given.root / "broker").is_dir() else ())) as nurseries,
    ):
        ground = Ground(root=given.root, folder=Path(folder), nurseries=nurseries)
        if left and not given.no_baseline:
            failed = ground.tests_without_a_bug(end for one in left for end in one.tests)
            if failed is not None:
                print(f"plant: without a bug the tests fail already: {failed}")
                return 2
        for count, (bug, trial) in enumerate(try_all(ground, left, at_once=given.at_once), 1):
            memory.add(bug, trial)
            bad += [] if trial.outcome == "noticed" else [(bug, trial)]
            print(f"  {count} of {len(left)} {trial}", flush=True)
    for bug, trial in bad:
        print(f"{trial.outcome.upper()} {bug.title}: {bug.breaks}\n    {trial.told}")
    print(f"plant: {len(bugs) - len(bad)} of {len(bugs)} bugs noticed")
    return 1 if bad or not bugs else 0


if __name__ == "__main__":
    sys.exit(main())
