"""Paused and read-only partitions in the metadata: conditions, effects, and what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    PausePartitions,
    ResumePartitions,
    SetReadonly,
    decode,
    encode,
)
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_LIFTBRIDGE,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
)
from broker.core.replication.view import view_of
from broker.errors import (
    FeatureLevelError,
    HeadwaterError,
    InvalidRequestError,
    StaleLeaderEpochError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, PartitionNumber, StreamUuid
from broker.model.stream import Stream, StreamConfig
from simkit.brokers.metadata_rig import UUID, B, MetadataRig


class Three:
    """A stream of three partitions at one broker."""

    def __init__(self) -> None:
        config = StreamConfig(subject="s", partitions=3)
        stream = Stream(name="s", uuid=UUID, config=config, created_us=1, table_name="s")
        self.state = MetadataState(feature_level=FEATURE_LEVEL_STREAMS)
        self.do(CreateStream(stream=stream, leader=BrokerId("a")))

    def do(self, command: Command) -> None:
        """Apply a command that has to succeed, by way of its bytes."""
        self.state, reply = apply(self.state, decode(encode(command)))
        assert not isinstance(reply, Rejected), reply.error

    def refused(self, command: Command) -> HeadwaterError:
        """Apply a command that has to be refused."""
        after, reply = apply(self.state, decode(encode(command)))
        assert isinstance(reply, Rejected)
        assert after is self.state
        return reply.error

    def pause(self, *partitions: int, now_us: int = 10, **more: Any) -> None:
        """Pause partitions; none named: all."""
        self.do(PausePartitions(stream_uuid=UUID, partitions=partitions, now_us=now_us, **more))

    def resume(self, *partitions: int, now_us: int = 20) -> None:
        """Resume partitions."""
        self.do(ResumePartitions(stream_uuid=UUID, partitions=partitions, now_us=now_us))

    def marked(self, name: str) -> list[bool]:
        """Return a mark of each partition."""
        return [getattr(one, name) for one in self.state.partitions[UUID]]


def test_some_partitions_or_all_are_paused_and_resumed() -> None:
    """No number means all of them; a pause of what is paused changes nothing."""
    cluster = Three()
    cluster.pause(1)
    assert cluster.marked("paused") == [False, True, False]
    state = cluster.state
    cluster.pause(1, now_us=11)
    assert cluster.state is state
    cluster.pause()
    assert cluster.marked("paused") == [True, True, True]
    cluster.resume(0, 2)
    assert cluster.marked("paused") == [False, True, False]
    cluster.resume()
    assert cluster.marked("paused") == [False, False, False]


def test_a_stream_that_was_paused_as_a_whole_is_resumed_as_a_whole() -> None:
    """Also by a publish to a partition that was not paused; a later pause may say otherwise."""
    cluster = Three()
    cluster.pause(1, 2, resume_all=True)
    assert cluster.marked("resumes_all") == [True, True, True]
    cluster.resume(0)
    assert cluster.marked("paused") == cluster.marked("resumes_all") == [False, False, False]
    cluster.pause(resume_all=True)
    cluster.pause()
    cluster.resume(0)
    assert cluster.marked("paused") == [False, True, True]


def test_read_only_partitions_are_set_and_cleared() -> None:
    """It is independent of a pause."""
    cluster = Three()
    cluster.pause(0)
    cluster.do(SetReadonly(stream_uuid=UUID, partitions=(0, 1), now_us=5))
    assert cluster.marked("readonly") == [True, True, False]
    cluster.resume()
    assert cluster.marked("readonly") == [True, True, False]
    cluster.do(SetReadonly(stream_uuid=UUID, readonly=False, now_us=6))
    assert cluster.marked("readonly") == [False, False, False]


def test_the_times_of_events_are_kept() -> None:
    """A pause and a resume count as one kind; a clock that goes back moves no time back."""
    cluster = Three()
    cluster.pause(0, now_us=10)
    cluster.resume(0, now_us=30)
    cluster.pause(0, now_us=20)
    for time_us in (7, 9, 8):
        cluster.do(SetReadonly(stream_uuid=UUID, partitions=(0,), now_us=time_us))
    row, other = cluster.state.partitions[UUID][:2]
    assert (row.pause_first_us, row.pause_latest_us) == (10, 30)
    assert (row.readonly_first_us, row.readonly_latest_us) == (7, 9)
    assert (other.pause_latest_us, other.readonly_first_us) == (0, 0)


def test_what_does_not_exist_is_refused_by_name() -> None:
    """Streams and partitions; one number that is wrong refuses all of them."""
    cluster = Three()
    for number in (3, -1):
        for kind in (PausePartitions, ResumePartitions, SetReadonly):
            wrong: Any = kind(stream_uuid=UUID, partitions=(0, number), now_us=1)
            assert isinstance(cluster.refused(wrong), UnknownPartitionError)
    gone = StreamUuid("00000000-0000-0000-0000-000000000009")
    assert isinstance(
        cluster.refused(PausePartitions(stream_uuid=gone, now_us=1)), UnknownStreamError
    )


def test_a_leader_pauses_its_own_idle_partition_only() -> None:
    """One that was replaced may not; `resume_all` of an earlier pause stays."""
    cluster = Three()
    epoch = cluster.state.partitions[UUID][1].leader_epoch
    late = LeaderEpoch(epoch + 1)
    idle = PausePartitions(stream_uuid=UUID, partitions=(1,), now_us=1, leader_epoch=late)
    assert isinstance(cluster.refused(idle), StaleLeaderEpochError)
    for wrong in ({"partitions": (0, 1)}, {"partitions": ()}, {"resume_all": True}):
        refused = cluster.refused(replace(idle, leader_epoch=epoch, **wrong))
        assert isinstance(refused, InvalidRequestError)
    cluster.pause(0, resume_all=True)
    cluster.do(replace(idle, leader_epoch=epoch))
    assert cluster.marked("paused") == [True, True, False]
    assert cluster.marked("resumes_all") == [True, True, True]


def test_a_pause_is_kept_through_snapshots_and_elections() -> None:
    """Leader, ISR and partition epoch stay; the next leader's view has it."""
    cluster = MetadataRig(features_max=FEATURE_LEVEL_STREAMS)
    cluster.state = replace(cluster.state, feature_level=FEATURE_LEVEL_STREAMS)
    before = cluster.one()
    cluster.do(PausePartitions(stream_uuid=UUID, resume_all=True, now_us=1))
    cluster.do(SetReadonly(stream_uuid=UUID, now_us=2))
    after = cluster.one()
    assert (after.leader, after.isr, after.partition_epoch) == (
        before.leader, before.isr, before.partition_epoch,
    )  # fmt: skip
    cluster.elect(B)
    state, _ = decode_snapshot(encode_snapshot(cluster.state, 9))
    assert state == cluster.state
    view = view_of(state, PartitionId(UUID, PartitionNumber(0)))
    assert view is not None
    assert (view.leader, view.paused, view.resumes_all, view.readonly) == (B, True, True, True)


def test_a_state_without_pauses_reads_as_before() -> None:
    """A build that knows no pause gets the text that it wrote itself."""
    cluster = Three()
    text = cluster.state.to_json()
    assert not any(word in text for word in ('"paused', '"pause_', '"readonly', '"resumes'))
    cluster.pause(0)
    assert '"paused":true' in cluster.state.to_json()
    assert MetadataState.from_json(cluster.state.to_json()) == cluster.state


@pytest.mark.parametrize("kind", [PausePartitions, ResumePartitions, SetReadonly])
def test_a_cluster_of_older_builds_refuses_it(kind: Any) -> None:
    """They would not know the command."""
    cluster = Three()
    cluster.state = replace(cluster.state, feature_level=FEATURE_LEVEL_LIFTBRIDGE)
    error = cluster.refused(kind(stream_uuid=UUID, now_us=1))
    assert isinstance(error, FeatureLevelError)
