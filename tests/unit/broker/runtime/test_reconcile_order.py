"""Two threads that follow the metadata at once leave replicas with the newest state."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.adapters.local_metadata_log import LocalMetadataLog
from broker.core.metadata.state import MetadataState
from broker.model.stream import StreamConfig
from simkit.brokers import disk_broker


class SlowReader:
    """A metadata log of which one thread gets the state, and then is not run for a while."""

    def __init__(self, log: LocalMetadataLog) -> None:
        self._log = log
        self.slow: threading.Thread | None = None
        self.has_read, self.other_is_done = threading.Event(), threading.Event()

    @property
    def state(self) -> MetadataState:
        """Read; the slow thread comes back with it once the other is done, or cannot be."""
        found = self._log.state
        if threading.current_thread() is self.slow and not self.has_read.is_set():
            self.has_read.set()
            self.other_is_done.wait(1)
        return found

    def propose(self, command: bytes) -> Mapping[str, Any]:
        """See ``MetadataLog.propose``."""
        return self._log.propose(command)

    def barrier(self, *, timeout_ms: int = 1_000) -> int:
        """See ``MetadataLog.barrier``."""
        return self._log.barrier(timeout_ms=timeout_ms)


def test_whoever_comes_last_brings_the_newest(tmp_path: Path) -> None:
    """A thread that read the state first and acts on it last must not bring an old one back."""
    made: list[SlowReader] = []

    def watched(log: LocalMetadataLog) -> SlowReader:
        made.append(SlowReader(log))
        return made[0]

    with disk_broker(tmp_path, watched=watched) as broker:
        (metadata,) = made
        metadata.slow = threading.Thread(target=broker.reconcile)
        metadata.slow.start()
        assert metadata.has_read.wait(10)
        stream = broker.create_stream("new", StreamConfig(subject="new"))
        metadata.other_is_done.set()
        metadata.slow.join()
        assert broker.partition("new", 0).high_watermark == 0, "it is still open here"
        assert [one.name for one in broker.streams()] == [stream.name]
