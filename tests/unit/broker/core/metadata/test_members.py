"""Consumer groups of Headwater's own client in the metadata: claims, positions, fences."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.commands import (
    DeleteGroup,
    DeleteStream,
    JoinGroup,
    JoinMember,
    LeaveGroup,
    RebalanceGroup,
    ResetPositions,
)
from broker.core.metadata.group_apply import with_new_partitions
from broker.core.metadata.group_claims import rebalanced
from broker.core.metadata.group_positions import cursor_of, is_lost, positions_in
from broker.core.metadata.group_state import GroupPosition, PartitionClaim
from broker.core.metadata.member_apply import lacks_claims
from broker.core.metadata.size import weigh
from broker.core.metadata.state import (
    FEATURE_LEVEL_LIFTBRIDGE,
    FEATURE_LEVEL_STREAMS,
)
from broker.errors import (
    FeatureLevelError,
    GroupChangedError,
    GroupInUseError,
    HeadwaterError,
    InvalidRequestError,
    MetadataFullError,
    StaleMemberError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.groups import PositionReset
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from cases import seeds
from simkit.groups.metadata import FIRST, SECOND, A, B, GroupMetadata, rows_of, stream_of

# ── Claims ───────────────────────────────────────────────────────────────────────────────────────


def test_a_partition_moves_only_when_its_holder_gives_it_up() -> None:
    """The holder keeps reading, the heir waits; the release names the heir under a new epoch."""
    metadata = GroupMetadata(s=4)
    first = metadata.join("m")
    assert metadata.held("m") == ["s/0", "s/1", "s/2", "s/3"]
    metadata.join("n")
    assert metadata.held("n") == []
    moving = [key for key, one in metadata.claims().items() if one.heir == "n"]
    assert len(moving) == 2
    number = int(moving[0][-1])
    before = metadata.claims()[moving[0]]
    assert (before.member, before.epoch) == ("m", first)
    assert metadata.commit("m", metadata.write(number, 7, release=True)) == []
    after = metadata.claims()[moving[0]]
    assert (after.member, after.heir) == ("n", "")
    assert after.epoch > before.epoch
    assert metadata.position(number) == 7
    assert metadata.held("m") == sorted({"s/0", "s/1", "s/2", "s/3"} - {moving[0]})


def test_what_does_not_move_keeps_its_epoch() -> None:
    """A member that joins or leaves does not stop the others."""
    metadata = GroupMetadata(s=4)
    metadata.join("m")
    before = metadata.claims()
    metadata.join("n")
    for key in [key for key, one in metadata.claims().items() if one.heir]:
        metadata.commit("m", metadata.write(int(key[-1]), None, release=True))
    assert len(metadata.held("n")) == 2
    kept = metadata.held("m")
    metadata.leave("n")
    assert metadata.held("m") == ["s/0", "s/1", "s/2", "s/3"]
    assert all(metadata.claims()[key] == before[key] for key in kept)


def test_the_claims_of_a_member_that_is_gone_go_to_others_at_once() -> None:
    """Its process can commit nothing any more; so can one that never joined."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    metadata.join("n")
    stale = metadata.write(0, 5)
    metadata.leave("m", expelled_by=A)
    assert metadata.held("n") == ["s/0", "s/1"]
    with pytest.raises(StaleMemberError) as caught:
        metadata.commit("m", stale)
    assert not caught.value.replaced
    assert metadata.position(0) is None


def test_only_the_coordinator_expels() -> None:
    """One that was replaced meanwhile changes nothing."""
    metadata = GroupMetadata(s=1)
    metadata.join("m")
    with pytest.raises(GroupChangedError):
        metadata.leave("m", expelled_by=B)
    with pytest.raises(StaleMemberError):
        metadata.leave("m", instance="another")
    metadata.leave("m", expelled_by=A)
    assert metadata.state.groups == {}


def test_a_static_member_comes_back_to_its_claims() -> None:
    """The new process has them under a new epoch, the former is fenced, the others do not move."""
    metadata = GroupMetadata(s=2)
    metadata.join("m", static=True)
    metadata.join("n")
    (moving,) = [key for key, one in metadata.claims().items() if one.heir]
    metadata.commit("m", metadata.write(int(moving[-1]), 3, release=True))
    (kept,) = metadata.held("m")
    others = metadata.claims()[moving]
    former = metadata.write(int(kept[-1]), 9)
    metadata.join("m", static=True, instance="M2")
    assert metadata.held("m") == [kept]
    assert metadata.claims()[moving] == others
    with pytest.raises(StaleMemberError) as caught:
        metadata.commit("m", former)
    assert caught.value.replaced
    assert metadata.commit("m", former, instance="M2") == [metadata.key("s", int(kept[-1]))]


def test_a_member_without_a_name_of_its_own_is_not_replaced() -> None:
    """The same process may ask again; another one may not."""
    metadata = GroupMetadata(s=1)
    epoch = metadata.join("m")
    assert metadata.join("m") == epoch
    with pytest.raises(GroupChangedError, match="already"):
        metadata.join("m", instance="another")
    with pytest.raises(GroupChangedError, match="already"):
        metadata.join("m", instance="another", static=True)


def test_partitions_that_a_stream_gains_are_given_out() -> None:
    """The coordinator notices them; nobody loses what it has."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    metadata.join("n")
    before = metadata.claims()
    assert not lacks_claims(metadata.state, metadata.state.groups["g"])
    grown = replace(metadata.state.streams["s"], config=StreamConfig(subject="s", partitions=4))
    state = replace(
        metadata.state,
        streams={"s": grown},
        partitions={grown.uuid: rows_of(4)},
    )
    metadata.state = replace(state, weight=weigh(state))
    assert lacks_claims(metadata.state, metadata.state.groups["g"])
    epoch = metadata.state.groups["g"].epoch
    metadata.do(RebalanceGroup(group="g", epoch=epoch))
    assert {key: metadata.claims()[key] for key in before} == before
    assert {metadata.claims()["s/2"].member, metadata.claims()["s/3"].member} <= {"m", "n"}
    with pytest.raises(GroupChangedError):
        metadata.do(RebalanceGroup(group="g", epoch=epoch))
    same = metadata.state
    metadata.do(RebalanceGroup(group="g", epoch=same.groups["g"].epoch))
    assert metadata.state is same


def test_a_stream_that_is_made_again_is_another_one() -> None:
    """Its positions and claims are gone with it; its readers get the new one, from its start."""
    metadata = GroupMetadata(s=1, t=1)
    metadata.join("m", "s", "t")
    metadata.commit("m", metadata.write(0, 5))
    old = metadata.state.streams["s"]
    metadata.do(DeleteStream(name="s", expected_uuid=old.uuid))
    assert metadata.held("m") == ["t/0"]
    assert metadata.state.positions == {}
    new = stream_of("s", 9, 1)
    state = replace(
        metadata.state,
        streams={**metadata.state.streams, "s": new},
        partitions={**metadata.state.partitions, new.uuid: rows_of(1)},
    )
    metadata.state = replace(state, weight=weigh(state))
    metadata.do(RebalanceGroup(group="g", epoch=metadata.state.groups["g"].epoch))
    assert metadata.held("m") == ["s/0", "t/0"]
    assert metadata.position(0) is None


@pytest.mark.parametrize("seed", seeds(30))
def test_random_rebalances_are_fair_and_move_little(seed: int) -> None:
    """No member has two more than another one that could read it; living holders keep claims."""
    chance = random.Random(seed)
    members: dict[str, tuple[str, ...]] = {}
    claims: dict[str, PartitionClaim] = {}
    partitions = {
        f"{name}/{number}": name for name in "st" for number in range(chance.randint(1, 9))
    }
    for epoch in range(1, 40):
        name = chance.choice("abcdef")
        gone = members.pop(name, None) if chance.random() < 0.4 else None
        if gone is None and name not in members:
            members[name] = tuple(chance.choice([("s",), ("t",), ("s", "t")]))
        before = claims
        claims = rebalanced(claims, members, partitions, epoch)
        read = {one for names in members.values() for one in names}
        assert claims.keys() == {key for key, one in partitions.items() if one in read}
        target = {key: one.heir or one.member for key, one in claims.items()}
        loads = {one: list(target.values()).count(one) for one in members}
        for key, claim in claims.items():
            readers = [one for one in members if partitions[key] in members[one]]
            assert target[key] in readers
            assert loads[target[key]] <= min(loads[one] for one in readers) + 1
            old = before.get(key)
            if old is not None and partitions[key] in members.get(old.member, ()):
                assert (claim.member, claim.epoch) == (old.member, old.epoch)
            else:
                assert (claim.epoch, claim.heir) == (epoch, "")
        for key, claim in claims.items():
            if chance.random() < 0.5 and claim.heir:
                claims = {**claims, key: PartitionClaim(member=claim.heir, epoch=epoch)}


# ── Positions ────────────────────────────────────────────────────────────────────────────────────


def test_a_position_grows_and_a_late_commit_changes_nothing() -> None:
    """A repeated or an older commit is done; one that would move back is refused by partition."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    assert metadata.commit("m", metadata.write(0, 5, number=1), metadata.write(1, 2)) == []
    assert metadata.commit("m", metadata.write(0, 8, number=3)) == []
    assert metadata.commit("m", metadata.write(0, 6, number=2)) == []
    assert metadata.commit("m", metadata.write(0, 8, number=3)) == []
    assert metadata.position(0) == 8
    refused = metadata.commit("m", metadata.write(0, 7, number=4), metadata.write(1, 3, number=4))
    assert refused == [metadata.key("s", 0)]
    assert (metadata.position(0), metadata.position(1)) == (8, 3)
    assert metadata.commit("m", metadata.write(0, 7, number=5, back=True)) == []
    assert metadata.position(0) == 7
    assert metadata.commit("m", metadata.write(0, 8, number=3)) == []
    assert metadata.position(0) == 7


def test_a_commit_under_a_claim_that_is_over_is_refused() -> None:
    """By its epoch; the rest of the commit is stored."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    stale = metadata.write(0, 5, epoch=metadata.claims()["s/0"].epoch - 1)
    assert metadata.commit("m", stale, metadata.write(1, 4)) == [metadata.key("s", 0)]
    assert (metadata.position(0), metadata.position(1)) == (None, 4)
    foreign = replace(metadata.write(0, 5), partition=7)
    assert metadata.commit("m", foreign) == [metadata.key("s", 7)]
    with pytest.raises(InvalidRequestError):
        metadata.commit("m", *[metadata.write(0, 5)] * 1001)


def test_a_position_knows_in_which_history_it_was_reached() -> None:
    """After an unclean election below it the position is lost; above, it is not."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    writes = [metadata.write(number, 5, leader_epoch=1) for number in (0, 1)]
    metadata.commit("m", *writes)
    uuid = metadata.state.streams["s"].uuid
    found = metadata.state.positions["g"][metadata.key("s", 0)]
    assert (found.leader_epoch, found.lineage_id) == (1, FIRST)
    rows = []
    for row, start in zip(metadata.state.partitions[uuid], (3, 5), strict=True):
        begun = Leadership(leader_epoch=LeaderEpoch(2), lineage_id=SECOND, start=Offset(start))
        rows.append(replace(row, lineage=(*row.lineage, begun)))
    metadata.state = replace(metadata.state, partitions={uuid: tuple(rows)})
    lost = [is_lost(metadata.state, key, one) for key, one in metadata.state.positions["g"].items()]
    assert lost == [True, False]


def test_operators_set_positions_of_streams_that_nobody_reads() -> None:
    """Also back, also of a group that is not there yet; a late commit does not come after it."""
    metadata = GroupMetadata(s=1, t=1)
    uuid = metadata.state.streams["s"].uuid
    reset = ResetPositions(
        group="g", writes=(PositionReset(stream_uuid=uuid, partition=0, offset=4),)
    )
    metadata.do(reset)
    assert metadata.position(0) == 4
    metadata.join("m")
    late = metadata.write(0, 9)
    with pytest.raises(GroupInUseError) as caught:
        metadata.do(reset)
    assert caught.value.members == ["m"]
    metadata.leave("m")
    metadata.do(reset)
    metadata.join("m")
    assert metadata.commit("m", late) == [metadata.key("s", 0)]
    assert metadata.position(0) == 4
    assert metadata.commit("m", metadata.write(0, 5)) == []
    for bad in ({"partition": 1}, {"partition": -1}, {"stream_uuid": "other"}):
        with pytest.raises(UnknownPartitionError):
            metadata.do(replace(reset, writes=(replace(reset.writes[0], **bad),)))
    with pytest.raises(InvalidRequestError):
        metadata.do(replace(reset, writes=(replace(reset.writes[0], offset=-1),)))
    with pytest.raises(InvalidRequestError):
        metadata.do(replace(reset, group=""))


def test_a_group_is_deleted_when_nobody_is_in_it() -> None:
    """With all its positions; an unknown one is named."""
    metadata = GroupMetadata(s=1)
    metadata.join("m")
    metadata.commit("m", metadata.write(0, 5))
    with pytest.raises(GroupInUseError):
        metadata.do(DeleteGroup(group="g"))
    metadata.leave("m")
    assert metadata.position(0) == 5
    metadata.do(DeleteGroup(group="g"))
    assert metadata.position(0) is None
    with pytest.raises(UnknownGroupError, match=r"^no consumer group is named 'g'$"):
        metadata.do(DeleteGroup(group="g"))


def test_what_protects_records_is_read_in_one_place() -> None:
    """The positions of all groups in a partition, those of Liftbridge's cursors too."""
    metadata = GroupMetadata(s=1, t=1)
    metadata.join("m")
    metadata.commit("m", metadata.write(0, 5))
    state = replace(metadata.state, cursors={"__group:old": {"0,s": 2}, "mine": {"0,s": 1}})
    place = PartitionId(state.streams["s"].uuid, PartitionNumber(0))
    found = {group: one.offset for group, one in positions_in(state, place).items()}
    assert found == {"g": 5, "old": 3}
    gone = PartitionId(StreamUuid("00000000-0000-0000-0000-000000000099"), PartitionNumber(0))
    assert positions_in(state, gone) == {}


# ── Liftbridge's clients ─────────────────────────────────────────────────────────────────────────


def test_a_group_s_cursor_and_its_position_are_one() -> None:
    """Liftbridge's is the last offset that was processed, ours the next one."""
    metadata = GroupMetadata(s=1)
    metadata.set_cursor(6)
    assert metadata.position(0) == 7
    assert metadata.state.cursors == {}
    metadata.join("m")
    metadata.commit("m", metadata.write(0, 9))
    assert cursor_of(metadata.state, "__group:g", "s", 0) == 8
    with pytest.raises(GroupChangedError):
        metadata.set_cursor(20)
    metadata.leave("m")
    metadata.set_cursor(3)
    assert metadata.position(0) == 4
    metadata.set_cursor(-1)
    assert metadata.position(0) == 0
    assert cursor_of(metadata.state, "__group:g", "s", 0) == -1


def test_a_late_cursor_does_not_move_a_group_back() -> None:
    """While it has members; without, it is a choice."""
    metadata = GroupMetadata(s=1)
    metadata.do(JoinGroup(group="g", member="m", streams=("s",), coordinator=A))
    metadata.set_cursor(6)
    metadata.set_cursor(4)
    assert metadata.position(0) == 7


def test_a_cursor_of_an_older_level_is_a_position_until_the_next_commit() -> None:
    """Then it is one, and the cursor is gone."""
    metadata = GroupMetadata(s=1)
    metadata.state = replace(metadata.state, feature_level=FEATURE_LEVEL_LIFTBRIDGE)
    metadata.set_cursor(6)
    assert metadata.state.cursors == {"__group:g": {"0,s": 6}}
    with pytest.raises(FeatureLevelError):
        metadata.join("m")
    metadata.state = replace(metadata.state, feature_level=FEATURE_LEVEL_STREAMS)
    assert metadata.position(0) == 7
    assert cursor_of(metadata.state, "__group:g", "s", 0) == 6
    metadata.join("m")
    assert metadata.commit("m", metadata.write(0, 6)) == [metadata.key("s", 0)]
    assert metadata.commit("m", metadata.write(0, 8, number=2)) == []
    assert metadata.state.cursors == {}
    metadata.set_cursor(1, stream="unknown")
    assert metadata.state.cursors == {"__group:g": {"0,unknown": 1}}
    metadata.leave("m")
    metadata.do(DeleteGroup(group="g"))
    assert metadata.state.cursors == {}


def test_a_group_has_members_of_one_kind() -> None:
    """The other kind is refused by name, until the last member is gone."""
    metadata = GroupMetadata(s=1)
    theirs = JoinGroup(group="g", member="x", streams=("s",), coordinator=A)
    metadata.do(theirs)
    with pytest.raises(GroupChangedError, match="Liftbridge"):
        metadata.join("m")
    metadata.do(LeaveGroup(group="g", member="x"))
    metadata.join("m")
    with pytest.raises(GroupChangedError, match="Headwater"):
        metadata.do(theirs)
    with pytest.raises(GroupChangedError, match="Headwater"):
        metadata.do(LeaveGroup(group="g", member="m"))


# ── Bounds ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group": ""}, InvalidRequestError), ({"member": "m\n"}, InvalidRequestError),
        ({"instance": "i" * 257}, InvalidRequestError), ({"streams": ()}, InvalidRequestError),
        ({"streams": ("no",)}, UnknownStreamError), ({"session_ms": 999}, InvalidRequestError),
        ({"session_ms": 3_600_001}, InvalidRequestError), ({"owner": "\0"}, InvalidRequestError),
        ({"weight_max": 10}, MetadataFullError),
    ],
)  # fmt: skip
def test_a_member_that_cannot_be_is_refused(
    change: dict[str, Any], error: type[HeadwaterError]
) -> None:
    """Names, times and the size of the metadata are bounded; nothing is changed."""
    metadata = GroupMetadata(s=1)
    before = metadata.state
    with pytest.raises(error):
        metadata.do(
            JoinMember(
                **{
                    "group": "g", "member": "m", "instance": "i", "streams": ("s",),
                    "session_ms": 1_000, "coordinator": A, **change,
                }
            )
        )  # fmt: skip
    assert metadata.state is before


def test_positions_grow_up_to_the_limit() -> None:
    """What is there may move even if nothing more fits."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    metadata.commit("m", metadata.write(0, 1))
    full = metadata.state.weight
    assert metadata.commit("m", metadata.write(0, 2, number=2), weight_max=full) == []
    with pytest.raises(MetadataFullError):
        metadata.commit("m", metadata.write(1, 2), weight_max=full)
    uuid = metadata.state.streams["s"].uuid
    writes = (PositionReset(stream_uuid=uuid, partition=1, offset=4),)
    with pytest.raises(MetadataFullError):
        metadata.do(ResetPositions(group="h", writes=writes, weight_max=full))


def test_a_state_without_groups_is_written_as_before() -> None:
    """An older build reads it; a group of Liftbridge's clients has no claims in the text."""
    metadata = GroupMetadata(s=1)
    assert '"positions"' not in metadata.state.to_json()
    metadata.do(JoinGroup(group="g", member="x", streams=("s",), coordinator=A))
    assert '"claims"' not in metadata.state.to_json()
    assert GroupPosition(offset=Offset(1)).lineage_id == ""


def test_partitions_are_given_out_in_the_command_that_adds_them() -> None:
    """Nobody has to notice them; the members have them at once."""
    metadata = GroupMetadata(s=2)
    metadata.join("m")
    before = metadata.claims()
    grown = replace(metadata.state.streams["s"], config=StreamConfig(subject="s", partitions=4))
    state = replace(metadata.state, streams={"s": grown}, partitions={grown.uuid: rows_of(4)})
    state = with_new_partitions(replace(state, weight=weigh(state)), "s")
    assert state.weight == weigh(state)
    metadata.state = state
    assert metadata.held("m") == ["s/0", "s/1", "s/2", "s/3"]
    assert {key: metadata.claims()[key] for key in before} == before
