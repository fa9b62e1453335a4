"""One partition, one local lake, and shippers that come and go: what most tiering tests need."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from simkit.tier.faulty_store import FaultyStore
from simkit.tier.source import MemoryTierSource, make_stream
from tiering.config import TieringConfig
from tiering.proof import object_proof
from tiering.proof.proofs import CACHE
from tiering.read.certify import certify_counts
from tiering.read.lake import Lake
from tiering.read.reader import read_rows
from tiering.ship import lifecycle as tier
from tiering.ship.segment_writer import RangeFacts, SegmentPlace, log_rows
from tiering.ship.shipper import PartitionShipper
from tiering.store.location import StoreConfig
from tiering.store.opening import open_store
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.ledger import LedgerEntry
from tiering.table.table import TableSnapshot

CLUSTER = "lab"


class DiedError(Exception):
    """The power went off."""


class TickingClock:
    """A clock that moves on by a millisecond at every look."""

    def __init__(self) -> None:
        self._ms = 1_700_000_000_000

    def now_us(self) -> int:
        """Return microseconds."""
        return self.monotonic_ms() * 1000

    def monotonic_ms(self) -> int:
        """Return milliseconds."""
        self._ms += 1
        return self._ms


class TierLab:
    """A lake, a stream with one partition, its log; the object store can be made to misbehave.

    Every shipper has a table object of its own, as another process would.
    """

    def __init__(self, root: Path | StoreConfig, *, stream: Stream | None = None) -> None:
        location = root if isinstance(root, StoreConfig) else StoreConfig.from_env(str(root))
        self.store = FaultyStore(open_store(location))
        self.lake = Lake(self.store, cluster=CLUSTER)
        self.stream = stream if stream is not None else make_stream()
        self.source = MemoryTierSource(self.stream)
        self.table = self.lake.table(self.stream)

    def shipper(
        self,
        *,
        source: MemoryTierSource | None = None,
        config: TieringConfig | None = None,
        table: DeltaStreamTable | None = None,
    ) -> PartitionShipper:
        """Return a shipper as a freshly started process would have it."""
        return PartitionShipper(
            cluster=CLUSTER,
            source=source if source is not None else self.source,
            table=table if table is not None else self.lake.table(self.stream),
            clock=TickingClock(),
            # Small enough that every segment becomes an object of its own.
            config=config
            if config is not None
            else TieringConfig(object_bytes_max=1, expiry_interval_ms=1, sweep_interval_ms=1),
            starts=(source or self.source).starts,
        )

    def local_entry(self, start: int, end: int) -> LedgerEntry:
        """Return a ledger entry made from the local log, as a repair without the table's log."""
        wanted = OffsetRange(Offset(start), Offset(end))
        place = SegmentPlace(
            cluster=CLUSTER,
            partition=self.source.partition_id,
            subject=self.source.subject,
            path="",
        )
        facts = RangeFacts()
        batches = self.source.read(wanted.start, wanted.end, bytes_max=1 << 30)
        for rows in log_rows(batches, wanted, place):
            facts.add(rows)
        return facts.entry(0)

    def ship_all(self, shipper: PartitionShipper | None = None) -> TableSnapshot:
        """Ship everything sealed; return the table afterwards."""
        shipper = shipper if shipper is not None else self.shipper()
        while shipper.run_cycle():
            pass
        return self.table.snapshot()

    def commit_unnoted(self) -> None:
        """Ship the next segment and die between its commit and its ledger entry."""
        shipper = self.shipper()
        perform = shipper.perform

        def dying(effect: tier.Effect) -> tier.Event:
            if isinstance(effect, tier.WriteLedger):
                raise DiedError
            return perform(effect)

        shipper.perform = dying  # type: ignore[method-assign]
        with pytest.raises(DiedError):
            shipper.run_cycle()


def read_table(
    table: DeltaStreamTable, partition: int, wanted: OffsetRange | None = None
) -> pa.Table:
    """Return the rows of a partition's newest version as the cold reader gives them."""
    snapshot = table.snapshot()
    batches = read_rows(
        snapshot,
        table.store,
        partition,
        wanted if wanted is not None else snapshot.ranges[partition],
    )
    return pa.Table.from_batches(batches, ROW_SCHEMA)


def cut_of(snapshot: TableSnapshot, stream: Stream) -> Cut:
    """Return a cut that ends where the table does."""
    return Cut(
        cluster=snapshot.cluster,
        stream=stream.name,
        stream_uuid=stream.uuid,
        subject=stream.config.subject,
        table_uri=snapshot.uri,
        table_version=snapshot.version,
        partitions=tuple(
            PartitionCut(
                partition=number,
                start=held.start,
                cold_end=held.end,
                hot_end=Offset(held.end),
                leader_epoch=LeaderEpoch(1),
            )
            for number, held in sorted(snapshot.ranges.items())
        ),
        taken_us=1,
        lease=Lease(lease_id=LeaseId("lease"), expires_us=2),
    )


def forget_proofs() -> None:
    """Forget what this process has proved of tables and objects, as a new process would."""
    CACHE.forget()
    object_proof._OBJECTS.forget()


def certify(lab: TierLab, version: int | None = None) -> list[int]:
    """Run the default certificate over a version, with a table object of its own.

    Returns the number of cold records by partition.
    """
    table = lab.lake.table(lab.stream)
    snapshot = table.snapshot(version)
    proofs, _, _ = certify_counts(snapshot, cut_of(snapshot, lab.stream), table.store)
    return [proof.cold_count for proof in proofs]
