"""Whose a table's folder is: by its purge mark, its Delta log, a claim, or the footer of a file.

Any of them may be what is left after a purge that was interrupted, or of an upload that came late.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from broker.codec.checksum import crc32c
from broker.errors import CorruptDataError, ObjectCorruptError, TableMismatchError
from broker.model.ids import StreamUuid, is_uuid
from tiering.store.arrow_file import object_file
from tiering.store.object_store import ObjectStore
from tiering.table.commit_files import parsed_actions

MARK_KEY: Final = "_headwater/purged.json"
_FORMAT: Final = 1
_BYTES_MAX: Final = 16 * 1024
_CLAIMS: Final = "_headwater/lineage/"
_LOG: Final = "_delta_log/"
_LOOKED_AT_MAX: Final = 8  # commits or files that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOwner:
    """The stream that a folder belongs to. Claims and files do not say the stream's name."""

    stream_uuid: StreamUuid
    stream: str | None = None

    def encode(self) -> bytes:
        """Return the purge mark of this stream: the same bytes each time."""
        return json.dumps({"v": _FORMAT, **asdict(self)}, sort_keys=True).encode() + b"\n"


def owner_of(store: ObjectStore) -> TableOwner | None:
    """Return whose the folder is that ``store`` is rooted at; None if nothing there tells it.

    Raises:
        TableMismatchError: what lies in the folder is of two streams.
        ObjectCorruptError: a mark or a claim cannot be read.
        RemoteTierUnavailableError: the store does not answer.
    """
    found = [*_marked(store), *_in_log(store), *_in_claims(store)] or list(_in_files(store))
    uuids = {one.stream_uuid for one in found}
    if len(uuids) > 1:
        raise TableMismatchError(
            f"{store.config.uri} has objects of two streams, {' and '.join(sorted(uuids))}; "
            "nothing was deleted there. Look at the folder with the tools of the store",
            uri=store.config.uri,
        )
    return next((one for one in found if one.stream is not None), next(iter(found), None))


def put_mark(store: ObjectStore, owner: TableOwner) -> None:
    """Put the mark: from now on the folder is that of a purge of this stream."""
    body = owner.encode()
    if store.put_if_absent(MARK_KEY, body, crc32c=crc32c(body)) is None:
        (found,) = _marked(store)
        if found.stream_uuid != owner.stream_uuid:
            raise TableMismatchError(
                f"{store.config.uri} is purged as the table of stream {found.stream_uuid}, not of "
                f"{owner.stream_uuid}",
                uri=store.config.uri,
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
    for info in store.list(MARK_KEY):
        if info.key == MARK_KEY:
            yield decode_owner(store.get(MARK_KEY), MARK_KEY)


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
