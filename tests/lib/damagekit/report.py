"""Counts of outcomes, for people and as JSON. Pure but for the file."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from damagekit.campaign import Result
from damagekit.outcomes import Outcome


@dataclass(slots=True)
class Results:
    """All results of a run."""

    results: list[Result] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.results)

    def add(self, result: Result) -> None:
        """Take one more."""
        self.results.append(result)

    @property
    def good(self) -> bool:
        """Tell whether every case was exact or named."""
        return all(result.is_good for result in self.results)

    def counts(self) -> Counter[Outcome]:
        """Return how many cases ended how."""
        return Counter(result.outcome for result in self.results)

    def summary(self) -> str:
        """Return the counts in one line."""
        counts = self.counts()
        told = [f"{counts[one]} {one.name.lower()}" for one in Outcome]
        return f"{len(self.results)} cases: {', '.join(told)}"

    def table(self) -> str:
        """Return the counts by damaged file, as a Markdown table."""
        rows: dict[str, Counter[Outcome]] = defaultdict(Counter)
        for result in self.results:
            rows[result.case.entry.kind][result.outcome] += 1
        lines = [
            "| damaged | cases | " + " | ".join(one.name.lower() for one in Outcome) + " |",
            "|---|" + "---|" * (len(Outcome) + 1),
        ]
        for kind, counts in rows.items():
            cells = " | ".join(str(counts[one] or "") for one in Outcome)
            lines.append(f"| `{kind}` | {counts.total()} | {cells} |")
        counts = self.counts()
        cells = " | ".join(str(counts[one]) for one in Outcome)
        lines.append(f"| **all** | {len(self.results)} | {cells} |")
        return "\n".join(lines)

    def write(self, path: Path, *, seed: int) -> None:
        """Write every result as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        by = Counter(
            f"{one.case.entry.kind} {one.case.damage} {one.case.state} {one.case.retention} "
            f"{one.outcome.name.lower()}"
            for one in self.results
        )
        body = {
            "seed": seed,
            "counts": {one.name.lower(): count for one, count in self.counts().items()},
            "by": dict(sorted(by.items())),
            "cases": [one.to_dict() for one in self.results],
        }
        path.write_text(json.dumps(body, indent=1) + "\n")
