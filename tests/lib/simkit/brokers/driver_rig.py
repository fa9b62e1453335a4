"""One partition's driver over any disk, with turns, clock and crashes of the test's."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa

from broker.codec.record_batch import decode_body, prepare
from broker.core.replication.view import PartitionView
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, ProducerId, StreamUuid
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.stream import Stream, StreamConfig
from broker.ports.system import Files
from broker.runtime.partition.commit_scheduler import Turn
from broker.runtime.partition.context import (
    OpenedLog,
    PartitionNotices,
    PartitionPorts,
    StreamPartition,
)
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.id_budget import IdBudget
from broker.runtime.partition.leadership_gate import Claims
from broker.runtime.partition.replica_shell import AloneLinks, ReplicaIdentity, ReplicaLinks
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log.replacement import replace_log
from broker.storage.promises.promises import Promises
from simkit.brokers.memory_broker import FakeClock

ME = BrokerId("me")
FOLDER = "log"
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


class ManualTurns:
    """A scheduler whose turns are taken when the test says so, on its thread."""

    def __init__(self) -> None:
        self._due: deque[Turn] = deque()
        self.crashes: list[BaseException] = []
        self.on_crash = self.crashes.append
        self.elsewhere = False  # take them on other threads: the test's is about to wait
        self.around: AbstractContextManager[Any] = nullcontext()

    def schedule(self, turn: Turn) -> None:
        """Queue a turn."""
        self._due.append(turn)
        if self.elsewhere:
            threading.Thread(target=self.run).start()

    def run_here(self, turn: Turn) -> None:
        """Take one at once."""
        try:
            with self.around:
                turn.run_turn()
        except (MemoryError, AssertionError) as crash:  # as the product's scheduler
            self.on_crash(crash)

    def run(self) -> None:
        """Take all that are queued."""
        while self._due:
            self.run_here(self._due.popleft())


def alone_view(me: BrokerId = ME, leader_epoch: int = 1) -> PartitionView:
    """Return the view of a broker that is its own cluster."""
    return PartitionView(
        status="online",
        leader=me,
        candidate=None,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(leader_epoch),
        replicas=(me,),
        isr=frozenset({me}),
        min_isr=1,
        broker_epochs={me: BrokerEpoch(leader_epoch)},
        joinable=frozenset({me}),
    )


def view_of_three(**changes: Any) -> PartitionView:
    """Return the view of a partition of brokers a, b, c, led by a, with a and b in sync."""
    a, b, c = (BrokerId(name) for name in "abc")
    view = PartitionView(
        status="online",
        leader=a,
        candidate=None,
        leader_epoch=LeaderEpoch(3),
        partition_epoch=PartitionEpoch(5),
        replicas=(a, b, c),
        isr=frozenset((a, b)),
        min_isr=2,
        broker_epochs=dict.fromkeys((a, b, c), BrokerEpoch(1)),
        joinable=frozenset((a, b, c)),
    )
    return replace(view, **changes)


class DriverRig:
    """Opens the log in ``FOLDER`` of the disk and leads it alone."""

    def __init__(
        self,
        files: Files,
        *,
        me: BrokerId = ME,
        epoch: int = 1,
        clock: FakeClock | None = None,
        links: ReplicaLinks | None = None,
        cold_end: int = 0,
        lineage: Lineage = (),
        claims: Claims | None = None,
        id_budget: IdBudget | None = None,
        promises: Promises | None = None,
        **settings: Any,
    ) -> None:
        self.files = files
        self.turns = ManualTurns()
        self.clock = clock or FakeClock()
        stream = Stream(
            name="s",
            uuid=StreamUuid("00000000-0000-4000-8000-000000000001"),
            config=StreamConfig(subject="s", **settings),
            created_us=0,
            table_name="s",
        )
        partition_id = PartitionId(stream.uuid, PartitionNumber(0))
        config = LogConfig(
            segment_bytes_max=stream.config.segment_bytes_max,
            segment_age_ms_max=stream.config.segment_age_ms_max,
        )
        self.recorded: list[int] = []

        promise = None if promises is None else promises.replica(partition_id)

        def begin_log(start: Offset, epochs: EpochHistory, producers: bytes) -> PartitionLog:
            replace_log(
                files, FOLDER, partition_id, start=start, epochs=epochs, producers=producers,
                promise=promise,
            )  # fmt: skip
            return PartitionLog.open(files, FOLDER, partition_id, config, promise=promise)

        self.log = PartitionLog.open(files, FOLDER, partition_id, config, promise=promise)
        self.driver = PartitionDriver(
            StreamPartition(stream, 0),
            OpenedLog(
                log=self.log, begin_log=begin_log, cold_end=Offset(cold_end), lineage=lineage
            ),
            ReplicaIdentity(me=me, broker_epoch=BrokerEpoch(epoch)),
            PartitionPorts(
                clock=self.clock,
                scheduler=self.turns,
                links=links or AloneLinks(),
                id_budget=id_budget or IdBudget(),
            ),
            PartitionNotices(
                record_cold_end=lambda _partition, end: self.recorded.append(end), claims=claims
            ),
        )
        if links is None:
            self.view(alone_view(leader_epoch=epoch))

    def view(self, view: PartitionView) -> None:
        """Show the driver a view of the metadata."""
        self.driver.replication.take_view(view)
        self.turns.run()

    def put(
        self,
        *values: bytes,
        producer: int = -1,
        sequence: int = -1,
        policy: AckPolicy = AckPolicy.ALL,
        done: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        """Submit one batch; its answer is appended to the returned list."""
        answers: list[Any] = []

        def told(outcome: Any) -> None:
            answers.append(outcome[0])
            if done is not None:
                done(outcome[0])

        batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        prepared = prepare(
            batch, now_us=1, producer_id=ProducerId(producer), base_sequence=sequence
        )
        self.driver.writes.submit([prepared], told, policy=policy)
        return answers

    def put_ids(self, values: Sequence[bytes], ids: Sequence[str | None]) -> list[Any]:
        """Submit records with message ids; see :meth:`put`."""
        answers: list[Any] = []
        headers = [[{"key": "Nats-Msg-Id", "value": one.encode()}] if one else None for one in ids]
        batch = pa.RecordBatch.from_pydict(
            {"value": pa.array(values, pa.binary()), "headers": pa.array(headers, HEADERS)}
        )
        self.driver.writes.submit_records(batch, list(ids), answers.append)
        return answers

    def close(self) -> None:
        """Close the driver, as a polite stop does; turns that it needs are taken."""
        self.turns.elsewhere = True
        self.driver.close()

    def values(self) -> list[bytes]:
        """Return every committed value, in order."""
        return values_of(self.driver)


def values_of(driver: PartitionDriver) -> list[bytes]:
    """Return every committed value, in order."""
    found: list[bytes] = []
    start = driver.reads.log_start
    while start < driver.reads.high_watermark:
        for one in driver.reads.read(start, driver.reads.high_watermark, bytes_max=1 << 20):
            found += decode_body(one.header, one.body).column("value").to_pylist()
            start = one.header.end_offset
    return found


class Gate:
    """Something that a thread waits at until the test opens it."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Wait; the product's thread."""
        self.reached.set()
        assert self._open.wait(60), "nobody opened the gate"

    def open(self) -> None:
        """Let all waiting writes through; called by the test."""
        self._open.set()
