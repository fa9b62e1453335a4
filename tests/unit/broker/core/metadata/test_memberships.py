"""Late commands about members: of an earlier membership, of a process that was replaced."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.core.metadata.commands import JoinMember, LeaveMember, decode, encode
from broker.core.metadata.group_state import REPLACED_KEPT_MAX
from broker.core.metadata.member_apply import lacks_claims
from broker.core.metadata.member_commands import RebalanceGroup, ResetPositions
from broker.core.metadata.size import weigh
from broker.core.metadata.state import MetadataState
from broker.errors import GroupChangedError, InvalidRequestError, StaleMemberError
from broker.model.groups import PositionReset
from broker.model.stream import StreamConfig
from simkit.groups.metadata import A, GroupMetadata, rows_of


def test_a_late_leave_does_not_end_the_next_membership() -> None:
    """The application was slow: it left, and joined again before the leave was applied."""
    metadata = GroupMetadata(s=2)
    first = metadata.join("m")
    again = metadata.join("m", membership=1)
    assert again > first
    before = metadata.state
    with pytest.raises(StaleMemberError, match="membership 0 of member 'm'") as caught:
        metadata.leave("m")
    assert not caught.value.replaced
    assert metadata.state is before
    metadata.leave("m", membership=1)
    assert metadata.state.groups == {}


def test_the_next_membership_has_its_claims_under_a_new_epoch() -> None:
    """Commits of the former one are late; a partition that another member waits for is so still."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    metadata.join("n")
    (moving,) = [key for key, one in metadata.claims().items() if one.heir]
    stale = [metadata.write(number, 5) for number in (0, 1)]
    epoch = metadata.join("m", membership=1)
    assert metadata.held("m") == ["s/0", "s/1"]
    assert {one.epoch for one in metadata.claims().values()} == {epoch}
    assert metadata.claims()[moving].heir == "n"
    assert metadata.commit("m", *stale) == [metadata.key("s", 0), metadata.key("s", 1)]
    assert metadata.position(0) is None
    assert metadata.commit("m", metadata.write(int(moving[-1]), 3, release=True)) == []
    assert metadata.held("n") == [moving]


def test_a_late_join_changes_nothing() -> None:
    """Neither the same one again, nor one of an earlier membership."""
    metadata = GroupMetadata(s=1)
    metadata.join("m")
    epoch = metadata.join("m", membership=2)
    before = metadata.state
    assert metadata.join("m", membership=2) == epoch
    with pytest.raises(StaleMemberError, match="membership 1"):
        metadata.join("m", membership=1)
    with pytest.raises(InvalidRequestError):
        metadata.join("m", membership=-1)
    assert metadata.state is before


def test_a_late_expulsion_does_not_end_the_next_membership() -> None:
    """It names an epoch; the next membership has another one."""
    metadata = GroupMetadata(s=1)
    epoch = metadata.join("m")
    metadata.join("m", membership=1)
    for membership, error in ((0, StaleMemberError), (1, GroupChangedError)):
        with pytest.raises(error):
            metadata.leave("m", expelled_by=A, epoch=epoch, membership=membership)
    assert metadata.held("m") == ["s/0"]


def test_a_leave_that_comes_before_its_join_ends_what_is_there() -> None:
    """The join was asked for at a broker that stands still; the process wants to be gone."""
    metadata = GroupMetadata(s=1)
    metadata.join("m")
    metadata.leave("m", membership=1)
    assert metadata.state.groups == {}


def test_a_process_that_was_replaced_does_not_come_back() -> None:
    """Its first join was asked for twice, and the second is applied late."""
    metadata = GroupMetadata(s=2)
    metadata.join("m", static=True)
    metadata.join("m", static=True, instance="M2")
    metadata.join("m", static=True, instance="M2", membership=1)
    before = metadata.state
    with pytest.raises(StaleMemberError) as caught:
        metadata.join("m", static=True)
    assert caught.value.replaced
    with pytest.raises(StaleMemberError) as caught:
        metadata.join("m", static=True, membership=7)
    assert caught.value.replaced
    with pytest.raises(StaleMemberError) as caught:
        metadata.leave("m", membership=7)
    assert caught.value.replaced
    assert metadata.state is before


def test_a_member_remembers_a_few_processes() -> None:
    """The newest; and its weight counts them."""
    metadata = GroupMetadata(s=1)
    for number in range(REPLACED_KEPT_MAX + 3):
        metadata.join("m", static=True, instance=f"i{number}")
    session = metadata.state.groups["g"].sessions["m"]
    assert session.replaced == tuple(f"i{number}" for number in range(2, REPLACED_KEPT_MAX + 2))
    assert metadata.state.weight == weigh(metadata.state)
    fewer = replace(session, replaced=())
    group = replace(metadata.state.groups["g"], sessions={"m": fewer})
    assert weigh(replace(metadata.state, groups={"g": group})) < metadata.state.weight


def test_a_first_membership_is_written_as_before() -> None:
    """Commands and states without the later fields are those of earlier builds, and are read."""
    join = JoinMember(
        group="g", member="m", instance="i", streams=("s",), session_ms=1_000, coordinator=A
    )
    leave = LeaveMember(group="g", member="m", instance="i")
    for command in (join, leave):
        body = json.loads(encode(command))
        assert "membership" not in body
        assert decode(encode(command)) == command
        later = replace(command, membership=3)
        assert json.loads(encode(later))["membership"] == 3
        assert decode(encode(later)) == later
    metadata = GroupMetadata(s=1)
    metadata.join("m", static=True)
    text = metadata.state.to_json()
    assert "membership" not in text
    assert "replaced" not in text
    metadata.join("m", static=True, instance="M2", membership=4)
    told = json.loads(metadata.state.to_json())["groups"]["g"]["sessions"]["m"]
    assert (told["membership"], told["replaced"]) == (4, ["M"])
    assert MetadataState.from_json(metadata.state.to_json()) == metadata.state


def test_a_release_that_nobody_waits_for_keeps_the_claim() -> None:
    """The member that waited has gone meanwhile; the position is stored."""
    metadata = GroupMetadata(s=1)
    metadata.join("m")
    before = metadata.claims()
    assert metadata.commit("m", metadata.write(0, 3, release=True)) == []
    assert metadata.claims() == before
    assert metadata.position(0) == 3


def test_positions_are_set_while_members_read_other_streams() -> None:
    """Only a member that reads the stream itself stands in the way."""
    metadata = GroupMetadata(s=1, t=1)
    metadata.join("m", "t")
    at = PositionReset(stream_uuid=metadata.state.streams["s"].uuid, partition=0, offset=4)
    metadata.do(ResetPositions(group="g", writes=(at,)))
    assert metadata.position(0) == 4


def test_partitions_that_come_while_others_are_on_their_way() -> None:
    """Nobody loses what it reads, the heir is still due, and the shares are fair in the end."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    metadata.join("n")
    (moving,) = [key for key, one in metadata.claims().items() if one.heir]
    before = metadata.claims()
    grown = replace(metadata.state.streams["s"], config=StreamConfig(subject="s", partitions=5))
    state = replace(metadata.state, streams={"s": grown}, partitions={grown.uuid: rows_of(5)})
    metadata.state = replace(state, weight=weigh(state))
    metadata.do(RebalanceGroup(group="g", epoch=metadata.state.groups["g"].epoch))
    assert not lacks_claims(metadata.state, metadata.state.groups["g"])
    after = metadata.claims()
    for key, claim in before.items():
        assert (after[key].member, after[key].epoch) == (claim.member, claim.epoch)
    for key in [key for key, one in after.items() if one.heir]:
        assert metadata.commit("m", metadata.write(int(key[-1]), 4, release=True)) == []
        assert metadata.held("n").count(key) == 1
    assert sorted(map(len, (metadata.held("m"), metadata.held("n")))) == [2, 3]
    assert not any(one.heir for one in metadata.claims().values())
    assert moving in before
