"""Metadata at its limits: one replica too few, one epoch too old, one byte too many.

`make plant` moves these edges, and each test here is the one that notices.
"""

from __future__ import annotations

from dataclasses import replace

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    AllocateIds,
    CreateStream,
    MarkOpened,
    RecordColdEnd,
    RegisterBroker,
    RemoveBroker,
    SetFeatureLevel,
    StartElection,
    StopBroker,
    TakeLease,
    UnfenceBroker,
)
from broker.core.metadata.partition_rules import LOSSES_KEPT, candidates, given_up
from broker.core.metadata.size import weight_of_lease, weight_of_stream
from broker.core.metadata.state import LeaseState, Loss, MetadataState
from broker.errors import (
    FeatureLevelError,
    IneligibleReplicaError,
    InvalidRequestError,
    MetadataFullError,
    NotEnoughReplicasError,
    StaleBrokerEpochError,
    StreamExistsError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from simkit.brokers.metadata_rig import AT, UUID, A, B, C, D, MetadataRig

OTHER = StreamUuid("00000000-0000-0000-0000-000000000002")


def _stream(name: str = "t", **config: int) -> Stream:
    settings = StreamConfig(subject=name, **config)  # type: ignore[arg-type]
    return Stream(name=name, uuid=OTHER, config=settings, created_us=1, table_name=name)


# ---------------------------------------------------------------------------- who may lead


def test_a_stream_needs_its_minimum_of_living_replicas() -> None:
    """One fewer is refused, and nothing is created."""
    cluster = MetadataRig()
    for broker in (B, C):
        cluster.fence(broker)
    create = CreateStream(stream=_stream(), leader=A, assignment=((A, B, C),), min_isr=2)
    assert isinstance(cluster.refused(create), NotEnoughReplicasError)
    cluster.do(UnfenceBroker(broker=B, broker_epoch=cluster.epoch(B)))
    cluster.do(create)


def test_members_of_the_isr_are_preferred_to_eligible_replicas() -> None:
    """Whatever the order of the replicas is."""
    cluster = MetadataRig()
    cluster.do(cluster.isr(A, B))
    cluster.do(cluster.isr(A))
    cluster.fence(A)
    cluster.elect(B)
    cluster.do(UnfenceBroker(broker=A, broker_epoch=cluster.epoch(A)))
    assert (cluster.one().isr, cluster.one().eligible) == ((B,), (A,))
    assert candidates(cluster.state, cluster.one()) == (B, A)


def test_a_broker_that_stops_neither_leads_nor_joins() -> None:
    """It would have to hand over, or be removed, at once."""
    cluster = MetadataRig()
    cluster.do(cluster.isr(A, B))
    for broker in (B, C):
        cluster.do(StopBroker(broker=broker, broker_epoch=cluster.epoch(broker)))
    assert candidates(cluster.state, cluster.one()) == (A,)
    assert isinstance(cluster.refused(cluster.isr(A, B, C)), IneligibleReplicaError)
    cluster.fence(A)
    assert isinstance(cluster.refused(cluster.name(B)), IneligibleReplicaError)


def test_an_answer_of_a_replica_that_is_no_member_compares_nobody() -> None:
    """Its disk was wiped, so its short log proves nothing about the candidate's."""
    cluster = MetadataRig()
    cluster.register(C, wiped=True)
    for broker in (A, B):
        cluster.register(broker)
    assert cluster.one().restarted == (A, B)
    own, wiped = cluster.answer(A, 10), cluster.answer(C, 0)
    assert isinstance(cluster.refused(cluster.name(A, own, wiped)), IneligibleReplicaError)


def test_a_leader_that_was_reported_is_not_named_in_that_election() -> None:
    """Even if its log is the longest."""
    cluster = MetadataRig()
    cluster.do(StartElection(**cluster.at, suspect=A))
    assert cluster.one().tried == (A,)
    assert A in candidates(cluster.state, cluster.one())
    assert isinstance(cluster.refused(cluster.name(A)), IneligibleReplicaError)


# ---------------------------------------------------------------------------- who is in sync


def test_every_change_of_a_partition_has_an_epoch_of_its_own() -> None:
    """The restart of a member that does not lead is such a change, too."""
    cluster = MetadataRig()
    before = cluster.one().partition_epoch
    cluster.register(B)
    assert cluster.one().partition_epoch == before + 1


def test_a_leader_that_was_eligible_begins_without_members_that_restarted() -> None:
    """They may lack its records, and were never compared."""
    cluster = MetadataRig()
    cluster.do(cluster.isr(A, B))
    cluster.do(cluster.isr(A))
    cluster.register(A)
    assert (cluster.one().isr, cluster.one().eligible) == ((A,), (B,))
    cluster.elect(B)
    assert (cluster.one().leader, cluster.one().isr) == (B, (B,))
    assert cluster.one().restarted == (A,), "it stays eligible, and is compared first"


def test_who_leaves_while_the_others_go_on_is_not_eligible() -> None:
    """The ISR commits without it. A replica with an empty disk is never eligible."""
    cluster = MetadataRig()
    cluster.fence(C)
    assert (cluster.one().isr, cluster.one().eligible) == ((A, B), ())
    cluster.do(cluster.isr(A))
    assert cluster.one().eligible == (B,)
    cluster.register(B, wiped=True)
    assert cluster.one().eligible == ()


def test_an_isr_has_its_leader_and_only_replicas() -> None:
    """Whatever else a leader proposes is refused."""
    cluster = MetadataRig()
    for members in ((B, C), (A, D)):
        assert isinstance(cluster.refused(cluster.isr(*members)), InvalidRequestError)


def test_the_newest_losses_are_kept() -> None:
    """An operator looks for the last one first."""
    partition = MetadataRig().one()
    for number in range(LOSSES_KEPT + 1):
        loss = Loss(
            leader_epoch=LeaderEpoch(1), leader=B, log_end=Offset(number), known_end=Offset(99),
            given_up=(A,), operator="olga",
        )  # fmt: skip
        partition = given_up(
            replace(partition, leader=None, status="offline", candidate=None), loss
        )
    assert [loss.log_end for loss in partition.losses] == list(range(1, LOSSES_KEPT + 1))


# ---------------------------------------------------------------------------- brokers


def test_a_former_process_of_a_broker_does_not_register_again() -> None:
    """Its message came late, and a newer process has the data folder."""
    cluster = MetadataRig()
    former = cluster.state.brokers[B].session
    cluster.register(B)
    late = RegisterBroker(broker=B, session=former, features_max=2)
    assert isinstance(cluster.refused(late), StaleBrokerEpochError)


def test_on_a_new_disk_no_log_is_missed() -> None:
    """Its logs were on the old disk; after a restart with the same disk a missing one is lost."""
    cluster = MetadataRig()
    cluster.do(MarkOpened(broker=B, broker_epoch=cluster.epoch(B), partitions={UUID: (0,)}))
    cluster.register(B)
    assert cluster.one().opened == (B,)
    cluster.register(B, wiped=True)
    assert cluster.one().opened == ()


def test_a_living_broker_is_not_removed() -> None:
    """Even if it has no replica."""
    cluster = MetadataRig()
    remove = RemoveBroker(broker=D, broker_epoch=cluster.epoch(D))
    assert isinstance(cluster.refused(remove), InvalidRequestError)
    cluster.fence(D)
    cluster.do(remove)


def test_the_feature_level_does_not_go_down() -> None:
    """The state may hold values that only the higher level knows."""
    cluster = MetadataRig()
    assert isinstance(cluster.refused(SetFeatureLevel(expected=2, level=1)), FeatureLevelError)


def test_ids_are_given_out_once() -> None:
    """The next range begins behind the one before."""
    state = MetadataState()
    firsts = []
    for count in (1, 5, 1):
        state, reply = apply(state, AllocateIds(count=count))
        assert isinstance(reply, dict)
        firsts.append(reply["first"])
    assert firsts == [1, 2, 7]


# ---------------------------------------------------------------------------- streams and leases


def test_another_shape_under_the_same_name_is_refused_whoever_proposes_it() -> None:
    """A stream that another client has just named has its own uuid."""
    cluster = MetadataRig()
    other = CreateStream(stream=_stream("s", partitions=3), leader=A, assignment=((A,),) * 3)
    assert isinstance(cluster.refused(other), StreamExistsError)


def test_a_lease_holds_from_the_cold_ends_of_its_own_moment() -> None:
    """An earlier lease of the stream keeps its own, lower cold ends."""
    cluster = MetadataRig()
    for number in (1, 2):
        cluster.do(
            TakeLease(
                lease_id=LeaseId(f"l{number}"),
                stream_uuid=UUID,
                owner="t",
                expires_us=100,
                now_us=1,
            )
        )
        cluster.do(RecordColdEnd(**AT, cold_end=Offset(7), leader_epoch=LeaderEpoch(1)))
    floors = {name: lease.floors for name, lease in cluster.state.leases.items()}
    assert floors == {"l1": (0,), "l2": (7,)}


def test_the_limit_of_the_metadata_itself_is_allowed() -> None:
    """One byte fewer refuses the stream."""
    cluster = MetadataRig()
    needed = cluster.state.weight + weight_of_stream(_stream(), 1)
    create = CreateStream(stream=_stream(), leader=A, assignment=((A,),), weight_max=needed - 1)
    assert isinstance(cluster.refused(create), MetadataFullError)
    cluster.do(replace(create, weight_max=needed))
    assert cluster.state.weight == needed


def test_an_epoch_of_nobody_is_stale() -> None:
    """A broker that is not registered decides nothing."""
    cluster = MetadataRig()
    gone = StopBroker(broker=BrokerId("gone"), broker_epoch=BrokerEpoch(0))
    assert isinstance(cluster.refused(gone), StaleBrokerEpochError)


def test_a_lease_weighs_by_its_partitions() -> None:
    """A lease has one floor for each partition, so its size grows with the stream."""
    floors = tuple(Offset(at) for at in range(1_000))
    weights = [
        weight_of_lease(LeaseState(stream_uuid=UUID, owner="t", expires_us=1, floors=floors[:many]))
        for many in (1, 1_000)
    ]
    assert weights[1] - weights[0] >= 999 * len("1000,")
