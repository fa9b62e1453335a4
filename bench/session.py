"""One run: its folder, its scale, its tools, and the order in which sides take turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.kafka import Kafka
from bench.peer_tools import PeerTools
from bench.recorder import Recorder

RECORDS_MIN = 2_000  # a smaller scale than this measures only the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What every measure gets."""

    work: Path
    scale: float
    repeat: int
    recorder: Recorder
    tools: PeerTools
    kafka: Kafka | None = None
    kills: int = 30  # of a cluster's leader

    def count(self, records: int, *, multiple: int = 1) -> int:
        """Return ``records`` at this run's scale, rounded up to a multiple."""
        wanted = max(RECORDS_MIN, int(records * self.scale))
        return -(-wanted // multiple) * multiple

    def rounds(self, sides: Mapping[str, Callable[[int], None]]) -> None:
        """Let the sides take turns, ``repeat`` times, so that a busy minute hits all of them.

        Before each turn everything unwritten goes to the disk, else one side's backlog would be
        paid for by the next side's syncs.
        """
        for number in range(self.repeat):
            for side in sides.values():
                os.sync()
                side(number)
