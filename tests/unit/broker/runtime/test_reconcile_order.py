"""A broker's threads at once: those that follow the metadata, and the ticker beside them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from broker.core.metadata.commands import Command
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import MetadataState
from broker.model.stream import StreamConfig
from broker.runtime.broker import Broker
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.metadata.metadata_log import Answered
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.runtime.partition.driver import PartitionDriver
from simkit.brokers.brokers import disk_broker


class SlowReader:
    """A metadata log of which one thread gets the state, and then is not run for a while."""

    def __init__(self, log: RaftMetadataLog) -> None:
        self._log = log
        self.slow: threading.Thread | None = None
        self.has_read, self.other_is_done = threading.Event(), threading.Event()

    @property
    def state(self) -> MetadataState:
        """Read; the slow thread gets the state only once the other thread is done or is blocked."""
        found = self._log.state
        if threading.current_thread() is self.slow and not self.has_read.is_set():
            self.has_read.set()
            self.other_is_done.wait(1)
        return found

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """See ``ProposingMetadata.propose_soon``."""
        self._log.propose_soon(command, answered, timeout_ms=timeout_ms)

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """See ``MetadataLog.propose``."""
        return self._log.propose(command, timeout_ms=timeout_ms)

    def barrier(self, *, timeout_ms: int = 1_000) -> int:
        """See ``MetadataLog.barrier``."""
        return self._log.barrier(timeout_ms=timeout_ms)


def test_partitions_are_opened_while_others_look_at_all_of_them(tmp_path: Path) -> None:
    """The ticker lists the partitions while a wide stream is opened, and must not fail."""
    looked: set[int] = set()
    done = threading.Event()
    errors: list[BaseException] = []

    def look(broker: Broker) -> None:
        try:
            while not done.is_set():
                looked.add(len(broker.replicas.all()))
        except RuntimeError as error:
            errors.append(error)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with disk_broker(tmp_path) as broker:
            looker = threading.Thread(target=look, args=(broker,))
            looker.start()
            for number in range(10):
                name = f"wide{number}"
                broker.streams.create(name, StreamConfig(subject=name, partitions=40))
                if errors or len(looked) > 10:  # it looked while they were opened
                    break
            done.set()
            looker.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert not errors
    assert len(looked) > 10, "the looker had no turn while ten streams were opened"


def test_a_broker_whose_ticker_ends_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ticks no replica asks again, reports or frees: that is a crash, not a log line."""
    bug = ValueError("a bug")
    heard: SimpleQueue[BaseException] = SimpleQueue()

    def fails(self: HostedPartitions) -> list[PartitionDriver]:
        raise bug

    with disk_broker(tmp_path, on_crash=heard.put) as broker:
        monkeypatch.setattr(type(broker.replicas), "all", fails)
        assert heard.get(timeout=60) is bug
        monkeypatch.undo()


def test_whoever_comes_last_brings_the_newest(tmp_path: Path) -> None:
    """A thread that read the state first and acts on it last must not restore an old view."""
    made: list[SlowReader] = []

    def watched(log: RaftMetadataLog) -> SlowReader:
        made.append(SlowReader(log))
        return made[0]

    with disk_broker(tmp_path, watched=watched) as broker:
        (metadata,) = made
        metadata.slow = threading.Thread(target=broker.reconcile)
        metadata.slow.start()
        assert metadata.has_read.wait(60)
        stream = broker.streams.create("new", StreamConfig(subject="new"))
        metadata.other_is_done.set()
        metadata.slow.join()
        assert broker.partitions.handle("new", 0).reads.high_watermark == 0, "it is still open here"
        assert [one.name for one in broker.streams.all()] == [stream.name]
