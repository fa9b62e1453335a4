"""What both crash programs share: their options, their folder, the verdict at the end.

A run leaves its numbers as JSON in ``out/``, good or bad; its files stay where they are when
something was wrong, or when somebody asked for them.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from checkkit.anomalies import Anomaly, Verdict
from plantkit.planting import known_plants, plant

ROOT: Final = Path(__file__).resolve().parents[3]
_ORDER: Final = (
    Anomaly.UNSORTED,
    Anomaly.SENT_ORDER,
    Anomaly.REAL_TIME_ORDER,
    Anomaly.EPOCH,
)


class CampaignError(Exception):
    """Something ended by itself, did not recover, or stopped answering."""


def options(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every campaign has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rounds", type=int, default=20, help="how many kills")
    made.add_argument("--seed", type=int, help="repeat the plan of an earlier run")
    made.add_argument("--folder", type=Path, help="keep everything here")
    made.add_argument("--plant", choices=known_plants(), help="a bug to be found")
    made.add_argument("--keep", action="store_true", help="keep the files also when all is good")
    return made


@dataclass(slots=True)
class Run:
    """One run of a campaign, from its seed to its verdict."""

    name: str
    seed: int
    folder: Path
    keep: bool
    began_s: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, name: str, given: argparse.Namespace) -> Run:
        """Choose seed and folder, and say so. Children import this very tree."""
        seed = secrets.randbits(32) if given.seed is None else given.seed
        folder = given.folder or Path(tempfile.mkdtemp(prefix=f"headwater-{name}-"))
        plant(given.plant)
        print(f"{name}: seed {seed}, files in {folder}", flush=True)
        return cls(name, seed, folder, keep=given.keep or given.folder is not None)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began_s

    def end(
        self, verdict: Verdict, failures: list[str], summary: str, facts: Mapping[str, Any]
    ) -> int:
        """Print the verdict, write ``out/NAME.json``, tidy up; return the exit status.

        Args:
            verdict: of everything that was read.
            failures: whatever else was wrong, or was not shown.
            summary: what was done, before the counts.
            facts: the raw numbers.
        """
        good = verdict.ok and not failures
        for failure in failures:
            print(f"{self.name}: {failure}")
        if not good:
            print(f"{self.name}: FAILED\n  {verdict}\n  files are kept in {self.folder}")
            text = "\n".join([f"seed {self.seed}", *failures, str(verdict), ""])
            (self.folder / "violations.txt").write_text(text)
        counts = (
            f"{verdict.lost} lost, {verdict.doubled} doubled, {out_of_order(verdict)} out of order"
        )
        result = ROOT / "out" / f"{self.name}.json"
        result.parent.mkdir(exist_ok=True)
        body = {
            "name": self.name,
            "ok": good,
            "seed": self.seed,
            "commit": _commit(),
            "seconds": round(self.elapsed_s, 1),
            "violations": {kind.value: count for kind, count in verdict.counts.items()},
            "failures": failures,
            **facts,
        }
        result.write_text(json.dumps(body, indent=1) + "\n")
        print(f"  {self.elapsed_s:.0f} s in all; every number is in {result}")
        print(f"{self.name}: {summary}, {counts}, seed {self.seed}", flush=True)
        if good and not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        return 0 if good else 1


def out_of_order(verdict: Verdict) -> int:
    """Return how often records stand in another order than they may."""
    return sum(verdict.counts.get(one, 0) for one in _ORDER)


def count(counts: dict[str, int], name: str) -> None:
    """Count one more of something."""
    counts[name] = counts.get(name, 0) + 1


def _commit() -> str | None:
    """Return the commit that is checked out, None outside a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
