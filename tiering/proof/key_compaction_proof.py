"""Proves that a commit of key compaction exchanges exactly what its account says. Pure.

Such a commit is the only one that removes rows from between others. It removes all files of one
partition below an offset, and adds the files of its account, which has their rows and digests.
From then on the version states how many rows the range has, and each later proof compares with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.errors import CorruptDataError
from broker.model.offsets import OffsetRange
from tiering.proof.removed_files import require_removed_below
from tiering.table.commit_files import (
    Action,
    NotOursError,
    facts_of,
    file_in,
    file_of,
    path_of,
    text_of,
)
from tiering.table.key_compactions import KeyCompactionEntry
from tiering.table.table import COMPACTED, EXPIRED, FILES, RANGES, DataFile, SparsePrefix


def require_keys_compacted(  # noqa: PLR0917  # the parts of one commit
    ranges: Mapping[int, OffsetRange],
    sparse: Mapping[int, SparsePrefix],
    files: Mapping[str, DataFile],
    info: Action,
    adds: Sequence[Action],
    removes: Sequence[Action],
    moved: Mapping[tuple[int, str], int],
) -> KeyCompactionEntry:
    """Compare a commit with its account and with the version before it; return the account.

    ``moved`` has the new versions of our transactions. Raises NotOursError with the reason.
    """
    try:
        entry = KeyCompactionEntry.from_text(text_of(info.get(COMPACTED), ""), key=COMPACTED)
    except CorruptDataError as cause:
        raise NotOursError(f"its account cannot be read: {cause}") from cause
    number = entry.partition
    held, before = ranges.get(number), sparse.get(number)
    if RANGES in info or FILES in info or EXPIRED in info:
        raise NotOursError("it removes superseded records and does something else as well")
    if held is None or entry.start != held.start or entry.end >= held.end:
        raise NotOursError(f"its key compaction {entry.range} is not of the first files of {held}")
    whole = held.start if before is None else max(held.start, before.end)
    if entry.end <= whole:
        raise NotOursError(f"its key compaction ends at {entry.end}, and the last one at {whole}")
    due = {(number, "whole"): int(entry.end), (number, "left"): entry.left.records_count}
    if dict(moved) != due:
        raise NotOursError(f"its transactions are {dict(moved)}, and its account gives {due}")
    present = (before.records_count if before is not None and whole > held.start else 0) + (
        entry.end - whole
    )
    gone = [path_of(one) for one in removes]
    if any(one.get("dataChange") is not True for one in removes) or len(gone) != len(set(gone)):
        raise NotOursError("it claims that removed records change no data, or names a file twice")
    rows = require_removed_below(files, number, entry.end, set(gone))
    if rows != present:
        raise NotOursError(
            f"the files that it removes had {rows} rows, and {entry.range} had {present}"
        )
    _require_added(entry, adds)
    if entry.left.records_count > present:
        raise NotOursError(
            f"it leaves {entry.left.records_count} rows of {entry.range}, which had {present}"
        )
    return entry


def _require_added(entry: KeyCompactionEntry, adds: Sequence[Action]) -> None:
    found = {path_of(one): one for one in adds}
    if set(found) != {one.path for one in entry.files} or len(found) != len(adds):
        raise NotOursError("it adds other files than its account names")
    for one in entry.files:
        told, wanted = facts_of(file_in(found[one.path])), facts_of(file_of(one))
        if found[one.path].get("dataChange") is not True or told != wanted:
            raise NotOursError(f"it describes a file as {told} and its account gives {wanted}")
