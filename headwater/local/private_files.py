"""Files that only their owner may read, written without following a symbolic link."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from broker.errors import InvalidConfigError

UMASK: Final = 0o077  # of a child process, for the files that it makes by itself
_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
ROOT: Final = 0  # its user id


def write_private(path: Path, text: str) -> None:
    """Replace ``path`` atomically by ``text``. A link at ``path`` is replaced, not followed."""
    partial = path.with_name(f"{path.name}.tmp")
    with suppress(FileNotFoundError):
        partial.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(partial, flags, _MODE), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def open_lock(path: Path) -> int:
    """Open a lock file, which is created if it is absent; return its descriptor.

    Raises:
        InvalidConfigError: a symbolic link is there, or the file cannot be opened.
    """
    return _open(path, os.O_RDWR | os.O_CREAT, "a lock")


def open_log(path: Path) -> BinaryIO:
    """Open a log to append to it; it is created if it is absent, and private from then on.

    Raises:
        InvalidConfigError: a symbolic link or another user's file is there, or the file cannot be
            opened.
    """
    # A pipe that nobody reads would hold this process up without O_NONBLOCK.
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, "a log")
    file = os.fdopen(descriptor, "ab")
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise InvalidConfigError(
                f"{path} cannot be opened as a log: it is not a regular file of this user, but of "
                f"user {about.st_uid}; remove it, or choose another folder"
            )
        if stat.S_IMODE(about.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)  # an earlier release let others read its logs
    except BaseException:
        file.close()
        raise
    return file


def make_private_folder(path: Path) -> None:
    """Make a folder for its owner only, unless it exists: then its mode is left as it is.

    Raises:
        InvalidConfigError: another user owns the folder, or a link at its place: that user could
            exchange every file in it. Root is not refused: in a container, a folder of the host
            often belongs to the user who made it.
    """
    path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    if os.geteuid() == ROOT:
        return
    for about in (path.lstat(), path.stat()):
        if about.st_uid not in (os.geteuid(), ROOT):
            raise InvalidConfigError(
                f"{path} belongs to user {about.st_uid}, who could exchange every file in it: "
                "choose another folder, or take this one over (chown)"
            )


def _open(path: Path, flags: int, use: str) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    except OSError as cause:
        why = "it is a symbolic link" if path.is_symlink() else cause.strerror
        raise InvalidConfigError(
            f"{path} cannot be opened as {use}: {why}; remove it, or choose another folder"
        ) from cause
