"""Which rows of the pitfalls catalogue a run has really met; without them a green run says little.

Each sighting is the *precondition* of a known way to lose data: the moment at which a wrong rule
would have acted wrongly. Nothing here decides anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.core.metadata.commands import ConfirmLeader
from broker.core.metadata.state import PartitionState
from broker.core.replication import effects as does
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
)

if TYPE_CHECKING:
    from simkit.cluster.broker import SimBroker

# Rows A2, A9, A10 and A22 have directed tests (seeds meet A2 and A9 once in a thousand), A16 holds
# by construction, A18 and A19 are Raft's, A21 waits for consumer groups.
SOMETIMES = (
    "A1 elected with a high watermark below the committed end",
    "A3 alignment answered by another epoch",
    "A4 fetch of an older epoch",
    "A5 follower at the high watermark, below the epoch's start",
    "A6 shrink proposed by a leader that was replaced",
    "A7 stale ISR change refused",
    "A8 wiped replica registered while in the ISR",
    "A11 record written while the ISR is below its minimum",
    "A12 leader elected from outside the ISR",
    "A13 fenced leader holds its acks back",
    "A14 ack of an old epoch dropped by a client",
    "A15 two controllers propose",
    "A17 controller resumed after a session's length",
    "A20 reader above the high watermark",
    "A23 reassignment finished",
    "A24 retry answered with its first offset",
    "A25 leader restarted, and an election was opened",
    "A26 fetched batches out of place dropped",
    "D2 fsync failed",
    "D5 damaged log replaced",
    "D8 disk full, refused",
    "all power lost",
    "D14 elected after a comparison",
    "D14 restarted follower proved by its leader",
    "D14 follower that has forgotten leaves",
)

# These need a table, or a schedule of their own: lives with ``tiered``. A leader names only who it
# has seen to hold everything, so for A8 a process has to end between proposal and application.
SOMETIMES_TIERED = (
    "A8 ISR change names a replica's former process",
    "T shipped",
    "T local records freed",
    "T empty replica starts above 0",
    "T log before its leader's start given up",
    "T log that is not the leader's given up",
    "T cold end learned from the table",
    "T unclean election above the cold end",
    "T unclean election below the cold end",
    "T log begins at the cold end",
    "T former leader does not ship",
    "T committed records recorded as lost",
)


# Of streams that sync now and then: lives with ``interval``.
SOMETIMES_INTERVAL = (
    "clean stop noted",
    "I clean stop believed, a place is kept",
    "I place given up by a new process",
    "T unclean election above the cold end",
    "T committed records recorded as lost",
)


def places(partition: PartitionState) -> tuple[str, ...]:
    """Return who is known to have everything."""
    return (*partition.isr, *partition.eligible)


def before_message(broker: SimBroker, message: Any) -> None:
    """Look at what a replica is about to take."""
    replica = broker.replica
    if replica is None:
        return
    leader, follower = replica.leader, replica.follower
    note = broker.world.note
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
            message.start != broker.log.facts().log_end
        )
        if out_of_place and message.batches:
            note("A26 fetched batches out of place dropped")


def after_message(broker: SimBroker, message: Any) -> None:
    """Look at what a leader has counted."""
    leader = None if broker.replica is None else broker.replica.leader
    if leader is None or not isinstance(message, FetchRequest):
        return
    counted = leader.progress().get(message.follower)
    taken = (message.broker_epoch, message.synced_end)
    if counted is not None and (counted.broker_epoch, counted.synced_end) == taken:
        broker.oracle.counted(leader.leader_epoch, message)


def before_effect(broker: SimBroker, effect: does.Effect) -> None:
    """Look at what a replica is about to do."""
    replica = broker.replica
    note = broker.world.note
    leader = None if replica is None else replica.leader
    starts = isinstance(effect, does.StartLeading)
    if starts and leader is not None and leader.high_watermark < len(broker.oracle.committed):
        note("A1 elected with a high watermark below the committed end")
    asks = isinstance(effect, does.SendToReplica) and isinstance(effect.message, EpochEndRequest)
    if asks and replica is not None and replica.follower and replica.follower.walked_back:
        note("A2 walked back over more than one epoch")


def begins_anew(broker: SimBroker, start: Offset) -> None:
    """Look at a log that is about to be replaced by an empty one at its leader's start."""
    if not start:
        broker.world.note("T log that is not the leader's given up", broker.name)
    elif broker.log.facts().log_end:
        broker.world.note("T log before its leader's start given up", broker.name, start)
    else:
        broker.world.note("T empty replica starts above 0", broker.name, start)


def before_command(before: PartitionState, command: object, note: Any) -> None:
    """Look at what the metadata is about to apply."""
    confirms = isinstance(command, ConfirmLeader) and command.broker == before.candidate
    if confirms and before.candidate not in before.isr:
        note("A12 leader elected from outside the ISR")


def refused_isr(before: PartitionState, command: Any, error: str, note: Any) -> None:
    """Look at an ISR change that was refused."""
    note("A7 stale ISR change refused")
    if command.broker != before.leader and len(command.isr) < len(before.replicas):
        note("A6 shrink proposed by a leader that was replaced")
    if error == "StaleBrokerEpochError" and command.broker == before.leader:
        note("A8 ISR change names a replica's former process")
    if error == "IneligibleReplicaError" and command.broker == before.leader:
        note("A9 ISR change names a fenced or stopping replica")
