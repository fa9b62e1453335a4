"""The result of a run: raw samples, facts about the machine, and the settings of all sides.

The JSON file has every raw sample. Summaries are always computed from the samples, also for the
report of an old file. Times are UTC. A run that was interrupted goes on from its file: finished
measures are kept, the samples of the measure that was cut off are not.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.stats import Summary, summarise

FORMAT_VERSION: Final = 1
# JetStream's tools per case; the table shows the figure of the fastest.
_TOOLS: Final = ("async", "bench_async", "bench_batch")


class Recorder:
    """Collects samples; :meth:`save` writes all of them after each measure."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        self._facts = dict(facts)
        self._samples: list[dict[str, Any]] = []
        self._failures: dict[str, str] = {}
        self._finished: list[str] = []
        self._measure: str | None = None
        self._started = dt.datetime.now(dt.UTC)

    @classmethod
    def resumed(cls, path: Path, facts: Mapping[str, Any]) -> Recorder:
        """Go on with the run of a file, or begin one if there is no file.

        Raises:
            ValueError: not a file of ours, or its run had another scale or number of turns.
        """
        recorder = cls(path, facts)
        if not path.exists():
            return recorder
        body = _load(path)
        for name in ("scale", "repeat"):
            if body["facts"].get(name) != facts.get(name):
                raise ValueError(
                    f"{path} was begun with {name} {body['facts'].get(name)}, not "
                    f"{facts.get(name)}; use the same, or remove the file to begin anew"
                )
        recorder._finished = list(body.get("finished", []))
        recorder._failures = dict(body["failures"])
        recorder._samples = [
            one for one in body["samples"] if one.get("measure") in recorder._finished
        ]
        recorder._started = dt.datetime.fromisoformat(body["started"])
        return recorder

    @property
    def finished(self) -> tuple[str, ...]:
        """The measures that ran to their end, failed ones left out."""
        return tuple(self._finished)

    def begin(self, measure: str) -> None:
        """Note whose samples follow; a failure of an earlier attempt is forgotten."""
        self._measure = measure
        self._failures.pop(measure, None)

    def end(self, measure: str) -> None:
        """Note that a measure ran to its end."""
        self._finished.append(measure)

    def add(self, figure: str, value: float, unit: str, **details: Any) -> None:
        """Keep and print one sample; ``details`` are stored with it."""
        load = os.getloadavg()[0]
        at_s = (dt.datetime.now(dt.UTC) - self._started).total_seconds()
        sample = {"figure": figure, "value": value, "unit": unit, "measure": self._measure}
        when = {"load1": round(load, 2), "at_s": round(at_s, 1)}
        self._samples.append({**sample, **when, **details})
        print(f"  {figure:44s} {value:>14,.3f} {unit}", flush=True)

    def fact(self, name: str, value: Any) -> None:
        """Keep a fact that is not a sample: a setting or a version."""
        self._facts[name] = value

    def failed(self, measure: str, error: BaseException) -> None:
        """Keep the error by which a measure failed."""
        self._failures[measure] = f"{type(error).__name__}: {error}"

    def figures(self) -> dict[str, Summary]:
        """Return all figures so far, including derived ones."""
        return figures_of(self._samples)

    def save(self) -> None:
        """Write the file atomically."""
        body = {
            "format": FORMAT_VERSION,
            "started": self._started.isoformat(timespec="seconds"),
            "facts": self._facts,
            "failures": self._failures,
            "finished": self._finished,
            "figures": {name: asdict(one) for name, one in sorted(self.figures().items())},
            "samples": self._samples,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".tmp")
        partial.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        partial.replace(self.path)


def load_figures(path: Path) -> dict[str, Summary]:
    """Return the figures of a saved run, computed again from its samples.

    Raises:
        ValueError: not a file that :meth:`Recorder.save` wrote.
    """
    return figures_of(load_samples(path))


def load_samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples of a saved run, with their details, in the order of their time.

    Raises:
        ValueError: not a file that :meth:`Recorder.save` wrote.
    """
    return list(_load(path)["samples"])


def load_scale(path: Path) -> float:
    """Return the scale of a saved run.

    Raises:
        ValueError: not a file that :meth:`Recorder.save` wrote.
    """
    return float(_load(path)["facts"].get("scale", 1.0))


def _load(path: Path) -> dict[str, Any]:
    body = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(body, dict) or body.get("format") != FORMAT_VERSION:
        raise ValueError(f"{path} is not a benchmark result of format {FORMAT_VERSION}")
    return body


def figures_of(samples: list[dict[str, Any]]) -> dict[str, Summary]:
    """Summarise samples by figure; add the figure ``jetstream``, that of its fastest tool."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        values.setdefault(sample["figure"], []).append(float(sample["value"]))
    figures = {name: summarise(found) for name, found in values.items()}
    for case in {name.rpartition("/")[0] for name in figures}:
        for suffix in ("", "_synced"):
            tools = [f"{case}/jetstream_{tool}{suffix}" for tool in _TOOLS]
            known = [figures[name] for name in tools if name in figures]
            if known:
                figures[f"{case}/jetstream{suffix}"] = max(known, key=lambda one: one.median)
    return figures
