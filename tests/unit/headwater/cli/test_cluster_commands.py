"""``headwater cluster`` over real Flight, against the real state machine, without brokers."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    Command,
    ConfirmLeader,
    CreateStream,
    FenceBroker,
    RegisterBroker,
    StartElection,
    TakeOffline,
)
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState, PartitionState
from broker.core.raft.events import ChangeRefusal
from broker.errors import HeadwaterError, UnavailableError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.raft import GroupSeen, MemberSeen, NodeId, VoterChanged
from broker.model.replica_state import ReplicaState
from broker.model.stream import Stream, StreamConfig
from broker.runtime.operations import ClusterOperations
from headwater.cli.main import app
from simkit.brokers.memory_broker import FakeClock, MemoryBroker

Run = Callable[..., Any]

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
A, B, C, D = (BrokerId(name) for name in "abcd")
CONFIG = StreamConfig(subject="s", replication_factor=2, min_isr=1)
STREAM = Stream(name="s", uuid=UUID, config=CONFIG, created_us=1, table_name="s")
AT: dict[str, Any] = {"stream_uuid": UUID, "partition": 0}


class Cluster:
    """The metadata of four brokers; a named candidate confirms at once, if it may."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.confirms = self.answers = True
        self.asked: Callable[[], None] = lambda: None  # called at each request for the status
        self.found: list[Any] = []
        self.replicas = self.cold = self  # this object has the broker's interfaces, too

    def learn_end(self, name: str, partition: int) -> None:
        """There is no table."""

    def all(self) -> list[Any]:
        """Return the replicas of the broker that is asked."""
        return self.found

    def barrier(self, *, timeout_ms: int = 0) -> int:
        """Pass, if a majority answers."""
        self.asked()
        if not self.answers:
            raise UnavailableError("no majority")
        return 1

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """Apply, and let a candidate confirm."""
        self.state, reply = apply(self.state, command)
        if isinstance(reply, Rejected):
            raise reply.error
        one = self.one()
        if one is not None and one.candidate is not None and self.confirms:
            epoch = self.state.brokers[one.candidate].epoch
            confirm = ConfirmLeader(
                **AT, broker=one.candidate, broker_epoch=epoch, leader_epoch=one.leader_epoch
            )
            self.state, _ = apply(self.state, confirm)
        return reply

    def do(self, command: Command) -> None:
        """Propose what has to succeed."""
        self.propose(command)

    def one(self) -> PartitionState | None:
        """The partition, once there is one."""
        rows = self.state.partitions.get(UUID)
        return None if rows is None else rows[0]

    def find(self, partition_id: PartitionId) -> Any:
        """Return a local replica; there is none."""

    def refusal(self, partition_id: PartitionId) -> HeadwaterError | None:
        """Return why it is not open."""

    def unopened(self) -> dict[PartitionId, HeadwaterError]:
        """Every replica is open."""
        return {}

    def lose(self, broker: BrokerId) -> None:
        """Fence a broker."""
        self.do(FenceBroker(broker=broker, broker_epoch=self.state.brokers[broker].epoch))


class Voters:
    """The controllers as the leader b reports them; each change takes two calls."""

    def __init__(self) -> None:
        self.voters: tuple[str, ...] = ("a", "b", "c")
        self.leader: NodeId | None = NodeId("b")
        self.asked: Callable[[], None] = lambda: None  # called at each request for a change
        self.behind: set[str] = set()  # never catch up, however often they are asked about
        self._begun: set[str] = set()

    def group(self) -> GroupSeen:
        """Return who votes, and d."""
        names = sorted({*self.voters, "d"})
        seen = (MemberSeen(NodeId(one), one in self.voters, 0, 0) for one in names)
        return GroupSeen(self.leader, True, tuple(seen))

    def change_voter(self, node: NodeId, *, votes: bool) -> VoterChanged:
        """Begin a change, and finish it at the next call."""
        self.asked()
        if node == "nobody":
            return VoterChanged(False, ChangeRefusal.UNKNOWN.value, NodeId("b"))
        changes = (node in self.voters) != votes
        if changes and (node in self.behind or node not in self._begun):
            self._begun.add(node)
            return VoterChanged(False, ChangeRefusal.CATCHING_UP.value, NodeId("b"))
        self._begun.discard(node)
        others = {*self.voters} - {node}
        self.voters = tuple(sorted({*others, node} if votes else others))
        return VoterChanged(True, "", NodeId("b"))


@pytest.fixture
def cluster() -> Cluster:
    """Return four brokers, the first two of which hold a partition; the first leads."""
    found = Cluster()
    for broker in (A, B, C, D):
        found.do(
            RegisterBroker(broker=broker, session=f"{broker}1", features_max=FEATURE_LEVEL_MAX)
        )
    found.do(CreateStream(stream=STREAM, leader=A, assignment=((A, B),), min_isr=1))
    return found


@pytest.fixture
def voters() -> Voters:
    """Return three controllers."""
    return Voters()


@pytest.fixture
def run(
    cluster: Cluster, voters: Voters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Return a function that runs ``headwater cluster`` against broker b."""
    operations = ClusterOperations(
        cluster="hw", me=B, metadata=cluster, broker=cluster, clock=FakeClock(),
        controllers=("a", "b", "c"), controller=lambda: "a", voters=voters,
    )  # fmt: skip
    memory = MemoryBroker()
    config = FlightServiceConfig(host="127.0.0.1", port=0)
    service = FlightService(memory, FakeClock(), config, operations=operations)
    service.start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_SERVER", f"127.0.0.1:{service.port}")

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["cluster", *arguments])

    yield invoke
    service.close()
    memory.close()


def test_looking_works_for_people_and_scripts(run: Run, cluster: Cluster) -> None:
    """Status, brokers and partitions, each as lines and as JSON."""
    cluster.lose(D)
    assert "3 of 4 brokers alive, controller a" in run("status").stdout
    found = json.loads(run("status", "--json").stdout)
    assert [one["state"] for one in found["brokers"]] == ["alive", "alive", "alive", "fenced"]
    assert found["under_replicated_partitions"] == 0
    lines = run("partitions").stdout.splitlines()
    assert lines[0].split()[:3] == ["PARTITION", "STATUS", "LEADER"]
    assert lines[1].split()[:3] == ["s/0", "Online", "a"]
    assert json.loads(run("partitions", "s", "--json").stdout)["isr"] == ["a", "b"]
    assert len(run("brokers", "--json").stdout.splitlines()) == 4
    assert run("partitions", "nothing").exit_code == 2


def test_controllers_are_shown_added_removed_and_replaced(run: Run, voters: Voters) -> None:
    """Output tells what is waited for, warns of an even number, explains an impossible change."""
    lines = run("controllers").stdout.splitlines()
    assert lines[0].split()[:3] == ["BROKER", "VOTES", "LEADS"]
    assert lines[2].split()[:3] == ["b", "yes", "yes"]
    added = run("controllers", "add", "d")
    assert "not caught up" in added.output
    assert "The controllers are a, b, c, d." in added.output
    assert "survive the loss of 1" in added.output
    removed = run("controllers", "remove", "d").output
    assert "are a, b, c." in removed
    assert "nothing was changed" not in removed
    assert "d was not a controller: nothing was changed" in run("controllers", "remove", "d").stderr
    assert "are b, c, d." in run("controllers", "replace", "a", "d").output
    assert "are b, c, d." in run("controllers", "replace", "d", "d").output
    shown = map(json.loads, run("controllers", "--json").stdout.splitlines())
    assert {one["broker"]: one["votes"] for one in shown}["d"]
    refused = run("controllers", "add", "nobody")
    assert refused.exit_code == 2
    assert "cluster.brokers" in refused.output
    voters.behind.add("a")
    late = run("controllers", "add", "a", "--timeout", "1ms")
    assert late.exit_code != 0
    assert "to continue" in late.output


def test_controllers_without_a_leader_are_said_to_have_none(run: Run, voters: Voters) -> None:
    """Else the lines look as if all was well."""
    assert "majority" not in run("controllers").output
    voters.leader = None
    assert "No majority of the controllers answers" in run("controllers").stderr


def test_leaders_are_transferred_and_balanced(run: Run, cluster: Cluster) -> None:
    """Both commands wait for the change; a second time there is nothing to do."""
    assert "b leads s/0" in run("transfer-leader", "s", "0", "--to", "b").stdout
    assert run("transfer-leader", "s", "0", "--to", "b").exit_code == 0
    done = run("balance", "--json").stdout.splitlines()[-1]  # below this process's own log lines
    assert json.loads(done)["to"] == "a"
    assert "preferred leader" in run("balance").stdout
    one = cluster.one()
    assert one is not None
    assert one.leader == A


def test_waiting_ends_and_says_how_it_stands(run: Run, cluster: Cluster) -> None:
    """If the candidate does not confirm in time, the error names the present state."""
    cluster.confirms = False
    late = run("transfer-leader", "s", "0", "--to", "b", "--timeout", "1ms")
    assert late.exit_code == 3
    assert "s/0 is CandidateFound" in late.stderr
    assert run("transfer-leader", "s", "0", "--to", "b", "--no-wait").exit_code == 0


def test_a_move_is_decided_or_refused(run: Run, cluster: Cluster) -> None:
    """Without waiting it returns once it is decided; an impossible broker is named."""
    assert run("move", "s", "0", "--to", "b,c", "--no-wait").exit_code == 0
    one = cluster.one()
    assert one is not None
    assert one.target == (B, C)
    assert "moving to b c" in run("status").stdout
    refused = run("move", "s", "0", "--to", "b,nobody")
    assert refused.exit_code == 2
    assert "broker nobody is not registered" in refused.stderr
    assert "broker b is named twice" in run("move", "s", "0", "--to", "b,b").stderr
    late = run("move", "s", "0", "--to", "b,c", "--timeout", "1ms")
    assert late.exit_code == 3
    assert "in sync: b" in late.stderr


@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        (("move", "s", "0", "--to", "b,c"), "`headwater cluster partitions`"),
        (("transfer-leader", "s", "0", "--to", "b"), "`headwater cluster partitions`"),
        (("controllers", "add", "d"), "`headwater cluster controllers`"),
    ],
)
def test_an_interrupt_says_what_goes_on_without_the_command(
    run: Run, cluster: Cluster, voters: Voters, words: tuple[str, ...], goes_on: str
) -> None:
    """The change was decided: nobody should think that Ctrl-C took it back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    cluster.confirms = False
    asked = 0

    def interrupt() -> None:
        nonlocal asked
        asked += 1
        if asked > 3 or words[0] == "controllers":  # earlier calls ask for the change itself
            ident = threading.main_thread().ident
            assert ident is not None
            signal.pthread_kill(ident, signal.SIGINT)

    cluster.asked = voters.asked = interrupt
    ended = run(*words)
    assert ended.exit_code == 130, ended.output
    assert "Interrupted" in ended.stderr
    assert goes_on in ended.stderr


def test_records_are_given_up_only_when_that_is_said(run: Run, cluster: Cluster) -> None:
    """The loss is shown first, the flag accepts it, and the status shows it from then on."""
    cluster.lose(B)
    cluster.do(RegisterBroker(broker=B, session="b2", features_max=FEATURE_LEVEL_MAX))
    cluster.lose(A)
    one = cluster.one()
    assert one is not None
    epochs: dict[str, Any] = {
        "leader_epoch": one.leader_epoch, "partition_epoch": one.partition_epoch
    }  # fmt: skip
    if one.status == "online":
        cluster.do(StartElection(**AT, **epochs))
    else:
        cluster.do(TakeOffline(**AT, **epochs))
    cluster.found = [
        SimpleNamespace(
            stream=STREAM, partition_id=PartitionId(UUID, PartitionNumber(0)),
            refusal=None, state=ReplicaState.WAITING, health=SimpleNamespace(failure=None),
            replication=SimpleNamespace(
                synced_position=(LeaderEpoch(1), Offset(5)), view=None, leader=None,
                undisputed_end=lambda lineage, end: end,
            ),
            reads=SimpleNamespace(
                log_start=Offset(0), log_end=Offset(5), high_watermark=Offset(4),
                leader_epoch=LeaderEpoch(1),
            ),
        )
    ]  # fmt: skip
    asked = run("unclean-elect", "s", "0", "--broker", "b")
    assert asked.exit_code == 2
    assert "Every committed record is on a." in asked.stderr
    assert "ends at offset 5" in asked.stderr
    stranger = run("unclean-elect", "s", "0", "--broker", "c")
    assert "c holds no replica of s/0; a, b do" in stranger.stderr
    away = run("unclean-elect", "s", "0", "--broker", "a")
    assert "a is fenced, so it does not report the end of its log" in away.stderr
    cluster.answers = False
    assert (
        "No majority of the controllers answers"
        in run("unclean-elect", "s", "0", "--broker", "b", "--accept-data-loss").stderr
    )
    assert run("unclean-elect", "s", "0", "--broker", "x").exit_code == 2


def test_an_unclean_election_of_an_online_partition_is_refused(run: Run, cluster: Cluster) -> None:
    """Issue 11, item 15: it says who leads, that nothing is lost, and the command that is meant."""
    for accepted in ((), ("--accept-data-loss",)):
        asked = run("unclean-elect", "s", "0", "--broker", "b", *accepted)
        assert asked.exit_code == 2
        assert "s/0 is Online: a leads it, and nothing is lost" in asked.stderr
        assert "`headwater cluster transfer-leader`" in asked.stderr
    one = cluster.one()
    assert one is not None
    assert (one.leader, one.candidate) == (A, None)
    assert run("transfer-leader", "s", "0", "--to", "b").exit_code == 0, "what the message names"


def test_a_broker_is_removed_when_it_is_gone_for_good(run: Run, cluster: Cluster) -> None:
    """A living one, one with replicas, or one that votes, is not."""
    alive = run("remove-broker", "d")
    assert alive.exit_code == 2
    assert "it is alive: stop it" in alive.stderr
    cluster.lose(B)
    votes = run("remove-broker", "b")
    assert votes.exit_code == 2
    assert "it votes on the metadata" in votes.stderr
    assert run("controllers", "remove", "b").exit_code == 0, "what the message names"
    holds = run("remove-broker", "b").stderr
    assert "it holds 1 replica(s): move them to other brokers" in holds
    assert "stop it" not in holds
    cluster.lose(D)
    assert run("remove-broker", "d").exit_code == 0
    assert D not in cluster.state.brokers
    assert run("remove-broker", "d").exit_code == 2
