"""OPTIMIZE and VACUUM of any Delta table by delta-rs; mostly for curated tables.

A stream's own table is compacted by ship/compaction.py instead, which keeps its ranges apart;
VACUUM is the same for all tables. The caller passes how many hours back a reader may still read
(:func:`hours_held`). delta-rs takes a file for an orphan, and decides by the file's own age, once a
checkpoint has forgotten that the file was removed; by default that is after a week. So the commits
of these hours are read, and versions that have a file which such a commit removed are kept whole.
Before a file is deleted, it is compared once more with the files of the newest version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from broker.errors import FilesReplacedError, InvalidRequestError, ObjectMissingError
from broker.model.tiering import HeldLease
from tiering.store.object_store import ObjectStore
from tiering.table.delta_library import DeltaLibrary, add_actions_of, brief, column
from tiering.table.delta_log import removals_since

RETAIN_HOURS_FLOOR: Final = 7 * 24
ORPHAN_HOURS_MIN: Final = 24  # younger objects may be of an upload in progress, not yet committed
_HOUR_US: Final = 3_600_000_000
SKEW_US: Final = 600_000_000  # allowed difference of the clocks of broker, committers and store


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """The files that VACUUM removed, or would remove; paths below the table."""

    paths: tuple[str, ...]
    retain_hours: int
    orphans: bool  # whether it also searched objects that no version ever named


def hours_held(leases: Sequence[HeldLease], *, now_us: int) -> int:
    """Return how many hours back the oldest of these leases may read; 0 without leases.

    A cut names a version that was the newest one after its lease was taken. So the reader needs no
    file that was removed from the table before that.
    """
    if not leases:
        return 0
    oldest_us = min(lease.taken_us for lease in leases)
    return max(1, -(-(now_us - oldest_us + SKEW_US) // _HOUR_US))


def retention_hours(asked: int | None, leases: Sequence[HeldLease], *, now_us: int) -> int:
    """Return the retention, in hours, for VACUUM.

    Without ``asked`` it is RETAIN_HOURS_FLOOR, or more if a lease needs more.

    Raises:
        InvalidRequestError: ``asked`` is less than a lease needs; names the owner.
    """
    needed = hours_held(leases, now_us=now_us)
    if asked is None:
        return max(RETAIN_HOURS_FLOOR, needed)
    if asked < 0:
        raise InvalidRequestError(f"a retention of {asked} hours is not valid: give 0 or more")
    if asked < needed:
        owner = min(leases, key=lambda lease: lease.taken_us).owner
        raise InvalidRequestError(
            f"a retention of {asked} h would delete files that {owner} may be reading; its lease "
            f"needs {needed} h: wait, end the lease, or keep more hours",
            owner=owner,
            needed_hours=needed,
        )
    return asked


class MaintainedTable:
    """OPTIMIZE and VACUUM of one table. Not thread-safe."""

    def __init__(
        self, store: ObjectStore, storage_options: Callable[[], dict[str, str]] = dict
    ) -> None:
        """Bind to the folder that ``store`` is rooted at; makes no request."""
        self._store = store
        self._library = DeltaLibrary(store, storage_options)

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""
        return self._store.config.uri

    def stream(self) -> str:
        """Return the stream's name if this is a stream's table or key snapshot, else "".

        Raises ObjectMissingError without a table.
        """
        properties = self._opened().metadata().configuration
        return str(properties.get("headwater.stream", ""))

    def vacuum(self, *, retain_hours: int, dry_run: bool) -> Vacuumed:
        """Delete the files that no version of the last ``retain_hours`` needs.

        With ``dry_run`` nothing is deleted; the result has the files that would be. Objects that
        no version ever named are deleted by their own age, and only if ``retain_hours`` is at
        least ORPHAN_HOURS_MIN.

        Raises:
            ObjectMissingError: there is no table.
            ObjectCorruptError: a commit cannot be parsed; nothing was deleted.
            FilesReplacedError: the library would delete a file of the newest version, or of a
                version of these hours.
            RemoteTierUnavailableError: the store does not answer; the next call deletes the rest.
        """
        table = self._opened()
        orphans = retain_hours >= ORPHAN_HOURS_MIN
        wanted: dict[str, Any] = {
            "retention_hours": retain_hours,
            "enforce_retention_duration": False,  # our own floor counts, which respects leases
            "full": orphans,
        }
        paths = self._library.guarded(lambda: table.vacuum(dry_run=True, **wanted), "vacuum")
        needed = {unquote(path) for path in column(add_actions_of(table), "path")}
        removed = _removed(self._store, retain_hours) if paths else {}
        versions = self._versions_before({removed[path] for path in paths if path in removed})
        if versions:
            wanted["keep_versions"] = versions
            paths = self._library.guarded(lambda: table.vacuum(dry_run=True, **wanted), "vacuum")
            needed |= {path for path, version in removed.items() if version - 1 in versions}
        for path in paths:
            if path in needed or path.startswith("_"):
                raise FilesReplacedError(
                    f"VACUUM of {self.uri} would delete {path}, which the table needs; nothing was "
                    "deleted",
                    path=path,
                )
        if not dry_run and paths:
            paths = self._library.guarded(lambda: table.vacuum(dry_run=False, **wanted), "vacuum")
        return Vacuumed(paths=tuple(sorted(paths)), retain_hours=retain_hours, orphans=orphans)

    def optimize(self, *, target_bytes: int) -> dict[str, Any]:
        """Join small files without a change of rows; return delta-rs's metrics.

        Files are joined in delta-rs's order, mostly the newest first, not in that of their rows.

        Raises:
            ObjectMissingError: there is no table.
            FilesReplacedError: another process rewrote the same files first; nothing was changed.
            RemoteTierUnavailableError: the store does not answer.
        """
        table = self._opened()
        try:
            done = self._library.guarded(
                lambda: table.optimize.compact(target_size=target_bytes), "optimize"
            )
        except CommitFailedError as cause:
            raise FilesReplacedError(
                f"another process changed {self.uri} while it was compacted; nothing was changed "
                f"here, run the compaction again: {brief(cause)}",
                path=self.uri,
            ) from cause
        return {name: json.loads(v) if _is_json(v) else v for name, v in done.items()}

    def version(self) -> int:
        """Return the newest version; raises ObjectMissingError without a table."""
        return int(self._opened().version())

    def _versions_before(self, removals: Iterable[int]) -> list[int]:
        """Return the versions just before these, without those that nobody can open any more.

        A log is cleaned up from its beginning. So all versions above one that can be opened can be,
        and only the oldest ones are tried: each may read the whole log anew.
        """
        versions = sorted(version - 1 for version in removals)
        for at, version in enumerate(versions):
            with suppress(ObjectMissingError):  # the log was cleaned up
                self._library.opened(version)
                return versions[at:]
        return []

    def _opened(self) -> DeltaTable:
        table = self._library.newest_in_store()
        if table is None:
            raise ObjectMissingError(f"there is no table at {self.uri}", key="_delta_log")
        return table


def _removed(store: ObjectStore, retain_hours: int) -> Mapping[str, int]:
    now_ms = time.time_ns() // 1_000_000
    moment_ms = now_ms - retain_hours * _HOUR_US // 1000
    return removals_since(store, moment_ms, until_ms=now_ms + SKEW_US // 1000)


def _is_json(value: object) -> bool:
    return isinstance(value, str) and value.startswith("{")
