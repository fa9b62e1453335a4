"""What a cluster must let chaos do to it, and say about itself; the harness knows nothing else.

Whoever runs real processes implements :class:`ClusterUnderTest`; ``fake_cluster.py`` is one in
memory, for the harness's own tests. Brokers are named by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from checkkit.readings import Reading


class ChaosError(Exception):
    """The cluster did not carry out a command, or does not recover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition as the controller sees it; ``leader`` is None while there is none."""

    partition: int
    leader: str | None
    leader_epoch: int
    isr: frozenset[str]
    replicas: frozenset[str]

    @property
    def is_healthy(self) -> bool:
        """Tell whether it is led and every replica is in sync."""
        return self.leader is not None and self.isr == self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The whole cluster, as one broker that answers sees it."""

    controller: str | None
    partitions: Mapping[int, PartitionState]


@dataclass(frozen=True, slots=True)
class Ports:
    """Where clients reach one broker on the loopback."""

    flight: int
    http: int


class ClusterUnderTest(Protocol):
    """Brokers as processes, their network, their disks and their NATS server.

    Every method blocks until what it says is done. A broker that is dead or stopped may be
    started; one that is paused must be resumed before anything else is asked of it.

    The class is not split: it is the list of everything that a story may do to a cluster, and the
    words of `stories.py` are its methods.
    """

    @property
    def brokers(self) -> Sequence[str]:
        """All ids, in a fixed order."""

    def ports(self, broker: str) -> Ports:
        """Return where clients reach it; the same over all its lives."""

    def state(self) -> ClusterState | None:
        """Ask the first broker that answers; None if none does."""

    # Processes.

    def start(self, broker: str) -> None:
        """Start a process on the disk as it is; returns when it runs, not when it serves."""

    def stop(self, broker: str) -> None:
        """End it gracefully (SIGTERM): it hands its leaderships over first."""

    def kill(self, broker: str) -> None:
        """End it at once (SIGKILL)."""

    def pause(self, broker: str) -> None:
        """Freeze it (SIGSTOP)."""

    def resume(self, broker: str) -> None:
        """Let it go on (SIGCONT)."""

    def is_running(self, broker: str) -> bool:
        """Tell whether its process lives, paused or not."""

    # The network between brokers, clients ("clients") and the NATS server ("nats").

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing pass from one to the other; see chaoskit.proxy."""

    def delay(self, sender: str, receiver: str, delay_ms: float) -> None:
        """Let everything of one direction arrive later."""

    def heal_network(self) -> None:
        """Undo every cut and delay."""

    def restart_nats(self, down_ms: float) -> None:
        """End the NATS server at once, and start it again on its port."""

    # Disks.

    def fill_disk(self, broker: str) -> None:
        """Leave no room on its disk."""

    def free_disk(self, broker: str) -> None:
        """Make room again; nothing to do is fine."""

    def wipe(self, broker: str) -> None:
        """Replace the data directory of a broker that is not running by an empty one."""

    def copy_disk(self, broker: str) -> None:
        """Copy the data directory of a broker, running or not; an earlier copy is replaced."""

    def restore_disk(self, broker: str) -> None:
        """Put the copy in the place of a stopped broker's data directory."""

    def swap_disk(self, broker: str) -> None:
        """Exchange a stopped broker's data directory and its copy."""

    def lose_partition(self, broker: str, partition: int, *, keep_folder: bool) -> None:
        """Remove a partition's folder of a stopped broker, or all that is in it."""

    def lose_raft(self, broker: str) -> None:
        """Remove vote and journal of a stopped broker's Raft folder; what else is there stays."""

    # What operators do.

    def transfer_leader(self, partition: int, to: str) -> None:
        """Hand a partition's leadership over."""

    def reassign(self, partition: int, replicas: Sequence[str]) -> None:
        """Give a partition other replicas; returns when it is asked for, not when it is done."""

    def ends_below_table(self, broker: str, partition: int) -> bool:
        """Ship, and tell whether the log of a stopped broker ends below the cold end."""

    def elect_unclean(self, partition: int, broker: str) -> int:
        """Let a replica lead that lacks records; return the end above which some may be lost."""

    def change_access(self, what: str) -> None:
        """Change who may do what, or the certificates; return once that was seen in force."""

    def flush_tier(self) -> None:
        """Ship everything that can be shipped."""

    # The end.

    def final_reads(self) -> list[Reading]:
        """Read every replica apart, the table, and both tiers at a cut, after all load."""
