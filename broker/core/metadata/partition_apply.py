"""Apply commands about one partition: compare the sender's epochs, then change the partition."""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata import partition_rules as rules
from broker.core.metadata.outcome import Applied, CommandReply, Rejected
from broker.core.metadata.partition_commands import (
    BeginLeaderships,
    ChangeIsr,
    ConfirmLeader,
    ElectUnclean,
    NameCandidate,
    PartitionCommand,
    ReassignReplicas,
    StartElection,
    TakeOffline,
    WithdrawReplica,
)
from broker.core.metadata.state import (
    FEATURE_LEVEL_FENCED,
    Loss,
    MetadataState,
    PartitionState,
)
from broker.errors import (
    HeadwaterError,
    IneligibleReplicaError,
    InvalidAssignmentError,
    InvalidRequestError,
    NotLeaderError,
    StaleBrokerEpochError,
    StaleLeaderEpochError,
    StalePartitionEpochError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.lineage import is_lineage_id
from broker.model.offsets import OFFSET_MAX

Step = PartitionState | HeadwaterError


def find(
    state: MetadataState, stream_uuid: StreamUuid, partition: int
) -> PartitionState | HeadwaterError:
    """Return the partition, or the error if there is none."""
    rows = state.partitions.get(stream_uuid)
    if rows is None:
        return unknown_uuid(stream_uuid)
    if not 0 <= partition < len(rows):
        return UnknownPartitionError(
            f"stream {stream_uuid} has no partition {partition}; it has {len(rows)} partitions",
            partition=partition,
            partitions_count=len(rows),
        )
    return rows[partition]


def unknown_uuid(stream_uuid: StreamUuid) -> UnknownStreamError:
    """Return the error about a uuid that no stream has, for example because it was deleted."""
    return UnknownStreamError(
        f"no stream has uuid {stream_uuid} (any more)", stream_uuid=stream_uuid
    )


def put(
    state: MetadataState, stream_uuid: StreamUuid, partition: int, changed: PartitionState
) -> MetadataState:
    """Return the state with one partition replaced."""
    rows = state.partitions[stream_uuid]
    moved = (*rows[:partition], changed, *rows[partition + 1 :])
    return replace(state, partitions={**state.partitions, stream_uuid: moved})


def apply_partition(state: MetadataState, command: PartitionCommand) -> Applied:
    """Return the next state and the reply of a command about one partition."""
    present = find(state, command.stream_uuid, command.partition)
    if isinstance(present, HeadwaterError):
        return state, Rejected(present)
    step = _step(state, present, command)
    if isinstance(step, HeadwaterError):
        return state, Rejected(step)
    if state.feature_level >= FEATURE_LEVEL_FENCED:
        step = rules.fenced(present, step)
    reply: CommandReply = {
        "partition_epoch": step.partition_epoch,
        "leader_epoch": step.leader_epoch,
        "status": step.status,
        "isr": list(step.isr),
    }
    if step is present:
        return state, reply
    return put(state, command.stream_uuid, command.partition, step), reply


def _step(state: MetadataState, present: PartitionState, command: PartitionCommand) -> Step:
    match command:
        case ChangeIsr():
            return _change_isr(state, present, command)
        case WithdrawReplica():
            stale = stale_broker(state, command.broker, command.broker_epoch, fenced_too=False)
            return stale or rules.without(present, command.broker, keeps_data=False)
        case StartElection():
            return _start_election(present, command)
        case NameCandidate():
            return _name_candidate(state, present, command)
        case ConfirmLeader():
            return _confirm_leader(state, present, command)
        case TakeOffline():
            stale = _stale_partition(present, command)
            if stale is not None or present.status not in ("election", "candidate_found"):
                return stale or InvalidRequestError(
                    f"only a partition in an election goes offline; this one is {present.status}"
                )
            return rules.taken_offline(present)
        case ElectUnclean():
            return _elect_unclean(state, present, command)
        case ReassignReplicas():
            return _reassign(state, present, command)


def _change_isr(state: MetadataState, present: PartitionState, command: ChangeIsr) -> Step:
    stale = stale_broker(state, command.broker, command.broker_epoch)
    if stale is not None:
        return stale
    if present.leader != command.broker:
        return _not_leader(present, command.broker)
    stale = _stale_partition(present, command)
    if stale is not None:
        return stale
    if command.broker not in command.isr or not set(command.isr) <= set(present.replicas):
        return InvalidRequestError(
            "an ISR must have the leader, and only replicas of the partition"
        )
    if set(command.forgotten) & set(command.isr):
        return InvalidRequestError("a replica that has lost records cannot be in the ISR")
    for member, epoch in sorted(command.isr.items()):
        if member in present.isr:
            continue  # a member stays; `restarted` has it until its new process has been compared
        if not rules.may_lead(state, member):
            return IneligibleReplicaError(
                f"broker {member} is fenced or stopping, so it may not join the ISR", broker=member
            )
        stale = stale_broker(state, member, epoch)
        if stale is not None:
            return stale
    epochs = state.broker_epochs
    proved = [one for one, epoch in command.isr.items() if epochs.get(one) == epoch]
    return rules.with_isr(present, command.isr, proved=proved, forgotten=command.forgotten)


def _start_election(present: PartitionState, command: StartElection) -> Step:
    stale = _stale_partition(present, command)
    if stale is not None:
        return stale
    if present.status not in ("online", "offline"):
        return InvalidRequestError(f"an election is under way: the partition is {present.status}")
    if command.suspect is not None and command.suspect == present.leader:
        # Its log may be the longest, but this election must choose another replica.
        opened = rules.without(present, command.suspect, keeps_data=True)
        return replace(opened, tried=(command.suspect,))
    return rules.election_opened(present)


def _name_candidate(state: MetadataState, present: PartitionState, command: NameCandidate) -> Step:
    stale = _stale_partition(present, command) or stale_broker(
        state, command.candidate, command.candidate_epoch
    )
    if stale is not None:
        return stale
    if present.status == "offline":
        return InvalidRequestError("the partition is offline: an election must begin first")
    if command.candidate == present.leader:
        return InvalidRequestError(f"broker {command.candidate} leads the partition already")
    tried = (*present.tried, present.candidate)
    if command.candidate not in rules.candidates(state, present) or command.candidate in tried:
        return IneligibleReplicaError(
            f"broker {command.candidate} may not lead: ISR {present.isr}, eligible "
            f"{present.eligible}, tried {present.tried}",
            broker=command.candidate,
        )
    if not rules.is_compared(state, present, command.candidate, command.answers):
        return IneligibleReplicaError(
            f"broker {command.candidate} has restarted, and its log was not shown to have every "
            f"committed record: {len(command.answers)} answers, restarted {present.restarted}",
            broker=command.candidate,
        )
    return rules.candidate_named(present, command.candidate)


def _confirm_leader(state: MetadataState, present: PartitionState, command: ConfirmLeader) -> Step:
    stale = stale_broker(state, command.broker, command.broker_epoch)
    if stale is not None:
        return stale
    if command.leader_epoch != present.leader_epoch:
        return stale_leader(present, command.leader_epoch)
    if present.candidate != command.broker:
        return NotLeaderError(
            f"broker {command.broker} is not the candidate; the candidate is {present.candidate}"
        )
    if command.lineage_id and not is_lineage_id(command.lineage_id):
        return InvalidRequestError(f"not a lineage id: {command.lineage_id!r}")
    if not 0 <= command.log_end <= OFFSET_MAX:
        return InvalidRequestError(f"a log end must be 0 to {OFFSET_MAX}, not {command.log_end}")
    if not 0 <= command.log_epoch < command.leader_epoch:
        return InvalidRequestError(
            f"a log's epoch must be 0, or below {command.leader_epoch}, not {command.log_epoch}"
        )
    return rules.leader_confirmed(
        present,
        lineage_id=command.lineage_id,
        log_end=command.log_end,
        log_epoch=command.log_epoch,
    )


def begin_leaderships(state: MetadataState, command: BeginLeaderships) -> Applied:
    """Record the leaderships of a lone broker's partitions: all of them, or none."""
    stale = stale_broker(state, command.broker, command.broker_epoch)
    if stale is not None:
        return state, Rejected(stale)
    after = state
    for one in command.begun:
        present = find(after, one.stream_uuid, one.partition)
        if isinstance(present, HeadwaterError):
            return state, Rejected(present)
        if present.leader != command.broker:
            return state, Rejected(_not_leader(present, command.broker))
        if present.leader_epoch != one.leadership.leader_epoch:
            return state, Rejected(stale_leader(present, one.leadership.leader_epoch))
        begun = one.leadership
        led = rules.with_leadership(present, begun.lineage_id, begun.start, begun.before)
        after = put(after, one.stream_uuid, one.partition, led)
    return after, {}


def _elect_unclean(state: MetadataState, present: PartitionState, command: ElectUnclean) -> Step:
    stale = stale_broker(state, command.broker, command.broker_epoch)
    if stale is not None:
        return stale
    if command.partition_epoch != present.partition_epoch:
        return _stale_epoch(present, command.partition_epoch)
    if not command.accept_data_loss:
        return InvalidRequestError(
            "an unclean election loses committed records: repeat the command with the option to "
            "accept the loss"
        )
    living = rules.candidates(state, present)
    clean = tuple(one for one in living if one not in present.restarted)
    # During an election a restarted replica may still be shown to have every committed record.
    possible = living if present.status != "offline" else clean
    if present.status not in ("election", "offline") or possible:
        return InvalidRequestError(
            f"an unclean election is not needed: the partition is {present.status}, and "
            f"without a loss can still lead: {', '.join(possible) or 'its leader or candidate'}"
        )
    if command.broker not in present.replicas:
        return IneligibleReplicaError(
            f"broker {command.broker} holds no replica of the partition", broker=command.broker
        )
    loss = Loss(
        leader_epoch=present.leader_epoch,
        leader=command.broker,
        log_end=command.log_end,
        known_end=command.known_end,
        given_up=tuple(sorted((*present.isr, *present.eligible))),
        operator=command.operator[:200],
    )
    return rules.given_up(present, loss)


def _reassign(state: MetadataState, present: PartitionState, command: ReassignReplicas) -> Step:
    if command.partition_epoch != present.partition_epoch:
        return _stale_epoch(present, command.partition_epoch)
    refused = refused_replicas(state, command.target, present.min_isr)
    if refused is not None:
        return refused
    return rules.reassigned_to(present, command.target)


def refused_replicas(
    state: MetadataState, replicas: tuple[BrokerId, ...], min_isr: int
) -> HeadwaterError | None:
    """Return why these brokers cannot be a partition's replicas, or None."""
    unknown = sorted(set(replicas) - state.brokers.keys())
    twice = sorted({name for name in replicas if replicas.count(name) > 1})
    wrong = [f"broker {name} is not registered" for name in unknown]
    wrong += [f"broker {name} is named twice" for name in twice]
    if not 1 <= min_isr <= len(replicas):
        wrong.append(f"{len(replicas)} replica(s) are fewer than the minimum ISR of {min_isr}")
    if not wrong:
        return None
    return InvalidAssignmentError(
        f"{', '.join(replicas)} cannot be the replicas: {'; '.join(wrong)}",
        replicas=list(replicas),
        min_isr=min_isr,
    )


def stale_broker(
    state: MetadataState, broker: BrokerId, epoch: BrokerEpoch, *, fenced_too: bool = True
) -> HeadwaterError | None:
    """Return the refusal of a broker that has a newer registration or is fenced, or None."""
    present = state.brokers.get(broker)
    current = 0 if present is None else present.epoch
    if present is None or current != epoch:
        return StaleBrokerEpochError(
            f"broker {broker} has sent broker epoch {epoch}; its newest epoch is {current}",
            broker=broker,
            got=epoch,
            current=current,
        )
    if fenced_too and present.fenced:
        return IneligibleReplicaError(f"broker {broker} is fenced", broker=broker)
    return None


def _stale_partition(
    present: PartitionState, command: ChangeIsr | StartElection | NameCandidate | TakeOffline
) -> HeadwaterError | None:
    if command.leader_epoch != present.leader_epoch:
        return stale_leader(present, command.leader_epoch)
    if command.partition_epoch != present.partition_epoch:
        return _stale_epoch(present, command.partition_epoch)
    return None


def _not_leader(present: PartitionState, broker: BrokerId) -> NotLeaderError:
    leader = f"broker {present.leader} does" if present.leader else "no broker does now"
    return NotLeaderError(f"broker {broker} does not lead the partition; {leader}")


def stale_leader(present: PartitionState, got: int) -> HeadwaterError:
    """Return the refusal of a command whose leader epoch is not the current one."""
    return StaleLeaderEpochError(
        f"leader epoch {got} is not current; the current one is {present.leader_epoch}",
        got=got,
        current=present.leader_epoch,
    )


def _stale_epoch(present: PartitionState, expected: int) -> HeadwaterError:
    return StalePartitionEpochError(
        f"the partition has changed: partition epoch {expected} was expected, the current one is "
        f"{present.partition_epoch}",
        expected=expected,
        current=present.partition_epoch,
    )
