"""Random logs of metadata commands: what must hold for every one of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.changes import partition_changes
from broker.core.metadata.commands import (
    AllocateIds,
    AlterStream,
    ChangeIsr,
    Command,
    ConfirmLeader,
    CreateStream,
    DeleteStream,
    ElectUnclean,
    FenceBroker,
    NameCandidate,
    PurgeRecords,
    ReassignReplicas,
    RecordColdEnd,
    RegisterBroker,
    RemoveBroker,
    SetFeatureLevel,
    StartElection,
    StopBroker,
    TakeOffline,
    UnfenceBroker,
    WithdrawReplica,
    decode,
    encode,
)
from broker.core.metadata.partition_rules import candidates
from broker.core.metadata.placement import balance, hand_overs, place
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot, state_hash
from broker.core.metadata.state import FEATURE_LEVEL_MAX, MetadataState, PartitionState
from broker.errors import HeadwaterError
from broker.model.epochs import BrokerEpoch, LeaderEpoch, PartitionEpoch
from broker.model.ids import BrokerId, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from cases import seeds

BROKERS = [BrokerId(name) for name in "abcde"]
STEPS = 250


def _uuid(number: int) -> StreamUuid:
    return StreamUuid(f"00000000-0000-0000-0000-{number:012}")


class Proposers:
    """Draws commands as brokers and controllers would send them, now and then with old epochs."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.created = 0
        self.sessions: dict[BrokerId, str] = {}

    def draw(self, state: MetadataState) -> Command:
        """Return one command, more often about partitions once there are some."""
        if not state.partitions or self.rng.random() < 0.3:
            return self._about_brokers(state)
        return self._about_a_partition(state)

    def _epoch(self, state: MetadataState, broker: BrokerId) -> BrokerEpoch:
        present = state.brokers.get(broker)
        return BrokerEpoch(self._maybe_old(0 if present is None else present.epoch))

    def _maybe_old(self, value: int) -> int:
        return value - 1 if self.rng.random() < 0.05 else value

    def _about_brokers(self, state: MetadataState) -> Command:
        broker = self.rng.choice(BROKERS)
        epoch = self._epoch(state, broker)
        drawn = self.rng.random()
        if drawn < 0.3 or len(state.brokers) < 3:
            known = () if self.rng.random() < 0.2 else (self.sessions.get(broker, ""),)
            self.sessions[broker] = session = str(self.rng.random())
            return RegisterBroker(
                broker=broker,
                session=session,
                known_sessions=known,
                clean=self.rng.random() < 0.5,
                addresses={"peer": "127.0.0.1:1"},
                features_max=FEATURE_LEVEL_MAX,
            )
        if drawn < 0.45:
            return FenceBroker(broker=broker, broker_epoch=epoch)
        if drawn < 0.6:
            return UnfenceBroker(broker=broker, broker_epoch=epoch)
        if drawn < 0.63:
            return StopBroker(broker=broker, broker_epoch=epoch)
        if drawn < 0.66:
            return RemoveBroker(broker=broker, broker_epoch=epoch)
        if drawn < 0.7:
            level = self.rng.choice((1, 2, 3, FEATURE_LEVEL_MAX))
            return SetFeatureLevel(expected=state.feature_level, level=level)
        if drawn < 0.75:
            return AllocateIds(count=self.rng.randrange(1, 9))
        if drawn < 0.78 and state.streams:
            return self._altered(state)
        if drawn < 0.8 and state.streams:
            name, stream = self.rng.choice(sorted(state.streams.items()))
            return DeleteStream(name=name, expected_uuid=stream.uuid)
        return self._create(state)

    def _altered(self, state: MetadataState) -> Command:
        """Return a change of a stream, in some cases of its former state."""
        stream = state.streams[self.rng.choice(sorted(state.streams))]
        expected = stream
        if self.rng.random() < 0.1:
            expected = replace(stream, config=replace(stream.config, local_retention_bytes=1))
        change = self.rng.choice(
            ({"min_isr": self.rng.randrange(1, 4)}, {"partitions": 3}, {"local_retention_bytes": 7})
        )
        config = StreamConfig.from_dict({**stream.config.to_dict(), **change})
        return AlterStream(expected=expected, wanted=replace(stream, config=config))

    def _create(self, state: MetadataState) -> Command:
        self.created += 1
        partitions = self.rng.choice((1, 2))
        config = StreamConfig(
            subject=f"s{self.created}",
            partitions=partitions,
            flush=self.rng.choice(("always", "interval")),
        )
        stream = Stream(
            name=f"s{self.created}",
            uuid=_uuid(self.created),
            config=config,
            created_us=1,
            table_name="t",
        )
        factor = self.rng.choice((1, 2, 3))
        try:
            rows = place(state, partitions=partitions, replication_factor=factor)
        except HeadwaterError:
            rows = ()
        minimum = self.rng.randrange(1, factor + 1)
        return CreateStream(stream=stream, leader=BROKERS[0], assignment=rows, min_isr=minimum)

    def _about_a_partition(self, state: MetadataState) -> Command:
        uuid = self.rng.choice(sorted(state.partitions))
        number = self.rng.randrange(len(state.partitions[uuid]))
        one = state.partitions[uuid][number]
        place_of: dict[str, Any] = {"stream_uuid": uuid, "partition": number}
        epochs: dict[str, Any] = {
            "leader_epoch": LeaderEpoch(self._maybe_old(one.leader_epoch)),
            "partition_epoch": PartitionEpoch(self._maybe_old(one.partition_epoch)),
        }
        broker = self.rng.choice(one.replicas)
        epoch = self._epoch(state, broker)
        kind = self.rng.choice(
            ("isr", "isr", "isr", "withdraw", "start", "name", "name", "confirm", "confirm",
             "offline", "unclean", "reassign", "cold", "purge")
        )  # fmt: skip
        if kind == "isr":
            members = [m for m in one.replicas if self.rng.random() < 0.6 or m == one.leader]
            leader = one.leader or broker
            return ChangeIsr(
                **place_of, **epochs, broker=leader, broker_epoch=self._epoch(state, leader),
                isr={m: self._epoch(state, m) for m in members},
            )  # fmt: skip
        if kind == "withdraw":
            return WithdrawReplica(**place_of, broker=broker, broker_epoch=epoch)
        if kind == "start":
            suspect = self.rng.choice((None, one.leader))
            return StartElection(**place_of, **epochs, suspect=suspect)
        if kind == "name":
            pool = candidates(state, one) or (broker,)
            chosen = self.rng.choice(pool)
            return NameCandidate(
                **place_of, **epochs, candidate=chosen, candidate_epoch=self._epoch(state, chosen)
            )
        if kind == "confirm":
            named = one.candidate or broker
            return ConfirmLeader(
                **place_of, broker=named, broker_epoch=self._epoch(state, named),
                leader_epoch=epochs["leader_epoch"],
            )  # fmt: skip
        if kind == "offline":
            return TakeOffline(**place_of, **epochs)
        if kind == "unclean":
            return ElectUnclean(
                **place_of, partition_epoch=epochs["partition_epoch"], broker=broker,
                broker_epoch=epoch, log_end=Offset(3), known_end=Offset(9), operator="test",
                accept_data_loss=self.rng.random() < 0.8,
            )  # fmt: skip
        if kind == "reassign":
            living = sorted(state.brokers)
            target = tuple(self.rng.sample(living, min(len(living), self.rng.randrange(1, 4))))
            return ReassignReplicas(
                **place_of, partition_epoch=epochs["partition_epoch"], target=target
            )
        if kind == "purge":
            return PurgeRecords(
                **place_of, before=Offset(one.cold_end + self.rng.randrange(-2, 2)),
                leader_epoch=epochs["leader_epoch"], now_us=1,
            )  # fmt: skip
        return RecordColdEnd(
            **place_of, cold_end=Offset(one.cold_end + self.rng.randrange(-1, 5)),
            leader_epoch=epochs["leader_epoch"],
        )  # fmt: skip


def _check_partition(
    before: PartitionState | None, after: PartitionState, command: Command
) -> None:
    """Check that epochs only grow, each leader has its own epoch, and the ISR and ELR are valid."""
    assert set(after.isr) <= set(after.replicas)
    assert set(after.eligible) <= set(after.replicas)
    led = after.leader is not None
    assert not (led and after.eligible) or len(after.isr) < after.min_isr, (
        "eligible beside a whole ISR"
    )
    if before is None:
        return
    assert after.leader_epoch >= before.leader_epoch
    moved = after.cold_end > before.cold_end or after.purged_end > before.purged_end
    assert after.partition_epoch > before.partition_epoch or moved
    assert after.cold_end >= before.cold_end
    assert after.purged_end >= before.purged_end
    assert after.purged_end <= after.cold_end, "these streams are tiered"
    if after.leader is not None and after.leader != before.leader:
        assert isinstance(command, ConfirmLeader), "leadership begins with a confirmation"
        assert after.leader == before.candidate
    if before.leader is not None and after.leader != before.leader:
        assert after.leader_epoch > before.leader_epoch, "the old leader is not fenced"
    if before.leader is not None and set(before.replicas) - set(after.replicas):
        assert after.leader_epoch > before.leader_epoch, "replicas that left are not fenced"
    joined = set(after.isr) - set(before.isr)
    if joined and isinstance(command, ChangeIsr):
        assert command.leader_epoch == before.leader_epoch
        assert command.partition_epoch == before.partition_epoch


@pytest.mark.parametrize("seed", seeds(20))
def test_every_log_keeps_the_rules(seed: int) -> None:
    """Refusals change nothing, epochs only grow, and no replica that may lack a record leads."""
    rng = random.Random(seed)
    proposers = Proposers(rng)
    state, twin = MetadataState(), MetadataState()
    epochs: dict[BrokerId, int] = {}
    for index in range(STEPS):
        data = encode(proposers.draw(state))
        command = decode(data)
        assert encode(command) == data
        after, reply = apply(state, command)
        if isinstance(reply, Rejected):
            assert after is state, "a refused command changes nothing"
        for change in partition_changes(state, after):
            if change.after is not None:
                _check_partition(change.before, change.after, command)
        for broker, epoch in after.broker_epochs.items():
            assert epoch >= epochs.get(broker, 0), "a broker epoch was given out again"
            epochs[broker] = epoch
        twin, _ = apply(twin, decode(data))
        state = after
        if index % 50 == 49:
            assert state_hash(twin) == state_hash(state)
            restored, at = decode_snapshot(encode_snapshot(state, index))
            assert (restored, at) == (state, index)
            assert state_hash(restored) == state_hash(state)
            twin = restored  # a node that has restored a snapshot continues like the others
    for plan in (balance(state), *(hand_overs(state, one) for one in BROKERS)):
        for command in plan:
            _, reply = apply(state, command)
            assert not isinstance(reply, Rejected), "a plan is acceptable as it is made"


def test_logs_reach_every_status_and_every_command() -> None:
    """The random logs cover enough: each status occurs, and each command succeeds somewhere."""
    statuses: set[str] = set()
    accepted: set[str] = set()
    for seed in range(20):
        rng = random.Random(seed)
        proposers, state = Proposers(rng), MetadataState()
        for _ in range(STEPS):
            command = proposers.draw(state)
            state, reply = apply(state, command)
            if not isinstance(reply, Rejected):
                accepted.add(type(command).__name__)
            statuses |= {one.status for rows in state.partitions.values() for one in rows}
    assert statuses == {"online", "election", "candidate_found", "offline"}
    assert len(accepted) == 20, sorted(accepted)
