"""Which campaign has to find which planted bug, by which words, and how long it may take.

A drill repeats its campaign, each time with the next seed, until the bug is found: the campaign
fails with one of the words, a verdict of the judge or an error by name. A campaign that fails with
none of them has found something else, and that fails the drill.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from checkkit.anomalies import Anomaly
from checkkit.check_groups import GroupAnomaly
from projectfiles import ROOT

Campaign = Literal["crash", "crash-stream", "chaos"]
Outcome = Literal["found", "survived", "another"]

_PROGRAMS: Final = {
    "crash": [
        "tests/crash/run.py", "--spark-every", "0", "--check-every", "1", "--forked",
        "--no-disk-stories",
    ],
    "crash-stream": ["tests/crash/stream.py"],
    "chaos": ["tests/chaos/run.py", "--brokers", "3", "--minutes", "0", "--forked"],
}  # fmt: skip
_TIMEOUT_S: Final = 1_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One bug and the campaign that has to find it."""

    campaign: Campaign
    plant: str
    options: Sequence[str]
    words: frozenset[str]  # of which one has to be told
    tries: int = 3


def _crash(plant: str, *words: str, rounds: int = 4) -> Drill:
    options = ("--rounds", str(rounds))
    return Drill(campaign="crash", plant=plant, options=options, words=frozenset(words))


def _stream(plant: str, *words: str, rounds: int = 8) -> Drill:
    options = ("--rounds", str(rounds))
    return Drill(campaign="crash-stream", plant=plant, options=options, words=frozenset(words))


def _chaos(plant: str, story: str, *words: str, times: int = 1) -> Drill:
    options = ("--only", story, "--times", str(times))
    return Drill(campaign="chaos", plant=plant, options=options, words=frozenset(words))


DRILLS: Final = (
    _crash("ack_unwritten", "lost", "SequenceGapError"),
    _crash("forget_ids", "doubled", rounds=8),
    _crash("skip_a_batch", "GapError"),
    _crash("ship_milliseconds", "rewritten", "other_time"),
    _crash("lose_correlation_ids", "foreign", "damaged"),
    _stream("ack_unwritten", "lost", "SequenceGapError"),
    _stream("slices_end_early", "gap", "lost"),
    _stream("begin_behind_the_checkpoint", "overlap"),
    _stream("ship_milliseconds", "unified_differs"),
    _chaos("commit_alone", "cut the leader off", "lost", "SequenceGapError", times=2),
    _chaos("show_uncommitted", "cut the leader off", "withdrawn", times=2),
    _chaos("lead_on_after_a_restart", "restored disk", "lost", "SequenceGapError", times=2),
    _chaos("tell_old_positions", "kill a follower", "again", times=6),
    _chaos("forget_ids", "kill the leader", "doubled", times=4),
    _chaos("ship_milliseconds", "restart nats-server", "table_differs", "other_time"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """How a drill ended."""

    drill: Drill
    outcome: Outcome
    told: str
    tries: int
    seconds: float

    def __str__(self) -> str:
        one = self.drill
        text = f"{one.campaign} and {one.plant}: {self.outcome}"
        return f"{text} ({self.told}), try {self.tries}, {self.seconds:.0f} s"


def run(drill: Drill, folder: Path, *, first_seed: int = 1) -> Result:
    """Run a drill until its bug is found, or its tries are over. Blocks."""
    began_s = time.monotonic()
    for number in range(1, drill.tries + 1):
        here = folder / f"{drill.campaign}-{drill.plant}-{number}"
        here.mkdir(parents=True)
        command = [
            sys.executable, *_PROGRAMS[drill.campaign], *drill.options, "--plant", drill.plant,
            "--seed", str(first_seed + number - 1), "--folder", str(here / "files"),
        ]  # fmt: skip
        with (here / "output.txt").open("w") as sink:
            done = subprocess.run(
                command, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S,
                check=False,
            )  # fmt: skip
        if done.returncode:
            told = here / "files" / "violations.txt"
            found = words_in(told.read_text() if told.exists() else "")
            known = sorted(found & drill.words)
            outcome: Outcome = "found" if known else "another"
            words = ", ".join(known or sorted(found) or [f"exit {done.returncode}, see {here}"])
            return Result(drill, outcome, words, number, time.monotonic() - began_s)
    return Result(drill, "survived", "nothing", drill.tries, time.monotonic() - began_s)


def words_in(violations: str) -> frozenset[str]:
    """Return the kinds of violation and the names of errors that a campaign's report has."""
    words = re.findall(r"^ *([a-z_]+):", violations, re.MULTILINE)
    kinds = {one.value for one in (*Anomaly, *GroupAnomaly)} & set(words)
    return frozenset([*kinds, *re.findall(r"\b([A-Z][A-Za-z]*Error)\b", violations)])
