"""Moves the cuts of several streams to one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.errors import StreamRecreatedError

if TYPE_CHECKING:
    from broker.model.cut import Cut
    from headwater.client import Client


def at_one_instant(cuts: Mapping[str, Cut], client: Client) -> dict[str, Cut]:
    """Return the cuts with their hot ends moved up to the high watermarks of one moment."""
    found = client.high_watermarks(list(cuts))
    moved = {}
    for name, cut in cuts.items():
        now = found[name]
        if now.stream_uuid != cut.stream_uuid or len(now.offsets) != len(cut.partitions):
            raise StreamRecreatedError(
                f"stream {name} was created again: it is {now.stream_uuid} with "
                f"{len(now.offsets)} partitions now, but its cut belongs to {cut.stream_uuid} with "
                f"{len(cut.partitions)}; read again",
                expected=cut.stream_uuid,
                found=now.stream_uuid,
            )
        moved[name] = replace(
            cut,
            partitions=tuple(
                replace(part, hot_end=now.offsets[part.partition]) for part in cut.partitions
            ),
        )
    return moved
