"""Reads of a stream's whole history by different readers, in the checker's words."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from broker.model.certificate import Certificate
from headwater.client import Client
from headwater.history import History as UnifiedRead
from headwater.verification import verify_cut
from simkit.history import Headers, PartReading, Reading, Row, fingerprint

COLUMNS = ("partition", "offset", "key", "value", "headers", "subject", "leader_epoch")


def rows_of(batch: pa.RecordBatch) -> list[tuple[int, Row]]:
    """Return (partition, row) of every row of a batch with these columns."""
    columns = {name: batch.column(name).to_pylist() for name in COLUMNS}
    rows = []
    for place in range(batch.num_rows):
        content = fingerprint(
            key=columns["key"][place],
            value=columns["value"][place],
            headers=_headers(columns["headers"][place]),
            subject=columns["subject"][place],
        )
        row = Row(columns["offset"][place], content, columns["leader_epoch"][place])
        rows.append((columns["partition"][place], row))
    return rows


def _headers(entries: list[object] | None) -> Headers:
    """Accept Arrow's lists of dicts and Spark's lists of rows."""
    if entries is None:
        return None
    return tuple(
        (entry["key"], entry["value"])  # type: ignore[index]
        for entry in entries
    )


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
    """Read every partition by Flight from its first offset: the broker serves the cold part too."""
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
        parts.append(
            PartReading(
                partition=position.partition,
                start=position.start,
                cold_end=position.start,
                hot_end=end,
                cold_rows=[],
                hot_rows=rows,
            )
        )
    return Reading.of("flight", began_ns, parts)


def read_plain_delta(
    table_uri: str, version: int, storage_options: dict[str, str]
) -> dict[int, list[Row]]:
    """Read a table version with delta-rs alone, nothing of ours in between."""
    import deltalake

    table = deltalake.DeltaTable(table_uri, version=version, storage_options=storage_options)
    return by_partition(table.to_pyarrow_table(columns=list(COLUMNS)).to_batches())


def by_partition(batches: Iterable[pa.RecordBatch]) -> dict[int, list[Row]]:
    """Collect rows by partition."""
    rows: dict[int, list[Row]] = {}
    for batch in batches:
        for partition, row in rows_of(batch):
            rows.setdefault(partition, []).append(row)
    return rows


class SparkReader:
    """Reads through ``headwater.read``, in one JVM."""

    def __init__(self) -> None:
        from spark_jobs.session import build_session

        quiet = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
        self._session = build_session("crash campaign", "local[2]", conf=quiet)

    def read(self, client: Client, stream: str) -> Reading:
        """Take a cut and read it; the tiers are told apart by the cut, not by Spark."""
        from spark_jobs import held_reads, unified

        began_ns = time.monotonic_ns()
        cut = client.cut(stream, ttl_ms=120_000, owner="crash campaign")
        frame = unified.read(self._session, cut, columns=COLUMNS, client=client)
        try:
            rows = by_partition(frame.toArrow().to_batches())
        finally:
            held_reads.release(frame)
        parts = []
        for part in cut.partitions:
            found = rows.pop(part.partition, [])
            parts.append(
                PartReading(
                    partition=part.partition,
                    start=part.start,
                    cold_end=part.cold_end,
                    hot_end=part.hot_end,
                    cold_rows=[row for row in found if row.offset < part.cold_end],
                    hot_rows=[row for row in found if row.offset >= part.cold_end],
                )
            )
        assert not rows, f"Spark has partitions that the cut has not: {sorted(rows)}"
        reading = Reading.of("spark", began_ns, parts)
        return replace(reading, sorted_by_offset=False)

    def close(self) -> None:
        """End the JVM."""
        self._session.stop()
