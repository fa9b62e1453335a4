"""What the clients of a simulated cluster did and saw, for the judge of real clusters.

The oracle sees everything at once and after every step; the witness only what clients see, and in
the end every replica apart, as a chaos run does. Both have to agree that nothing is wrong. Time
is the number of the simulation's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.ports.partition import StoredBatch
from checkkit.anomalies import Verdict
from checkkit.checker import judge
from checkkit.facts import Rules
from checkkit.history import History
from checkkit.readings import PartReading, Reading, Row, Source
from simkit.cluster.log import ReplicaLog, sent_time_us
from simkit.cluster.publish import PublishAnswer
from simkit.cluster.table import Table
from simkit.network.world import World

RULES: Final = Rules(transport_doubles=True)
_READER: Final = "reader"


class Witness:
    """Keeps one history of one partition."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history = History()

    # ------------------------------------------------------------------ publishers

    def sent(
        self, client: str, producer: int, sequence: int, value: bytes, policy: AckPolicy
    ) -> int:
        """Note a record at its first attempt; records under NONE have no id."""
        name = f"{client}.{producer}"
        identified = policy is not AckPolicy.NONE
        if identified:
            self.history.expect_order(name)
        return self.history.publish(
            value,
            partition=0,
            at_ns=self._world.steps,
            producer=name,
            sequence=sequence,
            policy=policy,
            identified=identified,
            client=client,
            timestamp_us=sent_time_us(value),
        )

    def sent_again(self, record: int) -> None:
        """Note a retry."""
        self.history.retry(record)

    def acked(self, record: int, answer: PublishAnswer) -> None:
        """Note an ack that its client believes."""
        self.history.ok(
            record,
            at_ns=self._world.steps,
            offset=answer.base,
            leader_epoch=answer.leader_epoch,
            duplicate=answer.duplicate,
        )

    # ------------------------------------------------------------------ everybody else

    def polled(
        self, batches: Iterable[StoredBatch], high_watermark: Offset, leader: tuple[str, int]
    ) -> None:
        """Note what the reader was given by a process that leads an epoch."""
        node, epoch = leader
        now_ns = self._world.steps
        self.history.poll(
            _READER,
            0,
            [_row(batch) for batch in batches],
            began_ns=now_ns,
            at_ns=now_ns,
            high_watermark=high_watermark,
            node=node,
            leader_epoch=epoch,
        )

    def reader_truncated(self, end: int) -> None:
        """Note that the reader was told to go back."""
        self.history.truncated(_READER, 0, end)

    def leads(self, epoch: int, process: str) -> None:
        """Note who leads an epoch."""
        self.history.leads(0, epoch, process)

    def gave_up(self, end: int) -> None:
        """Note an operator's choice."""
        self.history.forgive(0, end, self._world.steps)

    # ------------------------------------------------------------------ the end

    def final_reads(
        self,
        logs: Mapping[str, ReplicaLog],
        members: Sequence[BrokerId],
        table: Table | None = None,
    ) -> list[Reading]:
        """Read every replica apart, whole: what it has freed from the table."""
        return [self._read(name, logs[name], table) for name in members]

    def _read(self, name: str, log: ReplicaLog, table: Table | None) -> Reading:
        facts = log.facts()
        start = facts.log_start
        rows = [_row(batch) for batch in log.read(start, facts.log_end - start)]
        cold = [] if table is None else [_row(batch) for batch in table.rows[:start]]
        part = PartReading(
            partition=0, start=0, cold_end=start, hot_end=facts.log_end,
            cold_rows=cold, hot_rows=rows,
        )  # fmt: skip
        return Reading.of(name, self._world.steps, [part], Source.REPLICA)

    def judge(self, finals: Sequence[Reading]) -> Verdict:
        """Judge the whole run."""
        return judge(self.history, finals, RULES)


def _row(batch: StoredBatch) -> Row:
    """Every batch is one record; what pads its body is not its content."""
    header = batch.header
    content = bytes(batch.body).rstrip(b".")
    return Row(header.base_offset, content, header.leader_epoch, header.first_timestamp_us)
