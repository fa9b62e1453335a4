"""``spark.read.format("headwater")``: ranges planned once on the driver, read on executors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker.errors import HeadwaterError
from spark_jobs.clients import client_of
from spark_jobs.failures import annotate
from spark_jobs.source import partitions, reader
from spark_jobs.source.batch_plan import StreamPlan, make_plan, require_fixed, slices_of
from spark_jobs.source.jvm_plan import ScanBounds, left_to_python
from spark_jobs.source.options import SERVER_VARIABLE, SourceOptions
from spark_jobs.source.partitions import (
    LeaseRenewal,
    LeftRecords,
    OffsetSlice,
    SliceTask,
    TableRef,
)
from spark_jobs.source.task_lease import kept_alive

if TYPE_CHECKING:
    import pyarrow as pa


class HeadwaterReader(DataSourceReader):
    """Plans slices on the driver, reads them on executors."""

    def __init__(
        self,
        given: SourceOptions,
        names: tuple[str, ...],
        plans: tuple[StreamPlan, ...] | None = None,
        told: ScanBounds | None = None,
    ) -> None:
        """Keep the options, the columns, and the plan, if ``load()`` has made one already.

        ``told`` is what the JVM tells of the scan; by default Python reads everything.
        """
        self._options = given
        self._plans = plans
        self._told = told
        self._names = names
        self._server = server_of(given)

    def partitions(self) -> list[InputPartition]:
        """Return the slices, small ones packed; Spark calls this once per DataFrame.

        If the JVM reads files, the first partition has no rows: it renews the lease, which the JVM
        asks for while it reads.
        """
        try:
            require_fixed(self._options)
            plans = self._plans
            if plans is None:
                plans = make_plan(self._options, client_of(self._server))
        except HeadwaterError as error:
            raise annotate(error) from None
        cut, told = self._options.cut, self._told
        if told is not None:
            plans = tuple(left_to_python(plan, cut, told) for plan in plans)
        table = None
        if cut is not None and cut.table_version is not None:
            table = TableRef(cut.table_uri, cut.cluster)
        keyring = self._options.keyring_file
        tasks = [
            SliceTask(
                plan.stream, plan.uuid, piece, table, plan.lease_id, keyring, left, plan.history
            )
            for plan in plans
            for piece, left in self._slices(plan, plans)
        ]
        found = packed(tasks, self._options)
        if told is None or not told.reads_files:
            return found
        return [InputPartition(LeaseRenewal(plans[0].stream, plans[0].lease_id)), *found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a pack of slices; of the renewal of a lease, none."""
        task = partition.value
        if isinstance(task, LeaseRenewal):
            with kept_alive(client_of(self._server), task.stream, task.lease_id):
                return iter(())
        return reader.read_tasks(
            task,
            server=self._server,
            columns=self._names,
            emit=self._options.emit,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _slices(
        self, plan: StreamPlan, plans: Sequence[StreamPlan]
    ) -> Sequence[tuple[OffsetSlice, LeftRecords | None]]:
        if plan.left is not None:
            return plan.left
        return [(piece, None) for piece in slices_of(self._options, plan, plans)]


def packed(tasks: Sequence[SliceTask], given: SourceOptions) -> list[InputPartition]:
    """Return the input partitions of a read; a range that is only named keeps its own."""
    if given.emit == "ranges":
        return [InputPartition((task,)) for task in tasks]
    packs = partitions.pack(
        tasks, packs_min=given.partitions_min, records_max=given.records_per_partition_max
    )
    return [InputPartition(one) for one in packs]


def server_of(given: SourceOptions) -> str | None:
    """Return the broker's address; read on the driver, since executors may lack the variable."""
    return given.server or os.environ.get(SERVER_VARIABLE)
