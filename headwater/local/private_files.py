"""Files that only their owner may read, written without following a symbolic link."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker.errors import InvalidConfigError

_MODE: Final = 0o600


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
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, _MODE)
    except OSError as cause:
        why = "it is a symbolic link" if path.is_symlink() else cause.strerror
        raise InvalidConfigError(
            f"{path} cannot be opened as a lock: {why}; remove it, or choose another folder"
        ) from cause
