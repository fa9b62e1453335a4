"""Apply the commands about groups whose members use Headwater's own client. Pure.

A partition moves to another member in three steps. The claim gets an heir, because a member joined.
The holder commits its position and releases the claim. The heir gets the claim under a new epoch.
The last two steps are one command, so the heir begins exactly at the holder's last position. If the
holder is expelled, the second step is missing.
"""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata.group_claims import handed_over, rebalanced
from broker.core.metadata.group_positions import (
    position_of,
    with_lineage,
    without_group,
    written,
)
from broker.core.metadata.group_state import (
    REPLACED_KEPT_MAX,
    GroupPosition,
    GroupState,
    MemberState,
    PartitionClaim,
)
from broker.core.metadata.member_commands import (
    CommitPositions,
    DeleteGroup,
    JoinMember,
    LeaveMember,
    MemberCommand,
    RebalanceGroup,
    ResetPositions,
)
from broker.core.metadata.member_rules import (
    NAME_CHARACTERS_MAX,
    other_epoch,
    refused_join,
    refused_leave,
    stale_member,
    unknown_group,
)
from broker.core.metadata.outcome import Applied, CommandReply, Rejected, refused_level
from broker.core.metadata.size import refused_growth, weight_of_group
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS, MetadataState
from broker.errors import GroupInUseError, InvalidRequestError, UnknownPartitionError
from broker.model.groups import COMMIT_WRITES_MAX, PositionCommit, partition_key
from broker.model.offsets import OFFSET_MAX


def apply_member(state: MetadataState, command: MemberCommand) -> Applied:
    """Return the next state and the reply of a command about members, claims or positions."""
    low = refused_level(state, FEATURE_LEVEL_STREAMS, "a consumer group of Headwater's client")
    if low is not None:
        return state, Rejected(low)
    match command:
        case JoinMember():
            return _join(state, command)
        case LeaveMember():
            return _leave(state, command)
        case CommitPositions():
            return _commit(state, command)
        case ResetPositions():
            return _reset(state, command)
        case DeleteGroup():
            return _delete(state, command)
        case RebalanceGroup():
            return _rebalance(state, command)


def regrouped(state: MetadataState, changed: GroupState, epoch: int) -> GroupState:
    """Return a group with claims that fit its members and their streams, at a new epoch."""
    claims = rebalanced(changed.claims, changed.members, claimable(state, changed), epoch)
    return replace(changed, claims=claims, epoch=epoch, reports=())


def claimable(state: MetadataState, group: GroupState) -> dict[str, str]:
    """Return the stream of each partition that members of a group read, in order."""
    names = sorted({name for streams in group.members.values() for name in streams})
    return {
        partition_key(state.streams[name].uuid, number): name
        for name in names
        if name in state.streams
        for number in range(state.streams[name].config.partitions)
    }


def lacks_claims(state: MetadataState, group: GroupState) -> bool:
    """Tell whether partitions of a group's streams are not given out, or are gone."""
    return group.is_own and claimable(state, group).keys() != group.claims.keys()


def _join(state: MetadataState, command: JoinMember) -> Applied:
    refused = refused_join(state, command)
    if refused is not None:
        return state, Rejected(refused)
    present = state.groups.get(command.group)
    if present is None:
        first = state.group_epoch + 1
        present = GroupState(coordinator=command.coordinator, epoch=0, appointed=first)
    streams = tuple(sorted(set(command.streams)))
    known = present.sessions.get(command.member)
    session = MemberState(
        instance=command.instance,
        session_ms=command.session_ms,
        static=command.static,
        owner=command.owner,
        membership=command.membership,
        replaced=_replaced(known, command.instance),
    )
    if known == session and present.members[command.member] == streams:
        return state, reply_of(present)
    epoch = state.group_epoch + 1
    claims = dict(present.claims)
    if known is not None and not known.is_same_membership(session):
        claims = {
            key: replace(one, epoch=epoch) if one.member == command.member else one
            for key, one in claims.items()
        }
    changed = replace(
        present,
        members={**present.members, command.member: streams},
        sessions={**present.sessions, command.member: session},
        claims=claims,
    )
    changed = regrouped(state, changed, epoch)
    after = with_group(state, command.group, changed, epoch)
    if after.weight > state.weight:
        full = refused_growth(after.weight, command.weight_max)
        if full is not None:
            return state, Rejected(full)
    return after, reply_of(changed)


def _replaced(known: MemberState | None, instance: str) -> tuple[str, ...]:
    """Return the processes whose place a member's process has taken, the newest last."""
    if known is None or known.instance == instance:
        return () if known is None else known.replaced
    return (*known.replaced, known.instance)[-REPLACED_KEPT_MAX:]


def _leave(state: MetadataState, command: LeaveMember) -> Applied:
    present = state.groups.get(command.group)
    refused = refused_leave(present, command)
    if refused is not None:
        return state, Rejected(refused)
    assert present is not None, "refused_leave refuses an absent group"
    epoch = state.group_epoch + 1
    changed = replace(
        present,
        members={one: names for one, names in present.members.items() if one != command.member},
        sessions={one: it for one, it in present.sessions.items() if one != command.member},
    )
    changed = regrouped(state, changed, epoch)
    return with_group(state, command.group, changed, epoch), reply_of(changed)


def _commit(state: MetadataState, command: CommitPositions) -> Applied:
    present = state.groups.get(command.group)
    known = None if present is None else present.sessions.get(command.member)
    if present is None or known is None or known.instance != command.instance:
        return state, Rejected(stale_member(command.group, command.member, replaced=bool(known)))
    if len(command.writes) > COMMIT_WRITES_MAX:
        return state, Rejected(
            InvalidRequestError(
                f"a commit has at most {COMMIT_WRITES_MAX} positions, not {len(command.writes)}"
            )
        )
    after, refused, claims = state, [], dict(present.claims)
    epoch = state.group_epoch + 1
    for write in command.writes:
        claim = claims.get(write.key)
        if claim is None or not _holds(claim, command.member, write):
            refused.append(write.key)
            continue
        moved = _moved(after, command.group, write)
        if moved is None:
            refused.append(write.key)
            continue
        after = moved
        if write.release and claim.heir:
            claims = handed_over(claims, write.key, epoch)
    if after.weight > state.weight:
        full = refused_growth(after.weight, command.weight_max)
        if full is not None:
            return state, Rejected(full)
    if claims != present.claims:
        present = replace(present, claims=claims, epoch=epoch, reports=())
        after = with_group(after, command.group, present, epoch)
    reply = reply_of(present)
    reply["refused"] = refused
    return after, reply


def _holds(claim: PartitionClaim, member: str, write: PositionCommit) -> bool:
    return claim.member == member and claim.epoch == write.epoch


def _moved(state: MetadataState, group: str, write: PositionCommit) -> MetadataState | None:
    """Return the state with a new position; None if it would move back and ``back`` is not set."""
    if write.offset is None:
        return state
    if not 0 <= write.offset <= OFFSET_MAX:
        return None
    before = state.positions.get(group, {}).get(write.key)
    if before is not None and (write.epoch, write.number) <= (before.epoch, before.number):
        return state  # a retry, or older than the stored position
    if before is None:
        before = _from_cursor(state, group, write.key)
    lower = before is not None and write.offset < before.offset
    if lower and not write.back:
        return None
    position = with_lineage(
        state,
        write.key,
        write.offset,
        epoch=write.epoch,
        number=write.number,
        leader_epoch=write.leader_epoch,
    )
    return written(state, group, write.key, position)


def _from_cursor(state: MetadataState, group: str, key: str) -> GroupPosition | None:
    uuid, _, number = key.partition("/")
    for stream in state.streams.values():
        if stream.uuid == uuid:
            return position_of(state, group, stream, int(number))
    return None


def _reset(state: MetadataState, command: ResetPositions) -> Applied:
    if not 0 < len(command.group) <= NAME_CHARACTERS_MAX or not command.group.isprintable():
        return state, Rejected(
            InvalidRequestError(
                f"a group's name must have 1 to {NAME_CHARACTERS_MAX} printable characters"
            )
        )
    present = state.groups.get(command.group)
    streams = {one.uuid: one for one in state.streams.values()}
    after = state
    for write in command.writes:
        stream = streams.get(write.stream_uuid)
        if stream is None or not 0 <= write.partition < stream.config.partitions:
            return state, Rejected(
                UnknownPartitionError(
                    f"there is no partition {write.partition} of a stream with uuid "
                    f"{write.stream_uuid}: was the stream deleted or created again?",
                    partition=write.partition,
                )
            )
        if not 0 <= write.offset <= OFFSET_MAX:
            return state, Rejected(
                InvalidRequestError(
                    f"an offset must be 0 to {OFFSET_MAX}, not {write.offset}", field="offset"
                )
            )
        if present is not None and any(stream.name in one for one in present.members.values()):
            return state, Rejected(
                GroupInUseError(
                    f"group {command.group!r} has members that read stream {stream.name!r}: stop "
                    f"{', '.join(sorted(present.members)[:5])}, then try again",
                    group=command.group,
                    members=sorted(present.members)[:5],
                )
            )
        key = partition_key(stream.uuid, write.partition)
        position = with_lineage(
            state, key, write.offset, epoch=state.group_epoch, number=0, leader_epoch=-1
        )
        before = state.positions.get(command.group, {}).get(key)
        if before is not None:  # so that a late commit has a lower number
            position = replace(position, number=before.number)
        after = written(after, command.group, key, position)
    full = refused_growth(after.weight, command.weight_max)
    if after.weight > state.weight and full is not None:
        return state, Rejected(full)
    return after, {"group_epoch": state.group_epoch}


def _delete(state: MetadataState, command: DeleteGroup) -> Applied:
    present = state.groups.get(command.group)
    if present is not None:
        return state, Rejected(
            GroupInUseError(
                f"group {command.group!r} has {len(present.members)} members: stop them first",
                group=command.group,
                members=sorted(present.members)[:5],
            )
        )
    after = without_group(state, command.group)
    if after.weight == state.weight:
        return state, Rejected(unknown_group(command.group))
    return after, {"group_epoch": state.group_epoch}


def _rebalance(state: MetadataState, command: RebalanceGroup) -> Applied:
    present = state.groups.get(command.group)
    if present is None:
        return state, Rejected(unknown_group(command.group))
    if present.epoch != command.epoch:
        return state, Rejected(other_epoch(command.group, command.epoch, present.epoch))
    if not lacks_claims(state, present):
        return state, reply_of(present)
    epoch = state.group_epoch + 1
    changed = regrouped(state, present, epoch)
    return with_group(state, command.group, changed, epoch), reply_of(changed)


def with_group(state: MetadataState, group: str, changed: GroupState, epoch: int) -> MetadataState:
    """Return the state with a changed group; a group without members ends."""
    groups, weight = dict(state.groups), state.weight
    before = groups.pop(group, None)
    if before is not None:
        weight -= weight_of_group(group, before)
    if changed.members:
        groups[group] = changed
        weight += weight_of_group(group, changed)
    return replace(state, groups=groups, group_epoch=epoch, weight=weight)


def reply_of(group: GroupState) -> CommandReply:
    """Return the reply to a command about a group."""
    return {"group_epoch": group.epoch, "coordinator": group.coordinator}
