"""Lists the objects of a table version, and remembers which listing was proved.

Every read lists the data files anew: only the store can tell that an object is gone or another one.
A listing gives each object's ETag, or in a folder its stamp. So if an earlier read of the same
version proved the same listing, every object is the one that was proved, and there is nothing to
compare object by object.

S3 lists a thousand objects for each request, and the next request needs the last key. The files
that the version names tell where a long listing can be cut, so its parts are requested side by
side.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from broker.model.offsets import OffsetRange
from tiering.proof.provenance import Provenance
from tiering.store.object_store import ObjectInfo, ObjectStore
from tiering.table.table import FILES_PREFIX, TableSnapshot

_PAGE: Final = 1_000  # objects that S3 lists for one request
_THREADS: Final = 16
_OBJECTS_MAX: Final = 1_000_000  # in all remembered listings; some 300 bytes each


def data_objects(snapshot: TableSnapshot, store: ObjectStore) -> list[ObjectInfo]:
    """List all objects below the folders of the partitions, by key; not only those of the version.

    Raises RemoteTierUnavailableError.
    """
    cuts = sorted(one.path for one in snapshot.files[_PAGE - 1 :: _PAGE])
    if store.config.kind == "local" or not cuts:
        return list(store.list(FILES_PREFIX))

    def part(above: str, last: str | None) -> list[ObjectInfo]:
        found = []
        for one in store.list(FILES_PREFIX, start_after=above):
            if last is None or one.key <= last:
                found.append(one)
            if last is not None and one.key >= last:
                break  # the next page is another part's
        return found

    with ThreadPoolExecutor(min(_THREADS, len(cuts) + 1), "headwater-listing") as threads:
        parts = threads.map(part, ["", *cuts], [*cuts, None])
        return [one for some in parts for one in some]


class _Proved(NamedTuple):
    snapshot: TableSnapshot
    within: Mapping[int, OffsetRange]
    objects: list[ObjectInfo]
    proof: Provenance


class ProvedListings:
    """The listing of each table that was proved last by this process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, _Proved] = OrderedDict()

    def proof_of(
        self,
        snapshot: TableSnapshot,
        within: Mapping[int, OffsetRange],
        objects: list[ObjectInfo],
    ) -> Provenance | None:
        """Return the proof by which these objects were found to hold these ranges; None: unknown.

        Both the snapshot and the proof are compared by identity: each is kept while its version is
        unchanged, and to compare a hundred thousand files would be the work that is saved.
        """
        with self._lock:
            known = self._tables.get(snapshot.uri)
        if known is None or known.snapshot is not snapshot:
            return None
        return known.proof if (known.within, known.objects) == (within, objects) else None

    def put(
        self,
        snapshot: TableSnapshot,
        within: Mapping[int, OffsetRange],
        objects: list[ObjectInfo],
        proof: Provenance,
    ) -> None:
        """Remember what was proved; the tables used longest ago are forgotten."""
        with self._lock:
            self._tables[snapshot.uri] = _Proved(snapshot, within, objects, proof)
            self._tables.move_to_end(snapshot.uri)
            while sum(len(one.objects) for one in self._tables.values()) > _OBJECTS_MAX:
                self._tables.popitem(last=False)


PROVED: Final = ProvedListings()
