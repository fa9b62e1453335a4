"""Translates the commit files of a Delta log into our types. Pure.

Source: Delta's PROTOCOL.md, "Delta Log Entries", "Add File and Remove File", "Per-file Statistics".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from broker.errors import TableMismatchError
from broker.model.offsets import Offset
from tiering.table.ledger import LedgerEntry
from tiering.table.table import DataFile, NewFile, first_of_ms, last_of_ms, stated_last_ms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BOUNDED: Final = ("offset", "timestamp")
_AUTHOR: Final = ("userName", "userId", "engineInfo", "clusterId", "clientVersion")

Action = Mapping[str, Any]


class NotOursError(Exception):
    """A commit is neither ours nor harmless; proof/provenance.py turns it into a typed error."""


def parsed_actions(body: bytes) -> Iterator[Action]:
    """Yield a commit's actions, JSON objects of objects; raises ValueError for any other bytes."""
    for line in filter(bytes.strip, body.splitlines()):
        try:
            action = json.loads(line)
        except RecursionError as cause:
            raise ValueError("nested too deeply") from cause
        if not isinstance(action, dict) or not all(isinstance(v, dict) for v in action.values()):
            raise ValueError("not an object of objects")
        yield action


def actions_in(body: bytes, version: int, uri: str) -> Iterator[Action]:
    """Yield a commit's actions; raises TableMismatchError if the file is not a Delta commit."""
    try:
        yield from parsed_actions(body)
    except ValueError as cause:
        raise TableMismatchError(
            f"commit {version} of {uri} is not a valid commit file of a Delta log",
            uri=uri,
            version=version,
        ) from cause


def info_of(actions: Sequence[Action]) -> Action:
    """Return a commit's commitInfo; empty if it has none."""
    return next((one["commitInfo"] for one in actions if "commitInfo" in one), {})


def file_in(add: Action) -> DataFile:
    """Translate an add action into a DataFile."""
    if add.get("deletionVector") is not None:
        raise NotOursError("it hides rows of a file by a deletion vector")
    path, size = add.get("path"), add.get("size")
    values = add.get("partitionValues")
    number = values.get("partition") if isinstance(values, dict) else None
    if not isinstance(path, str) or type(size) is not int or not isinstance(number, str):
        raise NotOursError("it adds something that is not a file of a partition")
    try:
        stats = json.loads(add.get("stats") or "{}")
        least, greatest = stats.get("minValues") or {}, stats.get("maxValues") or {}
        low: Any = least.get("offset")
        high: Any = greatest.get("offset")
        count = stats.get("numRecords")
        if not all(one is None or type(one) is int for one in (count, low, high)):
            raise NotOursError(f"the statistics of {path} are not whole numbers")
        known = None not in (count, low, high)
        return DataFile(
            path=path,
            size_bytes=size,
            partition=int(number),
            records_count=count,
            min_offset=Offset(low) if known else None,
            max_offset=Offset(high) if known else None,
            min_timestamp_us=first_of_ms(micros_of(least.get("timestamp"))),
            max_timestamp_us=last_of_ms(micros_of(greatest.get("timestamp"))),
        )
    except (TypeError, ValueError, AttributeError, RecursionError) as cause:
        raise NotOursError(f"the statistics of {path} cannot be read") from cause


def claims_in(add: Action) -> str | None:
    """Return the statistics of an add action that ours do not have, as canonical JSON, or None.

    Ours are the row count and the bounds of offset and timestamp; these columns have no nulls.
    The first timestamp is among the others if it is no whole millisecond: a DataFile rounds it.
    """
    try:
        stats = json.loads(add.get("stats") or "{}")
        said = {
            kind: {
                name: value
                for name, value in (stats.get(kind) or {}).items()
                if name not in _BOUNDED
                or (kind == "nullCount" and value != 0)
                or ((kind, name) == ("minValues", "timestamp") and (micros_of(value) or 0) % 1000)
            }
            for kind in ("minValues", "maxValues", "nullCount")
        }
    except (TypeError, ValueError, AttributeError, RecursionError) as cause:
        raise NotOursError(f"the statistics of {add.get('path')} cannot be read") from cause
    return json.dumps(said, sort_keys=True) if any(said.values()) else None


def micros_of(text: str | None) -> int | None:
    """Return a timestamp of Delta's statistics in microseconds; raises ValueError or TypeError."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def file_of(entry: LedgerEntry) -> DataFile:
    """Return the file that a ledger entry describes, with the statistics that it must have."""
    return DataFile(
        path=entry.path,
        size_bytes=entry.size_bytes,
        partition=entry.partition,
        records_count=entry.records_count,
        min_offset=entry.start,
        max_offset=Offset(entry.end - 1),
        min_timestamp_us=entry.min_timestamp_us // 1000 * 1000,
        max_timestamp_us=stated_last_ms(entry.max_timestamp_us) * 1000,
    )


def account_of(file: NewFile) -> dict[str, Any]:
    """Return the description of an added file for the account in our commit."""
    added = {
        "path": file.path,
        "size": file.size_bytes,
        "partitionValues": {"partition": str(file.partition)},
        "stats": file.stats_json,
    }
    account: dict[str, Any] = {"path": file.path, "file": list(facts_of(file_in(added)))}
    account |= {} if file.crc32c is None else {"crc32c": file.crc32c}
    return account | ({"digest": file.digest} if file.digest else {})


def facts_of(file: DataFile) -> tuple[int | None, ...]:
    """Return the facts that two descriptions of a file must share; times in ms, as Delta's."""
    least, greatest = file.min_timestamp_us, file.max_timestamp_us
    return (
        file.partition,
        file.size_bytes,
        file.records_count,
        file.min_offset,
        file.max_offset,
        None if least is None else least // 1000,
        None if greatest is None else greatest // 1000,
    )


def path_of(action: Action) -> str:
    """Return an action's path as the log spells it."""
    return text_of(action.get("path"), "")


def text_of(value: Any, default: str) -> str:
    """Return ``value`` if it is a text, else the default."""
    return value if isinstance(value, str) else default


def object_in(text: Any) -> dict[str, Any]:
    """Parse a JSON object; empty if ``text`` is no text or has no object. Raises ValueError."""
    values = json.loads(text) if isinstance(text, str) else {}
    return values if isinstance(values, dict) else {}


def objects_in(text: Any) -> list[dict[str, Any]]:
    """Parse a list of JSON objects; empty if ``text`` is no text. Raises ValueError."""
    values = json.loads(text) if isinstance(text, str) else []
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise ValueError("not a list of objects")
    return values


def author_of(info: Action) -> str:
    """Return the writer of a commit, as far as the commit names one."""
    told = [f"{name} {info[name]}" for name in _AUTHOR if isinstance(info.get(name), str)]
    return ", ".join(told) or "an unnamed writer"
