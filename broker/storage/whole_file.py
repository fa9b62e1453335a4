"""Replace a small file whole, durably: the old content or the new one, never a part of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.ports.system import File, Files


def write_whole(
    files: Files,
    path: str,
    parts: Sequence[bytes],
    *,
    datasync: Callable[[File], None] | None = None,
) -> None:
    """Write ``path``, whose folder is there. Blocks.

    ``datasync`` replaces the file's own, for who has to know that it was this that failed.
    """
    new = f"{path}.new"
    if files.exists(new):
        files.remove(new)
    file = files.open(new, create=True)
    try:
        file.write_at(0, parts)
        if datasync is None:
            file.datasync()
        else:
            datasync(file)
    finally:
        file.close()
    files.replace(new, path)
    files.sync_folder(path.rpartition("/")[0])
