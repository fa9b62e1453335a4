"""Partitions that are added to a stream in use: the command, its checks and its refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    AddPartitions,
    AlterStream,
    CreateStream,
    JoinGroup,
    LeaveGroup,
    PurgeRecords,
    SetFeatureLevel,
    TakeLease,
    decode,
    encode,
    encode_new,
)
from broker.core.metadata.placement import place
from broker.core.metadata.size import ORDINARY_WEIGHT_MAX, PARTITION_WEIGHT, weigh
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_ALTERED,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
)
from broker.errors import (
    FeatureLevelError,
    FixedSettingError,
    GroupChangedError,
    HeadwaterError,
    HeldByLeaseError,
    InvalidAssignmentError,
    InvalidRequestError,
    InvalidStreamError,
    MetadataFullError,
    NotEnoughReplicasError,
    StreamChangedError,
    UnknownStreamError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, PartitionId, PartitionNumber, StreamUuid
from broker.model.lineage import first_lineage_id
from broker.model.offsets import Offset
from broker.model.partitioner import partition_of_key
from broker.model.stream import PARTITIONS_MAX, Stream, StreamConfig
from broker.runtime.api.leases import LeaseFloors
from simkit.brokers.metadata_rig import UUID, A, B, C, D, MetadataRig

OTHER = StreamUuid("00000000-0000-0000-0000-000000000002")
LEASE = LeaseId("lease")


def rig(**facts: Any) -> MetadataRig:
    """Return a cluster whose brokers all know how to add partitions."""
    cluster = MetadataRig((A, B, C), features_max=FEATURE_LEVEL_STREAMS, **facts)
    assert cluster.state.feature_level == FEATURE_LEVEL_STREAMS
    return cluster


def growth(cluster: MetadataRig, partitions: int, **facts: Any) -> AddPartitions:
    """Return the command of an operator who sees the newest state."""
    present = cluster.state.streams["s"]
    added = partitions - present.config.partitions
    assignment = place(cluster.state, partitions=added, replication_factor=3)
    wanted = present.grown(partitions)
    return AddPartitions(
        **{"expected": present, "wanted": wanted, "leader": A, "assignment": assignment, **facts}
    )


def grown(partitions: int, *others: int, **facts: Any) -> MetadataRig:
    """Return a cluster whose stream has got these numbers of partitions, one after the other."""
    cluster = rig(**facts)
    for one in (partitions, *others):
        cluster.do(growth(cluster, one))
    return cluster


def test_partitions_are_added_behind_those_that_are_there() -> None:
    """The old ones are the same values; the new ones are as those of a new stream."""
    cluster = rig()
    before = cluster.state
    command = growth(cluster, 4)
    cluster.do(command)
    old, *new = cluster.state.partitions[UUID]
    assert old is before.partitions[UUID][0]
    assert [one.replicas for one in new] == list(command.assignment)
    for number, one in enumerate(new, 1):
        assert (one.leader, one.isr) == (one.replicas[0], tuple(sorted(one.replicas)))
        assert (one.leader_epoch, one.cold_end, one.min_isr) == (1, 0, old.min_isr)
        assert one.lineage[-1].lineage_id == first_lineage_id(UUID, number)
    stream = cluster.state.streams["s"]
    assert (stream.config.partitions, stream.grown_from) == (4, 1)
    assert replace(stream.config, partitions=1) == before.streams["s"].config
    assert cluster.state.weight == weigh(cluster.state)
    assert cluster.state.weight == before.weight + 3 * PARTITION_WEIGHT


def test_new_replicas_go_to_brokers_that_have_few() -> None:
    """D has none before, so it gets one of each new partition, and leads one of them."""
    cluster = grown(4)
    rows = cluster.state.partitions[UUID][1:]
    assert all(D in one.replicas for one in rows)
    assert len({one.leader for one in rows}) == 3


def test_a_broker_alone_leads_what_is_added() -> None:
    """Without an assignment the rows are those of a broker alone."""
    cluster = rig()
    cluster.do(growth(cluster, 2, assignment=()))
    one = cluster.state.partitions[UUID][1]
    assert (one.leader, one.replicas, one.isr, one.min_isr) == (A, (A,), (A,), 1)


def test_a_stream_grows_again_and_remembers_what_it_began_with() -> None:
    """The number at its creation says where the keys began."""
    cluster = grown(2, 4, 8)
    assert cluster.state.streams["s"].grown_from == 1
    assert len(cluster.state.partitions[UUID]) == 8


def test_the_answer_that_was_lost_is_given_again() -> None:
    """The same command again adds nothing; an older one is refused, and adds nothing either."""
    cluster = rig()
    first = growth(cluster, 2)
    cluster.do(first)
    before = cluster.state
    after, reply = apply(before, first)
    assert (after, reply) == (before, {"uuid": UUID, "changed": False})
    cluster.do(growth(cluster, 4))
    assert isinstance(cluster.refused(first), StreamChangedError)


def test_other_settings_may_change_in_the_same_command() -> None:
    """All of it happens, or nothing does."""
    cluster = rig()
    command = growth(cluster, 2)
    config = replace(command.wanted.config, compression="zstd", min_isr=3)
    cluster.do(replace(command, wanted=replace(command.wanted, config=config)))
    assert cluster.state.streams["s"].config == config
    assert [one.min_isr for one in cluster.state.partitions[UUID]] == [3, 3]
    again = growth(cluster, 4)
    fixed = replace(again.wanted, config=replace(again.wanted.config, subject="t"))
    assert isinstance(cluster.refused(replace(again, wanted=fixed)), FixedSettingError)


@pytest.mark.parametrize(
    ("present", "wanted", "kind", "words"),
    [
        (2, 1, FixedSettingError, "create another stream"),
        (2, 3, InvalidStreamError, "4, 6, 8"),
        (3, 4, InvalidStreamError, "keys would move"),
        (600, 700, InvalidStreamError, "multiplied"),
        (1, PARTITIONS_MAX + 1, InvalidStreamError, "1024"),
    ],
)
def test_numbers_that_are_refused_say_why(
    present: int, wanted: int, kind: type[HeadwaterError], words: str
) -> None:
    """Fewer partitions, a number that moves keys between old partitions, and too many."""
    config = StreamConfig(subject="s", partitions=present)
    stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
    with pytest.raises(kind) as caught:
        stream.grown(wanted)
    assert words in caught.value.message.lower() or words in caught.value.message


def test_a_stream_without_a_partitioner_may_have_any_number_more() -> None:
    """Its producers choose for themselves, so no key has a place of its own."""
    config = StreamConfig(subject="s", partitions=2, partitioner="each_client")
    stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
    assert stream.grown(3).config.partitions == 3
    assert (stream.grown(3).grown_from, stream.grown(3).keys_from) == (2, None)


def test_a_wildcard_stays_in_one_partition() -> None:
    """``foo.*`` would record the subjects of its own partitions."""
    config = StreamConfig(subject="foo.*")
    stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
    with pytest.raises(InvalidStreamError, match="overlap the wildcard"):
        stream.grown(2)


@pytest.mark.parametrize("counts", [(1, 2, 4, 8), (2, 6, 12), (3, 9, 36), (5, 10, 1000)])
def test_the_partition_of_a_key_only_rises(counts: tuple[int, ...]) -> None:
    """So the newest record of a key is in the highest partition that has one."""
    for number in range(2000):
        key = b"key-%d" % number
        places = [partition_of_key(key, count) for count in counts]
        assert places == sorted(places)
        for earlier, later, count in zip(places, places[1:], counts, strict=False):
            assert later == earlier or later >= count  # it stays, or moves into a new partition


@pytest.mark.parametrize("fault", ["few", "many", "unknown", "twice"])
def test_an_assignment_that_does_not_fit_is_refused(fault: str) -> None:
    """One row of replicas for each new partition, of registered brokers, each once."""
    cluster = rig()
    row = (A, B, C)
    rows = {
        "few": (row,),
        "many": (row,) * 3,
        "unknown": ((A, B, "x"),) * 2,
        "twice": ((A, A, B),) * 2,
    }
    command = growth(cluster, 3, assignment=rows[fault])
    assert isinstance(cluster.refused(command), InvalidAssignmentError)


def test_too_few_living_replicas_are_refused() -> None:
    """A partition that could commit nothing is not made."""
    cluster = rig()
    command = growth(cluster, 2, assignment=((A, B, C),))
    cluster.fence(B)
    cluster.fence(C)
    assert isinstance(cluster.refused(command), NotEnoughReplicasError)


def test_an_older_build_is_not_left_behind() -> None:
    """It would refuse the command alone, and differ from then on."""
    old = MetadataRig(features_max=FEATURE_LEVEL_ALTERED)
    command = growth(old, 2)
    assert isinstance(old.refused(command), FeatureLevelError)
    raised = SetFeatureLevel(expected=FEATURE_LEVEL_ALTERED, level=FEATURE_LEVEL_STREAMS)
    assert isinstance(old.refused(raised), FeatureLevelError)


def test_each_command_does_its_own_part() -> None:
    """A build that knows AlterStream only never meets a stream that grows by it."""
    cluster = rig()
    command = growth(cluster, 2)
    assert (
        type(cluster.refused(AlterStream(expected=command.expected, wanted=command.wanted)))
        is InvalidRequestError
    )
    same = replace(command, wanted=command.expected)
    assert type(cluster.refused(same)) is InvalidRequestError
    lying = replace(command, wanted=replace(command.wanted, grown_from=None))
    assert type(cluster.refused(lying)) is InvalidRequestError


def test_a_stream_that_is_gone_gets_no_partitions() -> None:
    """Nor does another stream of its name."""
    cluster = rig()
    command = growth(cluster, 2)
    stranger = replace(command.expected, name="t")
    absent = replace(command, expected=stranger, wanted=stranger.grown(2))
    assert isinstance(cluster.refused(absent), UnknownStreamError)


def test_new_subjects_may_not_answer_the_publishers_of_another_stream() -> None:
    """Partition 1 listens to ``s.1``, which another stream answers already."""
    cluster = rig(puback=True)
    config = StreamConfig(subject="s.1", puback=True)
    other = Stream(name="other", uuid=OTHER, config=config, created_us=1, table_name="other")
    cluster.do(CreateStream(stream=other, leader=A, one_answers=True))
    error = cluster.refused(growth(cluster, 2))
    assert isinstance(error, InvalidStreamError)
    assert error.stream == "other"


def test_partitions_count_as_metadata() -> None:
    """They may not fill it."""
    cluster = rig()
    command = growth(cluster, 2, weight_max=cluster.state.weight)
    assert isinstance(cluster.refused(command), MetadataFullError)
    proposed = decode(encode_new(command))
    assert isinstance(proposed, AddPartitions)
    assert proposed.weight_max == ORDINARY_WEIGHT_MAX


def test_the_state_after_a_growth_survives_a_snapshot() -> None:
    """And the state before it has the same text as with the builds before."""
    cluster = rig()
    assert "grown_from" not in cluster.state.to_json()
    present = cluster.state.streams["s"]
    assert b"grown_from" not in encode(AlterStream(expected=present, wanted=present))
    cluster.do(growth(cluster, 2))
    assert json.loads(cluster.state.to_json())["streams"]["s"]["grown_from"] == 1
    assert decode_snapshot(encode_snapshot(cluster.state, 7)) == (cluster.state, 7)
    assert MetadataState.from_json(cluster.state.to_json()).weight == cluster.state.weight


@pytest.mark.parametrize("wrong", [0, 2, -1, "1", True])
def test_a_stored_stream_with_an_impossible_growth_is_refused(wrong: Any) -> None:
    """It has to be a number below the present one."""
    config = StreamConfig(subject="s", partitions=2)
    stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
    with pytest.raises(InvalidStreamError):
        Stream.from_dict({**json.loads(stream.to_json()), "grown_from": wrong})


# ---------------------------------------------------------------------------- leases


def test_a_lease_from_before_holds_all_of_a_new_partition() -> None:
    """Its reader may go on into the new partition, from its first record."""
    cluster = rig()
    cluster.do(TakeLease(lease_id=LEASE, stream_uuid=UUID, owner="me", expires_us=1_000, now_us=1))
    cluster.do(growth(cluster, 2))
    assert cluster.state.leases[LEASE].floors == (0,)
    assert cluster.state.weight == weigh(cluster.state)
    for now_us, floor in ((10, 0), (1_000, 2**63 - 1)):
        held = LeaseFloors().floor(cluster.state, PartitionId(UUID, PartitionNumber(1)), now_us)
        assert held == min(floor, held)
        assert (held == 0) is (now_us < 1_000)


def test_a_purge_of_a_new_partition_asks_the_leases_from_before() -> None:
    """Such a lease has no floor of that partition, and is no reason to fail."""
    cluster = rig(tiering=False)
    cluster.do(TakeLease(lease_id=LEASE, stream_uuid=UUID, owner="me", expires_us=1_000, now_us=1))
    cluster.do(growth(cluster, 2))
    purge = PurgeRecords(
        stream_uuid=UUID, partition=1, before=Offset(5), leader_epoch=LeaderEpoch(1), now_us=10
    )
    error = cluster.refused(purge)
    assert isinstance(error, HeldByLeaseError)
    assert error.owners == ["me"]
    cluster.do(replace(purge, now_us=2_000))
    assert cluster.state.partitions[UUID][1].purged_end == 5


# ---------------------------------------------------------------------------- groups


def test_consumer_groups_of_the_stream_divide_it_anew() -> None:
    """A member with the old group epoch is refused, so no partition has two readers."""
    cluster = rig()
    for group, member in (("g", "m"), ("g", "n")):
        cluster.do(JoinGroup(group=group, member=member, streams=("s",), coordinator=A))
    before = cluster.state.groups["g"].epoch
    cluster.do(growth(cluster, 2))
    assert cluster.state.groups["g"].epoch == before + 1 == cluster.state.group_epoch
    assert cluster.state.weight == weigh(cluster.state)
    late = LeaveGroup(group="g", member="m", epoch=before)
    assert isinstance(cluster.refused(late), GroupChangedError)


def test_groups_of_other_streams_stay_as_they_are() -> None:
    """They do not read this stream."""
    cluster = rig()
    other = Stream(
        name="t", uuid=OTHER, config=StreamConfig(subject="t"), created_us=1, table_name="t"
    )
    cluster.do(CreateStream(stream=other, leader=A))
    cluster.do(JoinGroup(group="g", member="m", streams=("t",), coordinator=A))
    before = cluster.state.groups
    cluster.do(growth(cluster, 2))
    assert cluster.state.groups is before
