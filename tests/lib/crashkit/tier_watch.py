"""Where a streaming query reads at each moment: the table, the hand-over to the log, or the log."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.errors import HeadwaterError
from headwater.client import Client

COLD: Final = "cold"  # every record of the batch is in the table alone
HAND_OVER: Final = "at the hand-over"  # it crosses from one tier to the other, or both have it
HOT: Final = "hot"  # every record of it is in the log alone
PHASES: Final = (COLD, HAND_OVER, HOT)
_NONE: Final = "before its first batch"
_LOOK_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class Tier:
    """What a partition has where."""

    local_start: int  # the log has [local_start, …)
    cold_end: int  # the table has […, cold_end)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that Spark has planned: by partition, ``[start, end)``."""

    number: int
    ranges: Mapping[int, tuple[int, int]]


def phase_of(ranges: Mapping[int, tuple[int, int]], tiers: Mapping[int, Tier]) -> str:
    """Tell where the records of a batch are."""
    sides = set()
    for number, (start, end) in ranges.items():
        if start == end or number not in tiers:
            continue
        tier = tiers[number]
        if end <= tier.local_start:
            sides.add(COLD)
        else:
            sides.add(HOT if start >= tier.cold_end else HAND_OVER)
    if not sides:
        return _NONE
    return sides.pop() if len(sides) == 1 else HAND_OVER


class Checkpoint:
    """What Spark has noted of a query: offsets before a batch, a commit after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def committed(self) -> int:
        """Return how many batches are done."""
        return _newest(self.folder / "commits") + 1

    def planned(self) -> Batch | None:
        """Return the newest batch, done or not; None before the first."""
        number = _newest(self.folder / "offsets")
        end = self.ends(number)
        if end is None:
            return None
        start = self.ends(number - 1) or {}
        return Batch(number, {one: (start.get(one, 0), last) for one, last in end.items()})

    def ends(self, number: int) -> dict[int, int] | None:
        """Return where a batch ends, by partition; None if there is no such batch."""
        with suppress(OSError, ValueError, IndexError):
            lines = (self.folder / "offsets" / str(number)).read_text().splitlines()
            body = json.loads(lines[-1])
            return {int(one): int(end) for one, end in body["p"].items()}
        return None


class TierWatch:
    """Looks at tiers and checkpoint all the time, so that a kill needs to ask nobody."""

    def __init__(self, url: str, stream: str) -> None:
        self._client = Client(url)
        self._stream = stream
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._tiers: dict[int, Tier] = {}
        self._checkpoint: Checkpoint | None = None
        self._planned_in: dict[int, str] = {}  # batch -> phase when it was first seen
        self._counted = 0  # batches of this query that were looked at
        self.moved_count = 0
        self._thread = threading.Thread(target=self._run, name="tier-watch", daemon=True)
        self._thread.start()

    def follow(self, checkpoint: Checkpoint) -> None:
        """Look at another query from now on."""
        with self._lock:
            self._checkpoint, self._planned_in, self._counted = checkpoint, {}, 0

    def phase(self) -> str:
        """Return where the batch under way reads."""
        with self._lock:
            batch = None if self._checkpoint is None else self._checkpoint.planned()
            return _NONE if batch is None else phase_of(batch.ranges, self._tiers)

    def stop(self) -> None:
        """End the thread. Blocks."""
        self._ending.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_S):
            tiers = {}
            with suppress(HeadwaterError):  # the broker is down: tiers stay as they were
                tiers = {
                    int(one.partition): Tier(int(one.local_start), int(one.cold.end))
                    for one in self._client.tier_status(self._stream)
                }
            with self._lock:
                self._tiers = tiers or self._tiers
                self._look()

    def _look(self) -> None:
        """Count the batches whose records went cold between their plan and their commit."""
        batch = None if self._checkpoint is None else self._checkpoint.planned()
        if batch is None or self._checkpoint is None:
            return
        now = phase_of(batch.ranges, self._tiers)
        first = self._planned_in.setdefault(batch.number, now)
        done = self._checkpoint.committed()
        if self._counted < done == batch.number + 1:
            self._counted = done
            self.moved_count += first == HOT and now != HOT


def _newest(folder: Path) -> int:
    with suppress(OSError):
        return max((int(one.name) for one in folder.iterdir() if one.name.isdigit()), default=-1)
    return -1
