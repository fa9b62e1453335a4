"""Read a small file whole; replace it durably: old or new content, never a mixture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.errors import MetadataCorruptError
from broker.ports.system import File, Files


def read_whole(files: Files, path: str, bytes_max: int) -> bytes:
    """Return the content of ``path``. Blocks.

    Raises:
        MetadataCorruptError: the file has more than ``bytes_max`` bytes, so no release wrote it.
        OSError: the file is absent or cannot be read.
    """
    file = files.open(path)
    try:
        size = file.size()
        if size > bytes_max:
            raise MetadataCorruptError(
                f"{path} has {size} bytes; no release writes more than {bytes_max}", path=path
            )
        return file.read_at(0, size)
    finally:
        file.close()


def write_whole(
    files: Files,
    path: str,
    parts: Sequence[bytes],
    *,
    datasync: Callable[[File], None] | None = None,
) -> None:
    """Write ``path`` durably; its folder must exist. Blocks. See :func:`replace_whole`."""
    replace_whole(files, path, parts, temporary=f"{path}.new", datasync=datasync)
    files.sync_folder(path.rpartition("/")[0])


def replace_whole(
    files: Files,
    path: str,
    parts: Sequence[bytes],
    *,
    temporary: str,
    datasync: Callable[[File], None] | None = None,
) -> None:
    """Write ``path``; the new content is durable once the caller has synced the folder. Blocks.

    ``temporary`` has the new content until it is whole. ``datasync`` is called instead of
    ``File.datasync``, for a caller that must tell a failed sync from other errors.
    """
    if files.exists(temporary):
        files.remove(temporary)
    file = files.open(temporary, create=True)
    try:
        file.write_at(0, parts)
        if datasync is None:
            file.datasync()
        else:
            datasync(file)
    finally:
        file.close()
    files.replace(temporary, path)
