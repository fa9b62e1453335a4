"""Moves the cuts of several streams to one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.errors import StreamChangedError, StreamRecreatedError

if TYPE_CHECKING:
    from broker.model.cut import Cut
    from headwater.client import Client


def at_one_instant(cuts: Mapping[str, Cut], client: Client) -> dict[str, Cut]:
    """Return the cuts with their hot ends moved up to the high watermarks of one moment."""
    found = client.high_watermarks(list(cuts))
    moved = {}
    for name, cut in cuts.items():
        now = found[name]
        if now.stream_uuid != cut.stream_uuid:
            raise StreamRecreatedError(
                f"stream {name} was created again: it is {now.stream_uuid} now, but its cut "
                f"belongs to {cut.stream_uuid}; read again",
                expected=cut.stream_uuid,
                found=now.stream_uuid,
            )
        if len(now.offsets) != len(cut.partitions):
            raise StreamChangedError(
                f"stream {name} has {len(now.offsets)} partitions now, and its cut names "
                f"{len(cut.partitions)}: partitions were added since, and the cut has none of "
                "their records; read again",
                stream=name,
            )
        moved[name] = replace(
            cut,
            partitions=tuple(
                replace(
                    part,
                    hot_end=now.offsets[part.partition],
                    lineage_id=now.lineage_ids[part.partition],
                )
                for part in cut.partitions
            ),
        )
    return moved
