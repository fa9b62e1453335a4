"""Disks that lose content while their broker is down, and the required consequences.

At most ``min ISR - 1`` replicas of a partition are damaged at a time, and each counts until it was
seen to hold everything again (docs/replication.md, "What is promised"). What must follow: whoever
has started and is in ISR or eligible has what is committed, unless its mark or its own word says
that nothing may be done on it; and a replica that lost its records is not among them, marked or
not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE
from broker.errors import CorruptDataError, LogFailedError
from broker.model.ids import BrokerId, PartitionId
from broker.runtime.partition.driver import PartitionDriver
from broker.storage.promises.promises import PROMISES_NAME
from broker.storage.stream_folders import log_folder
from simkit.disk.disk import SimDisk

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node

_LOOK_MS: Final = 50
SESSIONS_NAME: Final = "sessions.json"
_RED: Final = (CorruptDataError, LogFailedError)  # failures that a restart mends
_RED_MS: Final = 400  # until an operator restarts a broker that is not ready


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """The damage of one replica."""

    life: int  # the process after it is the first that can know
    had_records: bool
    is_rot: bool  # may stay unnoticed for a while
    is_back: bool = False  # its disk is an earlier one: it counts for nothing while it is marked
    asides: int  # logs of it that were set aside before


class Damage:
    """Does it, and looks at what becomes of it."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._world = house.world
        self._lost: dict[PartitionId, dict[str, _Lost]] = {}
        self._looked = (-1, -1)
        self._bad: list[tuple[Node, PartitionId, str, int]] = []  # what no read gets, asides before
        self._copies: list[tuple[str, dict[str, bytes]]] = []  # of whose disk, what

    # ------------------------------------------------------------------ the deed

    def wipe(self, node: Node) -> None:
        """Give a broker that is down an empty disk, if the fault model allows it."""
        hosted = [one for one in self._house.partitions if self._is_here(node, one)]
        metadata = self._house.house
        if all(map(self._may_be_lost, hosted)) and metadata.may_lose_disk(node.name):
            self._world.note("disk wiped", node.name)
            for one in hosted:
                self._note(node, one, is_rot=False)
            node.machine.disk.wipe()
            metadata.lost_disk(node.name)

    def lose_folder(self, node: Node) -> None:
        """Lose one partition's folder; in some lives the promises file, too."""
        partition_id = self._some_log(node)
        if partition_id is None:
            return
        disk = node.machine.disk
        self._note(node, partition_id, is_rot=False)
        disk.remove_folder(log_folder(partition_id))
        if disk.has_file(PROMISES_NAME) and self._world.chance(0.5):
            disk.delete(PROMISES_NAME)
            self._world.note("a folder and the promises lost", node.name, partition_id)
        else:
            self._world.note("a folder lost", node.name, partition_id)

    def rot(self, node: Node) -> None:
        """Damage a file of one log."""
        partition_id = self._some_log(node)
        if partition_id is not None:
            self._note(node, partition_id, is_rot=True)
            self._damage(node.machine.disk, self._logs(node, partition_id))

    def copy_disks(self) -> None:
        """Copy every disk while its broker runs."""
        for name in sorted(self._house.nodes):
            disk = self._house.nodes[name].machine.disk
            self._copies.append((name, {path: disk.peek(path) for path in disk.paths()}))
        del self._copies[: -4 * len(self._house.nodes)]

    def put_back(self, node: Node) -> None:
        """Let the disk of a broker that is down be an earlier one; its sessions, or not."""
        hosted = [one for one in self._house.partitions if self._is_here(node, one)]
        found = [copy for name, copy in self._copies if name == node.name]
        if not found or not all(self._may_be_lost(one) for one in hosted):
            return
        disk, copy = node.machine.disk, dict(self._world.rng.choice(found))
        own = SESSIONS_NAME in disk.paths() and self._world.chance(0.7)
        if own:
            copy[SESSIONS_NAME] = disk.peek(SESSIONS_NAME)
        self._world.note("disk put back" if own else "disk put back, sessions too", node.name)
        self.put_this_back(node, copy)

    def put_this_back(self, node: Node, copy: Mapping[str, bytes]) -> None:
        """Replace the disk of a stopped broker by exactly these files."""
        for one in self._house.partitions:
            if self._is_here(node, one):
                self._note(node, one, is_rot=False, is_back=True)
        node.machine.disk.wipe()
        node.machine.disk.put_back(dict(copy))

    def fail_sync(self, node: Node) -> None:
        """Let a broker's next sync fail: its replica is withdrawn, as after the loss of a disk."""
        hosted = [one for one in self._house.partitions if self._is_here(node, one)]
        if all(self._may_be_lost(one) for one in hosted):
            self._world.note("D2 fsync fails", node.name)
            for one in hosted:
                self._note(node, one, is_rot=False, is_back=True)
            node.machine.disk.datasync_failures = 1

    def refuse_reads(self, node: Node) -> None:
        """Let some log of a broker be unreadable from now on, whether it runs or not."""
        partition_id = self._some_log(node)
        if partition_id is not None:
            self._note(node, partition_id, is_rot=True)
            path = self._world.rng.choice(self._logs(node, partition_id))
            self._world.note("reads fail", node.name, path)
            node.machine.disk.bad_sectors.add((path, 0))
            self._bad.append((node, partition_id, path, self._asides(node, partition_id)))

    def _damage(self, disk: SimDisk, paths: list[str]) -> None:
        rng = self._world.rng
        path = rng.choice(paths)
        size = len(disk.peek(path).rstrip(b"\0"))
        kinds: list[Callable[[], object]] = [
            lambda: disk.flip_bit(path, rng.randrange(size), rng.randrange(8)),
            lambda: disk.cut(path, rng.randrange(size)),
            lambda: disk.delete(path),
        ]
        kind = rng.choice((0, 0, 1, 2))
        self._world.note(f"rot: {('bit flipped', 'segment cut short', 'segment lost')[kind]}", path)
        kinds[kind]()

    def _logs(self, node: Node, partition_id: PartitionId) -> list[str]:
        """Return the segments on a disk that hold something."""
        disk, folder = node.machine.disk, log_folder(partition_id)
        return [
            path
            for path in disk.paths()
            if path.startswith(f"{folder}/") and path.endswith(".log")
            if disk.peek(path)[SEGMENT_HEADER_SIZE:].strip(b"\0")
        ]

    def _some_log(self, node: Node) -> PartitionId | None:
        """Choose a log that is here and may be lost."""
        found = [
            one
            for one in self._house.partitions
            if self._is_here(node, one) and self._may_be_lost(one) and self._logs(node, one)
        ]
        return self._world.rng.choice(found) if found else None

    def _is_here(self, node: Node, partition_id: PartitionId) -> bool:
        return node.name in self._house.row(partition_id).replicas

    def _may_be_lost(self, partition_id: PartitionId) -> bool:
        """The fault model: min ISR - 1 replicas at a time, and never the last copy but one."""
        row = self._house.row(partition_id)
        lost = self._lost.get(partition_id, {})
        members = {*row.isr, *row.eligible}
        whole = members - {BrokerId(one) for one in lost}
        return len(lost) < min(row.min_isr, len(members)) - 1 and len(whole) >= 2

    def _note(
        self, node: Node, partition_id: PartitionId, *, is_rot: bool, is_back: bool = False
    ) -> None:
        self._lost.setdefault(partition_id, {})[node.name] = _Lost(
            life=node.machine.life,
            had_records=bool(self._logs(node, partition_id)),
            is_rot=is_rot,
            is_back=is_back,
            asides=self._asides(node, partition_id),
        )

    def _asides(self, node: Node, partition_id: PartitionId) -> int:
        aside = f"damaged/{partition_id.stream_uuid}-{partition_id.number}-"
        names = {path.split("/")[1] for path in node.machine.disk.paths() if aside in path}
        return len(names)

    def is_lost(self, partition_id: PartitionId, name: str) -> bool:
        """Tell whether a replica was damaged and was not seen whole since."""
        return name in self._lost.get(partition_id, {})

    # ------------------------------------------------------------------ consequences

    def look(self) -> None:
        """Look at every replica that counts, after a change of the metadata and now and then."""
        now = (self._house.house.index, self._world.now_ms // _LOOK_MS)
        if now == self._looked:
            return
        self._looked = now
        for one in list(self._bad):  # a log that begins anew lies elsewhere on the device
            node, partition_id, path, asides = one
            if self._asides(node, partition_id) > asides or not node.machine.disk.has_file(path):
                node.machine.disk.bad_sectors.discard((path, 0))
                self._bad.remove(one)
        for partition_id in self._house.partitions:
            self._look_at(partition_id)

    def _look_at(self, partition_id: PartitionId) -> None:
        row = self._house.row(partition_id)
        drivers = {
            name: driver
            for name, node in self._house.nodes.items()
            if (driver := node.replica(partition_id)) is not None and driver.health.failure is None
        }
        end = len(self._house.oracle.of(partition_id).committed)
        for name in sorted({*row.isr, *row.eligible} & set(drivers)):
            self._check(partition_id, name, drivers[name], end, marked=name in row.restarted)
            if name in row.isr and name not in row.restarted:
                self._forgive(partition_id, name)

    def _check(
        self,
        partition_id: PartitionId,
        name: str,
        driver: PartitionDriver,
        end: int,
        *,
        marked: bool,
    ) -> None:
        lost = self._lost.get(partition_id, {}).get(name)
        if lost is None:
            if marked:
                return
        elif lost.is_rot or not lost.had_records or (lost.is_back and marked):
            return
        held = driver.replication.synced_position[1]
        what = "has lost its records and is" if lost is not None else "is"
        row = self._house.row(partition_id)
        assert held >= end, (
            f"{name} {what} in {row.isr}+{row.eligible} of {partition_id} "
            f"(restarted {row.restarted}) with {held} of {end} committed"
        )

    def _forgive(self, partition_id: PartitionId, name: str) -> None:
        """Count a replica as whole that was checked; rot, once its log was replaced."""
        lost = self._lost.get(partition_id, {}).get(name)
        if lost is None:
            return
        node = self._house.nodes[name]
        if node.machine.disk.datasync_failures:
            return  # it is to come
        if not lost.is_rot or self._asides(node, partition_id) > lost.asides:
            del self._lost[partition_id][name]
            self._world.note("damaged replica is whole again", name)

    # ------------------------------------------------------------------ not ready

    def restart_the_red(self) -> None:
        """Restart brokers with a damaged replica, as an operator does that watches ``/readyz``."""
        for name in sorted(self._house.nodes):
            node = self._house.nodes[name]
            if node.machine.paused:
                continue
            for one in self._house.partitions:
                driver = node.replica(one)
                if driver is not None and isinstance(driver.health.failure, _RED):
                    self._world.note("restarted because of a damaged replica", name)
                    node.kill(power=False)
                    self._world.at(10, node.start_again)
                    break
        self._world.at(_RED_MS, self.restart_the_red)

    def is_legible(self) -> bool:
        """Read every log of which a file rotted, as a scrubber would."""
        for partition_id, lost in self._lost.items():
            for name in sorted(lost):
                driver = self._house.nodes[name].replica(partition_id)
                if driver is None or not lost[name].is_rot:
                    continue
                try:
                    self._house.read_all(driver)
                except CorruptDataError:
                    self._world.note("rot found by a scrubber", name)
                    return False  # the next start of that broker looks at every byte
        return True
