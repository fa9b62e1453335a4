"""Commands that come too late, too early, or from a broker without the right to send them."""

from __future__ import annotations

from broker.core.metadata.commands import (
    ElectUnclean,
    MarkOpened,
    ReassignReplicas,
    SetFeatureLevel,
    StartElection,
    TakeOffline,
)
from broker.core.metadata.state import FEATURE_LEVEL_MAX
from broker.errors import FeatureLevelError, InvalidRequestError, StalePartitionEpochError
from broker.model.epochs import PartitionEpoch
from broker.model.offsets import Offset
from simkit.brokers.metadata_rig import AT, UUID, A, B, C, D, MetadataRig


def test_an_operator_s_command_is_of_the_newest_state_or_refused() -> None:
    """The operator's view may be old: another epoch than the present one is refused."""
    cluster = MetadataRig()
    cluster.fence(A)
    newest = cluster.one().partition_epoch
    assert newest > 1
    for epoch in (PartitionEpoch(newest - 1), PartitionEpoch(newest + 1)):
        unclean = ElectUnclean(
            **AT, partition_epoch=epoch, broker=C, broker_epoch=cluster.epoch(C),
            log_end=Offset(5), known_end=Offset(9), operator="olga", accept_data_loss=True,
        )  # fmt: skip
        assert isinstance(cluster.refused(unclean), StalePartitionEpochError)
        moved = ReassignReplicas(**AT, partition_epoch=epoch, target=(D, B))
        assert isinstance(cluster.refused(moved), StalePartitionEpochError)


def test_an_election_begins_once() -> None:
    """A second one would forget the answers that the first has collected."""
    cluster = MetadataRig()
    cluster.fence(A)
    assert cluster.one().status == "election"
    again = StartElection(**cluster.at, suspect=None)
    assert isinstance(cluster.refused(again), InvalidRequestError)


def test_an_offline_partition_gets_no_candidate_before_an_election_begins() -> None:
    """Without an election nobody was asked, so there are no answers to choose by."""
    cluster = MetadataRig()
    cluster.fence(A)
    cluster.do(TakeOffline(**cluster.at))
    assert isinstance(cluster.refused(cluster.name(B)), InvalidRequestError)
    cluster.do(StartElection(**cluster.at, suspect=None))
    assert cluster.one().status == "election"


def test_a_feature_level_is_set_on_the_one_that_was_expected() -> None:
    """Two operators do not raise it twice."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_MAX)
    level = cluster.state.feature_level
    for expected in (level - 1, level + 1):
        command = SetFeatureLevel(expected=expected, level=level)
        assert isinstance(cluster.refused(command), FeatureLevelError)


def test_only_replicas_have_opened_a_partition() -> None:
    """A mark by another broker would report a log as lost that never existed."""
    cluster = MetadataRig()
    for broker in (D, B):
        epoch = cluster.epoch(broker)
        cluster.do(MarkOpened(broker=broker, broker_epoch=epoch, partitions={UUID: (0,)}))
    assert (D in cluster.one().opened, B in cluster.one().opened) == (False, True)
