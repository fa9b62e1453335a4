"""Joins small files of a stream's table into large ones, without a change of any row.

The plan is pure: a *bin* is a group of neighbours in offset order whose total size stays below the
target, and each bin is rewritten alone. A rewritten file looks like one of the uploader's: rows in
offset order, no offset outside its range, and a footer with that range. So the cheap certificate
still reads no data. While a bin is rewritten, its rows are compared with the ledger's digests:
damage stops the rewrite and is never copied into a new file.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.errors import EncryptionKeyError, RemoteTierUnavailableError
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from tiering.proof.coverage import overlapping
from tiering.proof.range_proof import proved_rows
from tiering.ship.segment_writer import SegmentPlace, check_segment, write_rows
from tiering.store.object_store import ObjectStore
from tiering.store.table_keys import FileEncryption, keys_at
from tiering.table.accounts import accounts
from tiering.table.table import (
    ENCRYPTION_PROPERTY,
    STREAM_PROPERTY,
    DataFile,
    NewFile,
    TableSnapshot,
)

TARGET_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files of one partition that become one: together they hold exactly ``range``."""

    partition: int
    range: OffsetRange
    files: tuple[DataFile, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of the present files."""
        return sum(file.size_bytes for file in self.files)


def plan_bins(snapshot: TableSnapshot, *, target_bytes: int = TARGET_BYTES) -> list[Bin]:
    """Return the bins that are worth rewriting: two or more neighbours, below the target together.

    Files whose ranges interleave (after a foreign OPTIMIZE) go into one bin, whatever their size:
    as one sorted file they can be proved by statistics again. A partition that has a file without
    statistics is left alone.
    """
    bins: list[Bin] = []
    for number, held in sorted(snapshot.ranges.items()):
        # Key compaction writes large files, and joins them anew when it goes on.
        whole = snapshot.whole_start(number)
        files = [
            file
            for file in snapshot.files
            if file.partition == number and (file.min_offset is None or file.min_offset >= whole)
        ]
        if any(file.min_offset is None for file in files):
            continue
        run: list[list[DataFile]] = []
        for group in overlapping(files):
            if run and _bytes([*run, group]) > target_bytes:
                bins += _bin(number, run)
                run = []
            run.append(group)
        bins += [one for one in _bin(number, run) if held]
    return bins


def rewrite(
    snapshot: TableSnapshot, store: ObjectStore, wanted: Bin, *, modified_us: int
) -> NewFile:
    """Write a bin's rows as one object, proved against the ledger and read back. Blocks.

    ``snapshot`` needs only the files of the bin. Memory holds the whole object.

    Raises:
        CorruptDataError: the rows differ from the committed ones, or a file is damaged or gone.
        EncryptionKeyError: a key is missing; or no broker told the data keys, or one that does not
            know the newest key in the bin's files. Nothing was written.
        RemoteTierUnavailableError: the store does not answer.
    """
    partition = PartitionId(snapshot.stream_uuid, PartitionNumber(wanted.partition))
    entries = accounts(snapshot, store, wanted.partition, wanted.range)
    encryption = _encryption(snapshot, store)
    name = f"{wanted.range.start:020}-{wanted.range.end:020}-{secrets.token_hex(8)}.parquet"
    place = SegmentPlace(
        cluster=snapshot.cluster,
        partition=partition,
        subject="",  # unused: rows from the table carry their subjects
        path=f"partition={wanted.partition}/{name}",
        encryption=encryption,
    )
    rows = proved_rows(snapshot, store, wanted.partition, wanted.range, entries)
    written = write_rows(rows, wanted.range, place)
    if encryption is not None:  # all files of the bin are read by now
        encryption.require_newest()
    entry = written.entry
    stored = store.put_if_absent(entry.path, written.body, crc32c=entry.crc32c)
    if stored is None:
        raise RemoteTierUnavailableError(
            f"{entry.path} exists already as another object", key=entry.path
        )
    check_segment(store.get(entry.path), entry, keys_at(store.config))
    return NewFile(
        path=entry.path,
        size_bytes=entry.size_bytes,
        partition=wanted.partition,
        modified_us=modified_us,
        stats_json=written.stats_json,
        crc32c=entry.crc32c,
        digest=entry.digest,
        etag=stored.etag,
    )


def only(snapshot: TableSnapshot, wanted: Bin) -> TableSnapshot:
    """Return the snapshot with only a bin's files, so that it is small enough for a Spark task."""
    return replace(
        snapshot,
        files=wanted.files,
        properties=_needed(snapshot),
        ranges={wanted.partition: snapshot.ranges[wanted.partition]},
    )


def _encryption(snapshot: TableSnapshot, store: ObjectStore) -> FileEncryption | None:
    """Return the encryption of a rewritten file; None if the table has plaintext.

    The data key is the newest that a broker told. The table's own description of its stream has
    only that of the table's creation, and others may write to the bucket.
    """
    if not snapshot.is_encrypted:
        return None
    stream = Stream.from_dict(json.loads(snapshot.properties[STREAM_PROPERTY]))
    told = store.config.data_keys
    if told is not None and told.stream_uuid == stream.uuid:
        stream = replace(stream, data_keys=told.keys)
    elif store.config.key_provider:
        raise EncryptionKeyError(
            f"no broker told which data key of stream {stream.name!r} is the newest, so nothing is "
            "joined: begin again when a broker answers",
            stream=stream.name,
        )
    return FileEncryption(stream, store.config)


def _needed(snapshot: TableSnapshot) -> dict[str, str]:
    """Return the properties by which the files of an encrypted table are written."""
    if not snapshot.is_encrypted:
        return {}
    return {name: snapshot.properties[name] for name in (ENCRYPTION_PROPERTY, STREAM_PROPERTY)}


def _bin(partition: int, groups: Sequence[Sequence[DataFile]]) -> list[Bin]:
    files = tuple(file for group in groups for file in group)
    if len(files) < 2:
        return []
    return [
        Bin(
            partition=partition,
            range=OffsetRange(
                Offset(min(file.min_offset or 0 for file in files)),
                Offset(max(file.end_offset or 0 for file in files)),
            ),
            files=files,
        )
    ]


def _bytes(groups: Sequence[Sequence[DataFile]]) -> int:
    return sum(file.size_bytes for group in groups for file in group)
