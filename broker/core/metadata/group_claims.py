"""Which member of a group claims which partition: fair shares, with as few moves as possible. Pure.

A partition moves only if its member has at least two partitions more than another member that reads
the same stream. If the holder of the partition is a member still, the partition does not move at
once: the holder keeps its claim, and the claim names an heir. A partition without a holder goes to
its new member under a new epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.core.metadata.group_state import PartitionClaim


def rebalanced(
    claims: Mapping[str, PartitionClaim],
    members: Mapping[str, Sequence[str]],
    partitions: Mapping[str, str],
    epoch: int,
) -> dict[str, PartitionClaim]:
    """Return the claims of a group whose members or partitions have changed.

    Args:
        claims: The claims before, by partition; those of partitions that are gone are dropped.
        members: The streams that each member reads.
        partitions: The stream of each partition, in the order in which new ones are given out.
        epoch: The group's new epoch, which new claims get.
    """
    readers: dict[str, list[str]] = {}  # by stream
    for member in sorted(members):
        for stream in members[member]:
            readers.setdefault(stream, []).append(member)
    read = {key: stream for key, stream in partitions.items() if stream in readers}
    wanted = _kept(claims, readers, read)
    loads = dict.fromkeys(members, 0)
    for member in wanted.values():
        loads[member] += 1
    for key, stream in read.items():
        if key not in wanted:
            wanted[key] = min(readers[stream], key=lambda one: (loads[one], one))
            loads[wanted[key]] += 1
    _level(wanted, loads, readers, read, claims)
    result: dict[str, PartitionClaim] = {}
    for key, stream in read.items():
        before = claims.get(key)
        if before is None or stream not in members.get(before.member, ()):
            result[key] = PartitionClaim(member=wanted[key], epoch=epoch)
        else:
            heir = "" if wanted[key] == before.member else wanted[key]
            result[key] = PartitionClaim(member=before.member, epoch=before.epoch, heir=heir)
    return result


def handed_over(
    claims: Mapping[str, PartitionClaim], key: str, epoch: int
) -> dict[str, PartitionClaim]:
    """Return the claims after a holder has released a partition to its heir, under ``epoch``."""
    return {**claims, key: PartitionClaim(member=claims[key].heir, epoch=epoch)}


def _holder(claims: Mapping[str, PartitionClaim], key: str) -> str:
    found = claims.get(key)
    return "" if found is None else found.member


def _kept(
    claims: Mapping[str, PartitionClaim],
    readers: Mapping[str, Sequence[str]],
    read: Mapping[str, str],
) -> dict[str, str]:
    """Return the member of each partition whose heir or holder may still read the partition."""
    kept: dict[str, str] = {}
    for key, claim in claims.items():
        able = readers.get(read.get(key, ""), ())
        for member in (claim.heir, claim.member):
            if member in able:
                kept[key] = member
                break
    return kept


def _level(
    wanted: dict[str, str],
    loads: dict[str, int],
    readers: Mapping[str, Sequence[str]],
    read: Mapping[str, str],
    claims: Mapping[str, PartitionClaim],
) -> None:
    """Move partitions from members with many to members with few, until no move helps.

    A partition that its new member does not read yet is moved before others. Each move lowers the
    sum of the squares of the loads, so the loop ends.
    """
    assigned: dict[str, list[str]] = {member: [] for member in loads}
    settled = [key for key in read if _holder(claims, key) == wanted[key]]
    on_the_way = [key for key in read if _holder(claims, key) != wanted[key]]
    for key in (*settled, *on_the_way):
        assigned[wanted[key]].append(key)
    moved = True
    while moved:
        moved = False
        for member in sorted(loads, key=lambda one: (-loads[one], one)):
            for key in reversed(assigned[member]):
                least = min(readers[read[key]], key=lambda one: (loads[one], one))
                if loads[member] < loads[least] + 2:
                    continue
                assigned[member].remove(key)
                assigned[least].append(key)
                loads[member] -= 1
                loads[least] += 1
                wanted[key] = least
                moved = True
                break
