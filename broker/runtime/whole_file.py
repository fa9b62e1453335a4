"""Replace a small file whole, durably: the old content or the new one, never a part of either."""

from __future__ import annotations

from broker.ports import Files


def write_whole(files: Files, name: str, data: bytes) -> None:
    """Write ``name``, a file in the root of the data directory. Blocks."""
    new = f"{name}.new"
    if files.exists(new):
        files.remove(new)
    file = files.open(new, create=True)
    try:
        file.write_at(0, [data])
        file.datasync()
    finally:
        file.close()
    files.replace(new, name)
    files.sync_folder("")
