"""A real broker on a real disk for tests, beside the one in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from broker.adapters.clock import SystemClock
from broker.adapters.disk.files import DiskFiles
from broker.model.ids import BrokerId
from broker.ports.system import Clock, Files
from broker.runtime.activity import EncodeEvent
from broker.runtime.broker import Broker, BrokerName, BrokerPace, BrokerParts
from broker.runtime.cluster.membership import Alone
from broker.runtime.metadata.lone import open_alone
from broker.runtime.metadata.metadata_log import SharedMetadata
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from broker.runtime.partition.commit_scheduler import CommitScheduler
from broker.runtime.stream_keys import StreamKeys
from broker.storage.promises.promises import Promises

ME: Final = BrokerId("b1")


@contextmanager
def disk_broker(
    folder: Path,
    *,
    wrap: Callable[[DiskFiles], Files] = lambda files: files,
    watched: Callable[[RaftMetadataLog], SharedMetadata] = lambda log: log,
    on_crash: Callable[[BaseException], None] | None = None,
    owner: str | None = None,
    clock: Clock | None = None,
    workers: int = 1,
    keys: StreamKeys | None = None,
    encode_event: EncodeEvent | None = None,
    **settings: Any,
) -> Iterator[Broker]:
    """Run a broker without tiering and services in ``folder``, with fsync, until the block ends.

    It works on ``wrap`` of its files and follows ``watched`` of its metadata log. With ``owner`` it
    and that log share promises, as in the daemon. Without ``on_crash`` it may not crash. It waits
    for a replica that is slow on a busy machine: a test looks at what the replica has done then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    disk = DiskFiles(folder)
    files = wrap(disk)
    promises = None if owner is None else Promises(files, owner)
    clock = clock or SystemClock()
    crashes: list[BaseException] = []
    try:
        metadata = open_alone(
            files,
            cluster="test",
            me=ME,
            clock=SystemClock(),
            on_crash=on_crash or crashes.append,
            promises=promises,
        )
    except BaseException:
        if promises is not None:
            promises.close()
        disk.close()
        raise
    scheduler = CommitScheduler(workers, on_crash or crashes.append)
    scheduler.start()
    followed = watched(metadata)
    broker = Broker(
        BrokerName(cluster="test", broker_id=ME, namespace="default"),
        BrokerParts(
            files=files,
            metadata=followed,
            membership=Alone(followed, ME, files),
            clock=clock,
            scheduler=scheduler,
            promises=promises,
            keys=keys,
            encode_event=encode_event,
        ),
        BrokerPace(**{"patience_s": 60.0, "start_s": 60.0, **settings}),
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        ended = scheduler.stop()
        metadata.close()
        if promises is not None:
            promises.close()
        disk.close()
        assert ended, "a turn hangs"
        assert not crashes, f"a thread crashed: {crashes}"
