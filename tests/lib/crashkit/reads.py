"""Reads of a stream's whole history by different readers, in the checker's words."""

from __future__ import annotations

import time

from broker.model.certificate import Certificate
from checkkit.arrow import COLUMNS, by_partition, ends_of, reading_of_frame, rows_of
from checkkit.readings import PartReading, Reading, Row, Source, of_log
from headwater.client import Client
from headwater.reads.history import History as UnifiedRead
from headwater.reads.verification import verify_cut

__all__ = [
    "COLUMNS",
    "SparkReader",
    "by_partition",
    "final_table",
    "read_plain_delta",
    "read_through_broker",
    "read_unified",
    "rows_of",
    "verify_fully",
]


def read_unified(client: Client, stream: str) -> tuple[Reading, Certificate]:
    """Take a cut and read it through Arrow, as ``headwater read`` does.

    The cold rows of a partition come first; how many they are is in the certificate, and whether
    they are the right ones is for the checker to say.
    """
    began_ns = time.monotonic_ns()
    cut = client.cut(stream, ttl_ms=120_000, owner="crash campaign")
    try:
        read = UnifiedRead(client, cut)
        rows: dict[int, list[Row]] = {part.partition: [] for part in cut.partitions}
        for batch in read.batches(COLUMNS):
            for partition, row in rows_of(batch):
                rows[partition].append(row)
        certificate = read.certificate()
    finally:
        client.drop_lease(cut.lease.lease_id)
    proved = {one.partition: one for one in certificate.partitions}
    parts = []
    for part in cut.partitions:
        cold_count = proved[part.partition].cold_count
        found = rows[part.partition]
        parts.append(
            PartReading(
                partition=part.partition,
                start=part.start,
                cold_end=part.cold_end,
                hot_end=part.hot_end,
                cold_rows=found[:cold_count],
                hot_rows=found[cold_count:],
            )
        )
    return Reading.of("unified", began_ns, parts), certificate


def verify_fully(client: Client, stream: str) -> Certificate:
    """Verify a cut as ``headwater verify`` does: every object against the ledger, then the tail."""
    cut = client.cut(stream, ttl_ms=120_000, owner="crash campaign")
    try:
        return verify_cut(client, cut)
    finally:
        client.drop_lease(cut.lease.lease_id)


def read_through_broker(client: Client, stream: str) -> Reading:
    """Read every partition by Flight from its first offset: the broker serves the cold part too.

    So it is the whole of what one replica answers with, whatever lies in which tier.
    """
    began_ns = time.monotonic_ns()
    parts = []
    for position in client.describe(stream).partitions:
        end = position.high_watermark
        rows: list[Row] = []
        if end > position.start:
            with client.fetch(
                stream, position.partition, int(position.start), int(end), columns=COLUMNS
            ) as fetched:
                for one in fetched:
                    rows += [row for _, row in rows_of(one.batch)]
        start = int(position.start)
        parts.append(of_log(position.partition, rows, start=start, end=int(end)))
    return Reading.of("flight", began_ns, parts)


def read_plain_delta(
    table_uri: str, version: int, storage_options: dict[str, str]
) -> dict[int, list[Row]]:
    """Read a table version with delta-rs alone, nothing of ours in between."""
    import deltalake

    table = deltalake.DeltaTable(table_uri, version=version, storage_options=storage_options)
    return by_partition(table.to_pyarrow_table(columns=list(COLUMNS)).to_batches())


def final_table(rows: dict[int, list[Row]], cold_ends: dict[int, int], began_ns: int) -> Reading:
    """Return what a foreign reader found in the table, as a full read of it."""
    parts = [of_log(number, rows.get(number, []), end=end) for number, end in cold_ends.items()]
    return Reading.of("delta-rs", began_ns, parts, Source.TABLE, sorted_by_offset=False)


class SparkReader:
    """Reads through ``headwater.read``, in one JVM."""

    def __init__(self) -> None:
        from spark_jobs.session import build_session

        quiet = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
        self._session = build_session("crash campaign", "local[2]", conf=quiet)

    def read(self, client: Client, stream: str) -> Reading:
        """Take a cut and read it; the tiers are told apart by the cut, not by Spark."""
        from spark_jobs.read import held_reads, unified

        began_ns = time.monotonic_ns()
        cut = client.cut(stream, ttl_ms=120_000, owner="crash campaign")
        frame = unified.read(self._session, cut, columns=COLUMNS, server=client)
        try:
            return reading_of_frame(frame, ends_of(cut.partitions), name="spark", began_ns=began_ns)
        finally:
            held_reads.release(frame)

    def close(self) -> None:
        """End the JVM."""
        self._session.stop()
