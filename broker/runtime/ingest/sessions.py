"""The sessions that a data folder has been in: the proof that it is the one last in use.

A process draws a session, writes it beside those that the folder already holds, syncs, and only
then registers. docs/replication.md, "Proof of the folder".

A stop that closed every log, synced, leaves a file with its session. The next process takes the
file away before it registers, so that it is believed once, and only of the newest session: what
comes after it has no such file, whichever way it ends.
"""

from __future__ import annotations

import json
import uuid
from typing import Final

from broker.codec.checksum import crc32c
from broker.errors import MetadataCorruptError
from broker.ports.system import Files
from broker.storage.log.folder import ignoring_full_disk
from broker.storage.whole_file import write_whole

_FILE: Final = "sessions.json"
_CLEAN_FILE: Final = "clean_stop.json"
_BYTES_MAX: Final = 8192
_KEPT: Final = 16
ALONE: Final = ""  # the session of every process of a broker alone


def begin_session(files: Files) -> tuple[str, tuple[str, ...]]:
    """Return a new session and those that the folder held before; the new one is durable.

    Raises:
        MetadataCorruptError: the file is damaged. Without it the broker would be a stranger.
    """
    known = _read(files) if files.exists(_FILE) else ()
    session = uuid.uuid4().hex
    _write(files, (*known, session))
    return session, known


def note_alone(files: Files) -> None:
    """Note durably that this folder is in use by a broker alone, unless that is its last note.

    When the broker becomes one of several, it proves its folder by this.

    Raises:
        MetadataCorruptError: the file is damaged.
    """
    known = _read(files) if files.exists(_FILE) else ()
    if known[-1:] != (ALONE,):
        _write(files, (*known, ALONE))


def note_clean_stop(files: Files, session: str) -> None:
    """Write down, durably, that every log was closed and synced in this session.

    A full disk leaves no note: then less is believed, and nothing wrong.
    """
    body = {"session": session, "crc": _checksum((session,))}
    with ignoring_full_disk():
        write_whole(files, _CLEAN_FILE, [json.dumps(body, sort_keys=True).encode()])


def take_clean_stop(files: Files) -> str | None:
    """Return the session that was stopped cleanly, and take the note away, durably.

    A note that cannot be read is none: what it would say is then not believed.
    """
    if not files.exists(_CLEAN_FILE):
        return None
    file = files.open(_CLEAN_FILE)
    try:
        body = json.loads(file.read_at(0, _BYTES_MAX))
        session = str(body["session"])
        whole = bool(body["crc"] == _checksum((session,)))
    except (ValueError, KeyError, TypeError):
        session, whole = "", False
    finally:
        file.close()
    files.remove(_CLEAN_FILE)
    files.sync_folder("")
    return session if whole else None


def _write(files: Files, sessions: tuple[str, ...]) -> None:
    kept = sessions[-_KEPT:]
    body = {"sessions": kept, "crc": _checksum(kept)}
    write_whole(files, _FILE, [json.dumps(body, sort_keys=True).encode()])


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
