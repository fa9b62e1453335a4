"""``make plant-drills``: plant bugs in the product, and see that the campaigns find each of them.

Prints one line a bug; exits with 1 if one survived, or if something else was found in its place.
The files of each campaign stay in the folder that is printed first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]


def main(arguments: list[str] | None = None) -> int:
    """Run the drills that were asked for; return 0 when every bug was found."""
    from plantkit.drills import DRILLS, run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="drills with this in 'CAMPAIGN PLANT'")
    parser.add_argument("--list", action="store_true", help="name the drills, and run none")
    parser.add_argument("--seed", type=int, default=1, help="of the first try")
    given = parser.parse_args(arguments)
    chosen = [one for one in DRILLS if given.only in f"{one.campaign} {one.plant}"]
    if given.list:
        for one in chosen:
            print(f"{one.campaign} {one.plant}: {', '.join(sorted(one.words))}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="headwater-plants-"))
    print(f"plant-drills: files in {folder}", flush=True)
    missed = 0
    for one in chosen:
        result = run(one, folder, first_seed=given.seed)
        missed += result.outcome != "found"
        print(f"  {result}", flush=True)
    print(f"plant-drills: {len(chosen) - missed} of {len(chosen)} bugs found")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
