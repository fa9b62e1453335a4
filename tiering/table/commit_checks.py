"""Whether a commit still fits the version that it would follow: its compare-and-set. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.errors import FilesReplacedError, StaleColdEndError, StaleRemoteStartError
from broker.model.offsets import OffsetRange
from tiering.table.expiries import ExpiryEntry
from tiering.table.key_compactions import KeyCompactionEntry
from tiering.table.table import DataFile, TableSnapshot


def check_starts(base: TableSnapshot, moves: Mapping[int, OffsetRange]) -> None:
    """Refuse to ship ranges that do not begin at the cold ends; raises StaleColdEndError."""
    for partition, move in moves.items():
        found = base.cold_end(partition)
        if found != move.start:
            raise StaleColdEndError(
                f"partition {partition} of {base.uri} ends at {found}, not at {move.start}",
                partition=partition,
                expected=int(move.start),
                found=int(found),
            )


def check_same(
    base: TableSnapshot,
    expected: TableSnapshot,
    removed: Sequence[DataFile],
    moves: Mapping[int, OffsetRange],
) -> None:
    """Refuse a replacement if its ranges or files have changed since ``expected``."""
    for partition in moves:
        found, wanted = base.range_of(partition), expected.range_of(partition)
        if found != wanted:
            raise StaleColdEndError(
                f"partition {partition} of {base.uri} holds {found}, not {wanted}",
                partition=partition,
                expected=int(wanted.end),
                found=int(found.end),
            )
    present = {file.path for file in base.files}
    for file in removed:
        if file.path not in present:
            raise FilesReplacedError(
                f"{file.path} is not in {base.uri} any more: another process rewrote it",
                path=file.path,
                version=base.version,
            )


def check_expiry(
    base: TableSnapshot,
    expected: TableSnapshot,
    removed: Sequence[DataFile],
    entry: ExpiryEntry,
) -> None:
    """Refuse an expiry whose partition begins elsewhere, or whose files were replaced."""
    found = base.range_of(entry.partition)
    if found.start != entry.start or found.end < entry.end:
        raise StaleRemoteStartError(
            f"partition {entry.partition} of {base.uri} holds {found}, so {entry.range} does not "
            "expire by this commit",
            partition=entry.partition,
            expected=int(entry.start),
            found=int(found.start),
        )
    _check_sparse(base, expected, entry.partition)
    _check_first_files(base, removed, entry.partition, entry.range)


def check_key_compaction(
    base: TableSnapshot,
    expected: TableSnapshot,
    removed: Sequence[DataFile],
    entry: KeyCompactionEntry,
) -> None:
    """Refuse a key compaction if its partition, or the files that it read, have changed."""
    found = base.range_of(entry.partition)
    if found.start != entry.start or found.end <= entry.end:
        raise StaleRemoteStartError(
            f"partition {entry.partition} of {base.uri} holds {found}, so the rows that are left "
            f"of {entry.range} are not its first ones",
            partition=entry.partition,
            expected=int(entry.start),
            found=int(found.start),
        )
    _check_sparse(base, expected, entry.partition)
    _check_first_files(base, removed, entry.partition, entry.range)


def _check_sparse(base: TableSnapshot, expected: TableSnapshot, partition: int) -> None:
    """Refuse a commit whose writer knew another state of key compaction."""
    found, wanted = base.sparse.get(partition), expected.sparse.get(partition)
    if found != wanted:
        raise StaleRemoteStartError(
            f"key compaction has left {found} of partition {partition} of {base.uri}, not {wanted}",
            partition=partition,
            expected=int(expected.whole_start(partition)),
            found=int(base.whole_start(partition)),
        )


def _check_first_files(
    base: TableSnapshot, removed: Sequence[DataFile], partition: int, gone: OffsetRange
) -> None:
    """Refuse a commit that does not remove exactly the first files of a partition."""
    below = {
        file.path
        for file in base.files
        if file.partition == partition and (file.min_offset is None or file.min_offset < gone.end)
    }
    if below != {file.path for file in removed}:
        raise FilesReplacedError(
            f"the files of partition {partition} of {base.uri} below {gone.end} are others "
            "than those that are removed: another process rewrote them",
            path=min(below.symmetric_difference(file.path for file in removed)),
            version=base.version,
        )
