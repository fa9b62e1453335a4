"""Consumer groups of Headwater's own client: members, claims, positions, and their operators.

The metadata decides. This broker adds two things for the groups that it coordinates: it hears the
members' heartbeats (``Groups`` judges who is silent), and it answers a heartbeat only if a majority
of the controllers has confirmed, within a quarter of the member's session, that it still
coordinates the group. A member may go on for three quarters of its session after it sent a
heartbeat that was answered. So it has stopped before another coordinator can have expelled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.core.metadata.commands import (
    CommitPositions,
    DeleteGroup,
    JoinMember,
    LeaveMember,
    ReportCoordinator,
    ResetPositions,
)
from broker.core.metadata.group_positions import is_lost, position_of
from broker.core.metadata.group_state import (
    GROUP_CURSOR_PREFIX,
    GroupState,
    MemberState,
    group_named_by,
)
from broker.core.metadata.member_rules import stale_member, unknown_group
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS, MetadataState
from broker.errors import NotCoordinatorError, StaleClaimError
from broker.model.groups import (
    GroupDescription,
    GroupMember,
    GroupPartition,
    MemberView,
    PositionCommit,
    PositionReset,
    ToldClaim,
    ToldPosition,
    partition_key,
)
from broker.model.ids import BrokerId
from broker.model.stream import Stream
from broker.ports.groups import GroupPlace
from broker.ports.system import Clock
from broker.runtime.api.feature_levels import raise_level
from broker.runtime.api.groups import Groups, candidate
from broker.runtime.cluster.membership import CONFIRM_MS
from broker.runtime.metadata.metadata_log import SharedMetadata

_PROTOCOL: Final = "flight"  # members ask the coordinator over this protocol
_PROPOSE_MS: Final = 5_000


class Members:
    """Implements ``MembersApi``. Any thread."""

    def __init__(
        self, me: BrokerId, metadata: SharedMetadata, clock: Clock, groups: Groups
    ) -> None:
        """``groups`` judges which members are silent."""
        self._me = me
        self._metadata = metadata
        self._clock = clock
        self._groups = groups
        self._confirmed_ms: int | None = None  # before this time all that was decided is known

    def join(
        self,
        group: str,
        member: str,
        instance: str,
        streams: Sequence[str],
        *,
        session_ms: int,
        static: bool,
        owner: str,
        membership: int = 0,
    ) -> GroupPlace:
        """See ``MembersApi.join``."""
        raise_level(self._metadata, FEATURE_LEVEL_STREAMS)
        command = JoinMember(
            group=group,
            member=member,
            instance=instance,
            streams=tuple(streams),
            session_ms=session_ms,
            static=static,
            owner=owner,
            membership=membership,
            coordinator=self._candidate(BrokerId("")),
        )
        reply = self._metadata.propose(command, timeout_ms=_PROPOSE_MS)
        return GroupPlace(
            coordinator=BrokerId(reply["coordinator"]), epoch=reply["group_epoch"], members={}
        )

    def leave(self, group: str, member: str, instance: str, membership: int = 0) -> None:
        """See ``MembersApi.leave``."""
        command = LeaveMember(group=group, member=member, instance=instance, membership=membership)
        self._metadata.propose(command, timeout_ms=_PROPOSE_MS)

    def heartbeat(self, group: str, member: str, instance: str, epoch: int) -> MemberView:
        """See ``MembersApi.heartbeat``."""
        heard = _session(self._metadata.state, group, member, instance)
        if heard is not None:  # before the look-up: who is heard now is not expelled meanwhile
            self._groups.heard(group, member, heard)
        self._confirm(0 if heard is None else heard.session_ms // 4)
        state = self._metadata.state
        present = state.groups.get(group)
        session = None if present is None else present.sessions.get(member)
        if present is None or session is None or session.instance != instance:
            raise stale_member(group, member, replaced=session is not None)
        if present.coordinator != self._me:
            raise NotCoordinatorError(
                f"broker {present.coordinator} coordinates group {group!r}",
                group=group,
                coordinator=present.coordinator,
            )
        if heard is None or not heard.is_same_membership(session):
            self._groups.heard(group, member, session)
        settled = not any(one.heir for one in present.claims.values())
        claims = None if epoch == present.epoch else tuple(told_claims(state, group, member))
        return MemberView(
            epoch=present.epoch, coordinator=present.coordinator, settled=settled, claims=claims
        )

    def report(self, group: str, member: str, instance: str, coordinator: str) -> GroupPlace:
        """See ``MembersApi.report``."""
        self._confirm(0)
        present = self._metadata.state.groups.get(group)
        session = None if present is None else present.sessions.get(member)
        if present is None or session is None or session.instance != instance:
            raise stale_member(group, member, replaced=session is not None)
        if present.coordinator == coordinator:
            command = ReportCoordinator(
                group=group,
                member=member,
                coordinator=present.coordinator,
                epoch=present.epoch,
                candidate=self._candidate(present.coordinator),
            )
            self._metadata.propose(command, timeout_ms=_PROPOSE_MS)
            present = self._metadata.state.groups.get(group, present)
        return GroupPlace(coordinator=present.coordinator, epoch=present.epoch, members={})

    def commit(
        self, group: str, member: str, instance: str, writes: Sequence[PositionCommit]
    ) -> None:
        """See ``MembersApi.commit``."""
        command = CommitPositions(
            group=group, member=member, instance=instance, writes=tuple(writes)
        )
        refused = self._metadata.propose(command, timeout_ms=_PROPOSE_MS).get("refused", [])
        if refused:
            raise StaleClaimError(
                f"member {member!r} of group {group!r} does not hold {len(refused)} of the "
                "partitions any more, or would move their positions back",
                group=group,
                member=member,
                partitions=refused,
            )

    def groups(self) -> list[str]:
        """See ``MembersApi.groups``."""
        self._confirm(0)
        state = self._metadata.state
        by_cursor = map(group_named_by, state.cursors)
        named = [one for one in by_cursor if one is not None]
        return sorted({*state.groups, *state.positions, *named})

    def describe(self, group: str) -> GroupDescription:
        """See ``MembersApi.describe``."""
        self._confirm(0)
        state = self._metadata.state
        present = state.groups.get(group)
        partitions = tuple(
            _partition(state, group, stream, number)
            for stream in _streams_of(state, group)
            for number in range(stream.config.partitions)
        )
        if present is None and not partitions:
            raise unknown_group(group)
        if present is None:
            return GroupDescription(
                group=group, kind="", epoch=0, coordinator="", members=(), partitions=partitions
            )
        return GroupDescription(
            group=group,
            kind="headwater" if present.is_own else "liftbridge",
            epoch=present.epoch,
            coordinator=present.coordinator,
            members=tuple(_member(present, name) for name in sorted(present.members)),
            partitions=partitions,
        )

    def reset(self, group: str, writes: Sequence[PositionReset]) -> None:
        """See ``MembersApi.reset``."""
        raise_level(self._metadata, FEATURE_LEVEL_STREAMS)
        self._metadata.propose(ResetPositions(group=group, writes=tuple(writes)))

    def delete(self, group: str) -> None:
        """See ``MembersApi.delete``."""
        raise_level(self._metadata, FEATURE_LEVEL_STREAMS)
        self._metadata.propose(DeleteGroup(group=group))

    def _confirm(self, window_ms: int) -> None:
        """Know all that was decided up to ``window_ms`` ago; raises UnavailableError."""
        now_ms = self._clock.monotonic_ms()
        if self._confirmed_ms is not None and now_ms - self._confirmed_ms < window_ms:
            return
        self._metadata.barrier(timeout_ms=CONFIRM_MS)
        self._confirmed_ms = now_ms

    def _candidate(self, silent: BrokerId) -> BrokerId:
        return candidate(self._metadata.state, self._me, silent, protocol=_PROTOCOL)


def _session(state: MetadataState, group: str, member: str, instance: str) -> MemberState | None:
    """Return the session of a process that is a member; None: it is not, as far as known here."""
    present = state.groups.get(group)
    found = None if present is None else present.sessions.get(member)
    return found if found is not None and found.instance == instance else None


def told_claims(state: MetadataState, group: str, member: str) -> list[ToldClaim]:
    """Return the claims of a member, each with the position at which it begins. Pure."""
    present = state.groups[group]
    told: list[ToldClaim] = []
    for name in present.members[member]:
        stream = state.streams.get(name)
        if stream is None:
            continue
        for number in range(stream.config.partitions):
            claim = present.claims.get(partition_key(stream.uuid, number))
            if claim is not None and claim.member == member:
                told.append(
                    ToldClaim(
                        stream=name,
                        stream_uuid=stream.uuid,
                        partition=number,
                        epoch=claim.epoch,
                        wanted=bool(claim.heir),
                        position=_position(state, group, stream, number),
                    )
                )
    return told


def _position(
    state: MetadataState, group: str, stream: Stream, partition: int
) -> ToldPosition | None:
    found = position_of(state, group, stream, partition)
    if found is None:
        return None
    lost = is_lost(state, partition_key(stream.uuid, partition), found)
    return ToldPosition(offset=found.offset, leader_epoch=found.leader_epoch, lost=lost)


def _streams_of(state: MetadataState, group: str) -> list[Stream]:
    """Return the streams that a group's members read, or in which it has a position."""
    present = state.groups.get(group)
    members = {} if present is None else present.members
    read = {one for names in members.values() for one in names}
    uuids = {key.partition("/")[0] for key in state.positions.get(group, {})}
    cursors = state.cursors.get(GROUP_CURSOR_PREFIX + group, {})
    read |= {key.partition(",")[2] for key in cursors}
    streams = sorted(state.streams.items())
    return [one for name, one in streams if name in read or one.uuid in uuids]


def _partition(state: MetadataState, group: str, stream: Stream, number: int) -> GroupPartition:
    present = state.groups.get(group)
    claims = {} if present is None else present.claims
    claim = claims.get(partition_key(stream.uuid, number))
    position = _position(state, group, stream, number)
    return GroupPartition(
        stream=stream.name,
        stream_uuid=stream.uuid,
        partition=number,
        offset=None if position is None else position.offset,
        lost=position is not None and position.lost,
        member="" if claim is None else claim.member,
        heir="" if claim is None else claim.heir,
        epoch=0 if claim is None else claim.epoch,
    )


def _member(present: GroupState, name: str) -> GroupMember:
    session = present.sessions.get(name)
    if session is None:
        return GroupMember(member=name, streams=tuple(present.members[name]))
    return GroupMember(
        member=name,
        streams=tuple(present.members[name]),
        owner=session.owner,
        static=session.static,
        session_ms=session.session_ms,
    )
