"""A real broker on a real disk for tests, beside the one in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.adapters.clock import SystemClock
from broker.adapters.disk_files import DiskFiles
from broker.adapters.local_metadata_log import LocalMetadataLog
from broker.model.ids import BrokerId
from broker.runtime.broker import Broker
from broker.runtime.commit_scheduler import CommitScheduler
from broker.runtime.membership import Metadata


@contextmanager
def disk_broker(
    folder: Path,
    *,
    watched: Callable[[LocalMetadataLog], Metadata] = lambda log: log,
    on_crash: Callable[[BaseException], None] | None = None,
) -> Iterator[Broker]:
    """Run a broker without tiering in ``folder``, with fsync, until the block ends.

    It follows ``watched`` of its metadata log. Without ``on_crash`` it may not crash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = DiskFiles(folder)
    metadata = LocalMetadataLog(files)
    crashes: list[BaseException] = []
    scheduler = CommitScheduler(1, on_crash or crashes.append)
    scheduler.start()
    broker = Broker(
        cluster="test",
        broker_id=BrokerId("b1"),
        namespace="default",
        files=files,
        metadata=watched(metadata),
        clock=SystemClock(),
        scheduler=scheduler,
    )
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
        scheduler.stop()
        metadata.close()
        files.close()
        assert not crashes, f"a thread crashed: {crashes}"
