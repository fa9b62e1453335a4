"""Partitions that take no records, on a real log: what the leader does, and who is told."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.errors import HeadwaterError, PartitionPausedError, PartitionReadonlyError
from broker.model.replica_state import ReplicaState
from broker.model.stream import StreamConfig
from broker.runtime.led import LedPartitions
from broker.runtime.partition.driver import PartitionDriver
from simkit.brokers.driver_rig import DriverRig, alone_view
from simkit.brokers.lone_broker import STREAM, Running, running

CONFIG = StreamConfig(subject="s", tiering=False, partitions=2)
STOPPED: tuple[tuple[dict[str, Any], type[HeadwaterError], ReplicaState], ...] = (
    ({"paused": True}, PartitionPausedError, ReplicaState.PAUSED),
    ({"readonly": True}, PartitionReadonlyError, ReplicaState.READONLY),
)


class Told:
    """Hears which partitions of a stream are served."""

    def __init__(self) -> None:
        self.numbers: SimpleQueue[set[int]] = SimpleQueue()

    def led_changed(self, led: LedPartitions) -> None:
        """Note it."""
        self.numbers.put(set(led.numbers))

    def wait_without(self, partition: int) -> None:
        """Wait until a partition is not served any more."""
        while partition in self.numbers.get(timeout=60):
            pass


@pytest.mark.parametrize(("mark", "error", "state"), STOPPED)
def test_writes_are_taken_up_to_the_view_and_not_after_it(
    tmp_path: Path, mark: dict[str, Any], error: type[HeadwaterError], state: ReplicaState
) -> None:
    """What was queued before is stored and answered; what was queued behind is refused."""
    rig = DriverRig(DiskFiles(tmp_path))
    before = rig.put(b"before")
    rig.driver.replication.take_view(replace(alone_view(), **mark))
    behind = rig.put(b"behind")
    assert rig.driver.state is ReplicaState.LEADING
    rig.turns.run()
    assert before[0].base_offset == 0
    assert isinstance(behind[0], error)
    assert rig.driver.state is state
    with pytest.raises(error):
        rig.put(b"later")
    assert rig.values() == [b"before"]
    rig.view(alone_view())
    again = rig.put(b"again")
    rig.turns.run()
    assert again[0].base_offset == 1
    rig.close()


def test_random_views_and_writes_agree(tmp_path: Path) -> None:
    """A write is stored exactly if the newest view before it lets it be; 300 steps."""
    rig, rng = DriverRig(DiskFiles(tmp_path)), random.Random(7)
    stored: list[bytes] = []
    stopped = False
    for number in range(300):
        if rng.random() < 0.3:
            paused, readonly = rng.random() < 0.3, rng.random() < 0.3
            stopped = paused or readonly
            rig.driver.replication.take_view(
                replace(alone_view(), paused=paused, readonly=readonly)
            )
            if rng.random() < 0.5:
                rig.turns.run()
        value = b"%d" % number
        try:
            rig.put(value)
        except (PartitionPausedError, PartitionReadonlyError):
            rig.turns.run()
            assert stopped or rig.driver.state is ReplicaState.LEADING
            continue
        rig.turns.run()
        if not stopped:
            stored.append(value)
    assert rig.values() == stored
    rig.close()


def test_a_pause_survives_a_restart(tmp_path: Path) -> None:
    """So does read-only, without a write in between."""
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, CONFIG)
        assert live.put(b"a").base_offset == 0
        live.broker.pauses.pause(STREAM, (0,))
        live.broker.pauses.set_readonly(STREAM, (1,))
    with running(tmp_path) as live:
        assert isinstance(live.put(b"b"), PartitionPausedError)
        assert live.partition.state is ReplicaState.PAUSED
        assert live.broker.partitions.handle(STREAM, 1).state is ReplicaState.READONLY
        assert live.rows() == [b"a"], "what is stored is read as before"
        live.broker.pauses.wake(STREAM, 0)
        assert live.put(b"b").base_offset == 1


def test_the_subscription_of_a_paused_partition_ends_and_begins_again(tmp_path: Path) -> None:
    """A read-only partition keeps its own, so that publishers are told."""
    told = Told()
    with running(tmp_path) as live:
        live.broker.add_listener(told)
        live.broker.streams.create(STREAM, CONFIG)
        live.broker.pauses.pause(STREAM, (1,))
        live.broker.pauses.set_readonly(STREAM)
        live.broker.pauses.resume(STREAM)
    assert [told.numbers.get() for _ in range(3)] == [{0, 1}, {0}, {0, 1}]
    assert told.numbers.empty()


def test_the_times_of_records_are_kept_by_the_leader(tmp_path: Path) -> None:
    """First and last of this process."""
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, CONFIG)
        assert live.partition.received_us == (0, 0)
        live.put(b"a")
        first = live.partition.received_us
        assert first[0] == first[1] > 0
        live.put(b"b")
        assert live.partition.received_us[0] == first[0]
        assert live.partition.received_us[1] >= first[1]


def test_an_idle_partition_is_paused_by_its_leader(tmp_path: Path) -> None:
    """Once, from its last record on; a wake begins anew, and other partitions are not touched."""
    told = Told()
    with running(tmp_path) as live:
        live.broker.add_listener(told)
        live.broker.streams.create(STREAM, CONFIG)
        assert live.put(b"a").base_offset == 0
        live.broker.streams.alter(STREAM, {"auto_pause_ms": 100})
        told.wait_without(0)
        assert isinstance(live.put(b"b"), PartitionPausedError)
        live.broker.streams.alter(STREAM, {"auto_pause_ms": None})
        live.broker.pauses.wake(STREAM, 0)
        assert live.put(b"b").base_offset == 1
        place = live.broker.partitions.places(STREAM)[0]
        assert place.pause_us[1] > place.pause_us[0] > 0


def test_a_follower_keeps_a_partition_awake_if_the_stream_says_so(tmp_path: Path) -> None:
    """Only as long as it follows."""
    config = replace(CONFIG, partitions=1, auto_pause_unless_subscribed=True)
    told = Told()
    with running(tmp_path) as live:
        live.broker.add_listener(told)
        with _created(live, config).followed():
            live.put(b"a")
            # Only now: a busy machine may need more than 100 ms from its making to the follower.
            live.broker.streams.alter(STREAM, {"auto_pause_ms": 100})
            ticks = live.partition.counters
            for _ in range(20):
                live.partition.maintenance.tick()
            assert ticks.followers == 1
            assert not live.partition.is_paused
        told.wait_without(0)
        assert live.partition.counters.followers == 0


def _created(live: Running, config: StreamConfig) -> PartitionDriver:
    live.broker.streams.create(STREAM, config)
    return live.partition
