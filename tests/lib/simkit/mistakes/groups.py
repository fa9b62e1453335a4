"""Mistakes of consumer groups: of claims, positions, heartbeats, and of a member's own belief."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from broker.core.group_liveness import GroupLiveness
from broker.core.metadata import apply as applying
from broker.core.metadata import group_positions, member_apply
from broker.core.metadata.group_claims import rebalanced
from broker.core.metadata.group_state import PartitionClaim
from broker.core.metadata.member_commands import JoinMember, LeaveMember
from broker.model.offsets import OFFSET_MAX
from broker.runtime.api import members
from broker.runtime.api.groups import Groups
from headwater.client.group.member import MemberCore
from simkit.replacing import Mutant, replaced


def assigned_before_revoked() -> Any:
    """Give a partition to its next member at once, while the former one still reads."""

    def at_once(claims: Any, asked: Any, partitions: Any, epoch: int) -> dict[str, Any]:
        found = rebalanced(claims, asked, partitions, epoch)
        return {
            key: PartitionClaim(member=one.heir, epoch=epoch) if one.heir else one
            for key, one in found.items()
        }

    return replaced(member_apply, "rebalanced", at_once)


def claims_fence_nothing() -> Any:
    """Store a commit of whoever is in the group, under whatever claim."""
    return replaced(member_apply, "_holds", lambda *_: True)


def positions_move_back() -> Any:
    """Store each commit, also a late one."""

    def moved(state: Any, group: str, write: Any) -> Any:
        if write.offset is None:
            return state
        position = group_positions.with_lineage(
            state, write.key, write.offset, epoch=write.epoch, number=0, leader_epoch=-1
        )
        return group_positions.written(state, group, write.key, position)

    return replaced(member_apply, "_moved", moved)


def new_owner_begins_one_later() -> Any:
    """Take the position for the last record that was processed, as Liftbridge's clients do."""
    honest = members.told_claims

    def one_later(*args: Any) -> list[Any]:
        told: list[Any] = honest(*args)
        return [
            one
            if one.position is None
            else replace(one, position=replace(one.position, offset=one.position.offset + 1))
            for one in told
        ]

    return replaced(members, "told_claims", one_later)


def heartbeats_are_not_heard() -> Any:
    """Answer heartbeats, and expel who sent them."""
    return replaced(Groups, "heard", lambda *_, **__: None)


def who_is_being_expelled_is_answered() -> Any:
    """Answer a heartbeat that comes between the proposal of an expulsion and its end."""
    honest = GroupLiveness.heard

    def hears(self: Any, group: str, member: str, now_ms: int, **process: Any) -> bool:
        honest(self, group, member, now_ms, **process)
        return True

    return replaced(GroupLiveness, "heard", hears)


def late_expulsions_count() -> Any:
    """Apply each expulsion, also one of a membership that is over."""
    honest = member_apply.apply_member

    def late(state: Any, command: Any) -> Any:
        if isinstance(command, LeaveMember) and command.expelled_by is not None:
            command = replace(command, epoch=None, membership=OFFSET_MAX)
        return honest(state, command)

    return replaced(applying, "apply_member", late)


def late_leaves_count() -> Any:
    """End whichever membership a process has when its leave is applied."""
    honest = member_apply.apply_member

    def late(state: Any, command: Any) -> Any:
        if isinstance(command, LeaveMember) and command.expelled_by is None:
            command = replace(command, membership=OFFSET_MAX)
        return honest(state, command)

    return replaced(applying, "apply_member", late)


def who_was_replaced_comes_back() -> Any:
    """Let a late join of a former process of a static member take the place again."""
    return replaced(member_apply, "_replaced", lambda *_: ())


def static_members_are_forgotten() -> Any:
    """Take a member that comes back for a new one."""
    honest = member_apply.apply_member

    def forgetful(state: Any, command: Any) -> Any:
        if isinstance(command, JoinMember) and command.static:
            group = state.groups.get(command.group)
            known = None if group is None else group.sessions.get(command.member)
            if known is not None and known.instance != command.instance and known.static:
                leave = LeaveMember(
                    group=command.group,
                    member=command.member,
                    instance=known.instance,
                    membership=known.membership,
                )
                state, _ = honest(state, leave)
        return honest(state, command)

    return replaced(applying, "apply_member", forgetful)


def coordinators_are_not_confirmed() -> Any:
    """Answer heartbeats by what is known here, although another broker may coordinate by now."""

    def careless(self: Any, window_ms: int) -> None:
        if window_ms == 0:
            self._metadata.barrier()

    return replaced(members.Members, "_confirm", careless)


def a_session_begins_with_the_answer() -> Any:
    """Believe in the claims for a whole session after a heartbeat was answered."""
    honest = MemberCore._beaten

    def believing(self: Any, view: Any, _sent_ms: int, now_ms: int) -> Any:
        return honest(self, view, now_ms + self._terms.session_ms // 4, now_ms)

    return replaced(MemberCore, "_beaten", believing)


def positions_count_what_is_being_processed() -> Any:
    """Commit what the application was given, before it has processed it."""
    honest = MemberCore.give

    def eager(self: Any, key: str, epoch: int, end: Any, leader_epoch: int, now_ms: int) -> bool:
        given = honest(self, key, epoch, end, leader_epoch, now_ms)
        if given:
            self.held[key].done = end + 1
        return given

    return replaced(MemberCore, "give", eager)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        assigned_before_revoked,
        claims_fence_nothing,
        positions_move_back,
        new_owner_begins_one_later,
        heartbeats_are_not_heard,
        who_is_being_expelled_is_answered,
        late_expulsions_count,
        late_leaves_count,
        who_was_replaced_comes_back,
        static_members_are_forgotten,
        coordinators_are_not_confirmed,
        a_session_begins_with_the_answer,
        positions_count_what_is_being_processed,
    )
}
# Seeds that are known to show a mutant; the others show themselves at seed 0.
FIRST_SEEDS: Final[dict[str, int]] = {
    "a_session_begins_with_the_answer": 51,
    "claims_fence_nothing": 3,
    "coordinators_are_not_confirmed": 6,
    "late_expulsions_count": 53,
    "late_leaves_count": 2,
    "positions_move_back": 3,
    "static_members_are_forgotten": 3,
    "who_is_being_expelled_is_answered": 53,
    "who_was_replaced_comes_back": 9,
}
