"""The sessions that a data folder has been in: the proof that it is the one last in use.

A process draws a session, writes it beside those that the folder already holds, syncs, and only
then registers. docs/replication.md, "Proof of the folder".
"""

from __future__ import annotations

import json
import uuid
from typing import Final

from broker.codec.checksum import crc32c
from broker.errors import MetadataCorruptError
from broker.ports import Files
from broker.storage.whole_file import write_whole

_FILE: Final = "sessions.json"
_BYTES_MAX: Final = 8192
_KEPT: Final = 16


def begin_session(files: Files) -> tuple[str, tuple[str, ...]]:
    """Return a new session and those that the folder held before; the new one is durable.

    Raises:
        MetadataCorruptError: the file is damaged. Without it the broker would be a stranger.
    """
    known = _read(files) if files.exists(_FILE) else ()
    session = uuid.uuid4().hex
    sessions = (*known, session)[-_KEPT:]
    body = {"sessions": sessions, "crc": _checksum(sessions)}
    write_whole(files, _FILE, [json.dumps(body, sort_keys=True).encode()])
    return session, known


def _read(files: Files) -> tuple[str, ...]:
    file = files.open(_FILE)
    try:
        body = json.loads(file.read_at(0, _BYTES_MAX))
        sessions = tuple(body["sessions"])
        whole = body["crc"] == _checksum(sessions) and len(sessions) <= _KEPT
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE) from cause
    finally:
        file.close()
    if not whole:
        raise MetadataCorruptError(f"{_FILE} fails its checksum", path=_FILE)
    return sessions


def _checksum(sessions: tuple[str, ...]) -> int:
    return crc32c("\n".join(sessions).encode())
