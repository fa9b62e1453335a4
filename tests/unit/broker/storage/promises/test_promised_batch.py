"""Two copies of a data folder were written apart: a log of one is not taken for the other's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.storage.log.config import LogConfig
from broker.storage.log.partition_log import PartitionLog
from broker.storage.promises.promises import Promises
from cases import each_of, seeds
from simkit.disk.disk import SimDisk
from simkit.log.batches import FOLDER, PARTITION, SMALL, raw_batch

EPOCH = LeaderEpoch(1)
BOTH, MINE, TWIN = 1, 2, 3


class Node:
    """One copy of a data folder: a log and its promises."""

    def __init__(self, seed: int, config: LogConfig = SMALL) -> None:
        self.disk, self.config = SimDisk(random.Random(seed)), config
        self.start()

    def start(self) -> PartitionLog:
        """Open the log and its promises."""
        files = self.disk.files()
        self.promises = Promises(files)
        self.log = PartitionLog.open(
            files, FOLDER, PARTITION, self.config, promise=self.promises.replica(PARTITION)
        )
        self.promises.sync()
        return self.log

    def start_and_ask(self) -> str:
        """Open the log and its promises; return why the log is damaged."""
        self.start()
        return self.reason

    def write(self, *fills: int, records: int = 1) -> None:
        """Append a batch for each byte, synced one by one."""
        for fill in fills:
            batch = raw_batch(fill, records=records)
            self.log.append([batch], leader_epoch=EPOCH, now_us=1)
            self.log.sync()

    def restart(self) -> PartitionLog:
        """Be killed, and start again."""
        self.disk.kill()
        return self.start()

    def put_folder_of(self, other: Node) -> None:
        """Exchange the partition's folder for the other copy's; the promises stay."""
        self.disk.kill()
        self.disk.exchange(FOLDER, other.disk.copy_of(FOLDER))

    @property
    def reason(self) -> str:
        """Return why the log is damaged, or an empty text."""
        damaged = self.log.recovery.damaged
        return damaged[0].message if damaged else ""


def _twins(*common: int) -> tuple[Node, Node]:
    nodes = Node(1), Node(1)
    for node in nodes:
        node.write(*common)
    return nodes


def test_a_twin_s_folder_of_the_same_length_is_named() -> None:
    """Epochs and ends are equal, and the records are not."""
    mine, twin = _twins(BOTH)
    mine.write(MINE)
    twin.write(TWIN)
    mine.put_folder_of(twin)
    assert "another copy of this data folder" in mine.start_and_ask()
    assert mine.log.recovery.lost_end_error is not None


def test_a_twin_s_longer_folder_is_named_whatever_its_batches() -> None:
    """The promised end lies between two of its batches, or within one."""
    for fills, records in ((range(3, 6), 1), ([3], 4)):
        mine, twin = _twins(BOTH)
        mine.write(MINE)
        twin.write(*fills, records=records)
        mine.put_folder_of(twin)
        assert "another copy" in mine.start_and_ask(), records


def test_the_same_folder_brought_back_is_healthy() -> None:
    """A copy that was not written to since holds every promised record."""
    mine, twin = _twins(1, 2)
    mine.put_folder_of(twin)
    assert not mine.start_and_ask()
    mine.write(3)
    assert mine.restart().log_end == Offset(3)


def test_a_twin_is_named_after_restarts_without_a_write() -> None:
    """A start lowers no promise: the promised batch is looked up in the log."""
    mine, twin = _twins(BOTH)
    mine.write(MINE)
    twin.write(TWIN)
    for _ in range(2):
        mine.restart()
        mine.log.close()
        mine.start()
    mine.put_folder_of(twin)
    assert mine.start().recovery.damaged


def _free(node: Node) -> None:
    node.log.seal_active(1)
    node.log.free([node.log.segments()[0].base_offset])


def _cut(node: Node) -> None:
    node.log.truncate(Offset(node.log.log_end - 1))


@pytest.mark.parametrize("change", [_free, _cut], ids=lambda one: one.__name__)
def test_a_log_that_was_freed_or_cut_is_healthy(change: Callable[[Node], None]) -> None:
    """Whatever moves an end keeps the mark of the batch before it, or has none."""
    node = Node(2)
    node.write(1, 2, 3)
    change(node)
    end = node.log.log_end
    assert not node.restart().recovery.damaged
    node.write(4)
    assert node.restart().log_end == end + 1
    assert not node.reason


def test_promises_of_an_older_build_have_no_mark_and_are_believed_once() -> None:
    """The missing mark is then taken from the log."""
    node = Node(3)
    node.write(1)
    promise = node.promises.replica(PARTITION)
    promised = promise.promised
    assert promised is not None
    slot = node.promises.make_slot(PARTITION)
    node.promises.write(
        slot, kind=slot.values.kind, key=slot.values.key, number=slot.values.number,
        second=slot.values.second, third=slot.values.third,
    )  # fmt: skip
    assert promise.promised == replace(promised, mark=0)
    assert not node.restart().recovery.damaged
    found = Promises(node.disk.files()).replica(PARTITION).promised
    assert found == promised


@each_of(seeds(150))
def test_no_end_of_a_process_makes_a_healthy_log_another_s(seed: int) -> None:
    """Kills and power cuts at any moment of writing, cutting and freeing: never a false alarm."""
    rng = random.Random(seed)
    node = Node(seed)
    for number in range(40):
        act = rng.randrange(8)
        if act < 5:
            node.log.append([raw_batch(number)], leader_epoch=EPOCH, now_us=1)
            if act < 4:
                node.log.sync()
        elif act == 5 and node.log.log_end > node.log.log_start:
            node.log.truncate(Offset(rng.randint(node.log.log_start, node.log.log_end)))
        elif act == 6 and len(node.log.segments()) > 1:
            node.log.free([node.log.segments()[0].base_offset])
        elif act == 7:
            node.promises.sync()
        if rng.random() < 0.15:
            node.disk.lose_power() if rng.random() < 0.5 else node.disk.kill()
            assert not node.start().recovery.damaged, seed
