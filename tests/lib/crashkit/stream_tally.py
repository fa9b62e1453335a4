"""The situations that a streaming campaign has met, and those that it has missed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from crashkit.running import count
from crashkit.stream_faults import SHARES
from crashkit.tier_watch import PHASES


@dataclass(slots=True)
class StreamTally:
    """What a campaign has seen."""

    kills: list[dict[str, Any]] = field(default_factory=list)
    queries: list[dict[str, Any]] = field(default_factory=list)
    not_there: int = 0  # a process that was to be killed was not
    ended: dict[str, int] = field(default_factory=dict)  # a job ended by itself, typed
    failures: dict[str, int] = field(default_factory=dict)  # of queries, by what they said
    moved: int = 0  # batches whose records went cold between plan and commit

    def of(self, word: str) -> dict[str, int]:
        """Count the kills by the killed process, the moment, or the phase."""
        counts: dict[str, int] = {}
        for one in self.kills:
            count(counts, one[word])
        return dict(sorted(counts.items()))

    def missed(self) -> list[str]:
        """Return which kinds were not killed in which phase."""
        seen = {(one["what"], one["phase"]) for one in self.kills}
        wanted = [(kind, phase) for kind in SHARES for phase in PHASES]
        return [f"{kind} {phase}" for kind, phase in wanted if (kind, phase) not in seen]
