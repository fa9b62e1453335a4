"""Ships one stream of a stopped broker's data directory, timed: ``bench.workers.tiering JSON``.

This is the daemon's tiering on the same local log. The process does nothing else, so its CPU time
is the cost of shipping: read and check the segments, write Parquet, put, read back, commit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker.adapters.clock import SystemClock
from broker.adapters.disk.files import DiskFiles
from broker.model.ids import BrokerId, PartitionId, StreamUuid
from broker.model.lineage import Lineage
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.tiering import RemoteStarts, TierSource
from broker.process.arrow_without_pandas import keep_pandas_out
from broker.process.logging import configure_logging
from broker.runtime.broker import Broker, BrokerName, BrokerParts
from broker.runtime.cluster.membership import Alone
from broker.runtime.metadata.lone import open_alone
from broker.runtime.partition.commit_scheduler import CommitScheduler
from tiering.read.lake import Lake
from tiering.store.location import StoreConfig
from tiering.tiering import Tiering

_TIMEOUT_MS = 1_800_000


class OneStream:
    """A ``TierCatalog`` with one stream, so that no other stream is shipped."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._stream = broker.streams.get(name)

    def streams(self) -> list[Stream]:
        """Return the stream."""
        return [self._stream]

    def sources(self, stream: Stream) -> list[TierSource]:
        """Return the partitions of the stream."""
        return self._broker.catalog().sources(stream)

    def history(self, partition: PartitionId, *, refreshed: bool) -> tuple[Lineage, Offset]:
        """Return a partition's lineage and its recorded cold end."""
        return self._broker.catalog().history(partition, refreshed=refreshed)

    def cold_ends(self, stream: StreamUuid) -> Mapping[int, Offset]:
        """Return the recorded cold ends of the stream's partitions."""
        return self._broker.catalog().cold_ends(stream)

    def source(self, partition: PartitionId) -> tuple[Stream, TierSource] | None:
        """Return a partition of the stream."""
        return self._broker.catalog().source(partition)

    @property
    def remote_starts(self) -> RemoteStarts:
        """See the port."""
        return self._broker.catalog().remote_starts

    def on_leading(self, callback: Callable[[PartitionId, Lineage], bool]) -> None:
        """Do nothing: no leadership begins in this process."""

    def on_sealed(self, callback: Callable[[PartitionId], None]) -> None:
        """Do nothing: segments are sealed only by the flush."""


def main(arguments: list[str]) -> int:
    """Ship the stream and print the result."""
    wanted = json.loads(arguments[0])
    configure_logging(level="warning", format="json")
    keep_pandas_out()
    clock = SystemClock()
    files = DiskFiles(Path(wanted["data_dir"]))
    me = BrokerId("broker-0")
    metadata = open_alone(files, cluster="headwater", me=me, clock=clock, on_crash=_crashed)
    scheduler = CommitScheduler(2, _crashed)
    scheduler.start()
    broker = Broker(
        BrokerName(cluster="headwater", broker_id=me, namespace="default"),
        BrokerParts(
            files=files,
            metadata=metadata,
            membership=Alone(metadata, me, files),
            clock=clock,
            scheduler=scheduler,
        ),
    )
    lake = Lake.open(StoreConfig.from_env(wanted["lake_uri"]), cluster="headwater")
    lake.require_fence()
    broker.start()
    tiering = Tiering(lake, OneStream(broker, wanted["stream"]), clock)
    broker.cold.attach(tiering)
    print(json.dumps(_ship(broker, tiering, wanted["stream"])), flush=True)
    tiering.stop()
    broker.stop()
    scheduler.stop()
    metadata.close()
    files.close()
    return 0


def _ship(broker: Broker, tiering: Tiering, name: str) -> dict[str, Any]:
    stream = broker.streams.get(name)
    segments = [one for source in broker.catalog().sources(stream) for one in source.segments()]
    log_bytes = sum(one.size_bytes for one in segments)
    start, start_cpu = time.perf_counter(), time.process_time()
    tiering.start()
    statuses = tiering.flush(stream, timeout_ms=_TIMEOUT_MS)
    took_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    table = tiering.table_state(stream)
    records = sum(len(status.cold) for status in statuses)
    return {
        "records": records,
        "log_bytes": log_bytes,
        "segments": len(segments),
        "files": table.files_count,
        "files_bytes": table.files_bytes,
        "seconds": took_s,
        "cpu_s": cpu_s,
    }


def _crashed(crash: BaseException) -> None:
    sys.stderr.write(f"crashed: {crash!r}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
