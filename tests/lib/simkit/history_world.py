"""A small world in which test histories are told: two partitions, a clock, a log for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simkit.history import History, PartReading, Reading, Row, Sent, Verdict, fingerprint
from simkit.history_checker import HistoryChecker


def content(name: str) -> bytes:
    """Return the fingerprint of a record whose value is its name."""
    return fingerprint(key=None, value=name.encode(), headers=None, subject="s")


class World:
    """A history with a clock, and a log for each of two partitions."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.history = History()
        self.rows: dict[int, list[Row]] = {0: [], 1: []}
        self.cold_ends = {0: 0, 1: 0}
        self.epoch = 1
        self._sequences: dict[str, int] = {}

    def tick(self) -> int:
        """Let time pass and return it."""
        self.now_ns += 10
        return self.now_ns

    def send(self, name: str, *, to: int = 0, by: str = "p") -> None:
        """Send a record for the first time."""
        sequence = self._sequences[by] = self._sequences.get(by, -1) + 1
        self.history.send(
            Sent(
                name=name,
                producer=by,
                sequence=sequence,
                partition=to,
                fingerprint=content(name),
                at_ns=self.tick(),
            )
        )

    def store(self, name: str, *, to: int = 0) -> int:
        """Append a record to a log and return its offset."""
        self.rows[to].append(Row(len(self.rows[to]), content(name), self.epoch))
        return len(self.rows[to]) - 1

    def ack(self, name: str, offset: int, *, to: int = 0, duplicate: bool = False) -> None:
        """Acknowledge a record."""
        self.history.ack(
            name,
            partition=to,
            offset=offset,
            at_ns=self.tick(),
            duplicate=duplicate,
            leader_epoch=self.epoch,
        )

    def publish(self, name: str, *, to: int = 0, by: str = "p") -> int:
        """Send, store and acknowledge."""
        self.send(name, to=to, by=by)
        offset = self.store(name, to=to)
        self.ack(name, offset, to=to)
        return offset

    def read(self) -> Reading:
        """Read everything, as an honest reader does."""
        parts = []
        for number, rows in self.rows.items():
            cold = self.cold_ends[number]
            parts.append(
                PartReading(
                    partition=number,
                    start=0,
                    cold_end=cold,
                    hot_end=len(rows),
                    cold_rows=rows[:cold],
                    hot_rows=rows[cold:],
                )
            )
        return Reading.of("read", self.tick(), parts)

    def judge(self, reading: Reading | None = None) -> Verdict:
        """Check one reading."""
        return HistoryChecker(self.history).check(self.read() if reading is None else reading)


def world_of(*names: str, cold_end: int = 2) -> World:
    """Return a world where these records were published, one after another, to partition 0."""
    world = World()
    for name in names:
        world.publish(name)
    world.cold_ends[0] = min(cold_end, len(names))
    return world


def bent(world: World, change: Callable[[PartReading], PartReading]) -> Reading:
    """Return what a read returns after ``change`` to partition 0."""
    reading = world.read()
    return replace(reading, parts={**reading.parts, 0: change(reading.parts[0])})
