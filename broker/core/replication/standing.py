"""Fetches that stand at their leader until there are records, and the roll of them. No I/O.

A follower that has every record of its leader, all of them committed, lets its next fetch stand: it
sends nothing more for the partition until records come. Two brokers call the roll of the fetches
that stand between them: one message and its answer for all partitions. A roll call shows that both
processes live and know the same standing fetches. It confirms no record: what is committed follows
from the fetches alone. docs/decisions/0056 has the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from broker.codec.disk.segment_format import pack_partition_id
from broker.model.control_messages import ROLL_GROUPS
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId

_SUMS: Final = 1 << 64


@dataclass(slots=True, eq=False)
class StandingFetch:
    """A fetch that stands at the leader, as the follower or as the leader knows it.

    Its request id names the follower's process, so no other process can have the same fetch.
    """

    peer: BrokerId  # the leader's broker at the follower, the follower's broker at the leader
    is_own: bool  # whether this broker is the follower
    leader_epoch: LeaderEpoch
    request_id: int
    known_ms: int  # when the other side was last known to live and to have this fetch


class StandingReplica(Protocol):
    """The replica of a standing fetch, as the roll sees it. Any thread."""

    @property
    def waiting_turn(self) -> int | None:
        """The number of the turn that is queued or runs now; None if the replica is idle."""

    def wake(self) -> None:
        """Look at the timers soon."""


@dataclass(slots=True)
class _RollEntry:
    fetch: StandingFetch
    replica: StandingReplica
    key: int
    called: int = 0  # the newest roll call that this fetch was part of
    turn: int | None = None  # the replica's waiting turn at the last roll call


class Roll:
    """The fetches that stand between two brokers in one direction, as one of the two has them.

    Each fetch belongs to one of ``ROLL_GROUPS`` groups by its key, and the roll of a group is the
    sum of its keys. A group whose sums are equal on both sides has the same fetches on both sides.
    A difference, e.g. because of a message under way, concerns the fetches of one group only.
    """

    def __init__(self) -> None:
        """Begin without fetches."""
        self._entries: dict[StandingFetch, _RollEntry] = {}
        self._sums = [0] * ROLL_GROUPS

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, partition_id: PartitionId, fetch: StandingFetch, replica: StandingReplica
    ) -> None:
        """Add a fetch that stands from now on."""
        key = _key(partition_id, fetch)
        self._entries[fetch] = _RollEntry(fetch, replica, key)
        self._change(key, key)

    def remove(self, fetch: StandingFetch) -> None:
        """Remove a fetch that stands no longer."""
        key = self._entries.pop(fetch).key
        self._change(key, -key)

    def call(self, number: int) -> tuple[int, ...]:
        """Return the sum of each group for roll call ``number``.

        A fetch is left out if its replica has not finished one turn since the last roll call: a
        disk that hangs must not be taken for a replica that lives.
        """
        sums = list(self._sums)
        for entry in self._entries.values():
            turn = entry.replica.waiting_turn
            if turn is not None and turn == entry.turn:
                group = entry.key % ROLL_GROUPS
                sums[group] = (sums[group] - entry.key) % _SUMS
            else:
                entry.called = number
            entry.turn = turn
        return tuple(sums)

    def confirm(self, number: int, equal: Sequence[bool], now_ms: int) -> None:
        """Note that both sides agreed in roll call ``number``, in the groups that are equal."""
        for entry in self._entries.values():
            if entry.called == number and equal[entry.key % ROLL_GROUPS]:
                entry.fetch.known_ms = now_ms

    def silent(self, now_ms: int, patience_ms: int) -> list[StandingReplica]:
        """Return the replicas of the fetches that were not confirmed for ``patience_ms``."""
        return [
            one.replica
            for one in self._entries.values()
            if now_ms - one.fetch.known_ms >= patience_ms
        ]

    def _change(self, key: int, by: int) -> None:
        group = key % ROLL_GROUPS
        self._sums[group] = (self._sums[group] + by) % _SUMS


def _key(partition_id: PartitionId, fetch: StandingFetch) -> int:
    number, uuid_bytes = pack_partition_id(partition_id)
    numbers = (number, fetch.leader_epoch, fetch.request_id)
    data = uuid_bytes + b"".join(one.to_bytes(8, "little") for one in numbers)
    return int(blake2b(data, digest_size=8).hexdigest(), 16)
