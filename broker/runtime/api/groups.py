"""Cursors and consumer groups. The metadata holds them, so they survive the loss of a broker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from broker.core.group_assignment import assign
from broker.core.group_liveness import LOOK_MS, GroupLiveness
from broker.core.metadata.commands import (
    CursorWrite,
    JoinGroup,
    LeaveGroup,
    LeaveMember,
    RebalanceGroup,
    ReportCoordinator,
    SetCursors,
)
from broker.core.metadata.group_positions import cursor_of
from broker.core.metadata.group_state import (
    GROUP_CURSOR_PREFIX,
    GroupState,
    MemberState,
    group_named_by,
)
from broker.core.metadata.member_apply import lacks_claims
from broker.core.metadata.state import (
    FEATURE_LEVEL_LIFTBRIDGE,
    FEATURE_LEVEL_RECREATED,
    MetadataState,
)
from broker.errors import (
    GroupChangedError,
    HeadwaterError,
    InvalidRequestError,
    UnknownGroupError,
)
from broker.model.groups import check_name, check_stored_names
from broker.model.ids import BrokerId
from broker.ports.groups import GroupPlace
from broker.ports.system import Clock
from broker.runtime.api.feature_levels import raise_level, raise_level_if_known
from broker.runtime.cluster.membership import CONFIRM_MS
from broker.runtime.metadata.metadata_log import SharedMetadata, WaitingMetadata

_log = structlog.get_logger(__name__)

CONSUMER_MS: Final = 15_000  # a member that is silent for longer is expelled
COORDINATOR_MS: Final = 15_000  # members report a coordinator that is silent for longer
_PROPOSE_MS: Final = 5_000
_PROTOCOL: Final = "liftbridge"  # members ask the coordinator for assignments over this protocol


class Cursors:
    """Implements ``CursorsApi``. Any thread."""

    def __init__(self, metadata: WaitingMetadata) -> None:
        """``metadata`` holds the positions."""
        self._metadata = metadata

    def set(self, cursor_id: str, stream: str, partition: int, offset: int) -> None:
        """See ``CursorsApi.set``."""
        _check_cursor(cursor_id, stream)
        raise_level(self._metadata, FEATURE_LEVEL_LIFTBRIDGE)
        if group_named_by(cursor_id) is not None:
            raise_level_if_known(self._metadata, FEATURE_LEVEL_RECREATED)
        write = CursorWrite(cursor_id=cursor_id, stream=stream, partition=partition, offset=offset)
        self._metadata.propose(SetCursors(writes=(write,)))

    def get(self, cursor_id: str, stream: str, partition: int) -> int | None:
        """See ``CursorsApi.get``."""
        self._metadata.barrier(timeout_ms=CONFIRM_MS)
        return cursor_of(self._metadata.state, cursor_id, stream, partition)


class Groups:
    """Implements ``GroupsApi``. A pump calls ``turn``, which expels silent members. Any thread."""

    def __init__(
        self,
        me: BrokerId,
        metadata: SharedMetadata,
        clock: Clock,
        *,
        consumer_ms: int = CONSUMER_MS,
        coordinator_ms: int = COORDINATOR_MS,
    ) -> None:
        """``me`` coordinates the groups that the metadata gives it."""
        self.consumer_ms = consumer_ms
        self.coordinator_ms = coordinator_ms
        self._me = me
        self._metadata = metadata
        self._clock = clock
        self._liveness = GroupLiveness(me, consumer_ms=consumer_ms)
        self._lock = threading.Lock()
        self._seen: tuple[object, object] = ({}, {})  # streams and groups at the last look

    def turn(self, now_ms: int) -> int:
        """Expel members that were silent for too long; return the time of the next turn."""
        groups = self._metadata.state.groups
        with self._lock:
            silent = self._liveness.step(groups, now_ms)
        for one in silent:
            _log.info("group_member_expelled", group=one.command.group, member=one.command.member)
            removed = partial(self._removed, one.command)
            self._metadata.propose_soon(one.command, removed, timeout_ms=_PROPOSE_MS)
        self._give_out()
        return now_ms + LOOK_MS

    def _removed(self, command: LeaveGroup | LeaveMember, error: HeadwaterError | None) -> None:
        if error is None:  # else it is proposed again, unless it was applied after all
            with self._lock:
                self._liveness.removed(command)

    def _give_out(self) -> None:
        """Let groups take up partitions that their streams have gained or lost."""
        state = self._metadata.state
        seen = (state.streams, state.groups)
        if self._seen[0] is seen[0] and self._seen[1] is seen[1]:
            return
        self._seen = seen
        for name, one in state.groups.items():
            if one.coordinator == self._me and lacks_claims(state, one):
                _log.info("group_rebalanced", group=name)
                command = RebalanceGroup(group=name, epoch=one.epoch)
                self._metadata.propose_soon(command, self._looked_at, timeout_ms=_PROPOSE_MS)

    def _looked_at(self, error: HeadwaterError | None) -> None:
        if error is not None:
            self._seen = ({}, {})  # look again

    def heard(self, group: str, member: str, session: MemberState) -> None:
        """Note that a member with Headwater's client has sent a request in its session.

        Raises GroupChangedError: the member was silent for too long, and is being expelled.
        """
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            stays = self._liveness.heard(
                group,
                member,
                now_ms,
                instance=session.instance,
                membership=session.membership,
            )
        if not stays:
            raise GroupChangedError(
                f"member {member!r} of group {group!r} was silent for too long, and is being "
                "expelled: it may join again then",
                group=group,
            )

    def join(self, group: str, member: str, streams: Sequence[str]) -> GroupPlace:
        """See ``GroupsApi.join``."""
        check_name(group, "group")
        check_name(member, "member")
        for one in streams:
            check_name(one, "stream")
        raise_level(self._metadata, FEATURE_LEVEL_LIFTBRIDGE)
        command = JoinGroup(
            group=group,
            member=member,
            streams=tuple(streams),
            coordinator=self._candidate(BrokerId("")),
        )
        reply = self._metadata.propose(command)
        return GroupPlace(
            coordinator=BrokerId(reply["coordinator"]),
            epoch=reply["group_epoch"],
            members={member: tuple(streams)},
        )

    def leave(self, group: str, member: str) -> None:
        """See ``GroupsApi.leave``."""
        check_stored_names(group=group, member=member)
        self._metadata.propose(LeaveGroup(group=group, member=member))

    def assignments(self, group: str, member: str, epoch: int) -> Mapping[str, Sequence[int]]:
        """See ``GroupsApi.assignments``."""
        present = self._known(group)
        if present.coordinator == self._me and (
            present.epoch < epoch or member not in present.members
        ):
            self._metadata.barrier(timeout_ms=CONFIRM_MS)  # the group may have changed elsewhere
            present = self._known(group)
        if present.coordinator != self._me:
            raise GroupChangedError(
                f"this broker does not coordinate group {group!r}; {present.coordinator} does",
                group=group,
            )
        if member not in present.members:
            raise GroupChangedError(
                f"consumer {member!r} is not a member of group {group!r}", group=group
            )
        with self._lock:  # also a member with an old epoch is alive
            self._liveness.heard(group, member, self._clock.monotonic_ms())
        if epoch != present.epoch:
            raise GroupChangedError(
                f"group {group!r} is at epoch {present.epoch}, not {epoch}",
                group=group,
                got=epoch,
                current=present.epoch,
            )
        streams = self._metadata.state.streams
        counts = {
            name: streams[name].config.partitions
            for asked in present.members.values()
            for name in asked
            if name in streams
        }
        return assign(present.members, counts)[member]

    def report(self, group: str, member: str, coordinator: str, epoch: int) -> None:
        """See ``GroupsApi.report``."""
        check_stored_names(group=group, member=member, coordinator=coordinator)
        self._metadata.propose(
            ReportCoordinator(
                group=group,
                member=member,
                coordinator=BrokerId(coordinator),
                epoch=epoch,
                candidate=self._candidate(BrokerId(coordinator)),
            )
        )

    def find(self, group: str) -> GroupPlace | None:
        """See ``GroupsApi.find``."""
        one = self._metadata.state.groups.get(group)
        if one is None:
            return None
        return GroupPlace(coordinator=one.coordinator, epoch=one.epoch, members=one.members)

    def _known(self, group: str) -> GroupState:
        found = self._metadata.state.groups.get(group)
        if found is None:
            self._metadata.barrier(timeout_ms=CONFIRM_MS)
            found = self._metadata.state.groups.get(group)
        if found is None:
            raise UnknownGroupError(f"no consumer group is named {group!r}", group=group)
        return found

    def _candidate(self, silent: BrokerId) -> BrokerId:
        """Return the broker to coordinate a group, other than ``silent``."""
        return candidate(self._metadata.state, self._me, silent, protocol=_PROTOCOL)


def _check_cursor(cursor_id: str, stream: str) -> None:
    """Raise InvalidRequestError for a cursor that nobody may set.

    The rule is not in the metadata's ``apply``: a broker of an older build has no such rule, and
    all brokers must apply a command alike.
    """
    if cursor_id == GROUP_CURSOR_PREFIX:
        raise InvalidRequestError(
            f"the cursor id {GROUP_CURSOR_PREFIX} names no group", field="cursor_id"
        )
    check_name(cursor_id.removeprefix(GROUP_CURSOR_PREFIX), "cursor_id")
    check_name(stream, "stream")


def candidate(state: MetadataState, me: BrokerId, silent: BrokerId, *, protocol: str) -> BrokerId:
    """Return the broker that coordinates the fewest groups. Pure.

    Only brokers that members can reach count: neither fenced nor stopping, with an address of
    ``protocol``, and not ``silent``. If there is none, ``me``.
    """
    counts = Counter(one.coordinator for one in state.groups.values())
    reached = [
        name
        for name, one in sorted(state.brokers.items())
        if not one.fenced and not one.stopping and name != silent and protocol in one.addresses
    ]
    return min(reached, key=lambda one: (counts[one], one), default=me)
