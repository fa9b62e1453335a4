"""One writer of the race: says ``ready``, appends once for each line it gets, tells each commit.

Started by run.py; a process of its own, because Delta's own log store does protect the drivers of
one JVM from each other. Prints only what was acknowledged: a row is (writer, number).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

Append = Callable[[int], None]
_RETRIES_MAX = 1000  # delta-rs gives up after 15 by default; a loser only has to try again


def spark_append(path: str, writer: int) -> Append:
    """Return an append by delta-spark, in a session like that of any job, but small."""
    from spark_jobs.session import build_session

    session = build_session(
        f"race-{writer}",
        "local[1]",
        conf={
            "spark.driver.memory": "700m",
            # Only the scheme s3 has Delta's own log store: see run.py.
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            # The race is about commits: nothing else has to be computed for each of them.
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.databricks.delta.writeChecksumFile.enabled": "false",
            "spark.databricks.delta.stats.collect": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
        },
    )

    session.read.format("delta").load(path).count()  # the race is of warm drivers

    def append(number: int) -> None:
        rows = session.range(1).selectExpr(
            f"CAST({writer} AS BIGINT) AS writer", f"CAST({number} AS BIGINT) AS number"
        )
        rows.write.format("delta").mode("append").save(path)

    return append


def rust_append(path: str, writer: int) -> Append:
    """Return an append by delta-rs, as tiering does it."""
    import pyarrow as pa
    from deltalake import CommitProperties, write_deltalake

    def append(number: int) -> None:
        row = {"writer": pa.array([writer], pa.int64()), "number": pa.array([number], pa.int64())}
        write_deltalake(
            path,
            pa.table(row),
            mode="append",
            commit_properties=CommitProperties(max_commit_retries=_RETRIES_MAX),
        )

    return append


def main() -> int:
    """Take part; exit code 0 says that every append was acknowledged."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("spark", "rust"))
    parser.add_argument("path")
    parser.add_argument("writer", type=int)
    given = parser.parse_args()
    append = (spark_append if given.kind == "spark" else rust_append)(given.path, given.writer)
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        append(number)
        print(json.dumps([given.writer, number]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
