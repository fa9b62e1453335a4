"""Apply the commands about brokers: registration, fencing, feature level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from broker.core.metadata import partition_rules as rules
from broker.core.metadata.outcome import Applied, Rejected
from broker.core.metadata.partition_apply import begin_leaderships, stale_broker
from broker.core.metadata.partition_commands import (
    AllocateIds,
    BeginLeaderships,
    BrokerCommand,
    FenceBroker,
    MarkOpened,
    RegisterBroker,
    RemoveBroker,
    SetFeatureLevel,
    StopBroker,
    UnfenceBroker,
)
from broker.core.metadata.state import BrokerState, MetadataState, PartitionState
from broker.core.metadata.typed_json import INT_MAX
from broker.errors import (
    FeatureLevelError,
    HeadwaterError,
    InvalidRequestError,
    StaleBrokerEpochError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, StreamUuid

_IDS_MAX: Final = 1_000_000
_TEXT_MAX: Final = 200
_ADDRESSES_MAX: Final = 8
_SESSIONS_MAX: Final = 32


def apply_broker(state: MetadataState, command: BrokerCommand) -> Applied:
    """Return the next state and the reply of a command about a broker or the cluster."""
    match command:
        case RegisterBroker():
            return _register(state, command)
        case SetFeatureLevel():
            return _set_feature_level(state, command)
        case AllocateIds():
            if not 1 <= command.count <= _IDS_MAX or state.next_id > INT_MAX - command.count:
                return state, Rejected(
                    InvalidRequestError(
                        f"one command allocates 1 to {_IDS_MAX} ids, not {command.count}"
                    )
                )
            return replace(state, next_id=state.next_id + command.count), {"first": state.next_id}
        case BeginLeaderships():
            return begin_leaderships(state, command)
        case MarkOpened():
            return _mark_opened(state, command)
        case FenceBroker() | UnfenceBroker() | StopBroker() | RemoveBroker():
            return _change(state, command)


def _register(state: MetadataState, command: RegisterBroker) -> Applied:
    first = not state.brokers and not state.streams
    level = command.features_max if first else state.feature_level
    refused = _refused_registration(command, level)
    if refused is not None:
        return state, Rejected(refused)
    before = state.brokers.get(command.broker)
    if before is not None and command.session and before.session == command.session:
        return state, {"broker_epoch": before.epoch}  # the same process repeats its registration
    if before is not None and command.session and command.session in before.former_sessions:
        # A late message of a former process of this broker.
        late = StaleBrokerEpochError(
            f"session {command.session} of broker {command.broker} has ended: a newer process of "
            "this broker has registered",
            broker=command.broker,
            got=command.session,
            current=before.epoch,
        )
        return state, Rejected(late)
    epoch = BrokerEpoch((state.broker_epoch_floor if before is None else before.epoch) + 1)
    alone = command.session == ""
    continued = alone or (before is not None and before.session in command.known_sessions)
    present = BrokerState(
        epoch=epoch,
        session=command.session,
        former_sessions=command.known_sessions,
        addresses=dict(command.addresses),
        features_min=command.features_min,
        features_max=command.features_max,
    )
    intervals = {one.uuid for one in state.streams.values() if one.config.flush == "interval"}

    def registered(uuid: StreamUuid, one: PartitionState) -> PartitionState:
        if alone:
            return _continued(one, command.broker)
        keeps = continued and (command.clean or uuid not in intervals)
        if not continued:  # another disk: a log that is absent there is new, not lost
            one = _unmarked(one, command.broker)
        return _restarted(one, command.broker, keeps_data=keeps)

    after = replace(
        state,
        feature_level=level,
        brokers={**state.brokers, command.broker: present},
        partitions={
            uuid: _mapped(rows, lambda one, uuid=uuid: registered(uuid, one))  # type: ignore[misc]
            for uuid, rows in state.partitions.items()
        },
    )
    return after, {"broker_epoch": epoch}


def _refused_registration(command: RegisterBroker, level: int) -> HeadwaterError | None:
    if not command.features_min <= level <= command.features_max:
        return FeatureLevelError(
            f"the cluster is at feature level {level}; broker {command.broker} understands "
            f"the levels {command.features_min} to {command.features_max}: run a release that "
            "understands the cluster's level",
            level=level,
            features_min=command.features_min,
            features_max=command.features_max,
        )
    texts = [*command.addresses, *command.addresses.values(), command.session, command.broker]
    texts += command.known_sessions
    many = len(command.addresses) > _ADDRESSES_MAX or len(command.known_sessions) > _SESSIONS_MAX
    if many or max(map(len, texts)) > _TEXT_MAX:
        return InvalidRequestError(
            f"a registration may hold at most {_ADDRESSES_MAX} addresses, {_SESSIONS_MAX} sessions "
            f"and texts of {_TEXT_MAX} characters"
        )
    return None


def _restarted(one: PartitionState, broker: BrokerId, *, keeps_data: bool) -> PartitionState:
    """Return a partition after one of its brokers has registered a new process."""
    if not keeps_data:
        return rules.without(one, broker, keeps_data=False)
    return rules.restarted(one, broker)


def _continued(one: PartitionState, broker: BrokerId) -> PartitionState:
    """Return a partition after the only broker of the cluster has restarted: it leads again.

    It leads in a new epoch. Records that it had written and not synced may be gone, and one epoch
    must never have two different records at an offset.
    """
    if one.leader == broker:
        return rules.bumped(replace(one, leader_epoch=LeaderEpoch(one.leader_epoch + 1)))
    return one


def _mark_opened(state: MetadataState, command: MarkOpened) -> Applied:
    stale = stale_broker(state, command.broker, command.broker_epoch, fenced_too=False)
    if stale is not None:
        return state, Rejected(stale)
    changed: dict[StreamUuid, tuple[PartitionState, ...]] = {}
    for uuid, numbers in command.partitions.items():
        wanted = frozenset(numbers)
        rows = state.partitions.get(uuid, ())
        changed[uuid] = tuple(
            _marked(one, command.broker) if number in wanted else one
            for number, one in enumerate(rows)
        )
    known = {uuid: rows for uuid, rows in changed.items() if rows}
    return replace(state, partitions={**state.partitions, **known}), {}


def _marked(one: PartitionState, broker: BrokerId) -> PartitionState:
    if broker in one.opened or broker not in one.replicas:
        return one
    return replace(one, opened=tuple(sorted((*one.opened, broker))))


def _unmarked(one: PartitionState, broker: BrokerId) -> PartitionState:
    if broker not in one.opened:
        return one
    return replace(one, opened=tuple(name for name in one.opened if name != broker))


def _mapped(
    rows: tuple[PartitionState, ...], step: Callable[[PartitionState], PartitionState]
) -> tuple[PartitionState, ...]:
    """Return the partitions after a step; the same object if no partition changed."""
    changed = tuple(map(step, rows))
    same = all(new is old for new, old in zip(changed, rows, strict=True))
    return rows if same else changed


def _change(
    state: MetadataState, command: FenceBroker | UnfenceBroker | StopBroker | RemoveBroker
) -> Applied:
    stale = stale_broker(state, command.broker, command.broker_epoch, fenced_too=False)
    if stale is not None:
        return state, Rejected(stale)
    present = state.brokers[command.broker]
    match command:
        case FenceBroker():
            after = _with_broker(state, command.broker, replace(present, fenced=True))
            partitions = {
                uuid: _mapped(rows, lambda one: rules.without(one, command.broker, keeps_data=True))
                for uuid, rows in state.partitions.items()
            }
            return replace(after, partitions=partitions), {}
        case UnfenceBroker():
            return _with_broker(state, command.broker, replace(present, fenced=False)), {}
        case StopBroker():
            return _with_broker(state, command.broker, replace(present, stopping=True)), {}
        case RemoveBroker():
            return _remove(state, command, present)


def _remove(state: MetadataState, command: RemoveBroker, present: BrokerState) -> Applied:
    holds = sum(
        command.broker in one.replicas for rows in state.partitions.values() for one in rows
    )
    if not present.fenced or holds:
        wrong = [f"it holds {holds} replica(s): move them to other brokers"] if holds else []
        wrong += [] if present.fenced else ["it is alive: stop it"]
        return state, Rejected(
            InvalidRequestError(
                f"broker {command.broker} cannot be removed: {'; '.join(wrong)}",
                broker=command.broker,
                replicas_count=holds,
            )
        )
    left = {name: one for name, one in state.brokers.items() if name != command.broker}
    floor = max(state.broker_epoch_floor, present.epoch)
    return replace(state, brokers=left, broker_epoch_floor=floor), {}


def _with_broker(state: MetadataState, broker: BrokerId, one: BrokerState) -> MetadataState:
    return replace(state, brokers={**state.brokers, broker: one})


def _set_feature_level(state: MetadataState, command: SetFeatureLevel) -> Applied:
    refusing = sorted(
        name
        for name, one in state.brokers.items()
        if not one.features_min <= command.level <= one.features_max
    )
    if command.expected != state.feature_level or command.level < state.feature_level or refusing:
        return state, Rejected(
            FeatureLevelError(
                f"the feature level is {state.feature_level} and cannot become {command.level}. A "
                "level only rises, and only if every broker understands the new level. Brokers "
                f"that do not: {', '.join(refusing) or 'none'}; upgrade them first",
                level=state.feature_level,
                refusing=refusing,
            )
        )
    return replace(state, feature_level=command.level), {"feature_level": command.level}
