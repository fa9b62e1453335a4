"""The rules of leading, of the ISR, and of restarts, one by one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    BeginLeaderships,
    BegunLeadership,
    ConfirmLeader,
    CreateStream,
    ElectUnclean,
    NameCandidate,
    ReassignReplicas,
    RecordColdEnd,
    RegisterBroker,
    RemoveBroker,
    SetFeatureLevel,
    StartElection,
    TakeOffline,
    UnfenceBroker,
    WithdrawReplica,
    decode,
    encode,
)
from broker.core.metadata.partition_rules import candidates
from broker.core.metadata.placement import place
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_ACCESS,
    FEATURE_LEVEL_FENCED,
    FEATURE_LEVEL_MAX,
    MetadataState,
)
from broker.errors import (
    FeatureLevelError,
    HeadwaterError,
    IneligibleReplicaError,
    InvalidAssignmentError,
    InvalidRequestError,
    MetadataCorruptError,
    NotEnoughReplicasError,
    StaleBrokerEpochError,
    StaleLeaderEpochError,
    StalePartitionEpochError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.lineage import Leadership, first_lineage_id
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from simkit.brokers.metadata_rig import AT, UUID, A, B, C, D, MetadataRig


def test_losing_the_leader_goes_through_candidate_found_to_online() -> None:
    """Each step has an epoch of its own, and only the candidate can confirm."""
    cluster = MetadataRig()
    cluster.fence(A)
    assert (cluster.one().status, cluster.one().leader, cluster.one().isr) == (
        "election",
        None,
        (B, C),
    )
    assert cluster.one().leader_epoch == 2
    cluster.do(cluster.name(B))
    assert (cluster.one().status, cluster.one().candidate) == ("candidate_found", B)
    assert isinstance(cluster.refused(cluster.confirm(C)), HeadwaterError)
    cluster.do(cluster.name(C))  # B did not answer in time
    assert cluster.one().tried == (B,)
    late = ConfirmLeader(**AT, broker=B, broker_epoch=cluster.epoch(B), leader_epoch=LeaderEpoch(3))
    assert isinstance(cluster.refused(late), StaleLeaderEpochError)
    cluster.do(cluster.confirm(C))
    assert (cluster.one().status, cluster.one().leader, cluster.one().leader_epoch) == (
        "online",
        C,
        4,
    )


def test_an_isr_change_is_compared_inside_apply() -> None:
    """An old partition epoch, leader epoch or broker epoch is refused by name (A7)."""
    cluster = MetadataRig()
    shrink = cluster.isr(A, B)
    cluster.do(shrink)
    assert isinstance(cluster.refused(shrink), StalePartitionEpochError)
    expand = cluster.isr(A, B, C)
    cluster.register(C)  # it restarted between its fetch and the proposal (A8)
    assert isinstance(cluster.refused(expand), StaleBrokerEpochError)
    cluster.fence(C)
    assert isinstance(cluster.refused(cluster.isr(A, B, C)), IneligibleReplicaError)  # A9
    cluster.do(UnfenceBroker(broker=C, broker_epoch=cluster.epoch(C)))
    cluster.do(cluster.isr(A, B, C))
    old = cluster.isr(A, B)
    cluster.fence(A)
    assert isinstance(cluster.refused(old), IneligibleReplicaError)


def test_replicas_that_leave_below_min_isr_stay_eligible() -> None:
    """Nothing is committed below the minimum, so they lack nothing (KIP-966, A12)."""
    cluster = MetadataRig()
    cluster.do(cluster.isr(A, B))
    assert cluster.one().eligible == ()
    cluster.do(cluster.isr(A))
    assert cluster.one().eligible == (B,)
    cluster.fence(A)
    assert (cluster.one().isr, cluster.one().eligible) == ((), (A, B))
    assert candidates(cluster.state, cluster.one()) == (B,)
    cluster.elect(B)
    assert (cluster.one().isr, cluster.one().eligible) == ((B,), (A,))
    cluster.do(UnfenceBroker(broker=A, broker_epoch=cluster.epoch(A)))
    cluster.do(cluster.isr(A, B))
    assert cluster.one().eligible == ()


def test_a_replica_that_leaves_an_isr_which_commits_without_it_is_not_eligible() -> None:
    """The other replicas commit records that it lacks; its election would lose them."""
    cluster = MetadataRig()
    assert cluster.one().isr == (A, B, C)
    cluster.fence(C)
    assert (cluster.one().isr, cluster.one().eligible) == ((A, B), ())


def test_a_folder_that_is_not_the_last_session_s_proves_nothing() -> None:
    """A wiped, copied or restored folder is out of ISR and eligible as it registers (A8, D14)."""
    cluster = MetadataRig()
    cluster.register(B)
    assert cluster.one().isr == (A, B, C)
    cluster.register(B, wiped=True)
    assert cluster.one().isr == (A, C)
    cluster.do(cluster.isr(A))
    cluster.register(A, wiped=True)
    assert (cluster.one().status, cluster.one().isr, cluster.one().eligible) == (
        "election",
        (),
        (C,),
    )
    assert cluster.one().last_known_leader is None


def test_a_leader_that_restarts_gets_a_new_epoch() -> None:
    """Its unsynced records may be gone; the epoch must not hold two contents (A25)."""
    cluster = MetadataRig()
    cluster.register(A)
    assert (cluster.one().status, cluster.one().leader_epoch) == ("election", 2)
    assert (cluster.one().isr, cluster.one().restarted) == ((A, B, C), (A,))


def test_a_damaged_replica_withdraws_and_cannot_be_elected() -> None:
    """Rot or a failed fsync takes a replica out, the last one included: it fails closed."""
    cluster = MetadataRig(replicas=(A,), min_isr=1)
    cluster.do(WithdrawReplica(**AT, broker=A, broker_epoch=cluster.epoch(A)))
    assert cluster.one().status == "election"
    assert candidates(cluster.state, cluster.one()) == ()
    cluster.do(TakeOffline(**cluster.at))
    assert cluster.one().status == "offline"


def test_an_unclean_election_is_asked_for_and_recorded() -> None:
    """Only without a clean candidate, only with consent; the loss stays on record."""
    cluster = MetadataRig()
    cluster.do(cluster.isr(A, B))
    cluster.fence(B)
    cluster.fence(A)

    def force(*, accept: bool) -> ElectUnclean:
        return ElectUnclean(
            **AT, partition_epoch=cluster.one().partition_epoch, broker=C,
            broker_epoch=cluster.epoch(C), log_end=Offset(5), known_end=Offset(9),
            operator="olga", accept_data_loss=accept,
        )  # fmt: skip

    assert isinstance(cluster.refused(force(accept=False)), InvalidRequestError)
    cluster.do(force(accept=True))
    cluster.do(cluster.confirm(C))
    (loss,) = cluster.one().losses
    assert (loss.leader, loss.log_end, loss.known_end, loss.given_up) == (C, 5, 9, (A, B))
    assert (cluster.one().isr, cluster.one().eligible) == ((C,), ())
    healthy = MetadataRig()
    healthy.fence(A)
    assert isinstance(
        healthy.refused(
            ElectUnclean(
                **AT, partition_epoch=healthy.one().partition_epoch, broker=B,
                broker_epoch=healthy.epoch(B), log_end=Offset(0), known_end=Offset(0),
                operator="olga", accept_data_loss=True,
            )
        ),
        InvalidRequestError,
    )  # fmt: skip


def test_who_was_given_up_does_not_lead_in_the_place_of_the_one_that_was_named() -> None:
    """The former leader comes back before C is confirmed, and may lack records that C has."""
    cluster = MetadataRig()
    cluster.do(cluster.isr(A, B))
    cluster.fence(B)
    cluster.fence(A)
    force = ElectUnclean(
        **AT, partition_epoch=cluster.one().partition_epoch, broker=C,
        broker_epoch=cluster.epoch(C), log_end=Offset(9), known_end=Offset(9),
        operator="olga", accept_data_loss=True,
    )  # fmt: skip
    cluster.do(force)
    for former in (A, B):
        cluster.do(UnfenceBroker(broker=former, broker_epoch=cluster.epoch(former)))
    cluster.do(TakeOffline(**cluster.at))
    assert candidates(cluster.state, cluster.one()) == (C,)
    cluster.do(WithdrawReplica(**AT, broker=C, broker_epoch=cluster.epoch(C)))
    assert candidates(cluster.state, cluster.one()) == (), "the operator is asked again"


def test_old_replicas_leave_when_all_new_ones_are_in_sync() -> None:
    """A reassignment never drops a replica before its successors hold everything (A23)."""
    cluster = MetadataRig()
    cluster.do(ReassignReplicas(**AT, partition_epoch=cluster.one().partition_epoch, target=(D, B)))
    assert cluster.one().replicas == (D, B, A, C)
    cluster.do(cluster.isr(A, B, C, D))
    assert (cluster.one().replicas, cluster.one().isr) == ((D, B), (B, D))
    assert (cluster.one().status, cluster.one().candidate) == ("candidate_found", D)
    cluster.do(cluster.confirm(D))
    assert cluster.one().leader == D
    twice = ReassignReplicas(**AT, partition_epoch=cluster.one().partition_epoch, target=(D, D))
    assert isinstance(cluster.refused(twice), InvalidAssignmentError)


def _moved(cluster: MetadataRig, target: tuple[BrokerId, ...]) -> ReassignReplicas:
    return ReassignReplicas(**AT, partition_epoch=cluster.one().partition_epoch, target=target)


def test_replicas_that_leave_are_fenced_by_a_new_leader_epoch() -> None:
    """They may come back with an empty log: no fetch of the removed log has the new epoch."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_FENCED)
    cluster.do(_moved(cluster, (A, B, D)))
    assert (cluster.one().leader, cluster.one().leader_epoch) == (A, 1), "nobody has left"
    cluster.do(cluster.isr(A, B, C, D))
    assert (cluster.one().replicas, cluster.one().isr) == ((A, B, D), (A, B, D))
    assert (cluster.one().candidate, cluster.one().leader_epoch) == (A, 2)
    cluster.do(cluster.confirm(A))
    assert (cluster.one().leader, cluster.one().leader_epoch) == (A, 2)


def test_a_reassignment_that_is_taken_back_fences_the_replicas_that_leave() -> None:
    """Brokers that only began to copy leave at once, and with them their logs."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_FENCED)
    cluster.do(_moved(cluster, (A, B, D)))
    cluster.do(_moved(cluster, (C, A, B)))
    assert cluster.one().replicas == (C, A, B)
    assert (cluster.one().candidate, cluster.one().leader_epoch) == (A, 2)


def test_the_leader_goes_on_while_no_replica_leaves() -> None:
    """Another order, and more replicas, need no new leader epoch."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_FENCED)
    cluster.do(_moved(cluster, (C, B, A)))
    cluster.do(_moved(cluster, (C, B, A, D)))
    cluster.do(cluster.isr(A, B, C, D))
    assert (cluster.one().replicas, cluster.one().target) == ((C, B, A, D), ())
    assert (cluster.one().leader, cluster.one().leader_epoch) == (A, 1)


def test_replicas_that_leave_at_a_leader_s_confirmation_need_no_further_epoch() -> None:
    """Its epoch is new, and has had no leader so far to fetch from."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_FENCED)
    cluster.do(cluster.name(B))
    cluster.do(_moved(cluster, (B, C)))
    cluster.do(cluster.confirm(B))
    assert (cluster.one().replicas, cluster.one().leader) == ((B, C), B)
    assert cluster.one().leader_epoch == 2


def test_a_journal_of_an_older_build_is_replayed_as_it_was() -> None:
    """Below the feature level the leader goes on in its epoch, as its next commands say."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_ACCESS)
    cluster.do(_moved(cluster, (A, B)))
    assert (cluster.one().replicas, cluster.one().leader) == ((A, B), A)
    assert cluster.one().leader_epoch == 1


def test_a_reported_leader_leaves_the_isr_and_fences_itself_out() -> None:
    """The epoch of the reports is compared; the suspect rejoins like any other replica."""
    cluster = MetadataRig()
    report = StartElection(
        **AT, leader_epoch=LeaderEpoch(1), partition_epoch=PartitionEpoch(1), suspect=A
    )
    cluster.do(report)
    assert (cluster.one().status, cluster.one().isr) == ("election", (B, C))
    assert isinstance(cluster.refused(report), StaleLeaderEpochError)


def test_an_uploader_of_an_older_epoch_is_fenced() -> None:
    """A cold end may name the leader epoch it was shipped in."""
    cluster = MetadataRig()
    cluster.do(RecordColdEnd(**AT, cold_end=Offset(5), leader_epoch=LeaderEpoch(1)))
    cluster.fence(A)
    late = RecordColdEnd(**AT, cold_end=Offset(9), leader_epoch=LeaderEpoch(1))
    assert isinstance(cluster.refused(late), StaleLeaderEpochError)
    assert cluster.one().cold_end == 5


def test_mixed_versions_are_refused_by_feature_level() -> None:
    """A broker that does not understand the level stays out; the level never goes down."""
    cluster = MetadataRig()
    old = RegisterBroker(broker=BrokerId("e"), session="e", features_max=1)
    assert isinstance(cluster.refused(old), FeatureLevelError)
    assert isinstance(cluster.refused(SetFeatureLevel(expected=2, level=3)), FeatureLevelError)
    alone = MetadataState()
    alone, _ = apply(alone, RegisterBroker(broker=A))
    assert alone.feature_level == 1


def test_a_removed_broker_never_repeats_an_epoch() -> None:
    """Its old messages stay fenced when it comes back under the same name."""
    cluster = MetadataRig()
    cluster.fence(D)
    cluster.register(D)
    cluster.fence(D)
    before = cluster.epoch(D)
    cluster.do(RemoveBroker(broker=D, broker_epoch=before))
    cluster.register(D)
    assert cluster.epoch(D) > before
    cluster.fence(A)
    assert isinstance(
        cluster.refused(RemoveBroker(broker=A, broker_epoch=cluster.epoch(A))),
        InvalidRequestError,
    )


def test_new_replicas_go_where_the_fewest_are() -> None:
    """Replicas and leaders are spread over the living brokers."""
    cluster = MetadataRig()
    rows = place(cluster.state, partitions=4, replication_factor=2)
    assert all(len(set(row)) == 2 for row in rows)
    assert {row[0] for row in rows} >= {B, C, D}
    assert rows[0][0] == D or D in rows[0]


def test_brokers_that_are_away_fill_up_what_the_living_are_too_few_for() -> None:
    """They are chosen last and never lead first; only unregistered brokers are missing."""
    cluster = MetadataRig()
    cluster.fence(A)
    cluster.fence(B)
    assert {frozenset(row) for row in place(cluster.state, partitions=4, replication_factor=2)} == {
        frozenset({C, D})
    }
    rows = place(cluster.state, partitions=4, replication_factor=3)
    assert {row[0] for row in rows} == {C, D}
    assert {row[2] for row in rows} == {A, B}
    stream = Stream(
        name="t",
        uuid=StreamUuid("00000000-0000-0000-0000-000000000002"),
        config=StreamConfig(subject="t", partitions=4),
        created_us=1,
        table_name="t",
    )
    cluster.do(CreateStream(stream=stream, leader=C, assignment=rows, min_isr=2))
    assert {one.isr for one in cluster.state.partitions[stream.uuid]} == {(C, D)}
    with pytest.raises(NotEnoughReplicasError, match="4 are registered"):
        place(cluster.state, partitions=1, replication_factor=5)


def test_damaged_snapshots_are_named_and_newer_ones_refused() -> None:
    """Every changed byte is noticed; a feature level of the future stops the node."""
    cluster = MetadataRig()
    data = encode_snapshot(cluster.state, 7)
    assert decode_snapshot(data) == (cluster.state, 7)
    for position in range(0, len(data), 5):
        broken = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(MetadataCorruptError):
            decode_snapshot(broken)
    for cut in (b"", data[:10], data[:-1], data + b"x"):
        with pytest.raises(MetadataCorruptError):
            decode_snapshot(cut)
    assert struct.unpack_from("<Q", data, 8) == (7,)
    newer = MetadataState(feature_level=FEATURE_LEVEL_MAX + 1)
    with pytest.raises(FeatureLevelError):
        decode_snapshot(encode_snapshot(newer, 1))


@pytest.mark.parametrize(
    "data",
    [
        b'{"op":"FenceBroker","broker":"a","broker_epoch":"1"}',
        b'{"op":"FenceBroker","broker":"a","broker_epoch":true}',
        b'{"op":"FenceBroker","broker":"a","broker_epoch":99999999999999999999}',
        b'{"op":"FenceBroker","broker":"a","broker_epoch":1,"extra":1}',
        b'{"op":"FenceBroker","broker":"a"}',
        b'{"op":"ReassignReplicas","stream_uuid":"u","partition":0,"partition_epoch":1,"target":"ab"}',
        b'{"op":"RegisterBroker","broker":"a","addresses":[]}',
        b"[" * 100_000,
    ],
)
def test_a_command_of_the_wrong_shape_never_reaches_apply(data: bytes) -> None:
    """Types, names and bounds are checked as a command is decoded."""
    with pytest.raises(MetadataCorruptError):
        decode(data)


def test_each_start_of_leadership_is_in_the_lineage_once() -> None:
    """The entry has the id that its candidate drew and the log end at which it began."""
    cluster = MetadataRig()
    first = first_lineage_id(UUID, 0)
    assert [(one.lineage_id, one.start) for one in cluster.one().lineage] == [(first, 0)]
    cluster.fence(A)
    one = cluster.one()
    cluster.do(
        NameCandidate(
            **AT, leader_epoch=one.leader_epoch, partition_epoch=one.partition_epoch,
            candidate=B, candidate_epoch=cluster.epoch(B),
        )
    )  # fmt: skip
    confirm = ConfirmLeader(
        **AT, broker=B, broker_epoch=cluster.epoch(B), leader_epoch=cluster.one().leader_epoch,
        lineage_id="b" * 32, log_end=Offset(40), log_epoch=LeaderEpoch(1),
    )  # fmt: skip
    assert isinstance(cluster.refused(replace(confirm, lineage_id="b")), InvalidRequestError)
    for epoch in (-1, confirm.leader_epoch):
        wrong = replace(confirm, log_epoch=LeaderEpoch(epoch))
        assert isinstance(cluster.refused(wrong), InvalidRequestError)
    assert isinstance(cluster.refused(replace(confirm, log_end=Offset(-1))), InvalidRequestError)
    cluster.do(confirm)
    newest = cluster.one().lineage[-1]
    assert (newest.leader_epoch, newest.lineage_id, newest.start, newest.before) == (
        cluster.one().leader_epoch, "b" * 32, 40, 1,
    )  # fmt: skip
    assert len(cluster.one().lineage) == 2
    cluster.refused(replace(confirm, lineage_id="c" * 32))
    text = cluster.state.to_json()
    assert MetadataState.from_json(text) == cluster.state


def test_a_lone_broker_says_itself_that_it_begins_to_lead() -> None:
    """Once for each epoch; of a partition that it leads, in the epoch that it has."""
    state = MetadataState()
    stream = Stream(
        name="s", uuid=UUID, config=StreamConfig(subject="s"), created_us=1, table_name="s"
    )
    for command in (
        RegisterBroker(broker=A),
        CreateStream(stream=stream, leader=A),
        RegisterBroker(broker=A),
    ):
        state, _ = apply(state, command)
    one = state.partitions[UUID][0]

    def begin(epoch: int, lineage_id: str = "d" * 32, broker: BrokerId = A) -> BeginLeaderships:
        leadership = Leadership(
            leader_epoch=LeaderEpoch(epoch), lineage_id=lineage_id, start=Offset(12)
        )
        begun = BegunLeadership(stream_uuid=UUID, partition=0, leadership=leadership)
        return BeginLeaderships(broker=broker, broker_epoch=BrokerEpoch(2), begun=(begun,))

    after, reply = apply(state, decode(encode(begin(one.leader_epoch))))
    assert not isinstance(reply, Rejected)
    lineage = after.partitions[UUID][0].lineage
    assert [entry.lineage_id for entry in lineage] == [first_lineage_id(UUID, 0), "d" * 32]
    again, _ = apply(after, begin(one.leader_epoch, "e" * 32))
    assert again.partitions[UUID][0].lineage == lineage, "what came first stays"
    for wrong in (begin(one.leader_epoch + 1), begin(one.leader_epoch, broker=B)):
        same, reply = apply(state, wrong)
        assert isinstance(reply, Rejected)
        assert same is state
