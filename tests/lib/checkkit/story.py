"""A small world in which histories are told: a clock, two partitions, consumers, three replicas.

``World`` tells an honest story in the order of time; a test then bends what a read returns, or
tells a dishonest one. Records are known by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker.model.records import AckPolicy
from checkkit.anomalies import Verdict
from checkkit.checker import Checker, judge
from checkkit.content import fingerprint
from checkkit.facts import Rules
from checkkit.history import History
from checkkit.readings import NO_TIME, PartReading, Reading, Row, Source, of_log

REPLICAS = ("a", "b", "c")


def content(name: str) -> bytes:
    """Return the fingerprint of a record whose value is its name."""
    return fingerprint(key=None, value=name.encode(), headers=None, subject="s")


class World:
    """A history with a clock, and a log for each of two partitions."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.now_ns = 0
        self.rules = rules or Rules()
        self.history = History()
        self.rows: dict[int, list[Row]] = {0: [], 1: []}
        self.cold_ends = {0: 0, 1: 0}
        self.epoch = 1
        self.numbers: dict[str, int] = {}
        self._sequences: dict[str, int] = {}

    def tick(self) -> int:
        """Let time pass and return it."""
        self.now_ns += 10
        return self.now_ns

    # ------------------------------------------------------------------ publishers

    def send(
        self,
        name: str,
        *,
        to: int = 0,
        by: str = "p",
        policy: AckPolicy = AckPolicy.ALL,
        identified: bool = True,
        client: str = "",
        timestamp_us: int = NO_TIME,
    ) -> None:
        """Send a record for the first time."""
        sequence = self._sequences[by] = self._sequences.get(by, -1) + 1
        self.numbers[name] = self.history.publish(
            content(name), partition=to, at_ns=self.tick(), producer=by, sequence=sequence,
            policy=policy, identified=identified, client=client, name=name,
            timestamp_us=timestamp_us,
        )  # fmt: skip

    def retry(self, name: str) -> None:
        """Send it once more."""
        self.tick()
        self.history.retry(self.numbers[name])

    def refuse(self, name: str) -> None:
        """Answer one attempt with an error that proves that it stored nothing."""
        self.tick()
        self.history.fail(self.numbers[name], "refused")

    def store(self, name: str, *, to: int = 0, timestamp_us: int = NO_TIME) -> int:
        """Append a record to a log and return its offset; without a time it gets one."""
        given_us = 1_000 + len(self.rows[to]) if timestamp_us == NO_TIME else timestamp_us
        self.rows[to].append(Row(len(self.rows[to]), content(name), self.epoch, given_us))
        return len(self.rows[to]) - 1

    def ack(
        self, name: str, offset: int, *, to: int = 0, duplicate: bool = False, node: str = ""
    ) -> None:
        """Acknowledge a record."""
        self.history.ok(
            self.numbers[name], at_ns=self.tick(), offset=offset, leader_epoch=self.epoch,
            partition=to, duplicate=duplicate, node=node,
        )  # fmt: skip

    def publish(
        self, name: str, *, to: int = 0, by: str = "p", policy: AckPolicy = AckPolicy.ALL
    ) -> int:
        """Send, store and acknowledge."""
        self.send(name, to=to, by=by, policy=policy)
        offset = self.store(name, to=to)
        self.ack(name, offset, to=to)
        return offset

    def fail_over(self, *, keep: int | None = None) -> None:
        """Begin a new leader epoch; with ``keep`` its leader has only so many rows."""
        self.epoch += 1
        if keep is not None:
            del self.rows[0][keep:]

    # ------------------------------------------------------------------ consumers

    def poll(
        self,
        who: str,
        start: int,
        end: int | None = None,
        *,
        committed: bool = True,
        high_watermark: int = -1,
        node: str = "",
    ) -> None:
        """Let a consumer be given a range of partition 0 as it is now."""
        self.give(who, self.rows[0][start:end], committed, high_watermark, node)

    def give(
        self,
        who: str,
        rows: Sequence[Row],
        committed: bool = True,
        high_watermark: int = -1,
        node: str = "",
    ) -> None:
        """Let a consumer be given these rows."""
        began_ns = self.tick()
        self.history.poll(
            who, 0, rows, began_ns=began_ns, at_ns=self.tick(), committed=committed,
            high_watermark=high_watermark, node=node, leader_epoch=self.epoch,
        )  # fmt: skip

    # ------------------------------------------------------------------ full reads

    def read(self) -> Reading:
        """Read both tiers, as an honest reader does."""
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

    def replica(self, name: str, rows: Sequence[Row] | None = None, *, start: int = 0) -> Reading:
        """Read one replica; ``rows`` stand for what it holds of partition 0 instead."""
        held = {**self.rows, 0: list(self.rows[0] if rows is None else rows)}
        parts = [
            of_log(number, found[start:] if number == 0 else found, start=0 if number else start)
            for number, found in held.items()
        ]
        return Reading.of(f"replica {name}", self.tick(), parts, Source.REPLICA)

    def table(self, rows: Sequence[Row] | None = None) -> Reading:
        """Read the table."""
        held = {number: found[: self.cold_ends[number]] for number, found in self.rows.items()}
        if rows is not None:
            held[0] = list(rows)
        parts = [of_log(number, found) for number, found in held.items()]
        return Reading.of("table", self.tick(), parts, Source.TABLE)

    def finals(self) -> list[Reading]:
        """Read everything there is, as an honest cluster shows it in the end."""
        return [*(self.replica(name) for name in REPLICAS), self.table(), self.read()]

    def judge(self, reading: Reading | None = None) -> Verdict:
        """Check one reading."""
        checker = Checker(self.history, self.rules)
        return checker.check(self.read() if reading is None else reading)

    def judge_all(self, finals: Sequence[Reading] | None = None) -> Verdict:
        """Check the whole run."""
        return judge(self.history, self.finals() if finals is None else finals, self.rules)


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
