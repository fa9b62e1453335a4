"""Replace a small file whole, durably: it has the old or the new content, never a mixture."""

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
    """Write ``path``; its folder must exist. Blocks.

    ``datasync`` is called instead of ``File.datasync``, for a caller that must tell a failed sync
    from other errors.
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
