"""A full disk is overload: writes are refused, publishers wait, and no log needs a restart."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from broker.errors import DescriptorsExhaustedError, DiskFullError, HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import FetchAnswer, FetchRequest
from broker.model.replica_state import ReplicaState
from broker.storage.log.partition_log import PartitionLog
from broker.storage.promises.promises import PROMISES_NAME, Promises
from simkit.brokers.driver_rig import ME, DriverRig, alone_view
from simkit.brokers.quiet_links import OTHER, QuietLinks, following
from simkit.disk.bad_files import BadFiles
from simkit.disk.disk import SimDisk

NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]


class _Rig(DriverRig):
    """A replica with promises, on a disk whose writes can be refused by path."""

    def __init__(self, disk: SimDisk, links: QuietLinks | None = None) -> None:
        self.bad = BadFiles(disk.files())
        super().__init__(self.bad, promises=Promises(self.bad), links=links)

    def state(self) -> ReplicaState:
        """Return the state that operators see."""
        return self.driver.state

    def maintain(self) -> None:
        """Let the regular work of a partition run."""
        self.clock.advance(us=250_000)
        self.driver.maintenance.tick()
        self.driver.replication.tick()
        self.turns.run()


@pytest.mark.parametrize("number", NO_ROOM)
def test_a_promise_without_room_lets_its_publishers_wait(number: int) -> None:
    """The record is written and durable; it is answered once, when its promise is made."""
    disk = SimDisk(random.Random(1))
    rig = _Rig(disk)
    rig.put(b"first")
    rig.turns.run()
    rig.bad.unwritable[PROMISES_NAME] = number
    with capture_logs() as lines:
        waits = rig.put(b"waits")
        rig.turns.run()
        refused = rig.put(b"refused")
        rig.turns.run()
        rig.maintain()
        assert waits == []
        assert isinstance(refused[0], DiskFullError)
        assert rig.state() is ReplicaState.FULL
        assert rig.driver.health.failure is None
        assert rig.values() == [b"first"], "nothing is shown that is not promised"
        rig.bad.unwritable.clear()
        rig.maintain()
    assert [one.base_offset for one in waits] == [1]
    assert rig.state() is ReplicaState.LEADING
    again = rig.put(b"again")
    rig.turns.run()
    assert again[0].base_offset == 2
    assert rig.values() == [b"first", b"waits", b"again"]
    told = [one["event"] for one in lines if "disk_" in one["event"]]
    assert told == ["disk_full", "disk_has_room"]
    disk.kill()
    promised = Promises(disk.files()).replica(rig.driver.partition_id).promised
    assert promised is not None
    assert promised.end == 3


def test_a_failed_sync_of_the_promises_is_not_tried_again() -> None:
    """The disk's content is unknown then: also when there is room again, nothing is promised."""
    disk = SimDisk(random.Random(1))
    rig = _Rig(disk)
    rig.bad.unwritable[PROMISES_NAME] = errno.EIO
    failed = rig.put(b"x")
    rig.turns.run()
    assert isinstance(failed[0], HeadwaterError)
    rig.bad.unwritable.clear()
    rig.maintain()
    assert rig.driver.state is ReplicaState.FAILED


def test_records_that_could_not_be_read_for_a_follower_are_not_refused() -> None:
    """They are in the log; without a free descriptor the follower gets them when it asks again."""
    disk = SimDisk(random.Random(1))
    links = QuietLinks()
    rig = DriverRig(disk.files(), links=links, replication_factor=2)
    both = {ME: BrokerEpoch(1), OTHER: BrokerEpoch(2)}
    rig.view(
        replace(
            alone_view(), replicas=(ME, OTHER), isr=frozenset({ME}), broker_epochs=both,
            joinable=frozenset(both),
        )
    )  # fmt: skip
    request = FetchRequest(
        follower=OTHER, broker_epoch=BrokerEpoch(2), leader_epoch=LeaderEpoch(1), request_id=1,
        fetch_from=Offset(0), last_epoch=LeaderEpoch(0), synced_end=Offset(0), wait_ms=500,
    )  # fmt: skip
    rig.driver.replication.deliver(request)
    rig.turns.run()
    with patch.object(PartitionLog, "read", side_effect=DescriptorsExhaustedError("none is free")):
        answers = rig.put(b"x", policy=AckPolicy.LEADER)
        rig.turns.run()
    assert [one.base_offset for one in answers] == [0]


def test_a_follower_whose_promise_has_no_room_tells_its_end_once_there_is() -> None:
    """Its leader must not count what a restart could take for lost."""
    leader = DriverRig(SimDisk(random.Random(1)).files())
    leader.put(b"x")
    leader.turns.run()
    batches = tuple(leader.driver.reads.read(Offset(0), Offset(1), bytes_max=1 << 20))
    links = QuietLinks()
    rig = _Rig(SimDisk(random.Random(2)), links=links)
    request = following(rig, links)
    rig.bad.unwritable[PROMISES_NAME] = errno.ENOSPC
    rig.driver.replication.deliver(
        FetchAnswer(
            leader_epoch=LeaderEpoch(1), request_id=request.request_id, start=Offset(0),
            high_watermark=Offset(1), log_end=Offset(1), batches=batches,
        )
    )  # fmt: skip
    rig.turns.run()
    for _ in range(3):
        rig.maintain()
    told = links.asked_last()
    assert (told.fetch_from, told.synced_end) == (1, 0)
    assert rig.state() is ReplicaState.FULL
    rig.bad.unwritable.clear()
    for _ in range(3):
        rig.maintain()
    told = links.asked_last()
    assert (told.fetch_from, told.synced_end) == (1, 1)
    assert rig.state() is ReplicaState.FOLLOWING
