"""The conditions under which records expire: leaders, the table, leases and saved positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.core.metadata.commands import (
    CommitPositions,
    CursorWrite,
    DeleteGroup,
    ExpireRecords,
    JoinMember,
    LeaveMember,
    RecordColdEnd,
    ResetPositions,
    SetCursors,
    TakeLease,
)
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_LIFTBRIDGE,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
)
from broker.core.metadata.stream_expiry import expiry_limit
from broker.errors import (
    FeatureLevelError,
    HeldByLeaseError,
    HeldByPositionError,
    NotShippedError,
    StaleLeaderEpochError,
    UnknownPartitionError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.groups import PositionCommit, PositionReset
from broker.model.ids import LeaseId, StreamUuid
from broker.model.offsets import Offset
from simkit.brokers.metadata_rig import AT, UUID, B, MetadataRig


def rig(*, shipped: int = 100, **config: Any) -> MetadataRig:
    """Return a cluster with a stream whose table has records."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_STREAMS, **config)
    cluster.do(RecordColdEnd(**AT, cold_end=Offset(shipped)))
    return cluster


def expire(
    cluster: MetadataRig, before: int, *, now_us: int = 1_000, **facts: Any
) -> ExpireRecords:
    """Return the command of the leader."""
    epoch = cluster.one().leader_epoch
    return ExpireRecords(**AT, before=Offset(before), leader_epoch=epoch, now_us=now_us, **facts)


def lease(name: str, *, expires_us: int = 2_000) -> TakeLease:
    """Return the command of a reader."""
    return TakeLease(
        lease_id=LeaseId(name), stream_uuid=UUID, owner=f"{name}'s", expires_us=expires_us, now_us=1
    )


def position(cursor_id: str, offset: int, *, partition: int = 0, stream: str = "s") -> SetCursors:
    """Return the command that saves a position."""
    write = CursorWrite(cursor_id=cursor_id, stream=stream, partition=partition, offset=offset)
    return SetCursors(writes=(write,))


def limit(cluster: MetadataRig, *, now_us: int = 1_000) -> int:
    """Return how far the partition may expire."""
    return expiry_limit(cluster.state, cluster.state.streams["s"], 0, cluster.one(), now_us)


def test_the_remote_start_only_grows() -> None:
    """A command that is repeated, or comes late, changes nothing; the cold end stays."""
    cluster = rig()
    cluster.do(expire(cluster, 10))
    state = cluster.state
    assert (cluster.one().remote_start, cluster.one().cold_end, cluster.one().floor) == (
        10,
        100,
        100,
    )
    for before in (10, 4, 0):
        cluster.do(expire(cluster, before))
        assert cluster.state is state
    cluster.do(expire(cluster, 100))
    assert (cluster.one().remote_start, limit(cluster)) == (100, 100)


def test_only_the_present_leader_decides() -> None:
    """One that was replaced, or that nobody confirmed yet, does not."""
    cluster = rig()
    late = expire(cluster, 10)
    cluster.elect(B)
    assert isinstance(cluster.refused(late), StaleLeaderEpochError)
    cluster.do(expire(cluster, 10))
    wrong = replace(expire(cluster, 20), leader_epoch=LeaderEpoch(7))
    assert isinstance(cluster.refused(wrong), StaleLeaderEpochError)
    assert isinstance(cluster.refused(replace(wrong, partition=1)), UnknownPartitionError)


def test_what_is_not_in_the_table_does_not_expire() -> None:
    """Retention never deletes a record that was not shipped."""
    cluster = rig(shipped=7)
    for done in (False, True):
        error = cluster.refused(expire(cluster, 8, is_done=done))
        assert isinstance(error, NotShippedError)
        assert (error.start, error.end) == (7, 8)
    assert limit(cluster) == 7


def test_what_a_lease_holds_does_not_expire() -> None:
    """It holds from the cold end of its time on; one that has ended holds nothing."""
    cluster = rig(shipped=7)
    cluster.do(lease("over", expires_us=999))
    cluster.do(lease("reader"))
    cluster.do(RecordColdEnd(**AT, cold_end=Offset(100)))
    cluster.do(lease("later"))
    assert (limit(cluster), limit(cluster, now_us=2_000)) == (7, 100)
    error = cluster.refused(expire(cluster, 8))
    assert isinstance(error, HeldByLeaseError)
    assert (error.owners, error.lease_ids, error.floor) == (["reader's"], ["reader"], 7)
    cluster.do(expire(cluster, 7))
    cluster.do(expire(cluster, 8, now_us=2_000))


def test_a_lease_of_another_stream_holds_nothing() -> None:
    """Whatever its floors are."""
    cluster = rig(shipped=7)
    cluster.do(lease("reader"))
    cluster.do(RecordColdEnd(**AT, cold_end=Offset(100)))
    held = cluster.state.leases[LeaseId("reader")]
    elsewhere = replace(held, stream_uuid=StreamUuid("0" * 32))
    cluster.state = replace(cluster.state, leases={LeaseId("reader"): elsewhere})
    assert limit(cluster) == 100


def test_a_lease_of_later_holds_nothing_that_expires_now() -> None:
    """So it does not matter which of the two the metadata orders first."""
    cluster = rig()
    allowed = limit(cluster)
    cluster.do(lease("later"))
    cluster.do(expire(cluster, allowed))
    assert cluster.state.leases[LeaseId("later")].floors == (100,)


def test_a_saved_position_protects_if_the_stream_says_so() -> None:
    """Of this partition of this stream only; the lowest one counts; -1 is before everything."""
    cluster = rig(protect_groups=True, partitions=1)
    cluster.do(position("a", 30))
    cluster.do(position("b", 20))
    cluster.do(position("c", 3, stream="other"))
    cluster.do(position("c", 4, partition=1))
    assert limit(cluster) == 20
    error = cluster.refused(expire(cluster, 21))
    assert isinstance(error, HeldByPositionError)
    assert (error.partition, error.position) == (0, 20)
    cluster.do(expire(cluster, 20))
    cluster.do(position("b", 60))
    cluster.do(expire(cluster, 30))
    cluster.do(position("late", -1))
    assert limit(cluster) == 30, "what has expired does not come back"
    assert isinstance(cluster.refused(expire(cluster, 31)), HeldByPositionError)


def test_the_position_of_a_group_protects_as_well() -> None:
    """A cursor of a group names the last record that was processed; its position is the next."""
    cluster = rig(protect_groups=True)
    cluster.do(position("__group:readers", 24))
    assert not cluster.state.cursors, "it is a position"
    assert limit(cluster) == 25
    assert isinstance(cluster.refused(expire(cluster, 26)), HeldByPositionError)
    cluster.do(expire(cluster, 25))


def test_what_members_commit_protects_as_well() -> None:
    """Each commit lets more expire; what the group leaves behind holds until it is deleted."""
    cluster = rig(protect_groups=True)
    who: dict[str, Any] = {"group": "g", "member": "m", "instance": "i"}
    cluster.do(JoinMember(**who, streams=("s",), session_ms=1_000, coordinator=B))
    cluster.do(expire(cluster, 10))  # nothing is committed yet
    (claim,) = cluster.state.groups["g"].claims.values()

    def commit(offset: int) -> CommitPositions:
        write = PositionCommit(**AT, epoch=claim.epoch, number=offset, offset=offset)
        return CommitPositions(**who, writes=(write,))

    cluster.do(commit(25))
    assert limit(cluster) == 25
    error = cluster.refused(expire(cluster, 26))
    assert isinstance(error, HeldByPositionError)
    assert error.position == 25
    cluster.do(commit(40))
    cluster.do(expire(cluster, 40))
    cluster.do(LeaveMember(**who))
    assert isinstance(cluster.refused(expire(cluster, 41)), HeldByPositionError)
    reset = ResetPositions(group="g", writes=(PositionReset(**AT, offset=5),))
    cluster.do(reset)
    assert limit(cluster) == 40, "what has expired does not come back"
    cluster.do(DeleteGroup(group="g"))
    assert limit(cluster) == 100


def test_positions_do_not_protect_unless_the_stream_says_so() -> None:
    """A consumer that has gone for good would keep everything."""
    cluster = rig()
    cluster.do(position("a", 3))
    cluster.do(expire(cluster, 100))


def test_what_the_table_has_lost_is_learned_whatever_holds() -> None:
    """An old copy of the metadata: its leases cannot bring the rows back."""
    cluster = rig(shipped=50, protect_groups=True)
    cluster.do(lease("reader"))
    cluster.do(position("a", 3))
    cluster.do(RecordColdEnd(**AT, cold_end=Offset(100)))
    cluster.do(expire(cluster, 60, is_done=True))
    assert cluster.one().remote_start == 60


def test_an_expiry_needs_builds_that_know_it() -> None:
    """An older build would refuse the command alone, and its state would differ."""
    old = MetadataRig(features_max=FEATURE_LEVEL_LIFTBRIDGE)
    old.do(RecordColdEnd(**AT, cold_end=Offset(9)))
    assert isinstance(old.refused(expire(old, 1)), FeatureLevelError)


def test_it_survives_a_snapshot_and_is_left_out_while_there_is_none() -> None:
    """A build without the feature reads and writes the same text."""
    cluster = rig()
    text = cluster.state.to_json()
    assert "remote_" not in text
    assert "protect_groups" not in text
    assert MetadataState.from_json(text) == cluster.state
    cluster.do(expire(cluster, 10))
    assert decode_snapshot(encode_snapshot(cluster.state, 7)) == (cluster.state, 7)
