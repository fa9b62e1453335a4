"""Builds a stream's key snapshot without Spark, by the writer and the commit of the job."""

from __future__ import annotations

import time
import uuid

import numpy as np
import pyarrow as pa

from broker.model.offsets import Offset
from simkit.tier.lake_broker import LakeBroker
from tiering.keys.plan import bucket_of, plan
from tiering.keys.snapshot import latest_table, made_of
from tiering.keys.writer import SORTED_COLUMNS, write_buckets
from tiering.read.reader import read_rows
from tiering.table.delta_log import commit_digest

_BUCKETS = 3


def key_snapshot_end(broker: LakeBroker, name: str, partition: int) -> Offset | None:
    """Return up to where the key snapshot covers a partition; None if there is none."""
    found = latest_table(broker.lake, broker.get(name)).find()
    return None if found is None else found.cold_end(partition)


def build_key_snapshot(broker: LakeBroker, name: str) -> None:
    """Bring the key snapshot of a stream to the cold ends of its table; each partition anew."""
    stream, log = broker.get(name), broker.table(name)
    history = log.find()
    assert history is not None, "the stream has a table"
    table = latest_table(broker.lake, stream)
    base = table.create()
    plans = plan(base, history, {})
    if not plans:
        return
    rows = [
        rows
        for one in plans
        for batch in read_rows(history, log.store, one.partition, one.new, sparse=True)
        for rows in _sorted_input(batch)
    ]
    order = [(name, "ascending") for name in ("partition", "bucket", "key")]
    together = (
        pa.Table.from_batches(rows).sort_by([*order, ("offset", "descending")]).to_batches()
        if rows
        else []
    )
    written = write_buckets(
        together,
        table.store,
        buckets={one.partition: _BUCKETS for one in plans},
        ends={one.partition: int(one.new.end) for one in plans},
        keys_from=stream.keys_from,
    )
    table.replace_files(
        base,
        removed=[file for one in plans for file in one.files],
        added=[file.new_file(modified_us=time.time_ns() // 1000) for file in written],
        moves={one.partition: one.new for one in plans},
        data_change=True,
        commit_id=uuid.uuid4().hex,
        made_of=made_of(history, commit_digest(log.store, history.version)),
    )


def _sorted_input(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return the rows that have a key, with the columns that the writer expects."""
    keyed = batch.filter(batch.column("key").is_valid())
    buckets = [bucket_of(key, _BUCKETS) for key in keyed.column("key").to_pylist()]
    columns = {name: keyed.column(name) for name in keyed.schema.names}
    columns["bucket"] = pa.array(np.array(buckets, np.int32))
    return [pa.record_batch({name: columns[name] for name in SORTED_COLUMNS})]
