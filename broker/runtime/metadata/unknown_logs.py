"""Finds local logs that a single broker's metadata does not know: the metadata is an older copy.

A log is made after its stream is in the metadata, and removed after its deletion is in the
metadata. So a log whose stream is neither known nor deleted was made after this metadata was
copied. Partitions are only ever added. So a log of a partition beyond the stream's last one was
made after this metadata was copied, too. A start with such metadata would set the log aside, and
give its offsets out once more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from broker.core.metadata.state import MetadataState
from broker.errors import MetadataCorruptError
from broker.model.ids import StreamUuid
from broker.ports.system import Files
from broker.storage.stream_folders import log_folder, stored_partitions, stream_folder

_NAMED_MAX: Final = 10
_NEXT_STEP: Final = (
    "files were lost, or an older copy was put back. Nothing was changed. Put the newest copy of "
    "the folder back; to do without the records of these logs, move them out of the data folder."
)
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
    raise MetadataCorruptError(
        f"the metadata in {folder} ends at entry {end}, and knows nothing of the streams whose "
        f"logs are in {_listed(map(stream_folder, named))}, nor that they were deleted: "
        f"{_NEXT_STEP}",
        path=folder,
        found=end,
        streams=named[:_NAMED_MAX],
    )


def require_counted(files: Files, state: MetadataState, *, folder: str, end: int) -> None:
    """Require that no stored log is beyond the last partition of its stream in ``state``.

    Raises:
        MetadataCorruptError: a stream has fewer partitions than logs say.
    """
    counts = {uuid: len(rows) for uuid, rows in state.partitions.items()}
    beyond = [
        one
        for one in stored_partitions(files)
        if one.number >= counts.get(one.stream_uuid, one.number + 1)  # else unknown or deleted
    ]
    if not beyond:
        return
    streams = sorted({one.stream_uuid for one in beyond})
    said = [f"stream {uuid} has {counts[uuid]} of its partitions" for uuid in streams]
    raise MetadataCorruptError(
        f"the metadata in {folder} ends at entry {end}, where {_listed(said)}. There are logs of "
        f"further partitions in {_listed(map(log_folder, beyond))}: {_NEXT_STEP}",
        path=folder,
        found=end,
        streams=streams[:_NAMED_MAX],
    )


def _listed(names: Iterable[str]) -> str:
    some = list(names)
    return ", ".join(some[:_NAMED_MAX]) + " and others" * bool(some[_NAMED_MAX:])
