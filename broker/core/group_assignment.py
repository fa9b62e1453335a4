"""Which member of a consumer group reads which partition. Pure, and equal on every broker.

Streams in order of their names, partitions in order of their numbers: each goes to the member with
the fewest partitions so far among those that asked for the stream; of equals, to the first name. So
the same members always get the same partitions. Source: Liftbridge's documentation of consumer
groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Assignment = Mapping[str, Mapping[str, Sequence[int]]]
"""Partitions by member, then by stream; a member without partitions is there, too."""


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
