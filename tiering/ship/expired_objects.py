"""Deletes the objects of expired ranges, once no version that may be read needs them.

A version needs an object below the table's start only if the version is older than the expiry of
the object's range. So such an object goes when the expiry of its whole range is older than the
stream's grace, and than every live lease: a cut names a version that was the newest one after its
lease was taken. With the files that expired go orphans of failed uploads, and files that compaction
had replaced, if their names say that they are of an expired range. Other names are left to VACUUM
(table/delta_maintenance.py), and so is everything at or above the table's start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from broker.model.offsets import Offset
from tiering.store.object_store import ErasableStore
from tiering.table.delta_maintenance import SKEW_US
from tiering.table.expiries import Expiries, ExpiryEntry
from tiering.table.table import TableSnapshot

DELETED_MAX: Final = 1_000  # objects that one sweep deletes; the next sweep deletes the rest
_NAME: Final = re.compile(r"partition=(\d+)/(\d{20})-(\d{20})-[0-9a-f-]+\.parquet\Z")


def deletable_end(
    entries: Iterable[ExpiryEntry], *, grace_us: int, now_us: int, lease_us: int | None
) -> Offset:
    """Return the offset below which no readable version needs an object; 0: below none.

    ``entries`` are expiries in order. ``lease_us`` is when the oldest live lease was taken.
    """
    end = Offset(0)
    for entry in entries:
        young = now_us - entry.expired_us < grace_us
        held = lease_us is not None and lease_us <= entry.expired_us + SKEW_US
        if young or held:
            break
        end = entry.end
    return end


def candidates(
    store: ErasableStore, snapshot: TableSnapshot, number: int
) -> list[tuple[str, Offset]]:
    """Return objects of a partition below its start, with the end of each range; the oldest first.

    An object that the version lists is never among them. Costs one listing, of the first objects.
    """
    start = snapshot.ranges[number].start
    listed = {file.path for file in snapshot.files}
    bound = f"partition={number}/{start:020}"
    found: list[tuple[str, Offset]] = []
    for info in store.list(f"partition={number}/"):
        if info.key >= bound or len(found) >= DELETED_MAX:
            break
        match = _NAME.match(info.key)
        if match and int(match[1]) == number and int(match[3]) <= start and info.key not in listed:
            found.append((info.key, Offset(int(match[3]))))
    return found


def entries_from(expiries: Expiries, number: int, first: Offset) -> Iterable[ExpiryEntry]:
    """Yield expiries in order, beginning with the expiry whose range holds offset ``first``."""
    starts = expiries.starts(number)
    at = max((place for place, one in enumerate(starts) if one <= first), default=0)
    for start in starts[at:]:
        yield expiries.get(number, start)


def erase(store: ErasableStore, found: Sequence[tuple[str, Offset]], end: Offset) -> int:
    """Delete the objects whose range ends at or below ``end``; return how many."""
    keys = [key for key, last in found if last <= end]
    if keys:
        store.erase(keys)
    return len(keys)
