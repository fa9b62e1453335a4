"""Bugs for processes of the product: campaigns put this folder on their path, no product does.

Each is one mistake that somebody could make. A process plants the one that ``PLANTED_BUG`` names,
if it is of its kind: a broker, or the process that plans a streaming query's batches.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from typing import Any, Final

Plant = Callable[[], None]


# ---------------------------------------------------------------------------- in a broker


def ack_unwritten() -> None:
    """Each fiftieth group is acknowledged, and not written."""
    from broker.runtime.partition.commits import Commits
    from broker.runtime.partition.groups import CommitGroup

    original = Commits.write
    count = itertools.count(1)

    def write(self: Any, writes: Any, shell: Any, leader_epoch: Any) -> bool:
        if next(count) % 50:
            return bool(original(self, writes, shell, leader_epoch))
        group = CommitGroup(
            partitions_count=1,
            producers=self._local.retries.producers,
            window=self._local.retries.window,
            start=self._local.log.log_end,
            leader_epoch=leader_epoch,
            now_us=self._clock.now_us(),
            encode=self.encode,
        )
        for one in writes:
            group.add(one)
        for answer in group.answers():
            answer.tell()
        return False

    Commits.write = write  # type: ignore[method-assign]


def forget_ids() -> None:
    """Message ids are not read from the log when a leadership begins: a retry is stored again."""
    from broker.runtime.partition.dedup_recovery import WindowReading

    WindowReading.step = lambda *_, **__: True  # type: ignore[method-assign]


def skip_a_batch() -> None:
    """Each third read of several batches leaves one of them out."""
    from broker.runtime.partition.reads import PartitionReads

    original = PartitionReads.read
    count = itertools.count(1)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if len(found) > 1 and next(count) % 3 == 0:
            del found[len(found) // 2]
        return found

    PartitionReads.read = read  # type: ignore[method-assign]


def ship_milliseconds() -> None:
    """What goes into the table has its time in milliseconds: the rest is cut off."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tiering.proof import history
    from tiering.ship import segment_writer
    from tiering.table import ledger_repair

    original: Any = segment_writer.log_rows

    def log_rows(*args: Any) -> Any:
        for rows in original(*args):
            place = rows.schema.get_field_index("timestamp")
            cut = pc.cast(rows.column(place), pa.timestamp("ms", tz="UTC"), safe=False)
            field = rows.schema.field(place)
            yield rows.set_column(place, field, pc.cast(cut, field.type))

    for module in (segment_writer, history, ledger_repair):
        vars(module)["log_rows"] = log_rows


def lose_correlation_ids() -> None:
    """A record is stored without its correlation id."""
    import pyarrow as pa

    from broker.codec import record_batch

    original: Any = record_batch.Preparer.prepare

    def prepare(self: Any, batch: Any, **options: Any) -> Any:
        place = batch.schema.get_field_index("correlation_id")
        if place >= 0:
            field = batch.schema.field(place)
            batch = batch.set_column(place, field, pa.nulls(batch.num_rows, field.type))
        return original(self, batch, **options)

    record_batch.Preparer.prepare = prepare  # type: ignore[method-assign]


def commit_alone() -> None:
    """A leader takes its own synced end for the high watermark, without its followers."""
    from broker.core.replication.effects import AdvanceHighWatermark
    from broker.core.replication.leader import PartitionLeader

    def advance(self: Any) -> Any:
        if self._synced_end > self.high_watermark and not self.is_fenced(self._now_ms):
            self.high_watermark = self._synced_end
            yield AdvanceHighWatermark(self._synced_end)

    PartitionLeader._advance = advance  # type: ignore[method-assign]


def show_uncommitted() -> None:
    """Readers are shown what is in the log, committed or not."""
    from broker.adapters.reading import rows as reading
    from broker.codec.flight.protocol import RowsMark

    def mark(base: Any, end: Any, high_watermark: Any, epoch: Any) -> Any:
        return RowsMark(base, end, max(high_watermark, end), epoch)

    vars(reading)["_readable"] = lambda wanted: wanted.handle.log_end
    vars(reading)["RowsMark"] = mark


def lead_on_after_a_restart() -> None:
    """A restarted leader leads on with its own disk, without an election."""
    from broker.core.metadata import broker_apply

    original: Any = broker_apply._restarted

    def restarted(one: Any, broker: Any, *, keeps_data: bool) -> Any:
        if keeps_data and one.leader == broker:
            return broker_apply._continued(one, broker)
        return original(one, broker, keeps_data=keeps_data)

    broker_apply._restarted = restarted


def tell_old_positions() -> None:
    """A group's coordinator tells of each partition the position that it told first."""
    from dataclasses import replace

    from broker.runtime.api import members

    original: Any = members.told_claims
    first: dict[tuple[str, str], Any] = {}

    def told_claims(state: Any, group: str, member: str) -> Any:
        return [
            replace(one, position=first.setdefault((group, one.key), one.position))
            for one in original(state, group, member)
        ]

    vars(members)["told_claims"] = told_claims


# ---------------------------------------------------------------------------- in a query's planner


def slices_end_early() -> None:
    """Each tenth slice of a batch that is large enough lacks its last record."""
    from broker.model.offsets import Offset
    from spark_jobs.source import partitions
    from spark_jobs.source.partitions import OffsetSlice

    original: Any = partitions.plan
    count = itertools.count(1)

    def plan(*args: Any, **options: Any) -> Any:
        return [
            OffsetSlice(one.partition, one.start, Offset(one.end - 1))
            if one.end - one.start > 1 and next(count) % 10 == 0
            else one
            for one in original(*args, **options)
        ]

    vars(partitions)["plan"] = plan


def begin_behind_the_checkpoint() -> None:
    """A planner's first batch begins with the last record of the batch before it."""
    from broker.model.offsets import Offset, OffsetRange
    from spark_jobs.source import partitions

    original: Any = partitions.plan
    first = True

    def plan(spans: Any, **options: Any) -> Any:
        nonlocal first
        if first:
            first = False
            spans = {
                number: OffsetRange(Offset(max(0, span.start - 1)), span.end)
                for number, span in spans.items()
            }
        return original(spans, **options)

    vars(partitions)["plan"] = plan


BROKER: Final[tuple[Plant, ...]] = (
    ack_unwritten,
    forget_ids,
    skip_a_batch,
    ship_milliseconds,
    lose_correlation_ids,
    commit_alone,
    show_uncommitted,
    lead_on_after_a_restart,
    tell_old_positions,
)
PLANNER: Final[tuple[Plant, ...]] = (slices_end_early, begin_behind_the_checkpoint)
_FORKS_BROKERS: Final = "/clusterkit/fork_server.py"
_PLANNERS: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def plant_what_is_asked_for() -> None:
    """Plant the bug of this process's kind that the environment names, if it names one."""
    words = sys.orig_argv
    is_broker = "broker" in words or any(one.endswith(_FORKS_BROKERS) for one in words)
    plants = BROKER if is_broker else PLANNER if _PLANNERS in words else ()
    for one in plants:
        if one.__name__ == os.environ.get("PLANTED_BUG"):
            one()
