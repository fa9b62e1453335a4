"""Which member of a consumer group reads which partition. Pure, and equal on every broker.

Streams are taken by name, their partitions by number. Each partition goes to the member with the
fewest partitions so far among those that read the stream; if several have the fewest, to the first
by name. So
the same members always get the same partitions. Source: Liftbridge's documentation of consumer
groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Assignment = Mapping[str, Mapping[str, Sequence[int]]]
"""Partitions by member, then by stream. A member without partitions has an empty mapping."""


def assign(members: Mapping[str, Sequence[str]], partitions: Mapping[str, int]) -> Assignment:
    """Return each member's partitions.

    ``members`` has the streams that each one asked for, ``partitions`` how many each stream has; a
    stream that is not in it has none.
    """
    found: dict[str, dict[str, list[int]]] = {member: {} for member in sorted(members)}
    counts = dict.fromkeys(found, 0)
    for stream in sorted({one for streams in members.values() for one in streams}):
        asking = [member for member in found if stream in members[member]]
        for number in range(partitions.get(stream, 0)):
            member = min(asking, key=lambda one: (counts[one], one))
            counts[member] += 1
            found[member].setdefault(stream, []).append(number)
    return found
