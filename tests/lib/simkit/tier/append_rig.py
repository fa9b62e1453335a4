"""A served stream and tables to append it to, without a JVM: slices run in the test's process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from broker.model.offsets import Offset, OffsetRange
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.tier.lake_broker import Served, serving
from spark_jobs.tables import Appender, Source, Target
from spark_jobs.tables.slice_task import AppendWork, SliceDone, SliceWork, run_here
from tiering.read.lake import storage_options_of
from tiering.store.location import StoreConfig
from tiering.store.opening import open_store


class AppendRig:
    """One stream ``s`` and its client."""

    def __init__(self, served: Served, partitions: int, *, tiering: bool = True) -> None:
        self.client = Client(served.server)
        self.client.create_stream("s", partitions=partitions, tiering=tiering)
        self.source = Source.of("s", served.server)
        self.server = served.server
        self.partitions = partitions

    def fill(self, count: int) -> None:
        """Append ``count`` more records to every partition."""
        described = self.client.describe("s")
        for part in described.partitions:
            with self.client.producer("s", part.partition) as producer:
                producer.send(numbered(int(part.high_watermark), count))

    def appender(self, target: Target, transform: Any = None, **options: Any) -> Appender:
        """Return an appender that runs its slices here."""
        options.setdefault("run", run_here)
        return Appender(None, target, self.source, transform, **options)


@contextmanager
def append_rig(
    lake: StoreConfig | str, *, partitions: int = 1, tiering: bool = True
) -> Iterator[AppendRig]:
    """Serve a stream while the block runs."""
    with serving(lake) as served:
        yield AppendRig(served, partitions, tiering=tiering)


def ranges(*bounds: tuple[int, int]) -> dict[int, OffsetRange]:
    """Return one range per partition, from 0 on."""
    return {
        number: OffsetRange(Offset(low), Offset(high)) for number, (low, high) in enumerate(bounds)
    }


def opened(target: Target) -> DeltaTable:
    """Open a target's newest version with delta-rs."""
    return DeltaTable(target.uri, storage_options=storage_options_of(open_store(target.store))())


def table_rows(target: Target, columns: Sequence[str] | None = None) -> pa.Table:
    """Return every row of a target's newest version."""
    return opened(target).to_pyarrow_table(columns=None if columns is None else list(columns))


def positions(target: Target) -> list[tuple[int, int]]:
    """Return (partition, offset) of every row, sorted."""
    partition, offset = target.positions or ("partition", "offset")
    rows = table_rows(target, [partition, offset])
    return sorted(
        zip(rows.column(partition).to_pylist(), rows.column(offset).to_pylist(), strict=True)
    )


def require_exact(target: Target, *ends: int, start: int = 0) -> None:
    """Check that the table holds every offset of ``[start, end)`` of each partition once."""
    found = positions(target)
    assert [one for one, times in Counter(found).items() if times > 1] == []
    assert found == [(number, at) for number, end in enumerate(ends) for at in range(start, end)]


def data_files(target: Target) -> set[str]:
    """Return the keys of every data file in the store, referenced or not."""
    return {info.key for info in open_store(target.store).list("appended/")}


def referenced(target: Target) -> set[str]:
    """Return the keys of the data files of the newest version."""
    return set(pa.table(opened(target).get_add_actions()).column("path").to_pylist())


class Pausing:
    """Runs slices, then something else before the appender goes on to commit."""

    def __init__(self, meanwhile: Any) -> None:
        self._meanwhile = meanwhile

    def __call__(self, work: AppendWork, parts: Sequence[SliceWork]) -> list[SliceDone]:
        """See the class."""
        done = run_here(work, parts)
        self._meanwhile()
        return done
