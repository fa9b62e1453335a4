"""The state of a stream of keys against a model, over random histories.

Records, shipping, expiry, key snapshots of any age, added partitions, and cuts from any moment: a
reader of state gets the last record of each key of its cut, in offset order, and nothing else.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.errors import CompactedRangeError
from broker.model.cut import Cut, PartitionCut
from broker.model.offsets import Offset
from cases import seeds
from headwater.client import Client
from headwater.reads.as_of import AtOffsets, narrowed
from headwater.reads.history import History
from headwater.reads.latest import newest_of_each_key
from simkit.tier.key_snapshots import build_key_snapshot, key_snapshot_end
from simkit.tier.lake_broker import Served, serving

pytestmark = pytest.mark.integration  # a Flight service on the loopback

STEPS = 30
CHECKED = 0.25  # of the steps
KEYS = 9
Record = tuple[bytes | None, bytes | None]
State = list[tuple[int, int, bytes, bytes]]  # partition, offset, key, value


@dataclass
class Model:
    """Every record that was ever sent, by partition, and the first ones that are kept."""

    logs: dict[int, list[Record]] = field(default_factory=lambda: {0: []})
    borders: dict[int, list[int]] = field(default_factory=lambda: {0: []})  # ends of cold files

    def state(self, cut: Cut) -> State:
        """Return the newest record of each key of a cut, unless it is a tombstone."""
        newest: dict[tuple[int | None, bytes], tuple[int, int, bytes | None]] = {}
        for part in cut.partitions:  # the lowest first
            own = part.partition if cut.keys_from is None else None
            records = self.logs.get(part.partition, [])[: int(part.end)]
            for offset, (key, value) in enumerate(records):
                if offset >= part.start and key is not None:
                    newest[own, key] = (part.partition, offset, value)
        return sorted(
            (partition, offset, key, value)
            for (_, key), (partition, offset, value) in newest.items()
            if value is not None
        )

    def require_left(self, part: PartitionCut, rows: list[dict[str, Any]]) -> None:
        """Check the rows of one partition of a cut, from the earliest offset on.

        Each record without a key is there, and the last one of each key, but perhaps not a
        tombstone; every other row is one of the records, and all are in order.
        """
        records = list(enumerate(self.logs.get(part.partition, [])[: int(part.end)]))
        records = records[int(part.start) :]
        newest = {key: offset for offset, (key, _) in records}
        read = [(row["offset"], (row["key"], row["value"])) for row in rows]
        assert [one for one in records if one in read] == read
        assert {
            offset
            for offset, (key, value) in records
            if key is None or (newest[key] == offset and value is not None)
        } <= {offset for offset, _ in read}


def found(client: Client, cut: Cut) -> State:
    """Return what a reader of state gets, in its order."""
    history = History(client, cut)
    rows = [row for batch in newest_of_each_key(history) for row in batch.to_pylist()]
    for part, proof in zip(cut.partitions, history.certificate().partitions, strict=True):
        gone = sum(one.missing_count or 0 for one in proof.holes if one.reason == "compaction")
        assert proof.records_count + gone == part.end - part.start
    return [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows]


class Life:
    """One random history."""

    def __init__(self, seed: int, served: Served, client: Client) -> None:
        self.rng = random.Random(seed)
        self.served, self.client, self.model = served, client, Model()
        self.cuts: list[Cut] = []
        client.create_stream("s")

    def run(self) -> None:
        """Take random steps; check the state after each, and at the end that of every old cut."""
        steps = (
            [self.publish] * 6 + [self.ship] * 3 + [self.snapshot] * 3 + [self.expire] * 2
            + [self.compact] * 2 + [self.take_cut] * 2 + [self.grow]
        )  # fmt: skip
        for _ in range(STEPS):
            self.rng.choice(steps)()
            if self.rng.random() < CHECKED:
                now = self.client.cut("s")
                self.check(now)
                self.client.drop_lease(now.lease.lease_id)
        for cut in self.cuts:
            self.check(cut)
            at = {p.partition: Offset(self.rng.randint(p.start, p.end)) for p in cut.partitions}
            self.check_moment(narrowed(cut, AtOffsets(at), self.client))

    def check(self, cut: Cut) -> None:
        """Compare one cut with the model, and what a reader from the earliest offset gets."""
        assert found(self.client, cut) == self.model.state(cut)
        history = History(self.client, cut)
        read = [row for batch in history.batches() for row in batch.to_pylist()]
        for part in cut.partitions:
            self.model.require_left(
                part, [row for row in read if row["partition"] == part.partition]
            )

    def check_moment(self, cut: Cut) -> None:
        """Compare an earlier moment of a cut; it may be refused if records of it are gone."""
        history = History(self.client, cut)
        ends_inside = any(
            part.start < part.end < history.whole_start(part.partition) for part in cut.partitions
        )
        if not ends_inside:
            self.check(cut)
            return
        with pytest.raises(CompactedRangeError):
            found(self.client, cut)

    def publish(self) -> None:
        """Send a few records with and without keys and values."""
        with self.client.partitioned_producer("s") as producer:
            for _ in range(self.rng.randint(1, 8)):
                key = None if self.rng.random() < 0.1 else b"%d" % self.rng.randrange(KEYS)
                value = None if self.rng.random() < 0.25 else self.rng.randbytes(3)
                ((number, at),) = producer.send([{"key": key, "value": value}]).result(20).items()
                log = self.model.logs.setdefault(number, [])
                assert at.base_offset == len(log)
                log.append((key, value))

    def ship(self) -> None:
        """Bring more of one partition into its table."""
        number = self.rng.choice(list(self.model.logs))
        cold = self.model.borders.setdefault(number, [])
        least, most = cold[-1] if cold else 0, len(self.model.logs[number])
        if least < most:
            end = self.rng.randint(least + 1, most)
            self.served.broker.ship("s", number, Offset(end))
            cold.append(end)

    def snapshot(self) -> None:
        """Advance the key snapshot to the cold ends."""
        if any(self.model.borders.values()):
            build_key_snapshot(self.served.broker, "s")

    def expire(self) -> None:
        """Let the first files of one partition expire."""
        number = self.rng.choice(list(self.model.logs))
        start = int(self.served.broker.handle("s", number).remote_start)
        # A lease holds what its cut reads from the brokers.
        held = [int(cut.partitions[number].cold_end) for cut in self.cuts
                if number < len(cut.partitions)]  # fmt: skip
        table = self.served.broker.table("s").find()
        ends = [
            one.end_offset
            for one in (table.files if table is not None else ())
            if one.partition == number
        ]
        borders = [one for one in ends if one and start < one <= min([one, *held])]
        if borders:
            self.served.broker.expire("s", number, self.rng.choice(borders))

    def compact(self) -> None:
        """Let superseded records leave the table of one partition, below what cuts hold."""
        number = self.rng.choice(list(self.model.logs))
        held = [int(cut.partitions[number].cold_end) for cut in self.cuts
                if number < len(cut.partitions)]  # fmt: skip
        cold = self.model.borders.get(number, [])
        if cold:
            covered = key_snapshot_end(self.served.broker, "s", number)
            self.served.broker.compact_keys(
                "s", number, Offset(min([cold[-1], *held])), key_snapshot_end=covered
            )

    def take_cut(self) -> None:
        """Keep a cut, with its lease, until the end."""
        self.cuts.append(self.client.cut("s", ttl_ms=600_000))

    def grow(self) -> None:
        """Double the partitions, once or twice in a life."""
        count = self.client.stream("s").config.partitions
        if count < 4:
            self.client.alter_stream("s", partitions=count * 2)


@pytest.mark.parametrize("seed", seeds(6))
def test_the_state_of_every_cut_is_the_models(tmp_path: Path, seed: int) -> None:
    """Whatever the key snapshot covers, and wherever the cut begins and ends."""
    with serving(str(tmp_path / "lake")) as served, Client(served.server) as client:
        life = Life(seed, served, client)
        life.run()
