"""Finds local logs that a single broker's metadata does not know: the metadata is an older copy.

A log is made after its stream is in the metadata, and removed after its deletion is in the
metadata. So a log whose stream is neither known nor deleted was made after this metadata was
copied. A start with such metadata would remove the log's records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from broker.errors import MetadataCorruptError
from broker.model.ids import StreamUuid
from broker.ports.system import Files
from broker.storage.stream_folders import stored_partitions, stream_folder

_UUID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def require_known(files: Files, texts: Iterable[bytes], *, folder: str, end: int) -> None:
    """Require the uuid of each stored stream in ``texts``, the whole content of the metadata.

    Raises:
        MetadataCorruptError: a stream's uuid is in none of the texts.
    """
    unknown = {one.stream_uuid.encode() for one in stored_partitions(files)}
    for text in texts:
        if not unknown:
            return
        unknown.difference_update(_UUID.findall(text))
    if not unknown:
        return
    named = sorted(StreamUuid(one.decode()) for one in unknown)
    logs = ", ".join(map(stream_folder, named[:10])) + " and others" * bool(named[10:])
    raise MetadataCorruptError(
        f"the metadata in {folder} ends at entry {end}, and knows nothing of the streams whose "
        f"logs are in {logs}, nor that they were deleted: files were lost, or an older copy was "
        "put back. Nothing was changed. Put the newest copy of the folder back; to do without the "
        "records of these logs, move them out of the data folder.",
        path=folder,
        found=end,
        streams=named[:10],
    )
