"""One partition's disk hangs: no work for other partitions waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.disk.files import DiskFiles
from broker.codec.record_batch import prepare
from broker.errors import OverloadedError, ShuttingDownError
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.ports.system import File
from broker.runtime import hosted_partitions
from broker.runtime.broker import Broker
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.queue import MESSAGES_MAX, TurnQueue
from simkit.brokers.brokers import disk_broker
from simkit.brokers.driver_rig import Gate, ManualTurns

WAIT_S = 60


class GatedFile:
    """A file whose fsync waits at a gate while there is one for its path."""

    def __init__(self, file: File, path: str, gates: dict[str, Gate]) -> None:
        self._file, self._path, self._gates = file, path, gates

    def datasync(self) -> None:
        """Wait first."""
        for part, gate in list(self._gates.items()):
            if part in self._path:
                gate.wait()
        self._file.datasync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class GatedFiles:
    """A real folder with gates."""

    def __init__(self, files: DiskFiles, gates: dict[str, Gate]) -> None:
        self._files, self._gates = files, gates

    def open(self, path: str, *, create: bool = False) -> Any:
        """Open behind the gates."""
        return GatedFile(self._files.open(path, create=create), path, self._gates)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class Scene:
    """A broker with a stream ``slow`` whose fsync hangs, and further streams of the test."""

    def __init__(self, broker: Broker, root: Path, gates: dict[str, Gate]) -> None:
        self.broker, self._root, self._gates = broker, root, gates
        self.gate = Gate()

    def stream(self, name: str, **settings: Any) -> PartitionDriver:
        """Create a stream of one partition."""
        self.broker.streams.create(name, StreamConfig(subject=name, **settings))
        return self.broker.partitions.handle(name, 0)

    def hang(self, driver: PartitionDriver) -> SimpleQueue[Any]:
        """Publish into a partition whose disk hangs from now on; return where the answer comes."""
        self._gates[driver.partition_id.stream_uuid] = self.gate
        answers = send(driver, b"hangs")
        assert self.gate.reached.wait(WAIT_S)
        return answers

    def has(self, path: str) -> bool:
        """Tell whether a folder of the broker is there."""
        return (self._root / path).exists()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Return a scene whose broker has short timeouts."""
    gates: dict[str, Gate] = {}
    with disk_broker(
        tmp_path,
        wrap=lambda disk: GatedFiles(disk, gates),
        workers=3,
        tick_ms=10,
        patience_s=0.05,
    ) as broker:
        made = Scene(broker, tmp_path, gates)
        yield made
        made.gate.open()


def send(driver: PartitionDriver, *values: bytes) -> SimpleQueue[Any]:
    """Publish without waiting."""
    answers: SimpleQueue[Any] = SimpleQueue()
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    driver.writes.submit([prepare(batch, now_us=1)], answers.put)
    return answers


def offset(answers: SimpleQueue[Any]) -> int:
    """Wait for an answer."""
    return int(answers.get(timeout=WAIT_S)[0].base_offset)


def until(condition: Any) -> None:
    """Tick until a condition holds."""
    done = threading.Event()
    for _ in range(WAIT_S * 50):
        if condition():
            return
        done.wait(0.02)
    raise AssertionError("the condition did not hold in time")


def test_others_publish_roll_expire_and_free(scene: Scene) -> None:
    """The ticker does not wait; one maintenance of the slow partition stays queued."""
    slow = scene.stream("slow", segment_age_ms_max=100)
    other = scene.stream("other", segment_age_ms_max=100, local_retention_bytes=0)
    pending = scene.hang(slow)
    assert offset(send(other, b"a")) == 0
    until(lambda: len(other.tier.segments()) > 1)  # rolled by age
    other.tier.record_cold_end(Offset(1))
    until(lambda: other.reads.log_start == 1)  # and freed
    assert pending.empty()
    scene.gate.open()
    assert offset(pending) == 0


def test_nothing_that_a_tick_wants_of_a_slow_partition_is_waited_for(scene: Scene) -> None:
    """The slow partition could free segments: the ticker queues that once, and goes on."""
    slow = scene.stream("slow", segment_bytes_max=4096, local_retention_bytes=0)
    for number in range(6):
        assert offset(send(slow, bytes(1500))) == number
    slow._local.retries.window.expire(2**62)
    other = scene.stream("other", segment_age_ms_max=100)
    pending = scene.hang(slow)
    slow.tier.record_cold_end(Offset(4))
    until(lambda: slow.frees.queued)
    for _ in range(3):
        before = len(other.tier.segments())
        send(other, b"x").get(timeout=WAIT_S)
        until(lambda before=before: len(other.tier.segments()) > before)
    kinds = 4  # a tick, maintenance, freeing, and a view if a reconcile came in between
    assert sum(1 for one in slow._queue._queue if not hasattr(one, "policy")) <= kinds
    scene.gate.open()
    offset(pending)
    until(lambda: slow.reads.log_start == 4)


def test_new_streams_open_and_old_ones_go(scene: Scene) -> None:
    """The broker follows its metadata; the slow partition does its part later."""
    slow, other = scene.stream("slow"), scene.stream("other")
    pending = scene.hang(slow)
    assert offset(send(scene.stream("new"), b"a")) == 0
    uuid = scene.broker.streams.delete("other").uuid
    with pytest.raises(ShuttingDownError):
        send(other, b"b")
    until(lambda: not scene.has(f"streams/{uuid}"))
    scene.gate.open()
    assert offset(pending) == 0


def test_a_slow_stream_is_deleted_when_it_lets_go(scene: Scene) -> None:
    """Its files are removed once its fsync has returned, and no thread waits for that."""
    slow = scene.stream("slow")
    scene.hang(slow)
    uuid = scene.broker.streams.delete("slow").uuid
    assert scene.has(f"streams/{uuid}/0")
    assert scene.broker.replicas.all() == []
    again = scene.stream("slow")
    assert offset(send(again, b"another stream of this name")) == 0
    scene.gate.open()
    until(lambda: not scene.has(f"streams/{uuid}"))


def test_a_partition_that_is_here_again_is_opened_when_its_former_log_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved away and back: the removal asks for a reconcile, for no other change may come."""
    slow = scene.stream("slow")
    pending = scene.hang(slow)
    replicas, state = scene.broker.replicas, scene.broker._metadata.state
    partition_id, asked = slow.partition_id, list[str]()
    monkeypatch.setattr(replicas, "_on_late", lambda: None)
    (row,) = state.partitions[partition_id.stream_uuid]
    rows = (replace(row, replicas=(BrokerId("elsewhere"),)),)
    away = replace(state, partitions={**state.partitions, partition_id.stream_uuid: rows})
    for seen in (away, state):
        replicas.reconcile(seen)
        assert replicas.find(partition_id) is None
    scene.gate.open()
    assert offset(pending) == 0
    monkeypatch.setattr(replicas, "_on_late", lambda: asked.append("a reconcile"))
    replicas.reconcile(state, patience_s=WAIT_S)
    assert asked == ["a reconcile"]
    replicas.reconcile(state)
    assert replicas.find(partition_id) is not None


def test_others_are_closed_while_one_hangs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordered stop ends: all logs are closed in parallel, and a hanging one is left open."""
    monkeypatch.setattr(hosted_partitions, "CLOSE_S", 0.2)
    slow, other = scene.stream("slow"), scene.stream("other")
    scene.hang(slow)
    assert offset(send(other, b"a")) == 0
    scene.broker.stop()
    until(lambda: other._local.log._active is None)  # its log is closed


def test_views_that_wait_are_one(scene: Scene) -> None:
    """A slow partition gets the newest view, not all that there were."""
    slow = scene.stream("slow")
    view = slow.replication.view
    pending = scene.hang(slow)
    calls = {id(slow.replication.take_view(view)) for _ in range(100)}
    assert len(calls) == 1
    scene.gate.open()
    assert offset(pending) == 0


def test_what_waits_for_a_turn_is_bounded() -> None:
    """Beyond a number and a size messages of replicas are dropped, and calls are refused."""

    class Owner:
        def run_turn(self) -> None:
            """Never take a turn."""

    queue = TurnQueue(Owner(), ManualTurns(), "s/0")
    taken: Sequence[bool] = [queue.offer(lambda: None, 10) for _ in range(MESSAGES_MAX + 5)]
    assert sum(taken) == MESSAGES_MAX
    large = TurnQueue(Owner(), ManualTurns(), "s/0")
    assert [large.offer(lambda: None, 1 << 26) for _ in range(3)] == [True, False, False]
    for _ in range(1024):
        large.begin(lambda: None)
    with pytest.raises(OverloadedError, match="1024 calls"):
        large.call(lambda: None)
