"""An operator's command becomes the right metadata command, against the real state machine.

The file is not split: all commands are asked of one small cluster, built at its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    ChangeIsr,
    Command,
    ConfirmLeader,
    CreateStream,
    FenceBroker,
    RegisterBroker,
    StartElection,
    TakeOffline,
    UnfenceBroker,
)
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import (
    FEATURE_LEVEL_ACCESS,
    FEATURE_LEVEL_FENCED,
    FEATURE_LEVEL_MAX,
    MetadataState,
    PartitionState,
)
from broker.core.raft.events import ChangeRefusal
from broker.errors import (
    DiskFullError,
    EnvelopeError,
    FeatureLevelError,
    HeadwaterError,
    IneligibleReplicaError,
    InvalidAssignmentError,
    InvalidRequestError,
    StalePartitionEpochError,
    UnavailableError,
    UnknownBrokerError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.cluster_status import ReplicaStatus
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.lineage import Leadership, Lineage, undisputed_end
from broker.model.offsets import Offset
from broker.model.raft import GroupSeen, MemberSeen, NodeId, VoterChanged
from broker.model.replica_state import ReplicaState
from broker.model.stream import Stream, StreamConfig
from broker.runtime.operations import ClusterOperations
from simkit.brokers.memory_broker import FakeClock

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
A, B, C, D = (BrokerId(name) for name in "abcd")


class Metadata:
    """The real state machine without a disk; ``overtake`` is a command that comes in between."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.proposed: list[Command] = []
        self.overtake: Callable[[], None] | None = None
        self.silent = False

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """Apply a command as a member of the group does."""
        overtake, self.overtake = self.overtake, None
        if overtake is not None:
            overtake()
        self.state, reply = apply(self.state, command)
        if isinstance(reply, Rejected):
            raise reply.error
        self.proposed.append(command)
        return reply

    def barrier(self, *, timeout_ms: int = 0) -> int:
        """Succeed, unless the test wants no majority."""
        if self.silent:
            raise UnavailableError("no leader confirmed the barrier")
        return 1

    def do(self, command: Command) -> None:
        """Apply a command that has to succeed."""
        self.propose(command)

    def one(self) -> PartitionState:
        """The partition."""
        return self.state.partitions[UUID][0]

    def confirm(self) -> None:
        """Let the candidate take over."""
        one = self.one()
        assert one.candidate is not None
        self.do(
            ConfirmLeader(
                stream_uuid=UUID, partition=0, broker=one.candidate,
                broker_epoch=self.state.brokers[one.candidate].epoch,
                leader_epoch=one.leader_epoch,
            )
        )  # fmt: skip

    def fence(self, broker: BrokerId) -> None:
        """Lose a broker."""
        self.do(FenceBroker(broker=broker, broker_epoch=self.state.brokers[broker].epoch))

    def unfence(self, broker: BrokerId) -> None:
        """Unfence a broker."""
        self.do(UnfenceBroker(broker=broker, broker_epoch=self.state.brokers[broker].epoch))

    def set_isr(self, *isr: BrokerId) -> None:
        """Let the leader change its ISR."""
        one = self.one()
        assert one.leader is not None
        self.do(
            ChangeIsr(
                stream_uuid=UUID, partition=0, broker=one.leader,
                broker_epoch=self.state.brokers[one.leader].epoch,
                leader_epoch=one.leader_epoch, partition_epoch=one.partition_epoch,
                isr={name: self.state.brokers[name].epoch for name in isr},
            )
        )  # fmt: skip


class Driver:
    """A replica with the interfaces that operations use."""

    def __init__(self, stream: Stream, end: int) -> None:
        self.stream = stream
        self.partition_id = PartitionId(stream.uuid, PartitionNumber(0))
        self.synced_position = (LeaderEpoch(1), Offset(end))
        self.log_end = self.high_watermark = Offset(end)
        self.log_start = Offset(0)
        self.epochs = EpochHistory.of([(LeaderEpoch(1), Offset(0))])
        self.leader_epoch = LeaderEpoch(1)
        self.failure = self.refusal = self.leader = self.view = None
        self.state = ReplicaState.WAITING
        self.reads = self.replication = self.health = self

    def undisputed_end(self, lineage: Lineage, end: Offset) -> Offset:
        """Compare the log with a lineage, as the product does."""
        return undisputed_end(lineage, self.epochs, start=self.log_start, end=end)


class Broker:
    """The partitions of a broker."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.not_open: dict[PartitionId, HeadwaterError] = {}
        self.asked: list[tuple[str, int]] = []
        self.replicas = self.cold = self  # this object has all the interfaces

    def learn_end(self, name: str, partition: int) -> None:
        """Note that the table was asked."""
        self.asked.append((name, partition))

    def all(self) -> list[Any]:
        """Return them."""
        return self.found

    def find(self, partition_id: PartitionId) -> Any:
        """Return the replica of a partition."""
        return next((one for one in self.found if one.partition_id == partition_id), None)

    def refusal(self, partition_id: PartitionId) -> HeadwaterError | None:
        """Return why a replica is not open."""
        return self.not_open.get(partition_id)

    def unopened(self) -> dict[PartitionId, HeadwaterError]:
        """Return what could not be opened."""
        return self.not_open


@pytest.fixture
def metadata() -> Metadata:
    """Four brokers; one stream on the first three, the first leads."""
    found = Metadata()
    for broker in (A, B, C, D):
        found.do(
            RegisterBroker(
                broker=broker, session=f"{broker}1", features_max=FEATURE_LEVEL_MAX,
                addresses={"flight": f"grpc://{broker}:1"},
            )
        )  # fmt: skip
    config = StreamConfig(subject="s", replication_factor=3, min_isr=2)
    stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
    found.do(CreateStream(stream=stream, leader=A, assignment=((A, B, C),), min_isr=2))
    return found


def _operations(
    metadata: Metadata,
    *,
    me: BrokerId = A,
    end: int = 7,
    controllers: tuple[str, ...] = ("a", "b", "c"),
) -> ClusterOperations:
    broker = Broker()
    if metadata.state.streams:
        broker.found = [Driver(metadata.state.streams["s"], end)]
    return ClusterOperations(
        cluster="hw", me=me, metadata=metadata, broker=broker, clock=FakeClock(),
        controllers=controllers, controller=lambda: "b",
    )  # fmt: skip


def test_status_says_what_the_metadata_says(metadata: Metadata) -> None:
    """Brokers with their led and held partitions, partitions with their ISR."""
    metadata.set_isr(A, B)
    metadata.fence(C)
    status = _operations(metadata).status()
    assert (status.controller, status.alone, status.confirmed) == ("b", False, True)
    assert [(one.broker, one.state, one.leads, one.replicas) for one in status.brokers] == [
        ("a", "alive", 1, 1), ("b", "alive", 0, 1), ("c", "fenced", 0, 1), ("d", "alive", 0, 0),
    ]  # fmt: skip
    (one,) = status.partitions
    assert (one.leader, one.isr, one.replicas) == ("a", ("a", "b"), ("a", "b", "c"))
    assert one.under_replicated
    assert not one.below_min_isr
    assert status.under_replicated == [one]
    assert status.offline == []


def test_status_without_a_majority_is_told_as_such(metadata: Metadata) -> None:
    """The local state is shown, marked as unconfirmed."""
    metadata.silent = True
    status = _operations(metadata).status()
    assert not status.confirmed
    assert len(status.partitions) == 1
    with pytest.raises(UnavailableError):
        _operations(metadata).transfer_leader("s", 0, "b")


def test_transfer_names_the_candidate_and_is_idempotent(metadata: Metadata) -> None:
    """Leadership goes to the named broker once it confirms; a second time nothing happens."""
    operations = _operations(metadata)
    assert operations.transfer_leader("s", 0, "b").changed
    assert (metadata.one().status, metadata.one().candidate) == ("candidate_found", B)
    metadata.confirm()
    assert metadata.one().leader == B
    assert not operations.transfer_leader("s", 0, "b").changed


def test_transfer_is_tried_again_when_overtaken(metadata: Metadata) -> None:
    """A change of the ISR between look and proposal is no reason to fail."""
    metadata.overtake = lambda: metadata.set_isr(A, B)
    assert _operations(metadata).transfer_leader("s", 0, "b").changed
    assert metadata.one().candidate == B


def test_transfer_refuses_who_may_not_lead(metadata: Metadata) -> None:
    """Refused: not in sync, not a replica, not registered, an unknown stream or partition."""
    metadata.set_isr(A, B)
    operations = _operations(metadata)
    for broker in ("c", "d"):
        with pytest.raises(IneligibleReplicaError):
            operations.transfer_leader("s", 0, broker)
    with pytest.raises(UnknownBrokerError):
        operations.transfer_leader("s", 0, "nobody")
    with pytest.raises(UnknownStreamError):
        operations.transfer_leader("t", 0, "b")
    with pytest.raises(UnknownPartitionError):
        operations.transfer_leader("s", 1, "b")


def test_move_keeps_the_old_until_the_new_are_in_sync(metadata: Metadata) -> None:
    """Until then old and new replicas hold it; then only the wanted ones, led by one of them."""
    operations = _operations(metadata)
    assert operations.move("s", 0, ["b", "d"]).changed
    assert set(metadata.one().replicas) == {A, B, C, D}
    assert not operations.move("s", 0, ["b", "d"]).changed
    assert operations.status().partitions[0].target == ("b", "d")
    metadata.set_isr(A, B, C, D)
    metadata.confirm()
    assert metadata.one().replicas == (B, D)
    assert metadata.one().leader == B


def test_the_first_move_raises_the_feature_level(metadata: Metadata) -> None:
    """Replicas that leave are fenced from then on; an older build would not fence them."""
    metadata.state = replace(metadata.state, feature_level=FEATURE_LEVEL_ACCESS)
    operations = _operations(metadata)
    assert not operations.move("s", 0, ["a", "b", "c"]).changed
    assert metadata.state.feature_level == FEATURE_LEVEL_ACCESS, "nothing moves"
    assert operations.move("s", 0, ["a", "b", "d"]).changed
    assert metadata.state.feature_level == FEATURE_LEVEL_FENCED


def test_no_partition_moves_while_an_older_build_runs(metadata: Metadata) -> None:
    """The refusal names the broker to upgrade; the partition stays where it is."""
    older = replace(metadata.state.brokers[D], features_max=FEATURE_LEVEL_ACCESS)
    brokers = {**metadata.state.brokers, D: older}
    metadata.state = replace(metadata.state, feature_level=FEATURE_LEVEL_ACCESS, brokers=brokers)
    with pytest.raises(FeatureLevelError, match="d"):
        _operations(metadata).move("s", 0, ["a", "b", "d"])
    assert metadata.state.partitions[UUID][0].target == ()


def test_move_refuses_what_cannot_hold_it(metadata: Metadata) -> None:
    """Too few for min ISR, twice the same, or strangers."""
    for target in (["b"], ["b", "b"], ["b", "nobody"]):
        with pytest.raises(InvalidAssignmentError):
            _operations(metadata).move("s", 0, target)


def test_balance_gives_leadership_back(metadata: Metadata) -> None:
    """The preferred leader leads again; where it does already, nothing is done."""
    operations = _operations(metadata)
    assert operations.balance() == []
    operations.transfer_leader("s", 0, "c")
    metadata.confirm()
    (done,) = operations.balance()
    assert (done.stream, done.to, done.changed) == ("s", "a", True)
    assert metadata.one().candidate == A


def test_balance_reports_what_was_overtaken(metadata: Metadata) -> None:
    """One partition's race does not keep the others from being balanced."""
    operations = _operations(metadata)
    operations.transfer_leader("s", 0, "c")
    metadata.confirm()
    metadata.overtake = lambda: metadata.set_isr(A, C)
    (done,) = operations.balance()
    assert not done.changed
    assert done.refused is not None


def _lose_everybody_but_c(metadata: Metadata) -> None:
    metadata.set_isr(A, B)
    metadata.fence(B)
    metadata.fence(A)
    one = metadata.one()
    at: dict[str, Any] = {"stream_uuid": UUID, "partition": 0}
    epochs: dict[str, Any] = {
        "leader_epoch": one.leader_epoch, "partition_epoch": one.partition_epoch
    }  # fmt: skip
    if one.status == "online":
        metadata.do(StartElection(**at, **epochs))
        one = metadata.one()
        epochs = {"leader_epoch": one.leader_epoch, "partition_epoch": one.partition_epoch}
    metadata.do(TakeOffline(**at, **epochs))


def _elect(operations: ClusterOperations, **changes: Any) -> None:
    status = operations.status()
    values: dict[str, Any] = {
        "broker": "c", "partition_epoch": status.partitions[0].partition_epoch, "known_end": 9,
        "operator": "me", "accept_data_loss": True, **changes,
    }  # fmt: skip
    operations.elect_unclean("s", 0, **values)


def test_an_unclean_election_records_what_was_lost(metadata: Metadata) -> None:
    """The broker's own end, the highest known end, the given-up replicas, the operator."""
    _lose_everybody_but_c(metadata)
    operations = _operations(metadata, me=C, end=7)
    _elect(operations)
    metadata.confirm()
    (one,) = operations.status().partitions
    assert (one.status, one.leader) == ("online", "c")
    (loss,) = one.losses
    assert (loss.log_end, loss.known_end, loss.operator) == (7, 9, "me")
    assert set(loss.given_up) == {"a", "b"}


def test_an_unclean_election_records_where_the_log_left_the_history(metadata: Metadata) -> None:
    """A later leader began at 5, without the two last records of this log."""
    _lose_everybody_but_c(metadata)
    (one,) = metadata.state.partitions[UUID]
    later = Leadership(leader_epoch=LeaderEpoch(2), lineage_id="2" * 32, start=Offset(5))
    row = replace(one, lineage=(*one.lineage, later))
    metadata.state = replace(metadata.state, partitions={UUID: (row,)})
    operations = _operations(metadata, me=C, end=7)
    (told,) = operations.replicas()
    assert (told.log_end, told.undisputed_end) == (7, 5)
    _elect(operations)
    (loss,) = operations.status().partitions[0].losses
    assert (loss.log_end, loss.known_end) == (5, 9)


def test_an_unclean_election_is_refused_unless_it_is_meant(metadata: Metadata) -> None:
    """Refused: without consent, at another broker, after an outdated look, or if not needed."""
    operations = _operations(metadata, me=C)
    with pytest.raises(InvalidRequestError):
        _elect(operations)  # it is online
    _lose_everybody_but_c(metadata)
    with pytest.raises(InvalidRequestError, match="accept"):
        _elect(operations, accept_data_loss=False)
    with pytest.raises(InvalidRequestError, match="send this request to"):
        _elect(_operations(metadata, me=A))
    with pytest.raises(StalePartitionEpochError):
        _elect(operations, partition_epoch=1)
    metadata.unfence(A)
    with pytest.raises(InvalidRequestError, match="can still lead"):
        _elect(operations)


def test_remove_wants_a_dead_and_empty_broker(metadata: Metadata) -> None:
    """A living one, or one with replicas, stays; a removed one is unknown."""
    operations = _operations(metadata, controllers=("a", "b"))
    with pytest.raises(InvalidRequestError, match="alive"):
        operations.remove_broker("d")
    metadata.fence(C)
    with pytest.raises(InvalidRequestError, match="1 replica"):
        operations.remove_broker("c")
    metadata.fence(D)
    operations.remove_broker("d")
    assert operations.status().broker("d") is None
    with pytest.raises(UnknownBrokerError):
        operations.remove_broker("d")


def test_remove_refuses_a_voter_and_says_who_takes_its_vote(metadata: Metadata) -> None:
    """A forgotten voter would count in every majority; the log's voters are asked, not the file."""
    metadata.fence(D)
    operations = _operations(metadata, controllers=("a", "b", "c", "d"))
    with pytest.raises(InvalidRequestError, match="`headwater cluster controllers remove d`"):
        operations.remove_broker("d")
    assert D in metadata.state.brokers
    without_vote = VoterChanged(True, "", NodeId("a"))
    _with_voters(metadata, without_vote).remove_broker("d")
    assert D not in metadata.state.brokers


def test_a_broker_alone_tells_its_status() -> None:
    """The same question works without a cluster, and says that there is none."""
    metadata = Metadata()
    metadata.do(RegisterBroker(broker=A))
    operations = ClusterOperations(
        cluster="hw", me=A, metadata=metadata, broker=Broker(), clock=FakeClock()
    )
    status = operations.status()
    assert (status.alone, status.controller, status.controllers) == (True, "a", ())
    assert status.brokers[0].controller


def test_replicas_are_told_by_their_broker(metadata: Metadata) -> None:
    """Ends and epochs of the logs that are here."""
    (one,) = _operations(metadata, me=C, end=7).replicas()
    assert (one.broker, one.stream, one.partition, one.log_end, one.last_epoch) == (
        "c", "s", 0, 7, 1
    )  # fmt: skip


def test_a_replica_that_could_not_be_opened_is_told_with_its_reason(metadata: Metadata) -> None:
    """It is listed because it belongs to this broker; replicas of a deleted stream are not."""
    broker = Broker()
    gone = StreamUuid("00000000-0000-4000-8000-0000000000ff")
    for uuid in (UUID, gone):
        broker.not_open[PartitionId(uuid, PartitionNumber(0))] = DiskFullError("no room for a log")
    operations = ClusterOperations(
        cluster="hw", me=A, metadata=metadata, broker=broker, clock=FakeClock()
    )
    (one,) = operations.replicas()
    assert (one.stream, one.partition, one.state) == ("s", 0, "opening")
    assert one.failure == "no room for a log"
    assert ReplicaStatus.from_dict(one.to_dict()) == one


def test_what_an_older_broker_tells_is_understood(metadata: Metadata) -> None:
    """Fields that it does not know have their defaults; a field without one may not be missing."""
    (one,) = _operations(metadata).replicas()
    told = one.to_dict()
    del told["state"]
    assert ReplicaStatus.from_dict(told).state == ""
    del told["log_end"]
    with pytest.raises(EnvelopeError, match="log_end"):
        ReplicaStatus.from_dict(told)


class Voters:
    """The controllers as one member sees them; a change gets the answer that was put in."""

    voters = ("a", "b", "c")

    def __init__(self, answer: VoterChanged) -> None:
        self._answer = answer

    def group(self) -> GroupSeen:
        """Return a voter that leads, and one that watches."""
        seen = (MemberSeen(NodeId("a"), True, 0, 0), MemberSeen(NodeId("d"), False, 3, 40))
        return GroupSeen(NodeId("a"), True, seen)

    def change_voter(self, node: NodeId, *, votes: bool) -> VoterChanged:
        """Answer as was said."""
        return self._answer


def _with_voters(metadata: Metadata, answer: VoterChanged) -> ClusterOperations:
    return ClusterOperations(
        cluster="hw", me=A, metadata=metadata, broker=Broker(), clock=FakeClock(),
        controllers=("d",), controller=lambda: "a", voters=Voters(answer),
    )  # fmt: skip


def test_controllers_are_those_of_the_log_not_of_the_file(metadata: Metadata) -> None:
    """The status shows them, too; the leader reports how far the others are."""
    operations = _with_voters(metadata, VoterChanged(True, "", NodeId("a")))
    assert operations.status().controllers == ("a", "b", "c")
    found = operations.controllers()
    assert (found.leader, found.settled, found.voters) == ("a", True, ["a"])
    assert [(one.broker, one.behind, one.leads) for one in found.members] == [
        ("a", 0, True),
        ("d", 3, False),
    ]
    assert type(found).from_dict(found.to_dict()) == found
    changed = operations.change_controller("d", votes=True)
    assert (changed.done, changed.leader) == (True, "a")


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (ChangeRefusal.UNKNOWN, UnknownBrokerError),
        (ChangeRefusal.LAST, InvalidRequestError),
        (ChangeRefusal.TOO_MANY, InvalidRequestError),
        (ChangeRefusal.FIXED, InvalidRequestError),
    ],
)
def test_a_change_that_can_never_be_is_an_error(
    metadata: Metadata, reason: ChangeRefusal, error: type[Exception]
) -> None:
    """Everything else is worth another try."""
    operations = _with_voters(metadata, VoterChanged(False, reason.value, None))
    with pytest.raises(error):
        operations.change_controller("d", votes=True)


def test_a_broker_alone_has_no_controllers_to_change(metadata: Metadata) -> None:
    """The error says how to make a cluster of it."""
    operations = ClusterOperations(
        cluster="hw", me=A, metadata=metadata, broker=Broker(), clock=FakeClock()
    )
    for ask in (operations.controllers, lambda: operations.change_controller("d", votes=True)):
        with pytest.raises(InvalidRequestError, match="broker alone"):
            ask()
