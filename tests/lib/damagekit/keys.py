"""A key snapshot's table, made as ``job snapshot`` makes it, without a JVM."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pyarrow as pa

from broker.codec.schema import FILE_SCHEMA, ROW_SCHEMA
from broker.model.offsets import OffsetRange
from headwater.client import Client
from tiering.keys.plan import bucket_of, plan
from tiering.keys.snapshot import latest_table
from tiering.keys.writer import SORTED_COLUMNS, write_buckets
from tiering.read.lake import Lake
from tiering.read.reader import read_rows


def build_key_snapshot(client: Client, stream_name: str, lake_folder: Path) -> None:
    """Build or advance the key snapshot of a stream up to its cold ends. Blocks."""
    lake = Lake.open(str(lake_folder))
    stream = client.stream(stream_name)
    table, history_table = latest_table(lake, stream), lake.table(stream)
    base, history = table.create(), history_table.find()
    assert history is not None, "nothing was shipped yet"
    plans = plan(base, history, {})
    if not plans:
        return
    rows: list[dict[str, object]] = []
    for one in plans:
        found = read_rows(
            history,
            history_table.store,
            one.partition,
            OffsetRange(one.new.start, one.new.end),
            ROW_SCHEMA,
        )
        for batch in found:
            rows += [
                {**row, "bucket": bucket_of(row["key"], one.buckets_count)}
                for row in batch.to_pylist()
                if row["key"] is not None
            ]
    rows.sort(key=lambda row: (row["partition"], row["bucket"], row["key"], -row["offset"]))  # type: ignore[operator]
    fields = {"partition": pa.int32(), "bucket": pa.int32()}
    schema = pa.schema(
        [
            pa.field(name, fields[name]) if name in fields else FILE_SCHEMA.field(name)
            for name in SORTED_COLUMNS
        ]
    )
    batch = pa.RecordBatch.from_pylist(
        [{name: row[name] for name in SORTED_COLUMNS} for row in rows], schema=schema
    )
    files = write_buckets(
        [batch],
        table.store,
        buckets={one.partition: one.buckets_count for one in plans},
        ends={one.partition: int(one.new.end) for one in plans},
    )
    now_us = time.time_ns() // 1000
    table.replace_files(
        base,
        removed=[file for one in plans for file in one.files],
        added=[file.new_file(modified_us=now_us) for file in files],
        moves={one.partition: one.new for one in plans},
        data_change=True,
        commit_id=uuid.uuid4().hex,
    )
