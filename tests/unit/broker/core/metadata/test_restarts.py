"""What a restart proves (nothing), who may lead after it, and how a mark goes (decision 0014)."""

from __future__ import annotations

import pytest

from broker.core.metadata.commands import (
    ElectUnclean,
    ReassignReplicas,
    StopBroker,
    TakeOffline,
)
from broker.core.metadata.placement import balance, hand_overs
from broker.errors import IneligibleReplicaError, InvalidRequestError
from broker.model.epochs import BrokerEpoch
from broker.model.offsets import Offset
from simkit.brokers.metadata_rig import AT, A, B, C, D, MetadataRig


def test_a_leader_that_restarted_is_compared_before_it_leads_again() -> None:
    """Its own log proves nothing; it may lead if it reaches the log of a proved member."""
    cluster = MetadataRig()
    cluster.register(A)
    assert (cluster.one().status, cluster.one().restarted) == ("election", (A,))
    mine, proved = cluster.answer(A, 10), cluster.answer(B, 10)
    for answers in ((), (mine,), (proved,), (mine, cluster.answer(B, 11)), (mine, mine)):
        assert isinstance(cluster.refused(cluster.name(A, *answers)), IneligibleReplicaError)
    cluster.elect(A, mine, proved)
    assert (cluster.one().leader, cluster.one().restarted) == (A, ())


def test_a_proved_member_needs_no_comparison() -> None:
    """Its process has run since it was proved, so failover needs no answers of others."""
    cluster = MetadataRig()
    cluster.register(A)
    cluster.elect(B)
    assert (cluster.one().leader, cluster.one().isr, cluster.one().restarted) == (
        B,
        (A, B, C),
        (A,),
    )


def test_of_all_that_restarted_so_many_answer_that_one_cannot_have_forgotten() -> None:
    """Min ISR answers are needed. The last record's epoch is compared first, then the log end."""
    cluster = MetadataRig()
    for broker in (A, B, C):
        cluster.register(broker)
    assert cluster.one().restarted == (A, B, C)
    longest, shorter = cluster.answer(A, 10, last=2), cluster.answer(B, 20)
    assert isinstance(cluster.refused(cluster.name(B, longest, shorter)), IneligibleReplicaError)
    cluster.do(cluster.name(A, longest, shorter))


def test_a_known_loss_counts_against_the_fault_model() -> None:
    """The damaged replica is one of the min ISR - 1 tolerated losses: the last member may lead."""
    cluster = MetadataRig()
    for broker in (B, C):
        cluster.register(broker)
        others = {one: BrokerEpoch(0) for one in cluster.one().isr if one != broker}
        cluster.do(cluster.isr_of(others, forgotten=(broker,)))
    assert (cluster.one().isr, cluster.one().eligible) == ((A,), ())
    cluster.register(A)
    cluster.do(cluster.name(A, cluster.answer(A, 3)))


def test_an_answer_of_a_former_process_counts_for_nobody() -> None:
    """It is neither taken as the candidate's own nor compared with the candidate's."""
    cluster = MetadataRig()
    for broker in (A, B):
        cluster.register(broker)
    now = [cluster.answer(one, 10) for one in (A, B)]
    before = [cluster.answer(one, 10, former=1) for one in (A, B)]
    for answers in ((before[0], now[1]), (now[0], before[1])):
        assert isinstance(cluster.refused(cluster.name(A, *answers)), IneligibleReplicaError)
    outsider = cluster.answer(D, 10)
    assert isinstance(cluster.refused(cluster.name(A, now[0], outsider)), IneligibleReplicaError)
    cluster.do(cluster.name(A, *now))


def test_a_candidate_that_restarts_is_none_any_more() -> None:
    """It was chosen for the log of its former process, which the next one may not have."""
    cluster = MetadataRig()
    cluster.fence(A)
    cluster.do(cluster.name(B))
    cluster.register(B)
    assert (cluster.one().status, cluster.one().candidate) == ("election", None)
    assert (cluster.one().tried, cluster.one().restarted) == ((), (B,))


def test_a_mark_goes_with_the_present_broker_epoch_and_with_no_other() -> None:
    """A leader that has not seen this process hold every record sends 0, or an old epoch."""
    cluster = MetadataRig()
    former = cluster.epoch(B)
    cluster.register(B)
    for told in (BrokerEpoch(0), former):
        cluster.do(cluster.isr_of({A: cluster.epoch(A), B: told, C: BrokerEpoch(0)}))
        assert (cluster.one().isr, cluster.one().restarted) == ((A, B, C), (B,))
    cluster.do(cluster.isr_of({A: cluster.epoch(A), B: cluster.epoch(B), C: BrokerEpoch(0)}))
    assert cluster.one().restarted == ()


def test_who_has_forgotten_is_not_eligible_either() -> None:
    """Below min ISR other replicas stay eligible. No member of the ISR is marked as forgotten."""
    cluster = MetadataRig()
    cluster.register(B)
    alone = {A: cluster.epoch(A)}
    both = cluster.isr_of({**alone, B: BrokerEpoch(0)}, forgotten=(B,))
    assert isinstance(cluster.refused(both), InvalidRequestError)
    cluster.do(cluster.isr_of(alone, forgotten=(B,)))
    assert (cluster.one().isr, cluster.one().eligible, cluster.one().restarted) == ((A,), (C,), ())


def test_leadership_is_handed_to_proved_members_only() -> None:
    """This holds for a stopping broker, for balance, and at the end of a reassignment."""
    cluster = MetadataRig()
    for broker in (B, C):
        cluster.register(broker)
    cluster.do(StopBroker(broker=A, broker_epoch=cluster.epoch(A)))
    assert hand_overs(cluster.state, A) == []
    assert isinstance(cluster.refused(cluster.name(B)), IneligibleReplicaError)
    cluster.do(ReassignReplicas(**AT, partition_epoch=cluster.one().partition_epoch, target=(B, C)))
    whole = {one: cluster.epoch(one) for one in (A, B)}
    cluster.do(cluster.isr_of({**whole, C: BrokerEpoch(0)}))
    assert cluster.one().replicas == (B, C, A), "C has restarted and may lack what A has"
    (handed,) = hand_overs(cluster.state, A)
    assert handed.candidate == B
    cluster.do(cluster.isr_of({**whole, C: cluster.epoch(C)}))
    assert list(cluster.one().replicas) == [B, C]
    assert cluster.one().candidate == B
    assert balance(cluster.state) == []


def test_while_nobody_leads_who_goes_silent_stays_eligible() -> None:
    """Without a leader nothing is committed, so replicas stay complete until they come back."""
    cluster = MetadataRig()
    cluster.register(A)
    for broker in (B, C):
        cluster.fence(broker)
    assert (cluster.one().isr, cluster.one().eligible) == ((A,), (B, C))
    cluster.register(B)
    cluster.elect(A, cluster.answer(A, 10), cluster.answer(B, 10))
    assert (cluster.one().isr, cluster.one().eligible) == ((A,), (B, C))


@pytest.mark.parametrize("clean", [False, True])
def test_a_stream_that_syncs_by_interval_needs_a_clean_stop(clean: bool) -> None:
    """After a clean stop the member is marked like any other; without one it leaves the ISR."""
    cluster = MetadataRig(flush="interval")
    cluster.register(B, clean=clean)
    assert (B in cluster.one().isr, cluster.one().restarted) == (clean, (B,) if clean else ())


def test_an_operator_may_give_up_waiting_for_who_could_be_compared() -> None:
    """Only once the partition is offline, because a running election may still succeed."""
    cluster = MetadataRig()
    for broker in (A, B, C):
        cluster.register(broker)
    for broker in (B, C):
        cluster.fence(broker)

    def force() -> ElectUnclean:
        return ElectUnclean(
            **AT, partition_epoch=cluster.one().partition_epoch, broker=A,
            broker_epoch=cluster.epoch(A), log_end=Offset(5), known_end=Offset(9),
            operator="olga", accept_data_loss=True,
        )  # fmt: skip

    assert isinstance(cluster.refused(force()), InvalidRequestError)
    cluster.do(TakeOffline(**cluster.at))
    cluster.do(force())
    assert (cluster.one().candidate, cluster.one().restarted) == (A, ())
    assert cluster.one().losses[0].given_up == (A, B, C)
