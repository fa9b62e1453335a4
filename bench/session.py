"""One run: its folder, its scale, its tools, and the turns of the sides."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peers.kafka import Kafka
from bench.peers.nats_tools import PeerTools
from bench.recorder import Recorder

RECORDS_MIN = 2_000  # with fewer records only the start would be measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The argument of every measure."""

    work: Path
    scale: float
    repeat: int
    recorder: Recorder
    tools: PeerTools
    kafka: Kafka | None = None
    kills: int = 30  # how often a cluster's leader is killed

    def count(self, records: int, *, multiple: int = 1) -> int:
        """Return ``records`` at this run's scale, rounded up to a multiple.

        A small scale leaves at least ``RECORDS_MIN`` of them, or all if they are fewer.
        """
        wanted = max(min(RECORDS_MIN, records), int(records * self.scale))
        return -(-wanted // multiple) * multiple

    def rounds(self, sides: Mapping[str, Callable[[int], None]]) -> None:
        """Let the sides take turns, ``repeat`` times, so that a busy minute affects all of them.

        Before each turn all unwritten data is synced. Otherwise the syncs of one side would also
        have to write the data of the side before.
        """
        for number in range(self.repeat):
            for side in sides.values():
                os.sync()
                side(number)
