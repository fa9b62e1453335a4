"""``make nightly MINUTES=120 SEEDS=200000``: the simulations of ``make sim``, for hours.

Every seed is lived eight times: a log on a failing disk, a cluster of the product's own shells, the
same with a lake, mixed (every ack policy, NATS, an operator, disks that are put back), mixed with a
lake, over Raft, and a Raft group with each implementation.
Ends at the last seed or when the minutes are over, whichever is first. Prints a line a minute,
every violation as it is found with the command that repeats it, what was met how often, and one
line of counts at the end. Exits with 1 on any violation. Ctrl-C ends it early, with the counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]

_SEEDS_A_PORTION: Final = 5
_LIFE_CPU_S_MAX: Final = 120  # a life takes well below a second; a paused one takes no CPU
_TELL_EVERY_S: Final = 60.0


@dataclass(slots=True)
class Portion:
    """What a few seeds came to."""

    seeds: range
    seen: dict[str, Counter[str]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    """Live all seeds; return 0 when no promise was broken."""
    options = _parse(arguments)
    seen: dict[str, Counter[str]] = {name: Counter() for name in _lives()}
    violations: list[str] = []
    done = 0
    began_s = told_s = time.monotonic()
    until_s = began_s + options.minutes * 60
    last = options.first + options.seeds
    print(f"nightly: seeds from {options.first}, {options.jobs} processes", flush=True)
    with multiprocessing.get_context("spawn").Pool(options.jobs, _ignore_interrupts) as pool:
        try:
            for portion in pool.imap_unordered(_live, _portions(options.first, last, until_s)):
                if not portion.seeds:
                    break  # the time is over
                done += len(portion.seeds)
                for name, counts in portion.seen.items():
                    seen[name] += counts
                for text in portion.violations:
                    print(text, flush=True)
                violations += portion.violations
                if time.monotonic() > told_s + _TELL_EVERY_S:
                    told_s = time.monotonic()
                    print(_counts(done, violations, told_s - began_s), flush=True)
        except KeyboardInterrupt:
            print("nightly: stopped by hand", flush=True)
            pool.terminate()
    for name, counts in seen.items():
        print(f"{name}: {sum(counts.values()):,} sightings of {len(counts)} kinds")
        for what, count in sorted(counts.items()):
            print(f"  {count:12,d} {what}")
    print(_counts(done, violations, time.monotonic() - began_s), flush=True)
    return 1 if violations else 0


def _counts(done: int, violations: list[str], took_s: float) -> str:
    lives = done * len(_lives())
    return f"nightly: {done:,} seeds, {lives:,} lives, {len(violations)} violations, {took_s:.0f} s"


def _portions(first: int, last: int, until_s: float) -> Iterator[tuple[range, float]]:
    for seed in range(first, last, _SEEDS_A_PORTION):
        yield range(seed, min(last, seed + _SEEDS_A_PORTION)), until_s


def _lives() -> dict[str, Callable[[int], Iterable[str]]]:
    """Return every kind of life by name, with what is met in the life of a seed."""
    from simkit.house import house
    from simkit.log import sim as log_sim
    from simkit.raft import sim as raft_sim
    from simkit.raft.pysyncobj_mutants import in_simulation

    def pysyncobj(seed: int) -> Iterable[str]:
        with in_simulation():
            return raft_sim.run_seed(seed, observers=0)[0].elements()

    return {
        "log": lambda seed: log_sim.run_seed(seed).elements(),
        "house": lambda seed: house.run_seed(seed).seen.elements(),
        "house, with a lake": lambda seed: house.run_seed(seed, with_lake=True).seen.elements(),
        "house, mixed": lambda seed: house.run_seed(seed, mixed=True).seen.elements(),
        "house, mixed, with a lake": lambda seed: house.run_seed(
            seed, mixed=True, with_lake=True
        ).seen.elements(),
        "house, over Raft": lambda seed: house.run_seed(seed, with_raft=True).seen.elements(),
        "raft": lambda seed: raft_sim.run_seed(seed)[0].elements(),
        "raft, pysyncobj": pysyncobj,
    }


def _live(task: tuple[range, float]) -> Portion:
    seeds, until_s = task
    if time.monotonic() > until_s:
        return Portion(range(0))
    portion = Portion(seeds)
    for name, live in _lives().items():
        counts = portion.seen[name] = Counter()
        for seed in seeds:
            signal.setitimer(signal.ITIMER_PROF, _LIFE_CPU_S_MAX)
            try:
                counts.update(live(seed))
            except Exception:  # noqa: BLE001 - whatever it is, this seed is told and the rest goes on
                portion.violations.append(
                    f"VIOLATION in {name}, seed {seed}: make sim SEED={seed}\n"
                    f"{traceback.format_exc()}"
                )
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    return portion


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _too_long)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"this life did not end within {_LIFE_CPU_S_MAX} s of CPU")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seeds", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
