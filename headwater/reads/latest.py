"""The newest record of each key, without Spark; spark_jobs/read/latest.py does this with Spark.

Each partition has its own keys. If keys have moved into partitions that were added to the stream
(`Stream.keys_from`), a key is one key in all partitions: its newest record is in the highest
partition that has one.

There are two passes over one cut. The first notes the offset of each key's newest record, and keeps
the keys and these offsets in memory. The second returns the rows at these offsets. A key whose
newest record is a tombstone has no row. Records without a key are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.reads.history import History

_NEEDED = ("partition", "offset", "key", "value")


def newest_of_each_key(
    history: History, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the newest row of each key, without tombstones, by partition and offset.

    ``history`` is complete afterwards: its certificate covers every record that was read.

    Args:
        history: A new read, of which no batch was taken.
        columns: Names of ROW_SCHEMA in the order of the result; None means all.

    Raises:
        HeadwaterError: the errors of :meth:`History.batches`.
    """
    newest = _newest_offsets(history.again())
    wanted = None if columns is None else list(dict.fromkeys([*columns, "partition", "offset"]))
    for batch in history.batches(wanted):
        if batch.num_rows == 0:
            continue
        offsets = newest.get(batch.column("partition")[0].as_py())
        if offsets is None:
            continue
        chosen = batch.filter(pc.is_in(batch.column("offset"), value_set=offsets))
        if chosen.num_rows:
            yield chosen if columns is None else chosen.select(list(columns))


def _newest_offsets(history: History) -> dict[int, pa.Array]:
    """Return, per partition, the offsets of the rows that are the newest of their keys."""
    moved = history.cut.keys_from is not None
    found: dict[int, dict[bytes, int]] = {}
    below: list[dict[bytes, int]] = []  # the keys of lower partitions, if keys have moved
    for batch in history.batches(list(_NEEDED)):  # partition by partition, the lowest first
        if batch.num_rows == 0:
            continue
        partition = batch.column("partition")[0].as_py()
        if partition not in found:
            below = list(found.values()) if moved else []
        keys = found.setdefault(partition, {})
        offsets = batch.column("offset").to_pylist()
        tombstones = np.asarray(batch.column("value").is_null(), dtype=bool).tolist()
        for key, offset, dead in zip(
            batch.column("key").to_pylist(), offsets, tombstones, strict=True
        ):
            if key is None:
                continue
            for lower in below:
                lower.pop(key, None)
            if dead:
                keys.pop(key, None)
            else:
                keys[key] = offset
    return {
        partition: pa.array(sorted(keys.values()), pa.int64()) for partition, keys in found.items()
    }
