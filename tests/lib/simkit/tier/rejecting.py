"""A transform that rejects each nth record: two of them do not agree."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_jobs.tables import Transformed


class Rejecting:
    """Rejects each ``every``-th record of a partition, by its offset; 0: none."""

    output_schema = pa.schema([("value", pa.binary())])
    rejected_schema = pa.schema(
        [("partition", pa.int32()), ("offset", pa.int64()), ("reason", pa.string())]
    )

    def __init__(self, every: int) -> None:
        """Appenders with the same number agree."""
        self._every = every
        self.identity = f"each {every}th is rejected"

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        """See the class."""
        offsets = np.asarray(rows.column("offset"))
        bad = offsets % self._every == 0 if self._every else np.zeros(len(offsets), bool)
        kept, gone = np.flatnonzero(~bad), np.flatnonzero(bad)
        rejected = rows.select(["partition", "offset"]).take(pa.array(gone))
        return Transformed(
            rows=rows.select(["value"]).take(pa.array(kept)),
            kept=pa.array(kept, pa.int64()),
            rejected=pa.RecordBatch.from_arrays(
                [*rejected.columns, pa.array(["nth"] * len(gone), pa.string())],
                schema=self.rejected_schema,
            ),
        )
