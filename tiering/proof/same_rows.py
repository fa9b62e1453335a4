"""Proves that a commit which claims to change no data keeps counts and bounds. Pure.

A foreign OPTIMIZE is such a commit, and a compaction of ours. The rows themselves are compared with
the ledger later, by object_proof.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tiering.table.commit_files import Action, NotOursError, facts_of, file_in, path_of
from tiering.table.table import DataFile

_ROUNDING_MS: Final = 1  # an engine rounds a file's last timestamp down, we round it up


def require_same_rows(
    files: Mapping[str, DataFile], adds: Sequence[Action], removes: Sequence[Action]
) -> None:
    """Prove that a commit keeps the number of rows and the offset bounds of each partition.

    ``files`` are those of the version before. Raises NotOursError with the reason.
    """
    for one in (*adds, *removes):
        if one.get("dataChange") is not False:
            raise NotOursError("it changes data and has no commit id of ours")
    gone = []
    for one in removes:
        known = files.get(path_of(one))
        if known is None:
            raise NotOursError(f"it removes {one.get('path')}, which was not there")
        gone.append(known)
    come = []
    removed = {file.path for file in gone}
    for one in adds:
        file = file_in(one)
        known = files.get(file.path)
        if known is not None and file.path not in removed:
            _require_restated(known, file)  # only its statistics were computed again
        else:
            come.append(file)
    before, after = _totals(gone), _totals(come)
    if not _conserved(before, after):
        raise NotOursError(
            f"it claims to change no data, but it turns {before} into {after} (rows, first and "
            "last offset by partition)"
        )


def _totals(files: Sequence[DataFile]) -> dict[int, tuple[int, int, int] | None]:
    """Return rows, first and last offset by partition; None where a file has no statistics.

    The commit alone cannot prove such a file; its rows are compared before the file is served.
    """
    totals: dict[int, tuple[int, int, int] | None] = {}
    for file in files:
        if file.records_count is None or file.min_offset is None or file.max_offset is None:
            totals[file.partition] = None
            continue
        low, high = int(file.min_offset), int(file.max_offset)
        known = totals.get(file.partition, (0, low, high))
        if known is not None:
            rows, least, greatest = known
            totals[file.partition] = (
                rows + file.records_count, min(least, low), max(greatest, high)
            )  # fmt: skip
    return totals


def _conserved(
    before: Mapping[int, tuple[int, int, int] | None],
    after: Mapping[int, tuple[int, int, int] | None],
) -> bool:
    """Tell whether rows and bounds stay the same, as far as statistics tell."""
    return before.keys() == after.keys() and all(
        after[number] in (found, None) or found is None for number, found in before.items()
    )


def _require_restated(known: DataFile, file: DataFile) -> None:
    """Refuse another description of a file, apart from the rounding of times.

    A description that differs by the rounding is compared with the rows, see provenance.py.
    Without that, many commits that each move a time by a millisecond would move it to anywhere.
    """
    times = (
        (known.min_timestamp_us, file.min_timestamp_us),
        (known.max_timestamp_us, file.max_timestamp_us),
    )
    close = all(
        old is not None and new is not None and abs(old // 1000 - new // 1000) <= _ROUNDING_MS
        for old, new in times
    )
    if known != file and not (facts_of(known)[:5] == facts_of(file)[:5] and close):
        raise NotOursError(f"it changes the statistics of {file.path}")
