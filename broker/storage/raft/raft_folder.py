"""The folder of a Raft member: small files written whole, and what a failed sync means for all.

A new file is written as ``*.new``, synced and renamed, and the folder is synced. After a failed
sync the content of the disk is unknown, so the member writes nothing more: every later write raises
the same error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from broker.codec.disk.raft_log_format import OWNER_SIZE
from broker.errors import LogFailedError, NoRoomError
from broker.model.raft import NodeId
from broker.ports.system import File, Files
from broker.storage.no_room import lacks_room, no_room
from broker.storage.whole_file import read_whole, write_whole

# What an operator can do about damaged or lost files of a member.
NEXT_STEP: Final = (
    "Restore the folder from a copy of the whole data directory, or replace this controller: "
    "docs/cluster.md"
)


class RaftFolder:
    """The files of one member, by their names. One thread at a time."""

    def __init__(self, files: Files, path: str, owner: bytes) -> None:
        self.files = files
        self.path = path
        self.owner = owner  # the mark of the node and its cluster, in every file
        self._failure: LogFailedError | None = None

    def file(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self.path}/{name}"

    def read_whole(self, name: str, bytes_max: int) -> bytes:
        """Return the content of a file.

        Raises:
            MetadataCorruptError: the file is larger than any that was written.
        """
        return read_whole(self.files, self.file(name), bytes_max)

    def write_whole(self, name: str, parts: Sequence[bytes]) -> None:
        """Replace a file, durably. Raises OSError, and LogFailedError for a failed sync."""
        write_whole(self.files, self.file(name), parts, datasync=self.datasync)

    def datasync(self, file: File) -> None:
        """Sync a file. Raises LogFailedError, and from then on every write does."""
        try:
            file.datasync()
        except OSError as cause:
            self._failure = LogFailedError(f"fdatasync in the folder {self.path} failed: {cause}")
            raise self._failure from cause

    def fail(self, error: LogFailedError) -> LogFailedError:
        """Refuse every later write with this error; return it."""
        self._failure = error
        return error

    def require_healthy(self) -> None:
        """Raise the error of the failed sync, if there was one."""
        if self._failure is not None:
            raise self._failure

    def translated(self, cause: OSError) -> NoRoomError | LogFailedError:
        """Translate an error of the disk; every error but a lack of room is final."""
        if lacks_room(cause) and self._failure is None:
            return no_room(f"a write to the Raft folder {self.path}", cause)
        if self._failure is None:
            self._failure = LogFailedError(
                f"a write to the Raft folder {self.path} failed: {cause}"
            )
        return self._failure


def owner_of(cluster: str, node: NodeId) -> bytes:
    """Return the mark of the node and cluster that own the files."""
    name = f"{cluster}\0{node}".encode()
    return hashlib.blake2b(name, digest_size=OWNER_SIZE).digest()
