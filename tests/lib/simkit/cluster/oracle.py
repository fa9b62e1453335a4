"""What must hold after every step of a simulated cluster (DESIGN §10, rules R1–R4).

The oracle sees everything at once, which no node does: every log, the metadata, what was shown to
readers and what was acknowledged. It keeps the committed records in the order in which some leader
showed them first; from then on they are facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.core.metadata.state import PartitionState
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.replica_messages import FetchRequest
from broker.ports.partition import StoredBatch
from simkit.cluster.control import Control
from simkit.cluster.log import ReplicaLog
from simkit.cluster.witness import Witness

if TYPE_CHECKING:
    from simkit.cluster.broker import SimBroker
    from simkit.cluster.table import Table


_Written = tuple[bytes, int, int]  # body, time, epoch of the record before


class Oracle:
    """Raises AssertionError as soon as a promise is broken."""

    def __init__(self, partition_id: PartitionId, control: Control, witness: Witness) -> None:
        self._partition_id = partition_id
        self._control = control
        self._witness = witness
        self._brokers: Mapping[str, SimBroker] = {}
        self.committed: list[StoredBatch] = []  # by offset: every batch is one record
        self._by_source: dict[tuple[int, int], int] = {}  # (producer, sequence) -> offset
        self._written: dict[tuple[int, int], _Written] = {}  # by epoch and offset
        self._leaders: dict[int, str] = {}  # leader epoch -> the process that led it
        self._checked: tuple[int, int, int] = (-1, -1, -1)
        # By leader epoch and follower: its process, what that told, what a former one had told.
        self._counted: dict[tuple[int, str], tuple[int, int, int]] = {}
        self.acked_count = 0
        self.gives_up = False  # an operator has accepted a loss
        self.given_up_epoch = LeaderEpoch(0)  # of the newest such election
        self.table: Table | None = None
        self.on_joining: Callable[[BrokerId, BrokerId], None] | None = None  # hears of one

    @property
    def metadata_index(self) -> int:
        """The index of the newest state."""
        return self._control.index

    @property
    def _partition(self) -> PartitionState:
        return self._control.state.partitions[self._partition_id.stream_uuid][0]

    def watch(self, brokers: Mapping[str, SimBroker]) -> None:
        """Look at these brokers from now on."""
        self._brokers = brokers

    # ------------------------------------------------------------------ what happens

    def led_to(self, base: Offset) -> None:
        """A leader gives an offset out; none that the table holds is given to another record."""
        held = Offset(0) if self.table is None else self.table.end
        assert base >= held, f"offset {base} is given out again; the table holds {held}"

    def common_end(self, log: ReplicaLog) -> Offset:
        """Return how much of what is committed a log has, with what the table has below it."""
        facts = log.facts()
        end = facts.log_start
        before = log.last_epoch(end)
        if before and before != self.committed[end - 1].header.leader_epoch:
            return Offset(0)  # what it freed was not what is in the table
        for batch in log.read(end, facts.synced_end - end):
            if end >= len(self.committed) or not _same(batch, self.committed[end]):
                break
            end = batch.header.end_offset
        return end

    def written(self, batches: Sequence[StoredBatch], before: LeaderEpoch) -> None:
        """The same offset and epoch hold the same bytes everywhere, after the same record."""
        for batch in batches:
            header = batch.header
            found = bytes(batch.body), header.first_timestamp_us, before
            known = self._written.setdefault((header.leader_epoch, header.base_offset), found)
            assert known == found, (
                f"two contents at offset {header.base_offset} of epoch {header.leader_epoch}"
            )
            before = header.leader_epoch

    def give_up(self, end: Offset) -> None:
        """An operator accepts that everything from ``end`` on is lost, and nothing else."""
        self.gives_up = True
        self.given_up_epoch = self._partition.leader_epoch
        self._witness.gave_up(end)
        del self.committed[end:]
        self._by_source = {source: at for source, at in self._by_source.items() if at < end}

    def started_leading(self, epoch: LeaderEpoch, process: str) -> None:
        """An epoch has one leader, and that one process."""
        self._witness.leads(epoch, process)
        known = self._leaders.setdefault(epoch, process)
        assert known == process, f"epoch {epoch} is led by {known} and by {process}"

    def shown(self, log: ReplicaLog, end: Offset, *, leads: bool, who: str) -> None:
        """A replica shows readers everything below ``end``."""
        known = len(self.committed)
        if end > known:
            assert leads, f"{who} shows {end} as committed; leaders have shown {known}"
            fresh = log.read(Offset(known), end - known)
            if known:
                self._same_record(log, Offset(known), who)
            for batch in fresh:
                header = batch.header
                source = (header.producer_id, header.base_sequence)
                if source[0] >= 0:
                    assert source not in self._by_source, f"{source} is committed twice"
                    self._by_source[source] = header.base_offset
            self.committed += fresh
            self._copies(end)
        elif end:
            self._same_record(log, end, who)

    def acked(self, *, policy: AckPolicy, end: Offset, log: ReplicaLog, fenced: bool) -> None:
        """A broker acknowledges a record that ends at ``end``."""
        self.acked_count += 1
        assert not fenced, "a leader whose lease is over acknowledges"
        if policy is AckPolicy.ALL:
            assert end <= len(self.committed), f"{end} is acknowledged and not committed"
        else:
            assert end <= log.facts().synced_end, f"{end} is acknowledged and not on disk"

    def client_heard(self, producer: int, sequence: int, base: Offset) -> None:
        """An ALL-acked record is where its ack says; acks from before a loss are not heard."""
        found = self._by_source.get((producer, sequence))
        assert found == base, f"({producer}, {sequence}) was acked at {base} and is at {found}"

    def counted(self, leader_epoch: LeaderEpoch, fetch: FetchRequest) -> None:
        """A leader counts what a follower's process tells."""
        key = (leader_epoch, fetch.follower)
        process, told, owed = self._counted.get(key, (fetch.broker_epoch, 0, 0))
        if fetch.broker_epoch > process:
            process, told, owed = fetch.broker_epoch, 0, max(told, owed)
        if fetch.synced_end >= min(owed, len(self.committed)):
            owed = 0
        self._counted[key] = (process, max(told, fetch.synced_end), owed)

    def isr_proposed(
        self, leader: BrokerId, leader_epoch: LeaderEpoch, isr: Collection[BrokerId]
    ) -> None:
        """No leader keeps a replica that it has seen to end below what it had counted from it."""
        joining = sorted(set(isr) - set(self._partition.isr))
        if joining and self.on_joining is not None:
            told, self.on_joining = self.on_joining, None
            told(leader, joining[0])
        for member in isr:
            owed = self._counted.get((leader_epoch, member), (0, 0, 0))[2]
            assert not owed, f"{member} has forgotten some of {owed} and is proposed for the ISR"

    def _same_record(self, log: ReplicaLog, end: Offset, who: str) -> None:
        """The record before ``end`` decides: same epoch there, same log below (log matching)."""
        expected = self.committed[end - 1].header.leader_epoch
        if end == log.facts().log_start and not log.last_epoch(end):
            return  # an unclean leader's log began here; who wrote what is before is not known
        assert log.last_epoch(end) == expected, (
            f"{who} has epoch {log.last_epoch(end)} at {end - 1}; {expected} was committed there"
        )

    def _copies(self, end: Offset) -> None:
        """A commit is on min-ISR disks at the moment that it is shown.

        A disk that was lost after it had acknowledged counts: its loss is the one that the fault
        model allows, whether it comes just before the commit or just after.
        """
        one = self._partition
        copies = sum(
            broker.unproved
            or broker.lost_end >= end
            or (
                broker.log.facts().synced_end >= end
                and broker.log.last_epoch(end) == self.committed[end - 1].header.leader_epoch
            )
            for broker in self._brokers.values()
        )
        assert copies >= one.min_isr, f"{end} is committed on {copies} disks of {one.min_isr}"

    # ------------------------------------------------------------------ after every step

    def check(self) -> None:
        """Every member of the controller's ISR, and every eligible, has all that was committed."""
        end = Offset(len(self.committed))
        changes = sum(broker.log.changes for broker in self._brokers.values())
        now = (changes, self._control.index, end)
        if now == self._checked:
            return
        self._checked = now
        rows = self._control.state.partitions.get(self._partition_id.stream_uuid)
        if rows is None:
            return
        one = rows[0]
        if not end:
            return
        for member in one.isr:
            assert self._control.state.is_alive(member), f"{member} is fenced and in the ISR"
        for member in map(BrokerId, self._brokers):
            broker = self._brokers[member]
            if broker.forgot_life is not None and self._may_have_forgotten(one, member):
                continue
            if member not in (*one.isr, *one.eligible):
                continue
            if broker.unproved:  # wiped or rotten, and about to be thrown out
                continue
            broker.lost_end = Offset(0)
            synced_end = broker.log.facts().synced_end
            if not synced_end and self.table is not None and end <= self.table.end:
                continue  # it gave its log up and held nothing that is not in the table
            assert synced_end >= end, (
                f"{member} is in {one.isr}+{one.eligible} with {synced_end} of {end} committed"
            )
            self._same_record(broker.log, end, member)

    def _may_have_forgotten(self, one: PartitionState, member: BrokerId) -> bool:
        """Tell whether nobody may believe this disk yet: it is back, and was not compared.

        The next process that registers is marked; as soon as it is not, or in no set any more, its
        disk counts like any other.
        """
        broker = self._brokers[member]
        life = int(self._control.state.brokers[member].session.rpartition(".")[2])
        if life <= (broker.forgot_life or 0) or member in one.restarted:
            return True
        broker.forgot_life = None
        return False

    def check_end(self, members: Sequence[BrokerId]) -> None:
        """Read every replica separately, whole: all are the same log, the committed one."""
        for member in members:
            log = self._brokers[member].log
            facts = log.facts()
            held = Offset(0) if self.table is None else self.table.end
            assert facts.log_start <= held, f"{member} has freed what is in no table"
            found = log.read(facts.log_start, facts.log_end - facts.log_start)
            expected = self.committed[facts.log_start :]
            assert len(found) == len(expected), (
                f"{member} ends with {len(found)} records of {len(expected)}"
            )
            assert all(map(_same, found, expected)), f"{member} has other content"
        if self.table is not None:
            rows = self.table.rows
            assert all(map(_same, rows, self.committed[: len(rows)])), "the table has other rows"
            assert len(rows) <= len(self.committed), "the table has more than is committed"


def _same(batch: StoredBatch, expected: StoredBatch) -> bool:
    mine, theirs = batch.header, expected.header
    placed = (mine.base_offset, mine.leader_epoch) == (theirs.base_offset, theirs.leader_epoch)
    return placed and bytes(batch.body) == bytes(expected.body)
