"""When a leader answers under each ack policy: one driver, with a follower and a lease by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.disk.files import DiskFiles
from broker.codec.record_batch import prepare
from broker.core.dedup import ProducerTable
from broker.core.replication.effects import ProposeIsr
from broker.core.replication.standing import StandingFetch, StandingReplica
from broker.core.replication.view import PartitionView
from broker.errors import (
    DiskFullError,
    HeadwaterError,
    NotEnoughReplicasError,
    NotLeaderError,
    SegmentCorruptError,
    may_be_stored,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import (
    NO_PRODUCER,
    BrokerId,
    PartitionId,
    PartitionNumber,
    ProducerId,
    StreamUuid,
)
from broker.model.lineage import Leadership, Lineage
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from broker.model.replica_messages import FetchRequest, LogPrefix, ReplicaMessage
from broker.model.stream import Stream, StreamConfig
from broker.runtime.partition.commit_scheduler import Turn
from broker.runtime.partition.context import (
    OpenedLog,
    PartitionNotices,
    PartitionPorts,
    StreamPartition,
)
from broker.runtime.partition.driver import PartitionDriver
from broker.runtime.partition.leadership_gate import SLEPT_MS, Claims
from broker.runtime.partition.local_log import LocalLog
from broker.runtime.partition.replica_shell import ReplicaIdentity
from broker.storage.log.partition_log import LogConfig, PartitionLog
from simkit.brokers.memory_broker import FakeClock

A, B = BrokerId("a"), BrokerId("b")
ALL, LEADER, NONE = AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE
LEASE_MS = 1_000
STREAM = Stream(
    name="s",
    uuid=StreamUuid("00000000-0000-4000-8000-000000000001"),
    config=StreamConfig(subject="s"),
    created_us=0,
    table_name="s",
)
VIEW = PartitionView(
    status="online",
    leader=A,
    candidate=None,
    leader_epoch=LeaderEpoch(1),
    partition_epoch=PartitionEpoch(1),
    replicas=(A, B),
    isr=frozenset({A, B}),
    min_isr=2,
    broker_epochs={A: BrokerEpoch(1), B: BrokerEpoch(2)},
    joinable=frozenset({A, B}),
)


class Turns:
    """A scheduler whose turns a test takes by hand."""

    def __init__(self) -> None:
        self._due: deque[Turn] = deque()

    def schedule(self, turn: Turn) -> None:
        """Queue a turn."""
        self._due.append(turn)

    def run_here(self, turn: Turn) -> None:
        """Take one at once."""
        turn.run_turn()

    def run(self) -> None:
        """Take all that are queued."""
        while self._due:
            self._due.popleft().run_turn()


class Links:
    """A broker's links: it loses every message and has the lease that the test gives it."""

    def __init__(self) -> None:
        self.until_ms = self.lapses_count = 0

    def send(self, to: BrokerId, message: ReplicaMessage) -> None:
        """Lose it."""

    def propose_isr(self, wanted: ProposeIsr, answered: Callable[[bool], None]) -> None:
        """Say nothing."""

    def confirm_leader(
        self, leader_epoch: LeaderEpoch, log_end: Offset, log_epoch: LeaderEpoch
    ) -> None:
        """Say nothing."""

    def report_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Say nothing."""

    def lease_until_ms(self, leader_epoch: LeaderEpoch) -> int:
        """Return the lease."""
        return self.until_ms

    def lease_lapses(self) -> int:
        """Return the lapses that the test has counted."""
        return self.lapses_count

    def keep(self, replica: StandingReplica, standing: Collection[StandingFetch]) -> None:
        """Keep nothing."""

    def withdraw(self, reason: HeadwaterError) -> None:
        """Say nothing."""

    def lead_changed(self, *, leads: bool) -> None:
        """Say nothing."""


class Scene:
    """The leader of a partition with one follower, which fetches when the test says so."""

    def __init__(self, root: Path, claims: Claims | None = None) -> None:
        self.clock, self.links, self.turns = FakeClock(), Links(), Turns()
        self.files = DiskFiles(root)
        number = PartitionNumber(0)
        self.log = PartitionLog.open(
            self.files, "log", PartitionId(STREAM.uuid, number), LogConfig()
        )
        self.grant()
        self.driver = PartitionDriver(
            StreamPartition(STREAM, 0),
            OpenedLog(log=self.log, begin_log=lambda *_: self.log, cold_end=Offset(0)),
            ReplicaIdentity(me=A, broker_epoch=BrokerEpoch(1)),
            PartitionPorts(
                clock=self.clock,
                scheduler=self.turns,  # type: ignore[arg-type]
                links=self.links,
            ),
            PartitionNotices(record_cold_end=lambda _partition, _end: None, claims=claims),
        )
        self.view(VIEW)
        self._request = 0

    def grant(self) -> None:
        """Give the broker a lease from now on."""
        now_ms = self.clock.monotonic_ms()
        self.links.lapses_count += now_ms >= self.links.until_ms
        self.links.until_ms = now_ms + LEASE_MS

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(us=ms * 1000)

    def view(self, view: PartitionView) -> None:
        """Show the driver a view of the metadata."""
        call = self.driver.replication.take_view(view)
        self.turns.run()
        self.driver.replication.view_taken(call)

    def put(self, policy: AckPolicy, *, run: bool = True, sequence: int = -1) -> list[Any]:
        """Submit a record, with ``sequence`` of one producer; return where its outcome comes."""
        heard: list[Any] = []

        def done(outcomes: Sequence[AppendResult | HeadwaterError]) -> None:
            heard.extend(outcomes)

        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
        producer = NO_PRODUCER if sequence < 0 else ProducerId(7)
        record = prepare(batch, now_us=1, producer_id=producer, base_sequence=sequence)
        self.driver.writes.submit([record], done, policy=policy)
        if run:
            self.turns.run()
        return heard

    def fetched(self, *, synced: int, wait_ms: int = 0) -> None:
        """Let the follower fetch; it has synced everything below ``synced``."""
        self._request += 1
        request = FetchRequest(
            follower=B,
            broker_epoch=BrokerEpoch(2),
            leader_epoch=LeaderEpoch(1),
            request_id=self._request,
            fetch_from=Offset(synced),
            last_epoch=LeaderEpoch(1 if synced else 0),
            synced_end=Offset(synced),
            wait_ms=wait_ms,
        )
        self.driver.replication.deliver(request)
        self.turns.run()

    def tick(self) -> None:
        """Let the replica look at its lease."""
        self.driver.replication.tick()
        self.turns.run()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Give a leader with a lease."""
    scene = Scene(tmp_path)
    yield scene
    scene.log.close()
    scene.files.close()


def test_each_policy_is_answered_at_its_own_time(scene: Scene) -> None:
    """In one group: LEADER and NONE after the leader's sync, ALL when the follower has synced."""
    all_, leader, none = (scene.put(policy, run=False) for policy in (ALL, LEADER, NONE))
    assert [all_, leader, none] == [[], [], []]
    scene.turns.run()
    assert scene.log.synced_end == 3
    assert [one.base_offset for one in leader + none] == [1, 2]
    assert all_ == []
    scene.fetched(synced=0)
    assert all_ == []
    scene.fetched(synced=1)
    assert [one.base_offset for one in all_] == [0]
    assert (len(leader), len(none)) == (1, 1), "no publish is answered twice"


def test_all_is_refused_below_the_minimum_where_leader_is_taken(scene: Scene) -> None:
    """With too few replicas in sync only the weaker policies store records."""
    scene.view(
        replace(VIEW, isr=frozenset({A}), partition_epoch=PartitionEpoch(VIEW.partition_epoch + 1))
    )
    (refusal,) = scene.put(ALL)
    assert isinstance(refusal, NotEnoughReplicasError)
    (stored,) = scene.put(LEADER)
    assert stored.base_offset == 0
    assert (scene.log.synced_end, scene.driver.reads.high_watermark) == (1, 0)


@pytest.mark.parametrize("policy", [ALL, LEADER, NONE])
def test_without_a_lease_nothing_is_taken(scene: Scene, policy: AckPolicy) -> None:
    """A leader that was suspended for too long refuses the writes that came meanwhile."""
    heard = scene.put(policy, run=False)
    scene.pass_ms(LEASE_MS)
    scene.turns.run()
    assert [type(one) for one in heard] == [NotLeaderError]
    assert scene.log.log_end == 0


@pytest.mark.parametrize("policy", [ALL, LEADER])
def test_a_pause_in_the_sync_leaves_no_ack(
    scene: Scene, policy: AckPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is checked after the sync: a leader whose sync outlived its lease acks nothing."""
    sync = PartitionLog.sync

    def slow_sync(log: PartitionLog) -> None:
        sync(log)
        scene.pass_ms(LEASE_MS)

    monkeypatch.setattr(PartitionLog, "sync", slow_sync)
    heard = scene.put(policy)
    assert scene.log.synced_end == 1
    assert heard == []
    scene.view(
        replace(VIEW, leader=B, leader_epoch=LeaderEpoch(2), partition_epoch=PartitionEpoch(2))
    )
    assert [type(one) for one in heard] == [NotLeaderError]


@pytest.mark.parametrize("policy", [ALL, LEADER])
def test_a_log_whose_damage_shows_while_a_group_is_written_answers_all_its_publishers(
    scene: Scene, policy: AckPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower waits for records, and what it should get is damaged on the leader's disk."""
    earlier = scene.put(ALL)
    scene.fetched(synced=1, wait_ms=500)
    assert [one.base_offset for one in earlier] == [0]

    def rot(*_: Any, **__: Any) -> None:
        raise SegmentCorruptError("simulated: a batch fails its checksum")

    monkeypatch.setattr(PartitionLog, "read", rot)
    heard = scene.put(policy)
    assert [type(one) for one in heard] == [SegmentCorruptError]
    assert may_be_stored(heard[0])
    assert isinstance(scene.driver.health.failure, SegmentCorruptError)


def test_a_retry_beside_a_write_that_found_no_room_waits_for_its_commit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses a group; the record of a retry in it is stored, and not committed yet."""
    first = scene.put(ALL, sequence=0)
    assert (scene.log.synced_end, first) == (1, [])

    def full(*_: Any, **__: Any) -> None:
        raise DiskFullError("simulated: no space left")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", full)
        retry = scene.put(ALL, run=False, sequence=0)
        fresh = scene.put(ALL, run=False, sequence=1)
        scene.turns.run()
    assert [type(one) for one in fresh] == [DiskFullError]
    assert retry == [], "a single broker holds it"
    scene.fetched(synced=1)
    assert [(one.base_offset, one.duplicate) for one in (*first, *retry)] == [(0, False), (0, True)]


def test_a_follower_below_the_log_s_start_is_told_where_it_begins_and_who_wrote_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at or below the cold end, with the producers of the records before that."""
    scene.put(ALL, sequence=0)
    scene.fetched(synced=1)
    scene.log.seal_active(1)
    scene.put(ALL, sequence=1)
    scene.log.free([Offset(0)])
    sent: list[Any] = []
    monkeypatch.setattr(scene.links, "send", lambda _, message: sent.append(message))
    scene.fetched(synced=0)
    (answer,) = sent
    assert (answer.refusal, answer.start) == ("below_start", 1)
    assert ProducerTable.from_state(answer.prefix.producers).expected(ProducerId(7)) == 1


def test_a_log_that_begins_at_the_cold_end_knows_no_epochs_below_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log never had these records. With epochs for them a follower could keep wrong ones."""
    scene.put(LEADER)
    begun: list[Any] = []

    def replaced(_: LocalLog, start: Offset, prefix: LogPrefix) -> None:
        begun.append((start, prefix.epochs))
        raise DiskFullError("the new log waits for room")

    monkeypatch.setattr(LocalLog, "replace", replaced)
    named: dict[str, Any] = {"leader": None, "candidate": A, "isr": frozenset()}
    epochs: dict[str, Any] = {"leader_epoch": LeaderEpoch(2), "partition_epoch": PartitionEpoch(2)}
    scene.view(replace(VIEW, status="candidate_found", cold_end=Offset(5), **named, **epochs))
    assert begun == [(5, ())]


def test_a_new_lease_proves_nothing_to_leader_acks(scene: Scene) -> None:
    """After a lapse another broker may lead, unknown here: LEADER waits for one commit."""
    scene.fetched(synced=0)
    before = scene.put(LEADER)
    assert len(before) == 1
    scene.pass_ms(LEASE_MS + 1)
    scene.grant()
    scene.tick()
    doubtful = scene.put(LEADER)
    assert scene.log.synced_end == 2
    assert doubtful == [], "the view that another leads may still be on its way"
    scene.fetched(synced=1)
    assert doubtful == [], "that record is older than the lapse, and the fetch may be, too"
    scene.fetched(synced=2)
    assert [one.base_offset for one in doubtful] == [1]
    assert len(scene.put(LEADER)) == 1, "its follower has followed since"


def test_a_lease_kept_in_time_keeps_leader_acks_quick(scene: Scene) -> None:
    """A lease that is extended before it ends casts no doubt."""
    scene.pass_ms(LEASE_MS - 1)
    scene.grant()
    scene.tick()
    scene.pass_ms(LEASE_MS - 1)
    assert len(scene.put(LEADER)) == 1


def test_who_slept_after_a_write_asks_the_lake_before_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the broker may lead meanwhile with its own lease, so the claim is checked first."""
    asked: list[PartitionId] = []

    def on_leading(partition: PartitionId, _lineage: Lineage) -> bool:
        asked.append(partition)
        return True

    sync = PartitionLog.sync

    def sync_and_sleep(log: PartitionLog) -> None:
        sync(log)
        leader.pass_ms(SLEPT_MS + 1)
        leader.grant()

    leader = Scene(tmp_path, Claims(on_leading, settle_ms=60_000))
    leadership = Leadership(leader_epoch=LeaderEpoch(1), lineage_id="a" * 32, start=Offset(0))
    leader.view(replace(VIEW, lineage=(leadership,), partition_epoch=PartitionEpoch(2)))
    leader.driver.tier.admit(leadership.lineage_id)
    leader.turns.run()
    monkeypatch.setattr(PartitionLog, "sync", sync_and_sleep)
    leader.fetched(synced=0)
    heard = leader.put(ALL)
    monkeypatch.undo()
    assert leader.log.synced_end == 1
    leader.fetched(synced=1)
    assert (leader.driver.reads.high_watermark, len(asked)) == (1, 2)
    assert heard == [], "the claim is not checked yet"
    leader.driver.tier.admit(leadership.lineage_id)
    leader.turns.run()
    leader.tick()
    assert [one.base_offset for one in heard] == [0]
    leader.log.close()
    leader.files.close()
