"""The conditions of a purge by leaders, tables and leases, and its effects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.core.metadata.commands import (
    AlterStream,
    PurgeRecords,
    RecordColdEnd,
    TakeLease,
)
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_ALTERED,
    FEATURE_LEVEL_REPLICATED,
    MetadataState,
)
from broker.core.replication.view import view_of
from broker.errors import (
    FeatureLevelError,
    FixedSettingError,
    HeldByLeaseError,
    NotShippedError,
    StaleLeaderEpochError,
    UnknownPartitionError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, PartitionId, PartitionNumber
from broker.model.offsets import Offset
from simkit.brokers.metadata_rig import AT, UUID, B, MetadataRig


def rig(**facts: Any) -> MetadataRig:
    """Return a cluster that can purge, with a stream without a table."""
    return MetadataRig(features_max=FEATURE_LEVEL_ALTERED, **{"tiering": False, **facts})


def purge(cluster: MetadataRig, before: int, *, now_us: int = 1_000) -> PurgeRecords:
    """Return the command of the leader."""
    epoch = cluster.one().leader_epoch
    return PurgeRecords(**AT, before=Offset(before), leader_epoch=epoch, now_us=now_us)


def lease(name: str, *, expires_us: int = 2_000) -> TakeLease:
    """Return the command of a reader."""
    return TakeLease(
        lease_id=LeaseId(name), stream_uuid=UUID, owner=f"{name}'s", expires_us=expires_us, now_us=1
    )


def test_the_purged_end_only_grows() -> None:
    """A purge that is repeated, or comes late, changes nothing."""
    cluster = rig()
    cluster.do(purge(cluster, 10))
    assert cluster.one().purged_end == 10
    state = cluster.state
    for before in (10, 4, 0):
        cluster.do(purge(cluster, before))
        assert cluster.state is state
    cluster.do(purge(cluster, 11))
    assert (cluster.one().purged_end, cluster.one().floor) == (11, 11)


def test_only_the_present_leader_says_what_is_committed() -> None:
    """One that was replaced may think of records that its successor does not have."""
    cluster = rig()
    late = purge(cluster, 10)
    cluster.elect(B)
    assert isinstance(cluster.refused(late), StaleLeaderEpochError)
    cluster.do(purge(cluster, 10))
    cluster.fence(B)
    assert isinstance(cluster.refused(purge(cluster, 20)), StaleLeaderEpochError)
    assert cluster.one().purged_end == 10, "an election does not bring records back"


def test_records_that_are_not_in_the_table_yet_are_not_purged() -> None:
    """They would be lost for good. Up to the cold end the table has every record."""
    cluster = rig(tiering=True)
    cluster.do(RecordColdEnd(**AT, cold_end=Offset(7)))
    error = cluster.refused(purge(cluster, 8))
    assert isinstance(error, NotShippedError)
    assert (error.start, error.end) == (7, 8)
    cluster.do(purge(cluster, 7))
    cluster.do(RecordColdEnd(**AT, cold_end=Offset(9)))
    assert (cluster.one().purged_end, cluster.one().floor) == (7, 9)


def test_what_a_reader_holds_is_not_purged() -> None:
    """The refusal names the readers; a lease that has ended, or begins above, holds nothing."""
    cluster = rig()
    cluster.do(lease("over", expires_us=999))
    cluster.do(lease("early"))
    error = cluster.refused(purge(cluster, 10))
    assert isinstance(error, HeldByLeaseError)
    assert (error.owners, error.lease_ids, error.floor) == (["early's"], ["early"], 0)
    cluster.do(purge(cluster, 10, now_us=2_000))
    cluster.do(lease("later", expires_us=5_000))
    assert cluster.state.leases[LeaseId("later")].floors == (10,)
    cluster.do(purge(cluster, 10, now_us=3_000))
    assert isinstance(cluster.refused(purge(cluster, 11, now_us=3_000)), HeldByLeaseError)


def test_a_purge_needs_builds_that_know_it() -> None:
    """An older build would go on serving records that the other brokers have deleted."""
    old = MetadataRig(features_max=FEATURE_LEVEL_REPLICATED, tiering=False)
    assert isinstance(old.refused(purge(old, 1)), FeatureLevelError)


def test_a_partition_that_is_not_there_is_named() -> None:
    """As by every command about a partition."""
    cluster = rig()
    wrong = replace(purge(cluster, 1), partition=1)
    assert isinstance(cluster.refused(wrong), UnknownPartitionError)
    stale = replace(purge(cluster, 1), leader_epoch=LeaderEpoch(7))
    assert isinstance(cluster.refused(stale), StaleLeaderEpochError)


def test_a_table_does_not_begin_in_the_middle() -> None:
    """A stream whose first records were purged stays without one."""
    cluster = rig()
    cluster.do(purge(cluster, 1))
    present = cluster.state.streams["s"]
    tiered = replace(present, config=replace(present.config, tiering=True))
    error = cluster.refused(AlterStream(expected=present, wanted=tiered))
    assert isinstance(error, FixedSettingError)
    assert "purged" in error.message


def test_replicas_hear_of_it_with_their_view() -> None:
    """A replica that restores a snapshot gets it, too."""
    cluster = rig()
    cluster.do(purge(cluster, 10))
    view = view_of(cluster.state, PartitionId(UUID, PartitionNumber(0)))
    assert view is not None
    assert (view.purged_end, view.floor) == (10, 10)
    assert decode_snapshot(encode_snapshot(cluster.state, 7)) == (cluster.state, 7)


def test_a_state_without_a_purge_is_written_as_before() -> None:
    """While a cluster is updated, older builds read snapshots of newer ones, and compare hashes."""
    text = rig().state.to_json()
    assert "purged" not in text
    assert MetadataState.from_json(text) == rig().state
