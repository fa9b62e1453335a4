"""The sessions of a data folder: the proof that the folder is the one that was in use last.

A session is a random id of one process of a broker. A process draws its session at start, adds it
to the sessions that the folder already holds, syncs, and only then registers. See
docs/replication.md, "Proof of the folder".

A clean stop, which has closed and synced every log, leaves a file with its session. The next
process removes the file before it registers. So the file counts once, and only if it is of the
newest session: a later process that does not stop cleanly leaves no such file.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator
from typing import Final

import structlog

from broker.codec.checksum import crc32c
from broker.errors import MetadataCorruptError
from broker.ports.system import Files
from broker.storage.no_room import ignoring_no_room
from broker.storage.whole_file import write_whole

_log = structlog.get_logger(__name__)

_FILE: Final = "sessions.json"
_CLEAN_FILE: Final = "clean_stop.json"
_BYTES_MAX: Final = 8192
_KEPT: Final = 16
ALONE: Final = ""  # the session of every process of a broker alone


def begin_session(files: Files) -> tuple[str, tuple[str, ...]]:
    """Return a new session, which is durable, and the sessions that the folder held before.

    Raises:
        MetadataCorruptError: the file is damaged, so the broker cannot prove its folder.
    """
    known = _read(files) if files.exists(_FILE) else ()
    session = uuid.uuid4().hex
    _write(files, (*known, session))
    return session, known


def note_alone(files: Files) -> None:
    """Note durably that a lone broker uses this folder, unless this is the last note already.

    If the broker later becomes one of several, this note proves its folder. A lone broker needs
    none of the older notes, so a file that is not legible is kept aside.
    """
    try:
        known = _read(files) if files.exists(_FILE) else ()
    except MetadataCorruptError as error:
        aside = next(name for name in _asides() if not files.exists(name))
        _log.warning("sessions_set_aside", kept=aside, reason=error.message)
        files.replace(_FILE, aside)
        known = ()
    if known[-1:] != (ALONE,):
        _write(files, (*known, ALONE))


def note_clean_stop(files: Files, session: str) -> None:
    """Note durably that every log was closed and synced in this session.

    On a full disk there is no note: then the next start counts as a start after a crash.
    """
    body = {"session": session, "crc": _checksum((session,))}
    with ignoring_no_room():
        write_whole(files, _CLEAN_FILE, [json.dumps(body, sort_keys=True).encode()])


def take_clean_stop(files: Files) -> str | None:
    """Return the session that was stopped cleanly, and remove the note, durably.

    A note that cannot be read counts as no note.
    """
    if not files.exists(_CLEAN_FILE):
        return None
    file = files.open(_CLEAN_FILE)
    try:
        body = json.loads(file.read_at(0, _BYTES_MAX))
        session = str(body["session"])
        whole = bool(body["crc"] == _checksum((session,)))
    except (ValueError, KeyError, TypeError, RecursionError):
        session, whole = "", False
    finally:
        file.close()
    files.remove(_CLEAN_FILE)
    files.sync_folder("")
    return session if whole else None


def _asides() -> Iterator[str]:
    return (f"{_FILE}.aside-{number}" for number in itertools.count())


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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE) from cause
    finally:
        file.close()
    if not whole:
        raise MetadataCorruptError(f"{_FILE} fails its checksum", path=_FILE)
    return sessions


def _checksum(sessions: tuple[str, ...]) -> int:
    return crc32c("\n".join(sessions).encode())
