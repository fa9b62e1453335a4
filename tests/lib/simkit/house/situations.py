"""Which rows of the catalogue of pitfalls a life has really met, over the product's own shells.

Each situation is the *precondition* of a known way to lose data: the moment at which a wrong rule
would have acted wrongly. Without them a green run says little. Nothing here decides anything.
A row's number is that of docs/replication.md; ``T`` needs a table, ``I`` a stream that syncs by
interval. Rows A2 and A9 have scripts of their own (`scripts.py`), A16 holds by construction, A18
and A19 are Raft's, A21 waits for consumer groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.core.metadata import broker_apply, partition_apply
from broker.core.metadata.commands import (
    ChangeIsr,
    ConfirmLeader,
    ElectUnclean,
    NameCandidate,
    RegisterBroker,
)
from broker.core.metadata.state import MetadataState, PartitionState
from broker.core.replication import effects as does
from broker.errors import HeadwaterError
from broker.model.ids import PartitionId
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
)
from broker.runtime.partition.commits import Commits
from broker.runtime.partition.local_log import LocalLog
from simkit.replacing import replaced, together

if TYPE_CHECKING:
    from simkit.house.house import House

Note = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Place:
    """The broker and the partition of a replica."""

    partition_id: PartitionId
    process: str


# ---------------------------------------------------------------------- replicas


def before_message(house: House, where: Place, shell: Any, message: Any) -> None:
    """Note the situation of a message that a replica is about to take."""
    note = house.world.note
    leader, follower = shell.leader, shell._replica.follower
    if leader is not None and isinstance(message, FetchRequest | EpochEndRequest):
        if message.leader_epoch < leader.leader_epoch:
            note("A4 fetch of an older epoch")
        elif (
            isinstance(message, FetchRequest)
            and message.leader_epoch == leader.leader_epoch
            and message.follower not in leader.isr
            and leader.high_watermark <= message.synced_end < leader.epoch_start
        ):
            note("A5 follower at the high watermark, below the epoch's start")
    if follower is not None:
        if isinstance(message, EpochEndAnswer) and message.leader_epoch != follower.leader_epoch:
            note("A3 alignment answered by another epoch")
        out_of_place = isinstance(message, FetchAnswer) and (
            message.start != shell._local.log.log_end
        )
        if out_of_place and message.batches:
            note("A26 fetched batches out of place dropped")


def before_effect(house: House, where: Place, shell: Any, effect: does.Effect) -> None:
    """Note the situation of an effect that a replica is about to carry out."""
    note, leader, follower = house.world.note, shell.leader, shell._replica.follower
    log_end = shell._local.log.log_end
    match effect:
        case does.StartLeading() if leader is not None:
            if leader.high_watermark < len(house.oracle.of(where.partition_id).committed):
                note("A1 elected with a high watermark below the committed end")
        case does.SendToReplica(_, EpochEndRequest()) if follower is not None:
            if follower.walked_back:
                note("A2 walked back over more than one epoch")
        case does.ReportLostRecords():
            note("A10 lost records reported", where.process)
        case does.ResetLog(start, _):
            if not start:
                note("T log that is not the leader's given up", where.process)
            elif log_end:
                note("T log before its leader's start given up", where.process, start)
            else:
                note("T empty replica starts above 0", where.process, start)
        case does.BeginLogAt(start):
            note("T log begins at the cold end", where.process, start)


# ---------------------------------------------------------------------- metadata


def _before_step(note: Note, before: PartitionState, command: object) -> None:
    match command:
        case ConfirmLeader() if command.broker == before.candidate not in before.isr:
            note("A12 leader elected from outside the ISR")
        case ElectUnclean() if command.log_end < before.cold_end:
            note("T unclean election below the cold end")
        case ElectUnclean() if before.cold_end:
            note("T unclean election above the cold end")


def _refused(note: Note, before: PartitionState, command: ChangeIsr, error: HeadwaterError) -> None:
    note("A7 stale ISR change refused")
    if command.broker != before.leader:
        if len(command.isr) < len(before.replicas):
            note("A6 shrink proposed by a leader that was replaced")
        return
    kind = type(error).__name__
    if kind == "StaleBrokerEpochError":
        note("A8 ISR change names a replica's former process")


def _stepped(note: Note, before: PartitionState, command: object, now: PartitionState) -> None:
    if isinstance(command, NameCandidate) and now.candidate in before.restarted:
        note("D14 elected after a comparison")
    if set(before.restarted) - {*now.restarted} and now.leader == before.leader:
        note("D14 restarted follower proved by its leader")
    if isinstance(command, ChangeIsr) and command.forgotten:
        note("D14 follower that has forgotten leaves")
    if before.target and not now.target:
        note("A23 reassignment finished")


def _registered(
    note: Note, state: MetadataState, command: RegisterBroker, after: MetadataState
) -> None:
    broker = command.broker
    for stream_uuid, rows in state.partitions.items():
        for before, now in zip(rows, after.partitions[stream_uuid], strict=True):
            if broker in {*before.isr} - {*now.isr}:
                note("A8 wiped replica registered while in the ISR")
            if broker in (*before.isr, *before.eligible):
                kept = broker in (*now.isr, *now.eligible)
                if command.clean and kept:
                    note("I clean stop believed, a place is kept")
                elif not kept:
                    note("I place given up by a new process")
            if before.leader == broker:
                note("A25 leader restarted, and an election was opened")


# ---------------------------------------------------------------------- where it listens


@contextmanager
def counting(house: House) -> Iterator[None]:
    """Count what happens in the metadata and to publishers, for the length of a ``with``."""
    note = house.world.note
    step: Any = vars(partition_apply)["_step"]
    register: Any = vars(broker_apply)["_register"]
    settle: Any = Commits.settle
    free: Any = LocalLog.free

    def counted_step(state: Any, present: Any, command: Any) -> Any:
        _before_step(note, present, command)
        found = step(state, present, command)
        if not isinstance(found, HeadwaterError):
            _stepped(note, present, command, found)
        elif isinstance(command, ChangeIsr):
            _refused(note, present, command, found)
        return found

    def counted_registration(state: Any, command: Any) -> Any:
        after, reply = register(state, command)
        _registered(note, state, command, after)
        return after, reply

    def counted_settle(self: Any, leader: Any) -> None:
        if leader is not None and len(self) and leader.is_fenced(self._clock.monotonic_ms()):
            note("A13 fenced leader holds its acks back")
        settle(self, leader)

    def counted_free(self: Any, plan: Any, **how: Any) -> Any:
        freed = free(self, plan, **how)
        if freed:
            note("T local records freed")
        return freed

    with together(
        replaced(partition_apply, "_step", counted_step),
        replaced(broker_apply, "_register", counted_registration),
        replaced(Commits, "settle", counted_settle),
        replaced(LocalLog, "free", counted_free),
    ):
        yield
