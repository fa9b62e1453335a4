"""Commits of a table's log, written by hand: those of the uploader, and impossible ones.

The rules of ``tiering/proof`` read nothing but such commits, so no Delta library is needed to show
them. Tables that engines really write are those of ``lab.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset
from simkit.tier.source import make_stream
from tiering.ship.segment_writer import statistics_json
from tiering.table.expiries import ExpiryEntry
from tiering.table.ledger import LedgerEntry, encode_ranges
from tiering.table.table import (
    COMMIT_ID,
    ETAGS,
    EXPIRED,
    RANGES,
    properties_of,
    start_transaction_id,
    transaction_id,
)

STREAM = make_stream(partitions=2)
PROPERTIES = properties_of(STREAM, "c")
Actions = Sequence[dict[str, Any]]


def entry(start: int, end: int, *, partition: int = 0) -> LedgerEntry:
    """Return the ledger entry of a range that was shipped as one file."""
    return LedgerEntry(
        partition=partition, start=Offset(start), end=Offset(end), records_count=end - start,
        digest="ab" * 32, first_leader_epoch=1, last_leader_epoch=1, min_timestamp_us=5_000_000,
        max_timestamp_us=6_000_000, path=f"partition={partition}/{start}.parquet", size_bytes=9,
        crc32c=7,
    )  # fmt: skip


def stats(one: LedgerEntry, **other: Any) -> str:
    """Return Delta's statistics of an entry's file, some of them changed."""
    values = json.loads(
        statistics_json(
            one.records_count,
            offsets=(one.start, one.end - 1),
            timestamps_us=(one.min_timestamp_us, one.max_timestamp_us),
        )
    )
    for key, value in other.items():
        kind, _, name = key.partition("__")
        if name:
            values[kind][name] = value
        else:
            values[kind] = value
    return json.dumps(values)


def add(one: LedgerEntry, *, changes: bool | None = True, **other: Any) -> dict[str, Any]:
    """Return the add action of an entry's file; ``changes`` None: it says nothing of data."""
    values: dict[str, Any] = {
        "path": one.path,
        "size": one.size_bytes,
        "partitionValues": {"partition": str(one.partition)},
        "stats": stats(one),
        **({} if changes is None else {"dataChange": changes}),
    }
    return {"add": {**values, **other}}


def remove(one: LedgerEntry, *, changes: bool | None = True) -> dict[str, Any]:
    """Return the remove action of an entry's file."""
    return {"remove": {"path": one.path, **({} if changes is None else {"dataChange": changes})}}


def moved(end: int, *, partition: int = 0, start: int | None = None) -> list[dict[str, Any]]:
    """Return the transactions that move a partition's bounds."""
    at = PartitionId(STREAM.uuid, PartitionNumber(partition))
    found = [{"txn": {"appId": transaction_id("c", at), "version": end}}]
    if start is not None:
        found.append({"txn": {"appId": start_transaction_id("c", at), "version": start}})
    return found


def ours(**info: Any) -> dict[str, Any]:
    """Return the commit info of a commit of ours."""
    return {"commitInfo": {COMMIT_ID: "x", "operation": "WRITE", **info}}


def shipped(*entries: LedgerEntry) -> list[dict[str, Any]]:
    """Return a commit of the uploader."""
    ends = {one.partition: one.end for one in entries}
    return [
        ours(**{RANGES: encode_ranges(entries), ETAGS: json.dumps({entries[0].path: "e"})}),
        *(add(one) for one in entries),
        *(txn for number, end in ends.items() for txn in moved(end, partition=number)),
    ]


def expired(*gone: LedgerEntry, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
    """Return a commit by which the files of these entries expire."""
    end = gone[-1].end if end is None else end
    account = ExpiryEntry(
        partition=0, start=Offset(start), end=Offset(end), cold_end=Offset(max(20, end)),
        paths=tuple(one.path for one in gone), size_bytes=9, expired_us=1, lineage_id="",
        commit_id="x",
    )  # fmt: skip
    return [
        ours(**{EXPIRED: account.to_text()}),
        *(remove(one) for one in gone),
        *moved(end, start=end)[1:],
    ]


def described(**other: Any) -> dict[str, Any]:
    """Return a metaData action."""
    fields = [{"name": "offset", "type": "long", "nullable": False, "metadata": {}}]
    values = {
        "id": "table",
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["partition"],
        "configuration": PROPERTIES,
    }
    return {"metaData": {**values, **other}}


CREATED = [described(), {"protocol": {"minReaderVersion": 1}}]


def body(actions: Actions) -> bytes:
    """Return a commit file."""
    return "\n".join(map(json.dumps, actions)).encode()
