"""Errors of the operating system that are a lack of room, not a failure of the disk.

No room on the disk, or no free file descriptor in the process. Both heal without a restart. The
refused call has changed nothing, or has written a part of what the caller writes again. Any other
OSError says that the disk has failed. So does every error of a sync, also a lack of room: after it
nobody knows which bytes are on the disk, and a second sync may succeed without them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from broker.errors import DescriptorsExhaustedError, DiskFullError, NoRoomError
from broker.ports.system import File

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
PROCESS_LIMITS: Final = NO_DESCRIPTOR | {errno.ENOMEM}  # not errors of the disk


def is_full(error: OSError) -> bool:
    """Tell whether the disk is full, the user's quota is used up, or a file may not grow."""
    return error.errno in FULL


def lacks_descriptor(error: OSError) -> bool:
    """Tell whether the process, or the machine, has no free file descriptor."""
    return error.errno in NO_DESCRIPTOR


def lacks_room(error: OSError) -> bool:
    """Tell whether the call may succeed later, without a repair: it changed nothing."""
    return is_full(error) or lacks_descriptor(error)


def no_room(what: str, cause: OSError, **facts: Any) -> NoRoomError:
    """Return the error for a call that found no room; ``what`` names the call for people."""
    if lacks_descriptor(cause):
        return DescriptorsExhaustedError(
            f"the process has no free file descriptor: {what}: {cause}; too many connections or "
            "files are open, try again",
            **facts,
        )
    if cause.errno == errno.EFBIG:
        return DiskFullError(
            f"a file of the broker may not grow: {what}: {cause}; raise the limit of the process "
            "(ulimit -f), or make segment_bytes_max of the stream smaller",
            **facts,
        )
    return DiskFullError(
        f"the broker's disk is full: {what}: {cause}; free space, then try again", **facts
    )


def datasync(file: File) -> None:
    """Sync a file that is written in place; a lack of room is a failure like any other (EIO)."""
    try:
        file.datasync()
    except OSError as cause:
        if is_full(cause):
            raise OSError(errno.EIO, f"a sync failed: {cause}") from cause
        raise


@contextmanager
def ignoring_no_room() -> Iterator[None]:
    """Ignore a lack of room: the block writes a cache, or its write is repeated later."""
    try:
        yield
    except OSError as error:
        if not lacks_room(error):
            raise
