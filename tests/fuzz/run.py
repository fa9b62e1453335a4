"""``make fuzz``: bytes that nobody should send, for every decoder, then for every door.

The decoders get half of the time, in this process. Each finding is printed with the shortest input
that still finds it, and how to keep it. A broker's doors get the other half: open ones, and then
those with TLS and access. The numbers go to ``out/fuzz-decoders.json``, ``out/fuzz-doors.json`` and
``out/fuzz-guarded-doors.json``. Exits with 1 when something was found.
``--seed`` repeats the inputs of a run, ``--only`` chooses decoders by a regular expression,
``--replay LINE`` runs one line of a corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each changed talk writes two lines


def main(arguments: list[str] | None = None) -> int:
    """Fuzz for the given time; return 0 when nothing was found."""
    import logging

    import structlog

    given = _parse(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    if given.replay is not None:
        return _replay(given.replay, given.only)
    seconds = given.minutes * 60 / (2 if given.part == "both" else 1)
    found = 0
    if given.part != "doors":
        found += _decoders(seed, seconds, given.only)
    if given.part != "decoders" and not given.only:
        found += sum(_doors(seed, seconds / 2, guarded=guarded) for guarded in (False, True))
    return 1 if found else 0


def _doors(seed: int, seconds: float, *, guarded: bool) -> int:
    """Let strangers loose on a broker; return how many findings there were."""
    from fuzzkit.doors.storm import storm

    what = "doors with TLS and access" if guarded else "doors"
    print(f"fuzz: the {what} of a broker, {seconds:.0f} s, seed {seed}", flush=True)
    done = storm(seed, seconds, lambda line: print(line, flush=True), guarded=guarded)
    for one in done.findings:
        print(f"FOUND {one}")
    for call, (calm, stormy) in done.p99_ms.items():
        print(
            f"  p99 of {call}: {calm:.1f} ms calm, {stormy:.1f} ms during the storm: "
            f"{stormy / max(calm, 0.001):.1f} times"
        )
    print(
        f"  processors busy for {done.busy[0]:.0%} of the calm, {done.busy[1]:.0%} of the storm"
        + "".join(f"\n  not judged, the machine had other work: {one}" for one in done.notes)
    )
    print(
        f"fuzz: {done.attacks.total():,} attacks and {len(done.stories)} stories at the doors, "
        f"{done.acked_count:,} records acknowledged to others and there, at most "
        f"{done.most_bytes >> 20} MiB, {len(done.findings)} findings, seed {seed}"
    )
    _write("guarded-doors" if guarded else "doors", {**vars(done), "attacks": dict(done.attacks)})
    return len(done.findings)


def _decoders(seed: int, seconds: float, only: str) -> int:
    """Fuzz the decoders in this process; return how many findings there were."""
    from fuzzkit.campaign import Tally, campaign, replay
    from fuzzkit.judge import shrunk
    from fuzzkit.registry import decoders

    chosen = {name: one for name, one in decoders().items() if re.search(only, name)}
    print(f"fuzz: {len(chosen)} decoders, {seconds:.0f} s, seed {seed}", flush=True)
    again = list(replay(decoders()))
    for one in again:
        print(f"AGAIN {one.decoder}: {one.what}\n{one.trace}", flush=True)
    tally, told_s = Tally(), time.monotonic()
    for tally, found in campaign(chosen, seed=seed, seconds=seconds):
        if found is not None:
            _tell(shrunk(chosen[found.decoder], found))
        elif time.monotonic() - told_s > 60:
            told_s = time.monotonic()
            print(f"  … {tally.inputs.total():,} inputs", flush=True)
    told = {"seed": seed, "inputs": tally.inputs, "lines": tally.lines}
    _write("decoders", {**told, "again": [(one.decoder, one.what) for one in again]})
    count = len(tally.findings) + len(again)
    print(
        f"fuzz: {tally.inputs.total():,} inputs to {len(chosen)} decoders, {count} findings, "
        f"seed {seed}"
    )
    return count


def _tell(found: object) -> None:
    from fuzzkit.corpus import line_of
    from fuzzkit.judge import Finding

    assert isinstance(found, Finding)
    print(f"FOUND {found.decoder}: {found.what}\n{found.trace}")
    print(f"  keep it: echo '{line_of(found.data, found.what)}' >> {_path(found.decoder)}")
    sys.stdout.flush()


def _path(decoder: str) -> str:
    return f"tests/fuzz/corpus/{decoder}.txt"


def _replay(line: str, only: str) -> int:
    """Run one line of a corpus through the decoder that ``only`` names, with its traceback."""
    from fuzzkit.corpus import data_of
    from fuzzkit.registry import decoders

    print(repr(decoders()[only].decode(data_of(line.partition("  # ")[0]))))
    return 0


def _write(part: str, body: object) -> None:
    path = ROOT / "out" / f"fuzz-{part}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--part", choices=("both", "decoders", "doors"), default="both")
    parser.add_argument("--seed", type=int, help="of an earlier run, to have its inputs again")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="decoders by a regular expression"
    )
    parser.add_argument(
        "--replay", metavar="LINE", help="a line of a corpus, for the one decoder that --only names"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
