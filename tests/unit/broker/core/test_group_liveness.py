"""Silent members of groups, by a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace

from broker.core.group_liveness import LOOK_MS, GroupLiveness
from broker.core.metadata.group_commands import LeaveGroup
from broker.core.metadata.group_state import GroupState, MemberState
from broker.core.metadata.member_commands import LeaveMember
from broker.model.ids import BrokerId

ME, OTHER = BrokerId("me"), BrokerId("other")
STEP_MS = 500


def group(*members: str, coordinator: BrokerId = ME, epoch: int = 1) -> dict[str, GroupState]:
    """Return group g with these members."""
    named = dict.fromkeys(members, ("s",))
    return {"g": GroupState(coordinator=coordinator, epoch=epoch, members=named)}


def told(liveness: GroupLiveness, groups: dict[str, GroupState], now_ms: int) -> list[str]:
    """Take a step; return the members that have to leave."""
    return [one.command.member for one in liveness.step(groups, now_ms)]


def test_who_is_silent_for_too_long_has_to_leave() -> None:
    """One member at a time, at the group epoch that was seen; a member that asks stays."""
    liveness = GroupLiveness(ME, consumer_ms=2_000)
    groups = group("a", "b", "c")
    for now in range(0, 2_001, STEP_MS):
        assert told(liveness, groups, now) == []
        liveness.heard("g", "b", now)
    (silent,) = liveness.step(groups, 2_500)
    assert silent.command == LeaveGroup(group="g", member="a", epoch=1)
    assert told(liveness, group("b", "c", epoch=2), 2_600) == ["c"]
    assert told(liveness, group("b", epoch=3), 2_700) == []


def test_only_the_coordinator_judges_and_a_new_one_begins_again() -> None:
    """A member gets a whole time-out from each coordinator."""
    liveness = GroupLiveness(ME, consumer_ms=2_000)
    for now in range(0, 10_000, STEP_MS):
        assert told(liveness, group("a", coordinator=OTHER), now) == []
    for now in range(10_000, 12_001, STEP_MS):
        assert told(liveness, group("a"), now) == []
    assert told(liveness, group("a"), 12_500) == ["a"]


def test_a_coordinator_that_stood_still_expels_nobody() -> None:
    """It received no message while suspended, so it begins to count again."""
    liveness = GroupLiveness(ME, consumer_ms=2_000)
    assert told(liveness, group("a"), 0) == []
    assert told(liveness, group("a"), 60_000) == []
    for now in range(60_500, 62_001, STEP_MS):
        assert told(liveness, group("a"), now) == []
    assert told(liveness, group("a"), 62_500) == ["a"]


def own(
    appointed: int = 1, session_ms: int = 1_000, epoch: int = 9, membership: int = 0
) -> dict[str, GroupState]:
    """Return group g with member a of Headwater's client."""
    session = MemberState(instance="A", session_ms=session_ms, membership=membership)
    return {
        "g": GroupState(
            coordinator=ME, epoch=epoch, members={"a": ("s",)}, sessions={"a": session},
            appointed=appointed,
        )
    }  # fmt: skip


def test_a_member_with_a_session_has_its_own_time() -> None:
    """And its process: a heartbeat of a former one counts for nothing."""
    liveness = GroupLiveness(ME, consumer_ms=60_000)
    liveness.heard("g", "a", 0, instance="A")
    for now in range(0, 1_001, LOOK_MS):
        assert told(liveness, own(), now) == []
        liveness.heard("g", "a", now, instance="former")
    (silent,) = liveness.step(own(), 1_250)
    assert silent.command == LeaveMember(
        group="g", member="a", instance="A", expelled_by=ME, epoch=9
    )


def test_a_coordinator_that_is_named_again_begins_again() -> None:
    """The members spoke to another one meanwhile, although this one has not heard of it."""
    liveness = GroupLiveness(ME, consumer_ms=60_000)
    for now in range(0, 1_001, LOOK_MS):
        assert told(liveness, own(), now) == []
    assert told(liveness, own(appointed=7), 1_250) == []
    for now in range(1_500, 2_251, LOOK_MS):
        assert told(liveness, own(appointed=7), now) == []
    assert told(liveness, own(appointed=7), 2_500) == ["a"]


def silent_member(liveness: GroupLiveness) -> LeaveMember:
    """Let member a be silent until it has to leave, at 1 250 ms; return the command."""
    for now in range(0, 1_001, LOOK_MS):
        assert told(liveness, own(), now) == []
    (silent,) = liveness.step(own(), 1_250)
    assert isinstance(silent.command, LeaveMember)
    return silent.command


def test_who_is_being_expelled_is_not_heard_any_more() -> None:
    """The removal is proposed again at each look until it is applied, with the epoch of then."""
    liveness = GroupLiveness(ME, consumer_ms=60_000)
    first = silent_member(liveness)
    assert not liveness.heard("g", "a", 1_300, instance="A")
    assert liveness.heard("g", "a", 1_300, instance="another process")
    (again,) = liveness.step(own(epoch=10), 1_500)
    assert again.command == replace(first, epoch=10)
    liveness.removed(first)  # late: the newer one is under way
    assert not liveness.heard("g", "a", 1_600, instance="A")


def test_a_process_that_was_expelled_and_joins_again_has_a_whole_session() -> None:
    """Also between two looks of the coordinator."""
    liveness = GroupLiveness(ME, consumer_ms=60_000)
    liveness.removed(silent_member(liveness))
    for now in range(1_500, 2_501, LOOK_MS):
        assert told(liveness, own(epoch=11), now) == []
    assert liveness.heard("g", "a", 2_501, instance="A")


def test_the_next_membership_of_a_process_is_not_expelled_for_the_former() -> None:
    """It began before the removal was applied, which is late then; it has a whole time-out."""
    liveness = GroupLiveness(ME, consumer_ms=60_000)
    silent_member(liveness)
    again = own(epoch=11, membership=1)
    assert told(liveness, again, 1_500) == []
    assert liveness.heard("g", "a", 1_500, instance="A", membership=1)
    for now in range(1_750, 2_501, LOOK_MS):
        assert told(liveness, again, now) == []
    (silent,) = liveness.step(again, 2_750)
    assert isinstance(silent.command, LeaveMember)
    assert (silent.command.epoch, silent.command.membership) == (11, 1)


def test_another_appointment_forgets_what_was_under_way() -> None:
    """The removal named an older epoch, so it is rejected."""
    liveness = GroupLiveness(ME, consumer_ms=60_000)
    silent_member(liveness)
    assert told(liveness, own(appointed=12, epoch=12), 1_500) == []
    assert liveness.heard("g", "a", 1_600, instance="A")
