"""Proves that every commit of a table version is ours or changes no data. Pure.

Counts of rows do not show a changed value. So the commits of the table's log are applied one after
another, and each has to be one of these:

- a commit of ours: it has our commit id, its transactions follow on the present ones, and it adds
  exactly the files of its *account*, with the same statistics. The account is the description of
  ranges and files that our writers put into the commit information. expiry_proof.py: an expiry;
- a commit that changes no data: ``dataChange`` is false on every action, and per partition the
  number of rows and the bounds of their offsets stay (a foreign OPTIMIZE, compactions of ours);
- housekeeping that changes neither our properties nor the columns.

The result is the list of files that this version must have. It is compared with the list that the
Delta library reads (checkpoints included). A foreign change stays an error until a later commit
brings back exactly the files before it, as RESTORE does. Nothing here reads a data file;
object_proof.py does. See docs/decisions/0017-every-version-is-ours.md.

The file is not split: a reader who asks why a version was refused finds every rule here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.errors import CorruptDataError, InvalidStreamError, TableMismatchError
from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from broker.model.stream import Stream
from tiering.proof.expiry_proof import require_expired
from tiering.proof.key_compaction_proof import require_keys_compacted
from tiering.proof.same_rows import require_same_rows
from tiering.table.commit_files import (
    Action,
    NotOursError,
    actions_in,
    author_of,
    claims_in,
    facts_of,
    file_in,
    file_of,
    info_of,
    object_in,
    objects_in,
    path_of,
    text_of,
)
from tiering.table.ledger import LedgerEntry, decode_ranges
from tiering.table.table import (
    COMMIT_ID,
    COMPACTED,
    EMPTY,
    ETAGS,
    EXPIRED,
    FILES,
    KIND_PROPERTY,
    PROPERTY_PREFIX,
    RANGES,
    DataFile,
    SparsePrefix,
    TableKind,
    TableSnapshot,
)
from tiering.table.transactions import TransactionNames

_KNOWN: Final = frozenset(
    {"add", "remove", "txn", "metaData", "protocol", "commitInfo", "cdc", "domainMetadata"}
)

# In place of the columns of a state that cannot be stated, so that it equals no proved state.
_UNREADABLE: Final = "unreadable"

_RANGE: Final = ("start", "end")  # the bounds of a partition; the others are of its sparse prefix

_Bytes = tuple[int | None, str | None]  # CRC-32C and ETag of an object; None if not noted


@dataclass(frozen=True, slots=True)
class ProvedFile:
    """A file that a version must have, with the checksums that were noted at its commit."""

    file: DataFile
    crc32c: int | None = None
    etag: str | None = None
    ours: bool = True  # False: a foreign writer's rows or statistics, not compared yet
    claims: str | None = None  # further statistics by a foreign writer, see commit_files.claims_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignChange:
    """A commit of a foreign writer that changed data."""

    version: int
    operation: str
    author: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Provenance:
    """The state of a table version as its proved commits made it. Owned by one caller."""

    version: int = -1
    anchor: str = ""  # SHA-256 of the version's commit file
    table_id: str = ""
    properties: dict[str, str] = field(default_factory=dict)  # only those with our prefix
    columns: str = ""
    ranges: dict[int, OffsetRange] = field(default_factory=dict)
    files: dict[str, ProvedFile] = field(default_factory=dict)
    sparse: dict[int, SparsePrefix] = field(default_factory=dict)

    def copy(self) -> Provenance:
        """Return a copy of the state, to which further commits can be applied."""
        return replace(
            self,
            properties=dict(self.properties),
            ranges=dict(self.ranges),
            files=dict(self.files),
            sparse=dict(self.sparse),
        )

    @property
    def listed(self) -> dict[str, DataFile]:
        """The files of the version, by path."""
        return {path: one.file for path, one in self.files.items()}

    @property
    def bounds(self) -> tuple[dict[int, OffsetRange], dict[int, SparsePrefix]]:
        """What the transactions of the version state."""
        return self.ranges, self.sparse


def anchor_of(body: bytes) -> str:
    """Return the SHA-256 of a commit file, which identifies the commit."""
    return hashlib.sha256(body).hexdigest()


class Walk:
    """Checks commits and applies them, oldest first, to a proved state."""

    def __init__(self, base: Provenance, uri: str) -> None:
        """Begin at a proved version; its state is copied."""
        self._uri = uri
        self._now = base.copy()
        self._foreign: tuple[ForeignChange, Provenance] | None = None
        self._names = _names_of(self._now)

    def step(self, version: int, body: bytes) -> None:
        """Check and apply the next commit file.

        Raises:
            TableMismatchError: a part of the file is not a Delta commit.
        """
        assert version == self._now.version + 1, "commits come one after another"
        actions = list(actions_in(body, version, self._uri))
        if self._foreign is not None:
            self._now = _applied(self._now, actions)
            self._accept_if_undone(good=self._foreign[1])
        else:
            try:
                self._prove(actions, version)
            except NotOursError as reason:  # nothing of the commit was applied yet
                self._foreign = _foreign(version, actions, reason), self._now
                self._now = _applied(self._now.copy(), actions)
        self._now.version, self._now.anchor = version, anchor_of(body)

    def end(self) -> Provenance:
        """Return the state after the last commit.

        Raises:
            TableMismatchError: with the facts version, operation, author of the foreign change.
        """
        if self._foreign is not None:
            kept = KIND_PROPERTY not in self._now.properties
            raise _foreign_error(self._uri, self._foreign[0], history=kept)
        return self._now

    def _accept_if_undone(self, good: Provenance) -> None:
        """Drop the foreign change if the table is again as it was before that change."""
        same = self._now.listed == good.listed and self._now.bounds == good.bounds
        if same and _shape(self._now) == _shape(good):
            self._now.files = {
                path: _put_back(good.files[path], one) for path, one in self._now.files.items()
            }
            self._foreign = None

    def _prove(self, actions: Sequence[Action], version: int) -> None:
        """Check the whole commit, then apply it."""
        unknown = {name for one in actions for name in one} - _KNOWN
        if unknown:
            raise NotOursError(f"it has actions that this build does not know: {sorted(unknown)}")
        for one in actions:
            if "metaData" in one:
                self._housekeeping(one["metaData"])
        info = info_of(actions)
        adds = [one["add"] for one in actions if "add" in one]
        removes = [one["remove"] for one in actions if "remove" in one]
        moved = self._moved(actions)
        both = {path_of(one) for one in adds} & {path_of(one) for one in removes}
        if both:
            raise NotOursError(
                f"it adds and removes {min(both)} at once, which engines interpret differently"
            )
        if COMMIT_ID in info:
            accounts = _require_ours(self._now, info, adds, removes, moved, version)
            ranges = _moved_ranges(self._now, moved)
            _replace(self._now, adds, removes, accounts, added=ranges)
            _set_ranges(self._now, ranges)
            _set_sparse(self._now, moved)
        else:
            if moved:
                raise NotOursError("it moves our transactions and has no commit id of ours")
            require_same_rows(self._now.listed, adds, removes)
            _replace(self._now, adds, removes, {}, ours=False)

    def _housekeeping(self, metadata: Any) -> None:
        found = _described(Provenance(), metadata)
        if not self._now.table_id:
            self._now.table_id, self._now.columns = found.table_id, found.columns
            self._now.properties = found.properties
            self._names = _names_of(found)
            self._now.ranges = dict.fromkeys(range(_partitions_at_creation(found)), EMPTY)
        elif _shape(found) != _shape(self._now):
            raise NotOursError("it changes the table's id, columns or our properties")

    def _moved(self, actions: Sequence[Action]) -> dict[tuple[int, str], int]:
        """Return the new versions of our transactions, by partition and bound."""
        moved = {}
        for one in actions:
            found = _bound_in(self._names, one)
            if found is not None:
                if type(found[1]) is not int:
                    raise NotOursError("a transaction has no version")
                moved[found[0]] = found[1]
        return moved


def require_listed(state: Provenance, snapshot: TableSnapshot) -> None:
    """Compare a version, as the Delta library read it, with the state that the commits prove.

    Raises:
        TableMismatchError: a file too many or too few, or a file with other statistics (because a
            commit or checkpoint was edited, for example); names the file.
    """
    ours = {name: v for name, v in snapshot.properties.items() if name.startswith(PROPERTY_PREFIX)}
    if ours != state.properties:
        raise _differs(snapshot, "has other properties than at its creation", "")
    if dict(snapshot.ranges) != state.ranges:
        raise _differs(snapshot, f"has the ranges {snapshot.ranges}, not {state.ranges}", "")
    if dict(snapshot.sparse) != state.sparse:
        raise _differs(snapshot, f"states {snapshot.sparse} to be left, not {state.sparse}", "")
    for file in snapshot.files:
        known = state.files.get(file.path)
        if known is None:
            raise _differs(snapshot, f"lists {file.path}, which no proved commit added", file.path)
        if known.file != file and facts_of(known.file) != facts_of(file):
            raise _differs(
                snapshot, f"describes a file as {facts_of(file)} that was committed as "
                f"{facts_of(known.file)}", file.path,
            )  # fmt: skip
    if len(snapshot.files) != len(state.files):
        gone = set(state.files) - {file.path for file in snapshot.files}
        first = min(gone, default="a file")
        raise _differs(snapshot, f"does not list {first}", first)


# --------------------------------------------------------------------------------- commits of ours


def _require_ours(  # noqa: PLR0917  # the parts of one commit
    state: Provenance,
    info: Action,
    adds: Sequence[Action],
    removes: Sequence[Action],
    moved: Mapping[tuple[int, str], int],
    version: int,
) -> Mapping[str, _Bytes]:
    """Prove a commit with our id against its account; return the checksums of its files."""
    try:
        entries = decode_ranges(text_of(info.get(RANGES), "[]"), version=version)
        etags = object_in(info.get(ETAGS))
        account = {path_of(one): one for one in objects_in(info.get(FILES))}
    except (CorruptDataError, ValueError, RecursionError) as cause:
        raise NotOursError(f"its account cannot be read: {cause}") from cause
    if any(name in info for name in (RANGES, FILES, COMPACTED)) and any(
        claims_in(one) is not None for one in adds
    ):
        raise NotOursError("it has statistics of a file that its account does not have")
    if COMPACTED in info:
        if KIND_PROPERTY in state.properties:
            raise NotOursError("it removes superseded records from a key snapshot")
        left = require_keys_compacted(*state.bounds, state.listed, info, adds, removes, moved)
        return {one.path: (one.crc32c, etags.get(one.path)) for one in left.files}
    if EXPIRED in info:
        if adds or KIND_PROPERTY in state.properties:
            raise NotOursError("it lets records expire and does something else as well")
        require_expired(*state.bounds, state.listed, info, removes, moved)
        return {}
    if entries:
        _require_shipped(state, entries, adds, removes, moved)
        return {entry.path: (entry.crc32c, etags.get(entry.path)) for entry in entries}
    _require_replaced(state, account if FILES in info else None, adds, removes, moved)
    return {path: (one.get("crc32c"), etags.get(path)) for path, one in account.items()}


def _moved_ranges(
    state: Provenance, moved: Mapping[tuple[int, str], int]
) -> dict[int, OffsetRange]:
    """Return the new ranges of the partitions whose transactions a commit moves."""
    bounds = {
        number: [
            int(state.ranges.get(number, EMPTY).start),
            int(state.ranges.get(number, EMPTY).end),
        ]
        for number, which in moved
        if which in _RANGE
    }
    for (number, which), bound in moved.items():
        if which in _RANGE:
            bounds[number][which == "end"] = bound
    for number, (start, end) in bounds.items():
        if not 0 <= start <= end <= OFFSET_MAX:
            raise NotOursError(f"partition {number} would hold [{start}, {end})")
    return {n: OffsetRange(Offset(start), Offset(end)) for n, (start, end) in bounds.items()}


def _require_shipped(
    state: Provenance,
    entries: Sequence[LedgerEntry],
    adds: Sequence[Action],
    removes: Sequence[Action],
    moved: Mapping[tuple[int, str], int],
) -> None:
    """Prove a commit of the uploader: it adds the next ranges, and nothing else."""
    if removes:
        raise NotOursError("it ships ranges and removes files")
    ends = {number: int(held.end) for number, held in state.ranges.items()}
    due = {}
    for entry in sorted(entries, key=lambda one: (one.partition, one.start)):
        if ends.get(entry.partition, 0) != entry.start:
            raise NotOursError(f"its range {entry.range} does not begin at the cold end before it")
        ends[entry.partition] = due[entry.partition, "end"] = int(entry.end)
    if due != dict(moved):
        raise NotOursError(f"its transactions give the ends {dict(moved)}, its ranges {due}")
    found = {path_of(one): one for one in adds}
    if set(found) != {entry.path for entry in entries} or len(found) != len(adds):
        raise NotOursError("it adds other files than its ranges name")
    for entry in entries:
        told, wanted = facts_of(file_in(found[entry.path])), facts_of(file_of(entry))
        if found[entry.path].get("dataChange") is not True or told != wanted:
            raise NotOursError(f"it describes a file as {told} and its ranges give {wanted}")


def _require_replaced(
    state: Provenance,
    account: Mapping[str, Any] | None,
    adds: Sequence[Action],
    removes: Sequence[Action],
    moved: Mapping[tuple[int, str], int],
) -> None:
    """Prove a commit of ours that replaces files: a compaction or an advance."""
    if account is not None:
        told = {path: one.get("file") for path, one in account.items()}
        found = {path_of(one): list(facts_of(file_in(one))) for one in adds}
        if told != found or len(found) != len(adds):
            raise NotOursError("it adds other files or statistics than its account has")
    if moved and KIND_PROPERTY not in state.properties:
        raise NotOursError("it moves a partition's bounds and has no account of a range or expiry")
    if not any(one.get("dataChange") is not False for one in (*adds, *removes)):
        require_same_rows(state.listed, adds, removes)
        return
    if KIND_PROPERTY in state.properties:
        return  # an advance of a key snapshot: the rows are the job's result, not a copy of rows
    raise NotOursError("it adds or removes rows and has no account of a range or an expiry")


# ------------------------------------------------------------------------ applying without checks


def _replace(
    state: Provenance,
    adds: Sequence[Action],
    removes: Sequence[Action],
    accounts: Mapping[str, _Bytes],
    *,
    ours: bool = True,
    added: Collection[int] = (),
) -> None:
    """Apply proved files to the state; every error is raised before the first change.

    ``added`` are partitions that the commit itself makes known.
    """
    files = [(file_in(one), claims_in(one)) for one in adds]
    for file, _ in files:
        if file.partition not in state.ranges and file.partition not in added:
            raise NotOursError(f"{file.path} belongs to no partition of the stream")
    old = {path: state.files.pop(path, None) for path in map(path_of, removes)}
    for file, claims in files:
        again = state.files.get(file.path) or old.get(file.path)
        if again is not None and not ours:
            same = (claims, facts_of(file)) == (again.claims, facts_of(again.file))
            state.files[file.path] = replace(
                again, file=file, ours=again.ours and same, claims=claims
            )
        else:
            crc, etag = accounts.get(file.path, (None, None))
            state.files[file.path] = ProvedFile(file, crc, etag, ours, claims)


def _applied(state: Provenance, actions: Sequence[Action]) -> Provenance:
    """Apply a commit without checks; needed only to see whether a foreign change is undone."""
    names = _names_of(state)
    for one in actions:
        found = _bound_in(names, one)
        if found is not None and type(found[1]) is int:
            (number, which), version = found
            if which not in _RANGE:
                _set_sparse(state, {(number, which): version})
                continue
            if not 0 <= version <= OFFSET_MAX:
                state.columns = _UNREADABLE
                continue
            held, bound = state.ranges.get(number, EMPTY), Offset(version)
            ends = (held.start, bound) if which == "end" else (bound, held.end)
            _set_ranges(state, {number: OffsetRange(ends[0], max(ends))})
        if "remove" in one:
            state.files.pop(path_of(one["remove"]), None)
        if "metaData" in one:
            try:
                _described(state, one["metaData"])
            except NotOursError:
                state.columns = _UNREADABLE
    removed = {_logical_file(one["remove"]) for one in actions if "remove" in one}
    for one in actions:
        if "add" in one:
            plain = _logical_file(one["add"]) not in removed
            state.files[path_of(one["add"])] = _added(one["add"], plain=plain)
    return state


def _logical_file(action: Action) -> tuple[str, str]:
    """Return what Delta knows a file by: its path, and the rows that count as deleted in it."""
    return path_of(action), json.dumps(action.get("deletionVector"), sort_keys=True)


def _added(add: Action, *, plain: bool) -> ProvedFile:
    """Return an added file; ``plain``: the same commit does not remove it, too."""
    with suppress(NotOursError):
        if plain:
            return ProvedFile(file_in(add), ours=False, claims=claims_in(add))
    # Engines do not agree on what it is, so it never equals a file of the proved state.
    nothing = DataFile(
        path=path_of(add), size_bytes=-1, partition=-1, records_count=None, min_offset=None,
        max_offset=None,
    )  # fmt: skip
    return ProvedFile(nothing, ours=False)


def _put_back(good: ProvedFile, again: ProvedFile) -> ProvedFile:
    """Return a file of the proved state; its further statistics are those of the undoing."""
    return good if again.claims == good.claims else replace(good, claims=again.claims, ours=False)


def _described(state: Provenance, metadata: Any) -> Provenance:
    try:
        schema = json.loads(metadata["schemaString"])
        columns = [_column(one) for one in schema["fields"]]
        state.table_id = text_of(metadata["id"], "")
        state.columns = json.dumps([columns, metadata["partitionColumns"]], sort_keys=True)
        state.properties = {
            name: text_of(value, "")
            for name, value in metadata["configuration"].items()
            if name.startswith(PROPERTY_PREFIX)
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as cause:
        raise NotOursError("its metadata cannot be read") from cause
    return state


def _column(field: Mapping[str, Any]) -> list[Any]:
    """Return what engines make of a column; a collation, for example, changes what equals what."""
    found = [field["name"], field["type"], field["nullable"]]
    further = {name: v for name, v in field.get("metadata", {}).items() if name != "comment"}
    return [*found, further] if further else found  # without it as in proofs stored before


def _shape(state: Provenance) -> tuple[str, str, dict[str, str]]:
    return state.table_id, state.columns, state.properties


def _names_of(state: Provenance) -> TransactionNames | None:
    """Return what recognises our application ids; None before the table's creation."""
    stream = _stream_of(state)
    if stream is None:
        return None
    kind: TableKind = "latest" if state.properties.get(KIND_PROPERTY) == "latest" else "history"
    return TransactionNames(state.properties.get("headwater.cluster", ""), stream.uuid, kind)


def _partitions_at_creation(state: Provenance) -> int:
    """Return how many partitions the stream had when its table was made; 0 if nothing says so."""
    stream = _stream_of(state)
    return 0 if stream is None else stream.config.partitions


def _stream_of(state: Provenance) -> Stream | None:
    if not state.properties:
        return None
    try:
        return Stream.from_dict(json.loads(state.properties["headwater.stream_json"]))
    except (KeyError, TypeError, ValueError, RecursionError, InvalidStreamError):
        return None


def _bound_in(names: TransactionNames | None, action: Action) -> tuple[tuple[int, str], Any] | None:
    """Return which bound of which partition an action sets, and to what; None: it sets none."""
    txn = action.get("txn")
    if names is None or not isinstance(txn, dict):
        return None
    name = names.parsed(txn.get("appId"))
    return None if name is None else (name, txn.get("version"))


def _set_ranges(state: Provenance, ranges: Mapping[int, OffsetRange]) -> None:
    """Set ranges; partitions below a new one that have no commit yet are known as empty."""
    for number in range(max([-1, *ranges]) + 1):
        state.ranges[number] = ranges.get(number, state.ranges.get(number, EMPTY))


def _set_sparse(state: Provenance, moved: Mapping[tuple[int, str], int]) -> None:
    """Set what a commit states of sparse prefixes."""
    for (number, which), value in moved.items():
        if which in _RANGE:
            continue
        known = state.sparse.get(number, SparsePrefix(Offset(0), 0))
        end, left = (Offset(value), known.records_count) if which == "whole" else (known.end, value)
        state.sparse[number] = SparsePrefix(end, left)


def _foreign(version: int, actions: Sequence[Action], reason: NotOursError) -> ForeignChange:
    return ForeignChange(
        version=version,
        operation=text_of(info_of(actions).get("operation"), "an unnamed operation"),
        author=author_of(info_of(actions)),
        reason=str(reason),
    )


def _foreign_error(uri: str, found: ForeignChange, *, history: bool) -> TableMismatchError:
    way_out = "read a cut of an earlier version"
    if not history:
        way_out = "move its folder away: 'headwater job snapshot' builds a new one from the history"
    return TableMismatchError(
        f"version {found.version} of {uri} is not a commit of Headwater: {found.operation} by "
        f"{found.author}; {found.reason}. From this version on, Headwater does not read the table "
        f"and does not write to it. RESTORE the table to version {found.version - 1}, "
        f"which brings back exactly the files of that version, or {way_out}",
        uri=uri,
        version=found.version,
        operation=found.operation,
        author=found.author,
        reason=found.reason,
    )


def _differs(snapshot: TableSnapshot, what: str, path: str) -> TableMismatchError:
    return TableMismatchError(
        f"version {snapshot.version} of {snapshot.uri} {what}: the table's Delta log or one of "
        "its checkpoints was changed after it was written",
        uri=snapshot.uri,
        version=snapshot.version,
        operation="a rewritten log",
        author="unknown",
        path=path,
    )
