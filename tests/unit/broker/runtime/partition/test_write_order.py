"""A publisher's writes stay in their order, though the partition refuses one and takes the next."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

from broker.adapters.access.pace import Pace
from broker.adapters.liftbridge.publish_requests import RequestReader
from broker.adapters.liftbridge.publishing import PublishCall
from broker.adapters.liftbridge.targets import PublishTarget
from broker.errors import ConditionFailedError, NotEnoughReplicasError, NotLeaderError
from broker.model.epochs import LeaderEpoch, PartitionEpoch
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.ports.partition import RecordsOutcome, WriteOrder
from broker.runtime.partition.replica_shell import AloneLinks
from broker.wire.liftbridge import api_pb2 as api
from simkit.brokers.driver_rig import DriverRig, alone_view
from simkit.disk.disk import SimDisk

LEASE_MS = 1_000


class Leased(AloneLinks):
    """A lone broker with a lease that ends."""

    until_ms = 0

    def lease_until_ms(self, leader_epoch: LeaderEpoch) -> int:
        """Return the lease."""
        return self.until_ms


class Scene:
    """A leader, and a clock that ends its lease."""

    def __init__(self) -> None:
        self.links = Leased()
        self.rig = DriverRig(SimDisk(random.Random(1)).files(), links=self.links)
        self.renew()
        self.rig.view(alone_view())

    def lapse(self) -> None:
        """Let the lease end."""
        self.rig.clock.advance(us=2 * LEASE_MS * 1000)

    def renew(self) -> None:
        """Extend the lease."""
        self.links.until_ms = self.rig.clock.monotonic_ms() + LEASE_MS

    def write(self, value: bytes, order: WriteOrder, **facts: Any) -> list[Any]:
        """Submit a record; its outcome is appended to the returned list."""
        heard: list[Any] = []
        batch = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.binary())})
        self.rig.driver.writes.submit_records(batch, None, heard.append, order=order, **facts)
        return heard


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Give a leader."""
    made = Scene()
    yield made
    made.renew()
    made.rig.close()


def test_what_is_behind_a_refused_write_of_its_order_is_refused_too(scene: Scene) -> None:
    """The lease is renewed between the two, so that a write of another order is taken."""
    order = WriteOrder()
    scene.lapse()
    first = scene.write(b"1", order)
    scene.rig.turns.run()
    scene.renew()
    second, other = scene.write(b"2", order), scene.write(b"x", WriteOrder())
    scene.rig.turns.run()
    assert [type(one) for one in first + second] == [NotLeaderError, NotLeaderError]
    assert isinstance(other[0], RecordsOutcome)
    assert scene.rig.values() == [b"x"]


def test_a_write_that_is_refused_for_itself_alone_holds_back_no_other(scene: Scene) -> None:
    """Its condition or its ack policy is not met; its publisher does not submit it again."""
    order = WriteOrder()
    scene.rig.view(replace(alone_view(), min_isr=2, partition_epoch=PartitionEpoch(2)))
    heard = [
        scene.write(b"1", order),
        scene.write(b"2", order, policy=AckPolicy.LEADER, expected_end=Offset(9)),
        scene.write(b"3", order, policy=AckPolicy.LEADER),
    ]
    scene.rig.turns.run()
    kinds = [type(one) for told in heard for one in told]
    assert kinds == [NotEnoughReplicasError, ConditionFailedError, RecordsOutcome]


class Loop:
    """An event loop, and a finder that finds the leader."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.due: list[Callable[[], None]] = []
        self.told: list[str] = []
        self.call = PublishCall(
            cast("Any", self),
            scene.rig.clock,
            self.due.append,
            lambda published, *_: self.told.extend(one.correlation_id for one in published),
            Pace(None, cast("Any", None), "publish"),
        )

    def look_up(self, stream: str, partition: int, found: Callable[[Any], None]) -> None:
        """See ``LookUps``."""
        driver = self._scene.rig.driver
        found(PublishTarget(driver.stream, partition, driver.writes))

    def rests(self, stream: str, partition: int) -> bool:
        """See ``LookUps``."""
        return False

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        """See ``LookUps``."""
        self.due.append(work)

    def run(self) -> None:
        """Run what is due now."""
        due = self.due[:]
        self.due.clear()
        for work in due:
            work()

    def publish(self, value: bytes) -> None:
        """Publish a message; its value is its correlation id."""
        request = api.PublishRequest(stream="s", value=value, correlationId=value.decode())
        self.call.take(RequestReader().read([request.SerializeToString()], [1], 0))


def test_messages_of_a_liftbridge_publisher_are_stored_in_order_after_a_lapsed_lease(
    scene: Scene,
) -> None:
    """The partition refuses the first one, gets its lease again, and could take the second one."""
    loop = Loop(scene)
    scene.lapse()
    loop.publish(b"1")
    scene.rig.turns.run()
    scene.renew()
    loop.publish(b"2")
    for _ in range(4):
        scene.rig.turns.run()
        loop.run()
    assert scene.rig.values() == [b"1", b"2"]
    assert loop.told == ["1", "2"]
