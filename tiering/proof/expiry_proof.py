"""Proves that a commit by which files expired removes exactly what it may. Pure.

An expiry is the only commit that removes rows. It removes the first files of one partition, all of
them up to an offset, and moves the partition's start there; it does nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.errors import CorruptDataError
from broker.model.offsets import OffsetRange
from tiering.proof.removed_files import require_removed_below
from tiering.table.commit_files import Action, NotOursError, path_of, text_of
from tiering.table.expiries import ExpiryEntry
from tiering.table.table import EXPIRED, FILES, RANGES, DataFile, SparsePrefix


def require_expired(  # noqa: PLR0917  # the parts of one commit
    ranges: Mapping[int, OffsetRange],
    sparse: Mapping[int, SparsePrefix],
    files: Mapping[str, DataFile],
    info: Action,
    removes: Sequence[Action],
    moved: Mapping[tuple[int, str], int],
) -> None:
    """Compare a commit with its account and with the files before it.

    ``removes`` are the files that it removes, ``moved`` the new versions of our transactions.
    Raises NotOursError with the reason.
    """
    try:
        entry = ExpiryEntry.from_text(text_of(info.get(EXPIRED), ""), key=EXPIRED)
    except CorruptDataError as cause:
        raise NotOursError(f"its account cannot be read: {cause}") from cause
    held = ranges.get(entry.partition)
    if RANGES in info or FILES in info:
        raise NotOursError("it lets records expire and does something else as well")
    if held is None or entry.start != held.start or entry.end > held.end:
        raise NotOursError(f"its expiry {entry.range} does not begin at the start of {held}")
    bounds = {name: value for name, value in moved.items() if name != (entry.partition, "left")}
    if bounds != {(entry.partition, "start"): int(entry.end)}:
        raise NotOursError(f"its transactions move {bounds}, its expiry ends at {entry.end}")
    gone = [path_of(one) for one in removes]
    if any(one.get("dataChange") is not True for one in removes) or len(gone) != len(set(gone)):
        raise NotOursError("it claims that an expiry changes no data, or removes a file twice")
    rows = require_removed_below(files, entry.partition, entry.end, set(gone))
    if set(entry.paths) != set(gone):
        raise NotOursError(f"its account names other files than those below {entry.end}")
    left = moved.get((entry.partition, "left"))
    before = sparse.get(entry.partition)
    due_left = None
    if before is not None and before.end > entry.start:
        due_left = before.after_expiry(entry.range, rows).records_count
    if left != due_left:
        raise NotOursError(f"it leaves {left} rows in the sparse range, its files {due_left}")
