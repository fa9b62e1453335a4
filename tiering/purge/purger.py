"""Deletes all objects of one stream's table and of its key snapshot. Blocking; one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    RemoteTierUnavailableError,
    TableMismatchError,
)
from tiering.keys.snapshot import folders_of
from tiering.purge.owner import (
    MARK_KEY,
    TableOwner,
    belongs,
    owner_of,
    put_mark,
    require_marked,
    require_own,
)
from tiering.purge.rounds import PurgeLook, PurgeRounds
from tiering.store.location import StoreConfig, canonical_uri
from tiering.store.object_store import ErasableStore
from tiering.store.opening import open_store

PAUSE_S: Final = 2.0  # between two looks; the pause of a broker between two scans is one second
_PAGE: Final = 1_000  # objects that are deleted together
_AT_ONCE: Final = 8
_LEFT_COUNTED_MAX: Final = 100_000
_PROBE_KEY: Final = "_headwater/purge_probe"  # never put; deleting it shows the right to delete


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """What lies below the folders of a stream."""

    objects_count: int
    data_files_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePurged:
    """What a purge did. Not ``sure``: something may come back, or has, or could not be deleted."""

    objects_count: int
    sure: bool
    waiting_for: tuple[str, ...] = ()


class TablePurger:
    """The folders of one stream: that of its table, and those of its key snapshot."""

    def __init__(self, location: StoreConfig) -> None:
        """Use the table at a location; makes no request.

        Raises:
            InvalidRequestError: the address is not ``<lake>/<namespace>/<table>``.
        """
        root, self._namespace, self._folder = _parted(location)
        self.uri = location.uri
        self._lake = open_store(location.at(root))
        self._table = self._below(self._folder)

    def owner(self) -> TableOwner | None:
        """Return whose the table's folder is; see :func:`owner_of`."""
        return owner_of(self._table)

    def size(self, owner: TableOwner) -> TableSize:
        """Return what there is to delete."""
        objects = data = total = 0
        for store in self._stores(owner):
            for info in store.list(""):
                objects += info.key != MARK_KEY
                data += info.key.startswith("partition=")
                total += info.size_bytes
        return TableSize(objects_count=objects, data_files_count=data, size_bytes=total)

    def require_own(self, owner: TableOwner) -> None:
        """Check that all there is to delete is this stream's; nothing is deleted.

        Raises:
            TableMismatchError: a folder is another stream's, or has objects that are no part of a
                table, or objects and nothing that says whose they are.
        """
        found = self.owner()
        if found is not None and found.stream_uuid != owner.stream_uuid:
            raise TableMismatchError(
                f"{self.uri} is of stream {found.stream or ''} with uuid {found.stream_uuid}, not "
                f"of {owner.stream_uuid}: nothing was deleted",
                uri=self.uri,
            )
        for store in self._stores(owner):
            require_own(store, (info.key for info in store.list("")))
        some = next(iter(self._table.list("")), None) if found is None else None
        if some is not None:
            raise TableMismatchError(
                f"{self.uri} has {some.key}, and nothing there says whose it is: nothing was "
                "deleted. Look at the folder with the tools of the store",
                uri=self.uri,
                key=some.key,
            )

    def require_delete(self) -> None:
        """Try whether the store lets this process delete; nothing is deleted.

        Raises:
            RemoteTierUnavailableError: it does not, or does not answer.
        """
        self._table.erase([_PROBE_KEY])

    def run(
        self,
        owner: TableOwner,
        *,
        ask: Callable[[], tuple[str, ...]],
        pause: Callable[[float], object],
        told: Callable[[int], object],
    ) -> TablePurged:
        """Delete everything; the cluster's metadata has the deletion of the stream.

        ``ask`` returns what brokers are still to be waited for; ``told`` gets the number of objects
        that are deleted.

        Raises:
            TableMismatchError: the folder is another stream's, became so meanwhile because another
                purge ended, or has objects that are no part of a table.
            RemoteTierUnavailableError: the store refuses a delete, or does not answer.
        """
        self.require_own(owner)
        _mark(self._table, owner)
        rounds, total = PurgeRounds(), 0
        while True:
            waiting_for, found = ask(), 0
            for store in self._stores(owner) if rounds.may_delete(waiting_for) else ():
                if store is not self._table:
                    _mark(store, owner)
                for keys in _pages(store):
                    require_own(store, keys)
                    require_marked(store, owner)
                    self._erase(store, keys)
                    found += len(keys)
                    told(total + found)
            total += found
            step = rounds.step(PurgeLook(found, waiting_for))
            if step == "pause":
                pause(PAUSE_S)
            elif step == "unsure":
                return TablePurged(objects_count=total, sure=False, waiting_for=waiting_for)
            elif step == "finished":
                hidden = self._finish(owner)
                return TablePurged(objects_count=total, sure=not hidden, waiting_for=hidden)

    # ------------------------------------------------------------------ inside

    def _finish(self, owner: TableOwner) -> tuple[str, ...]:
        """Erase what no listing shows, then the marks; return why a mark has to stay."""
        for store in self._stores(owner):
            require_marked(store, owner)
            left = store.erase_remains(belongs)
            if left:
                more = "" if len(left) == 1 else f" and {len(left) - 1} more"
                return (f"hidden files below {store.config.uri}: {left[0]}{more}",)
            require_marked(store, owner)
            store.erase([MARK_KEY])
        return ()

    def _stores(self, owner: TableOwner) -> Iterator[ErasableStore]:
        """Yield the key snapshot's folders that are of this stream, then the table's."""
        for folder in folders_of(self._folder, owner.stream_uuid):
            store = self._below(folder)
            found = owner_of(store)
            if found is not None and found.stream_uuid == owner.stream_uuid:
                yield store
        yield self._table

    def _below(self, folder: str) -> ErasableStore:
        return self._lake.under(f"{self._namespace}/{folder}")

    def _erase(self, store: ErasableStore, keys: Sequence[str]) -> None:
        pieces = [keys[at::_AT_ONCE] for at in range(min(_AT_ONCE, len(keys)))]
        with ThreadPoolExecutor(len(pieces)) as pool:
            done = [pool.submit(store.erase, piece) for piece in pieces]
        failed = next((error for one in done if (error := one.exception()) is not None), None)
        if failed is None:
            return
        if not isinstance(failed, HeadwaterError):
            raise failed
        left = sum(1 for _ in islice(store.list(""), _LEFT_COUNTED_MAX))
        more = " or more" if left == _LEFT_COUNTED_MAX else ""
        raise RemoteTierUnavailableError(
            f"the store did not delete an object ({failed.message}); {left:,}{more} objects are "
            f"left below {store.config.uri}. The stream is deleted; the purge goes on when it is "
            "run again",
            uri=store.config.uri,
            left=left,
        ) from failed


def _mark(store: ErasableStore, owner: TableOwner) -> None:
    put_mark(store, owner)
    require_marked(store, owner)  # a new stream may have got the folder just before


def _pages(store: ErasableStore) -> Iterator[list[str]]:
    keys = (info.key for info in store.list("") if info.key != MARK_KEY)
    while page := list(islice(keys, _PAGE)):
        yield page


def _parted(location: StoreConfig) -> tuple[str, str, str]:
    """Return lake, namespace and folder of a table's address."""
    places = location.prefix if location.kind == "s3" else str(location.root).strip("/")
    pieces = places.split("/")
    root = location.uri.rsplit("/", 2)
    if len(pieces) < 3 - (location.kind == "s3") or len(root) != 3:
        raise InvalidRequestError(
            f"{location.uri} is not the address of a table, which is <lake>/<namespace>/<table>",
            uri=location.uri,
        )
    return canonical_uri(root[0]), root[1], root[2]
