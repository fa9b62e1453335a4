"""Three replicas of one compacted stream without a table, whose messages the test delivers.

The metadata is a view that every replica sees at once; proposed ISRs are accepted.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from broker.core.replication.effects import ProposeIsr
from broker.core.replication.view import PartitionView
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.replica_messages import ReplicaMessage
from broker.model.replica_state import PassState
from broker.storage.promises.promises import Promises
from simkit.brokers.driver_rig import DriverRig, alone_view
from simkit.brokers.memory_broker import FakeClock
from simkit.brokers.quiet_links import QuietLinks
from simkit.disk.disk import SimDisk
from simkit.log.keyed import keyed_batch, rows_of

A, B, N = (BrokerId(name) for name in "abn")
SETTINGS: Final[dict[str, Any]] = {
    "compact": True, "tiering": False, "segment_bytes_max": 4096, "dedup_window_ms": 0,
    "compact_dirty_percent": 1, "tombstone_delay_ms": 1000, "replication_factor": 3,
}  # fmt: skip
_ROUND_US: Final = 300_000
Pair = tuple[bytes | None, bytes | None]


class _Links(QuietLinks):
    def __init__(self, trio: ReplicaTrio, me: BrokerId) -> None:
        super().__init__()
        self._trio, self._me = trio, me

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """Queue it, unless the link is cut."""
        if not self._trio.cut & {self._me, to}:
            self._trio.queue.append((to, message))

    def propose_isr(self, wanted: ProposeIsr, answered: Callable[[bool], None]) -> None:
        """Accept it in the next round."""
        self._trio.proposed.append(wanted)


class ReplicaTrio:
    """``a`` leads and ``b`` is in sync; ``n`` copies the log."""

    def __init__(self) -> None:
        """Begin with empty logs."""
        self.clock = FakeClock()
        self.queue: deque[tuple[BrokerId, ReplicaMessage]] = deque()
        self.proposed: list[ProposeIsr] = []
        self.cut: set[BrokerId] = set()
        self.disks = {one: SimDisk(random.Random(1)) for one in (A, B, N)}
        self.rigs: dict[BrokerId, DriverRig] = {}
        self.view = replace(
            alone_view(A),
            replicas=(A, B, N),
            isr=frozenset((A, B)),
            broker_epochs=dict.fromkeys((A, B, N), BrokerEpoch(1)),
            joinable=frozenset((A, B, N)),
        )
        self.begun_anew: list[BrokerId] = []
        for one in (A, B, N):
            self._open(one)
        self.show(self.view)

    # ------------------------------------------------------------------ metadata, processes

    def show(self, view: PartitionView) -> None:
        """Show everybody a view."""
        self.view = view
        for rig in self.rigs.values():
            rig.view(view)

    def lead(self, leader: BrokerId) -> None:
        """Elect another leader."""
        epoch = self.view.leader_epoch + 1
        self.show(replace(self._next(), leader=leader, leader_epoch=LeaderEpoch(epoch)))

    def restart(self, name: BrokerId) -> None:
        """Kill a replica's process and open its log again."""
        self.disks[name].kill()
        epochs = {**self.view.broker_epochs, name: BrokerEpoch(self.view.broker_epochs[name] + 1)}
        self.view = replace(self._next(), broker_epochs=epochs)
        self._open(name)
        self.show(self.view)

    def _next(self) -> PartitionView:
        return replace(self.view, partition_epoch=PartitionEpoch(self.view.partition_epoch + 1))

    def _open(self, name: BrokerId) -> None:
        files = self.disks[name].files()
        rig = self.rigs[name] = DriverRig(
            files, me=name, epoch=self.view.broker_epochs[name], clock=self.clock,
            links=_Links(self, name), promises=Promises(files), **SETTINGS,
        )  # fmt: skip
        local: Any = rig.driver._local
        begin = local.replace

        def watched(*args: Any) -> None:
            self.begun_anew.append(name)
            begin(*args)

        local.replace = watched

    # ------------------------------------------------------------------ work

    @property
    def leader_name(self) -> BrokerId:
        """The broker that leads."""
        assert self.view.leader is not None, "somebody always leads"
        return self.view.leader

    @property
    def leader(self) -> DriverRig:
        """The replica that leads."""
        return self.rigs[self.leader_name]

    def put(self, *pairs: Pair) -> None:
        """Publish one batch."""
        batch = keyed_batch(pairs, stamp_us=self.clock.now_us())
        self.leader.driver.writes.submit([batch], lambda _: None)
        self.leader.turns.run()

    def round(self, *, messages: int = 1000) -> None:
        """Let some time pass and deliver some messages."""
        self.clock.advance(us=_ROUND_US)
        for rig in self.rigs.values():
            rig.driver.replication.tick()
            rig.turns.run()
        while self.queue and messages:
            messages -= 1
            to, message = self.queue.popleft()
            self.rigs[to].driver.replication.deliver(message)
            self.rigs[to].turns.run()
        proposed, self.proposed = self.proposed, []
        for one in proposed:
            if one.partition_epoch == self.view.partition_epoch:
                self.show(replace(self._next(), isr=frozenset(one.isr)))

    def is_settled(self) -> bool:
        """Tell whether all of the leader's records are committed."""
        driver = self.leader.driver
        return driver.reads.high_watermark == driver.reads.log_end

    def settle(self, done: Callable[[], bool] | None = None) -> None:
        """Take rounds until ``done``; without it, until all three logs are in sync."""
        for _ in range(2000):
            if (done or self._is_level)():
                return
            self.round()
        raise AssertionError(f"it does not settle: {self.view}")

    def _is_level(self) -> bool:
        end = self.leader.driver.reads.log_end
        reads = [rig.driver.reads for rig in self.rigs.values()]
        same = all(one.log_end == one.high_watermark == end for one in reads)
        return same and self.view.isr == {A, B, N}

    def compact(self, name: BrokerId) -> PassState:
        """Ask one replica for a pass, and wait for its end."""
        rig = self.rigs[name]
        ticket = f"{self.clock.now_us()}"
        for _ in range(10_000):
            report = rig.driver.compaction.ask(ticket)
            if report.state not in (PassState.WAITING, PassState.RUNNING):
                return report.state
            self.step(name)
        raise AssertionError("the pass does not end")

    def step(self, name: BrokerId) -> None:
        """Take one step of a replica's compaction."""
        self.rigs[name].driver.compaction.step(lambda: Offset(OFFSET_MAX))
        self.rigs[name].turns.run()

    def state(self, name: BrokerId) -> dict[bytes, bytes]:
        """Return the newest value of each key, as a reader from earliest learns it."""
        newest = {one.key: one.value for one in rows_of(self.rigs[name].driver._local.log)}
        return {
            key: value for key, value in newest.items() if key is not None and value is not None
        }
