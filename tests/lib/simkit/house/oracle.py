"""The promises that must hold after every step of a house (docs/replication.md, R1 to R4).

The oracle sees everything at once, which no broker does: what every replica writes, what leaders
show as committed, what is acknowledged. What was committed is kept as the leader epoch of each
offset; with the rule that one epoch and offset have one content, that names every record. It reads
no disk: a look must not change what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.core.metadata.state import PartitionState
from broker.core.replication import effects as does
from broker.core.replication.events import MessageCame
from broker.core.replication.replica import PartitionReplica
from broker.model.epoch_history import EpochHistory
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import FetchRequest
from broker.model.stream import Stream
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.replica_shell import ReplicaShell
from broker.storage.log.partition_log import PartitionLog
from simkit.house import situations
from simkit.replacing import replaced, together

if TYPE_CHECKING:
    from simkit.house.house import House

_CHECK_MS: Final = 50


def log_of(driver: PartitionDriver) -> PartitionLog:
    """Return the log of a replica, with its log end and synced end."""
    return driver._local.log


@dataclass(frozen=True, slots=True)
class Kept:
    """The facts of a log: its start, its synced end, and its leader epochs."""

    start: int
    synced_end: int
    epochs: EpochHistory

    @classmethod
    def of(cls, log: PartitionLog) -> Kept:
        """Look at an open log."""
        return cls(log.log_start, log.synced_end, log.epochs)


class Truth:
    """The oracle's knowledge of one partition."""

    def __init__(self) -> None:
        self.committed: list[int] = []  # the leader epoch of each offset
        self.written: dict[tuple[int, int], int] = {}  # by epoch and offset: the body's checksum
        self.leaders: dict[int, str] = {}  # by leader epoch: the process that led it
        # By leader epoch and follower: its process, the end that it told, the end before it.
        self.counted: dict[tuple[int, str], tuple[int, int, int]] = {}
        self.kept: dict[str, Kept] = {}  # by processes that have ended
        self.lost: list[tuple[int, int]] = []  # accepted losses: from which offset, at which step
        self.given_up_epoch = 0  # leaders up to this one have lost what they show from then on

    @property
    def gives_up(self) -> bool:
        """Tell whether an operator has accepted a loss."""
        return bool(self.lost)


class Oracle:
    """Raises AssertionError as soon as a promise is broken."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.truths: dict[PartitionId, Truth] = {}
        self._looked = (-1, -1)
        # The newest replica of each partition and broker, and the process that opened it.
        self._opened: dict[tuple[PartitionId, str], tuple[str, PartitionDriver]] = {}
        self.on_joining: Callable[[str, str], None] | None = None  # hears of one that may join

    def of(self, partition_id: PartitionId) -> Truth:
        """Return the oracle's knowledge of a partition."""
        return self.truths.setdefault(partition_id, Truth())

    # ------------------------------------------------------------------ what happens

    def opened(self, name: str, driver: PartitionDriver, epoch: int) -> None:
        """A broker's process has opened a replica; readers may have what it shows at once.

        ``epoch`` is the newest leader epoch that the broker knows.
        """
        process = self._house.nodes[name].machine.process
        self._opened[driver.partition_id, name] = process, driver
        end, log = driver.reads.high_watermark, log_of(driver)
        if end > log.log_start and not driver.health.is_damaged:  # below it the table is read
            where = situations.Place(driver.partition_id, process)
            self.shown(where, log, end, leads=False, epoch=epoch)

    def wrote(self, partition_id: PartitionId, epoch: int, offset: int, checksum: int) -> None:
        """One offset and epoch hold the same bytes everywhere."""
        known = self.of(partition_id).written.setdefault((epoch, offset), checksum)
        assert known == checksum, f"two contents at offset {offset} of epoch {epoch}"

    def started_leading(self, partition_id: PartitionId, epoch: int, process: str) -> None:
        """An epoch has one leader, and that is one process."""
        known = self.of(partition_id).leaders.setdefault(epoch, process)
        assert known == process, f"epoch {epoch} is led by {known} and by {process}"

    def shown(
        self, where: situations.Place, log: PartitionLog, end: int, *, leads: bool, epoch: int
    ) -> None:
        """A replica shows readers everything below ``end``, in a leader epoch."""
        partition_id, who = where.partition_id, where.process
        truth = self.of(partition_id)
        if 0 < epoch <= truth.given_up_epoch:
            return  # it does not know of the loss; brokers that do ignore it
        known = len(truth.committed)
        if end > known:
            assert leads, f"{who} shows {end} as committed; leaders have shown {known}"
            if known:
                self._same_record(truth, log, known, who)
            epochs = log.epochs
            truth.committed += [epochs.epoch_of(Offset(one)) for one in range(known, end)]
            self._copies(partition_id, truth, end)
        elif end:
            self._same_record(truth, log, end, who)

    def acked(self, driver: PartitionDriver, policy: AckPolicy, end: int, now_ms: int) -> None:
        """A broker acknowledges records that end at ``end``."""
        truth, leader = self.of(driver.partition_id), driver.replication.leader
        behind = leader is not None and leader.leader_epoch <= truth.given_up_epoch
        if policy is AckPolicy.NONE or behind:
            return
        assert leader is None or not leader.is_fenced(now_ms), "acknowledged after the lease"
        known = len(truth.committed)
        if policy is AckPolicy.ALL:
            assert end <= known, f"{end} is acknowledged and not committed"
        else:
            synced = driver.replication.synced_position[1]
            assert end <= synced, f"{end} is acknowledged and not on disk"

    def counted(self, partition_id: PartitionId, epoch: int, fetch: FetchRequest) -> None:
        """Note that a leader counts the end that a follower's process tells."""
        truth = self.of(partition_id)
        key = (epoch, str(fetch.follower))
        process, told, owed = truth.counted.get(key, (fetch.broker_epoch, 0, 0))
        if fetch.broker_epoch > process:
            process, told, owed = fetch.broker_epoch, 0, max(told, owed)
        if fetch.synced_end >= min(owed, len(truth.committed)):
            owed = 0
        truth.counted[key] = (process, max(told, fetch.synced_end), owed)

    def isr_proposed(self, partition_id: PartitionId, wanted: does.ProposeIsr) -> None:
        """No leader keeps a replica that it has seen to end below what it had counted from it."""
        truth = self.of(partition_id)
        row = self._house.row(partition_id)
        joining = sorted(set(wanted.isr) - set(row.isr))
        if joining and row.leader is not None and self.on_joining is not None:
            told, self.on_joining = self.on_joining, None
            told(row.leader, joining[0])
        for member in wanted.isr:
            owed = truth.counted.get((wanted.leader_epoch, str(member)), (0, 0, 0))[2]
            assert not owed, f"{member} has forgotten some of {owed} and is proposed for the ISR"

    def process_ended(self, name: str) -> None:
        """Keep the synced ends of an ended process: they are still on its disk."""
        for partition_id in self._house.partitions:
            driver = self._house.nodes[name].log_holder(partition_id)
            if driver is not None and not driver.health.is_damaged:
                self.of(partition_id).kept[name] = Kept.of(log_of(driver))

    def give_up(self, partition_id: PartitionId, end: int, epoch: int) -> None:
        """An operator accepts that everything from ``end`` on is lost, and nothing else."""
        truth = self.of(partition_id)
        truth.lost.append((end, self._house.world.steps))
        truth.given_up_epoch = epoch
        del truth.committed[end:]

    def common_end(self, partition_id: PartitionId, kept: Kept, log_end: int) -> int:
        """Return how far a log, with the table below it, has the committed records."""
        committed = self.of(partition_id).committed
        start, end, epochs = kept.start, min(log_end, len(committed)), kept.epochs
        if 0 < start <= len(committed):
            before = epochs.epoch_of(Offset(start - 1))
            if before and before != committed[start - 1]:
                return 0  # it freed records that are not in the table
        for offset in range(start, end):
            if epochs.epoch_of(Offset(offset)) != committed[offset]:
                return offset
        return max(start, end)

    def certain_end(self, partition_id: PartitionId, since_step: int, end: int) -> int:
        """Return below which offset nothing was given up since a step."""
        lost = [at for at, step in self.of(partition_id).lost if step >= since_step]
        return min([end, *lost])

    # ------------------------------------------------------------------ checks

    def _same_record(self, truth: Truth, log: PartitionLog, end: int, who: str) -> None:
        """The record before ``end`` decides: same epoch there, same log below (log matching)."""
        expected = truth.committed[end - 1]
        found = log.epochs.epoch_of(Offset(end - 1))
        if end <= log.log_start and not found:
            return  # an unclean leader's log began here; who wrote what is before is not known
        assert found == expected, (
            f"{who} has epoch {found} at {end - 1}; {expected} was committed there"
        )

    def _copies(self, partition_id: PartitionId, truth: Truth, end: int) -> None:
        """A commit is on min-ISR disks at the moment that it is shown.

        A disk that was lost after it had acknowledged counts: its loss is the one that the fault
        model allows, whether it comes just before the commit or just after.
        """
        if self._house.is_interval(partition_id):
            return
        row = self._house.row(partition_id)
        copies = sum(self._has(truth, partition_id, name, end) for name in self._house.nodes)
        assert copies >= row.min_isr, f"{end} is committed on {copies} disks of {row.min_isr}"

    def _has(self, truth: Truth, partition_id: PartitionId, name: str, end: int) -> bool:
        found = [truth.kept[name]] if name in truth.kept else []
        driver = self._house.nodes[name].log_holder(partition_id)
        machine = self._house.nodes[name].machine
        if driver is None and machine.alive:  # closed, to be opened again under another epoch
            process, former = self._opened.get((partition_id, name), ("", driver))
            driver = former if process == machine.process else None
        if driver is not None and not driver.health.is_damaged:
            found = [Kept.of(log_of(driver))]
            if self._house.damage.is_lost(partition_id, name) and name in truth.kept:
                found.append(truth.kept[name])
        epoch = truth.committed[end - 1]
        return any(
            one.synced_end >= end and one.epochs.epoch_of(Offset(end - 1)) == epoch for one in found
        )

    # ------------------------------------------------------------------ after every step

    def look(self) -> None:
        """Look at every member of every ISR, after a change of the metadata and now and then."""
        now = (self._house.house.index, self._house.world.now_ms // _CHECK_MS)
        if now == self._looked:
            return
        self._looked = now
        state = self._house.house.state
        for partition_id in self._house.partitions:
            row = self._house.row(partition_id)
            for member in row.isr:
                assert state.is_alive(member), f"{member} is fenced and in the ISR"
            self._look_at(partition_id, row)

    def _look_at(self, partition_id: PartitionId, row: PartitionState) -> None:
        truth = self.of(partition_id)
        end = len(truth.committed)
        if not end:
            return
        for name in sorted({*row.isr, *row.eligible}):
            driver = self._house.nodes[name].replica(partition_id)
            if driver is None or driver.health.failure is not None or self._is_in_doubt(row, name):
                continue
            if self._house.damage.is_lost(partition_id, name):
                continue  # see damage.py: whether it may count is another question
            start = log_of(driver).log_start
            assert start <= row.floor, f"{name} begins at {start}: in no table, and not purged"
            if driver.replication.synced_position[1] >= end:
                self._same_record(truth, log_of(driver), end, name)

    def _is_in_doubt(self, row: PartitionState, name: str) -> bool:
        """Tell whether the process is not the one that is registered, or was not compared yet."""
        registered = self._house.house.state.brokers.get(BrokerId(name))
        return registered is None or name in row.restarted


# ---------------------------------------------------------------------- where it listens


def _openings_told_to(oracle: Oracle) -> AbstractContextManager[None]:
    open_replica: Any = vars(HostedPartitions)["_open"]

    def watched_opening(self: Any, stream: Stream, number: int, row: PartitionState) -> Any:
        driver = open_replica(self, stream, number, row)
        oracle.opened(self.me, driver, row.leader_epoch)
        return driver

    return replaced(HostedPartitions, "_open", watched_opening)


@contextmanager
def watching(house: House) -> Iterator[None]:
    """Let the oracle of a house check its replicas' effects, for the length of a ``with``."""
    oracle = house.oracle
    do_one: Any = ReplicaShell._do_one
    message: Any = ReplicaShell.message
    step: Any = PartitionReplica.step
    place: list[situations.Place] = []  # of the message that is being taken
    append: Any = PartitionLog.append
    append_stored: Any = PartitionLog.append_stored

    def watched_effect(self: Any, effect: does.Effect) -> None:
        where = house.place_of(self)
        situations.before_effect(house, where, self, effect)
        match effect:
            case does.StartLeading(leader_epoch):
                oracle.started_leading(where.partition_id, leader_epoch, where.process)
            case does.ProposeIsr():
                oracle.isr_proposed(where.partition_id, effect)
            case does.ReportLostRecords(end, committed):
                known = oracle.of(where.partition_id).gives_up
                assert known, f"{where.process} gives up [{end}, {committed})"
        do_one(self, effect)
        if isinstance(effect, does.AdvanceHighWatermark):
            active = self.leader or self._replica.follower
            epoch = 0 if active is None else active.leader_epoch
            log, leads = self._local.log, self.leader is not None
            oracle.shown(where, log, effect.end, leads=leads, epoch=epoch)

    def watched_message(self: Any, taken: Any) -> None:
        place[:] = [house.place_of(self)]
        situations.before_message(house, place[0], self, taken)
        message(self, taken)

    def watched_step(self: Any, event: Any) -> Any:
        effects = step(self, event)
        leader = self.leader
        taken = event.message if isinstance(event, MessageCame) else None
        if leader is not None and isinstance(taken, FetchRequest):
            counted = leader.progress().get(taken.follower)
            told = (taken.broker_epoch, taken.synced_end)
            if counted is not None and (counted.broker_epoch, counted.synced_end) == told:
                oracle.counted(place[0].partition_id, leader.leader_epoch, taken)
        return effects

    def watched_append(self: Any, batches: Sequence[Any], **how: Any) -> Any:
        offsets = append(self, batches, **how)
        for offset, batch in zip(offsets, batches, strict=True):
            epoch = how["leader_epoch"]
            oracle.wrote(self._folder.partition_id, epoch, offset, batch.body_crc)
        return offsets

    def watched_copy(self: Any, batches: Sequence[Any], **how: Any) -> Any:
        end = append_stored(self, batches, **how)
        for header in (one.header for one in batches):
            where = self._folder.partition_id
            oracle.wrote(where, header.leader_epoch, header.base_offset, header.body_crc)
        return end

    with together(
        replaced(ReplicaShell, "_do_one", watched_effect),
        replaced(ReplicaShell, "message", watched_message),
        replaced(PartitionReplica, "step", watched_step),
        _openings_told_to(oracle),
        replaced(PartitionLog, "append", watched_append),
        replaced(PartitionLog, "append_stored", watched_copy),
    ):
        yield
