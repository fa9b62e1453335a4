"""Whose a table's folder is: by a purge mark, a reservation, its Delta log, a claim, or a file.

Any of them may be what is left after a purge that was interrupted, or of an upload that came late.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from broker.codec.checksum import crc32c
from broker.errors import (
    CorruptDataError,
    ObjectCorruptError,
    ObjectMissingError,
    TableMismatchError,
)
from broker.model.ids import StreamUuid, is_uuid
from tiering.store.arrow_file import object_file
from tiering.store.object_store import ErasableStore, ObjectStore
from tiering.table.commit_files import parsed_actions

MARK_KEY: Final = "_headwater/purged.json"
RESERVED_KEY: Final = "_headwater/stream.json"
_FORMAT: Final = 1
_BYTES_MAX: Final = 16 * 1024
_CLAIMS: Final = "_headwater/lineage/"
_LOG: Final = "_delta_log/"
_LOOKED_AT_MAX: Final = 8  # commits or files that are read
_OF_A_TABLE: Final = re.compile(
    r"(_delta_log|_headwater|_change_data)/.*|partition=[^/]*/[^/]*"
    r"|\.{0,2}deletion_vector_[^/]*|\.[0-9a-f]{16}\.tmp|",  # "": what a console puts for a folder
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOwner:
    """The stream that a folder belongs to. Claims and files do not say the stream's name."""

    stream_uuid: StreamUuid
    stream: str | None = None

    def encode(self) -> bytes:
        """Return the purge mark or the reservation of this stream: the same bytes each time."""
        return json.dumps({"v": _FORMAT, **asdict(self)}, sort_keys=True).encode() + b"\n"


def owner_of(store: ObjectStore) -> TableOwner | None:
    """Return whose the folder is that ``store`` is rooted at; None if nothing there tells it.

    Raises:
        TableMismatchError: what lies in the folder is of two streams.
        ObjectCorruptError: a mark or a claim cannot be read.
        RemoteTierUnavailableError: the store does not answer.
    """
    found = [*_marked(store), *_begun(store)] or list(_in_files(store))
    uuids = {one.stream_uuid for one in found}
    if len(uuids) > 1:
        raise TableMismatchError(
            f"{store.config.uri} has objects of two streams, {' and '.join(sorted(uuids))}; "
            "nothing was deleted there. Look at the folder with the tools of the store",
            uri=store.config.uri,
        )
    return next((one for one in found if one.stream is not None), next(iter(found), None))


def reserve(store: ObjectStore, owner: TableOwner) -> bool:
    """Take a folder for a new stream, if there is nothing in it; repeating it is harmless.

    A listing alone does not show that a folder is free: what another stream puts there may be on
    its way, for example the claim of a leadership of a stream that was deleted meanwhile.

    Returns whether the folder is the stream's.
    """
    if any(info.key != RESERVED_KEY for info in islice(store.list(""), 2)):
        return False
    body = owner.encode()
    return store.put_if_absent(RESERVED_KEY, body, crc32c=crc32c(body)) is not None


def put_mark(store: ObjectStore, owner: TableOwner) -> None:
    """Put the mark: from now on the folder is that of a purge of this stream."""
    body = owner.encode()
    if store.put_if_absent(MARK_KEY, body, crc32c=crc32c(body)) is None:
        found = next(_marked(store), None)
        if found is None or found.stream_uuid != owner.stream_uuid:
            other = "another stream" if found is None else f"stream {found.stream_uuid}"
            raise TableMismatchError(
                f"{store.config.uri} is purged as the table of {other}, not of {owner.stream_uuid}",
                uri=store.config.uri,
            )


def require_marked(store: ErasableStore, owner: TableOwner) -> None:
    """Check that the folder has the mark of this stream, and nothing of another; before each step.

    If another stream has begun there, this purge's mark is taken back: the folder is not its own.

    Raises:
        TableMismatchError: another purge ended here, and a new stream may have the folder.
    """
    mark = next(_marked(store), None)
    ours = mark is not None and mark.stream_uuid == owner.stream_uuid
    others = {one.stream_uuid for one in _begun(store)}
    if ours and others <= {owner.stream_uuid}:
        return
    if ours:
        store.erase([MARK_KEY])
    raise TableMismatchError(
        f"another purge ended here: {store.config.uri} is no longer of stream {owner.stream_uuid}, "
        "and a new stream may have it. Nothing more was deleted",
        uri=store.config.uri,
    )


def belongs(key: str) -> bool:
    """Tell whether an object of this key is of a stream's table, or of a key snapshot."""
    return _OF_A_TABLE.fullmatch(key) is not None


def require_own(store: ObjectStore, keys: Iterable[str]) -> None:
    """Refuse to delete what is no part of a table, such as a job's table beneath the folder.

    Raises:
        TableMismatchError: one of the keys is not; it is named.
    """
    foreign = next((key for key in keys if not belongs(key)), None)
    if foreign is not None:
        raise TableMismatchError(
            f"{store.config.uri} has {foreign}, which is no part of a stream's table. Move what "
            "is not the table's to another place, with the tools of the store, and run this again",
            uri=store.config.uri,
            key=foreign,
        )


def decode_owner(body: bytes, key: str) -> TableOwner:
    """Return whose a mark or a claim is; raises ObjectCorruptError."""
    try:
        values = json.loads(body) if len(body) <= _BYTES_MAX else None
    except (ValueError, RecursionError):
        values = None
    found = None
    if isinstance(values, dict) and values.get("v") == _FORMAT:
        found = _owner(values.get("stream_uuid"), values.get("stream"))
    if found is None:
        raise ObjectCorruptError(f"{key} does not say whose it is", key=key)
    return found


def _owner(uuid: object, stream: object = None) -> TableOwner | None:
    if not isinstance(uuid, str) or not is_uuid(uuid):
        return None
    return TableOwner(
        stream_uuid=StreamUuid(uuid), stream=stream if isinstance(stream, str) else None
    )


def _marked(store: ObjectStore) -> Iterator[TableOwner]:
    return _named_in(store, MARK_KEY)


def _named_in(store: ObjectStore, key: str) -> Iterator[TableOwner]:
    with suppress(ObjectMissingError):
        yield decode_owner(store.get(key), key)


def _begun(store: ObjectStore) -> Iterator[TableOwner]:
    """Yield the streams that have begun in the folder."""
    yield from _named_in(store, RESERVED_KEY)
    yield from _in_log(store)
    yield from _in_claims(store)


def _in_claims(store: ObjectStore) -> Iterator[TableOwner]:
    for info in islice(store.list(_CLAIMS), 1):
        yield decode_owner(store.get(info.key), info.key)


def _in_log(store: ObjectStore) -> Iterator[TableOwner]:
    commits = (info for info in store.list(_LOG) if info.key.endswith(".json"))
    for info in islice(commits, _LOOKED_AT_MAX):
        try:
            for action in parsed_actions(store.get(info.key)):
                yield from _of_action(action)
        except ValueError:
            continue  # not a commit of ours


def _of_action(action: Any) -> Iterator[TableOwner]:
    settings = action.get("metaData", {}).get("configuration")
    if isinstance(settings, dict):
        uuid = settings.get("headwater.stream_uuid")
        found = _owner(uuid, settings.get("headwater.stream"))
        if found is not None:
            yield found
    app = action.get("txn", {}).get("appId")
    pieces = app.split("/") if isinstance(app, str) else []
    if len(pieces) >= 4 and pieces[0] == "headwater":  # headwater/<cluster>/<stream uuid>/…
        found = _owner(pieces[2])
        if found is not None:
            yield found


def _in_files(store: ObjectStore) -> Iterator[TableOwner]:
    files = (info for info in store.list("partition=") if info.key.endswith(".parquet"))
    for info in islice(files, _LOOKED_AT_MAX):
        try:
            footer = pq.read_metadata(object_file(store, info.key, info.size_bytes)).metadata or {}
            uuid = footer.get(b"headwater.stream_uuid", b"").decode()
        except (pa.ArrowException, OSError, ValueError, CorruptDataError):
            continue  # not a file of ours, or one that is gone
        found = _owner(uuid)
        if found is not None:
            yield found
