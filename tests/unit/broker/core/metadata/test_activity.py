"""The outbox of the activity stream: which commands are noted, in which order, and its bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata import activity
from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    JoinGroup,
    JoinMember,
    LeaveGroup,
    LeaveMember,
    PausePartitions,
    ResumePartitions,
    SetReadonly,
    TrimActivity,
    decode,
    encode,
)
from broker.core.metadata.size import weigh
from broker.core.metadata.state import (
    FEATURE_LEVEL_LIFTBRIDGE,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
)
from broker.errors import FeatureLevelError, HeadwaterError, StreamRecreatedError
from broker.model.activity import ACTIVITY_STREAM, ActivityEvent, ActivityOutbox
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig

ME = BrokerId("a")


def uuid(number: int) -> StreamUuid:
    """Return a stream uuid."""
    return StreamUuid(f"00000000-0000-0000-0000-{number:012}")


class Cluster:
    """One broker's metadata; every command goes by way of its bytes."""

    def __init__(self, level: int = FEATURE_LEVEL_STREAMS) -> None:
        self.state = MetadataState(feature_level=level)

    def do(self, command: Command) -> None:
        """Apply a command that has to succeed."""
        self.state, reply = apply(self.state, decode(encode(command)))
        assert not isinstance(reply, Rejected), reply.error
        assert self.state.weight == weigh(self.state)
        assert MetadataState.from_json(self.state.to_json()) == self.state

    def refused(self, command: Command) -> HeadwaterError:
        """Apply a command that has to be refused."""
        after, reply = apply(self.state, decode(encode(command)))
        assert isinstance(reply, Rejected)
        assert after is self.state
        return reply.error

    def create(self, name: str, number: int, partitions: int = 1) -> None:
        """Create a stream."""
        config = StreamConfig(subject=name.strip("_"), partitions=partitions)
        stream = Stream(name=name, uuid=uuid(number), config=config, created_us=1, table_name=name)
        self.do(CreateStream(stream=stream, leader=ME))

    def delete(self, name: str) -> None:
        """Delete a stream."""
        self.do(DeleteStream(name=name, expected_uuid=self.state.streams[name].uuid))

    @property
    def outbox(self) -> ActivityOutbox:
        """The outbox, which is there."""
        assert self.state.activity is not None
        return self.state.activity

    def told(self) -> list[dict[str, Any]]:
        """Return what waits, without the fields that an event does not use."""
        values = [
            {name: getattr(one, name) for name in ActivityEvent.__slots__}
            for one in self.outbox.events
        ]
        return [{name: one for name, one in row.items() if one} for row in values]


def test_every_kind_of_event_is_noted_in_the_order_of_the_commands() -> None:
    """The first event is the creation of the activity stream itself."""
    cluster = Cluster()
    cluster.create("before", 1)
    assert cluster.state.activity is None
    cluster.create(ACTIVITY_STREAM, 2)
    cluster.create("s", 3, partitions=3)
    at: dict[str, Any] = {"stream_uuid": uuid(3), "now_us": 1}
    cluster.do(PausePartitions(**at, partitions=(2, 0), resume_all=True))
    cluster.do(ResumePartitions(**at, partitions=(1,)))
    cluster.do(SetReadonly(**at, partitions=(1,)))
    cluster.do(SetReadonly(**at, readonly=False))
    cluster.do(JoinGroup(group="g", member="m", streams=("s",), coordinator=ME))
    cluster.do(JoinGroup(group="g", member="n", streams=("s",), coordinator=ME))
    cluster.do(LeaveGroup(group="g", member="n"))
    epoch = cluster.state.groups["g"].epoch
    cluster.do(LeaveGroup(group="g", member="m", epoch=epoch))
    cluster.delete("s")
    assert cluster.told() == [
        {"id": 1, "op": "create_stream", "stream": ACTIVITY_STREAM, "partitions": (0,)},
        {"id": 2, "op": "create_stream", "stream": "s", "partitions": (0, 1, 2)},
        {"id": 3, "op": "pause_stream", "stream": "s", "partitions": (0, 2), "flag": True},
        {"id": 4, "op": "resume_stream", "stream": "s", "partitions": (0, 1, 2)},
        {"id": 5, "op": "set_stream_readonly", "stream": "s", "partitions": (1,), "flag": True},
        {"id": 6, "op": "set_stream_readonly", "stream": "s", "partitions": (0, 1, 2)},
        {"id": 7, "op": "join_consumer_group", "group": "g", "member": "m", "streams": ("s",)},
        {"id": 8, "op": "join_consumer_group", "group": "g", "member": "n", "streams": ("s",)},
        {"id": 9, "op": "leave_consumer_group", "group": "g", "member": "n"},
        {"id": 10, "op": "leave_consumer_group", "group": "g", "member": "m", "flag": True},
        {"id": 11, "op": "delete_stream", "stream": "s"},
    ]


def test_members_of_our_own_client_are_noted_alike() -> None:
    """A process that takes the place of a static member does not join again."""
    cluster = Cluster()
    cluster.create(ACTIVITY_STREAM, 1)
    cluster.create("s", 2)
    join = JoinMember(
        group="g", member="m", instance="a" * 32, streams=("s",), session_ms=10_000,
        coordinator=ME, static=True,
    )  # fmt: skip
    cluster.do(join)
    cluster.do(replace(join, instance="b" * 32))
    cluster.do(LeaveMember(group="g", member="m", instance="b" * 32, expelled_by=ME))
    assert [(one["op"], one.get("flag", False)) for one in cluster.told()[2:]] == [
        ("join_consumer_group", False),
        ("leave_consumer_group", True),
    ]


def test_a_command_that_changes_nothing_or_is_refused_is_no_event() -> None:
    """A pause of what is paused; a stream that is there already."""
    cluster = Cluster()
    cluster.create(ACTIVITY_STREAM, 1)
    cluster.create("s", 2)
    pause = PausePartitions(stream_uuid=uuid(2), now_us=1)
    cluster.do(pause)
    count = len(cluster.outbox.events)
    cluster.do(pause)
    cluster.create("s", 2)
    cluster.refused(DeleteStream(name="no", expected_uuid=uuid(9)))
    assert len(cluster.outbox.events) == count


def test_what_is_stored_leaves_the_outbox_and_ids_go_on() -> None:
    """A trim that comes twice, or late, does no harm."""
    cluster = Cluster()
    cluster.create(ACTIVITY_STREAM, 1)
    for number in range(2, 6):
        cluster.create(f"s{number}", number)
    cluster.do(TrimActivity(stream_uuid=uuid(1), through=3))
    assert [one.id for one in cluster.outbox.events] == [4, 5]
    state = cluster.state
    cluster.do(TrimActivity(stream_uuid=uuid(1), through=2))
    assert cluster.state is state
    cluster.do(TrimActivity(stream_uuid=uuid(1), through=9))
    assert (cluster.outbox.events, cluster.outbox.weight) == ((), 0)
    cluster.create("s9", 9)
    assert [one.id for one in cluster.outbox.events] == [6]


def test_a_deleted_activity_stream_notes_nothing_and_a_new_one_goes_on_with_the_ids() -> None:
    """An old leader cannot take away what only the new stream is to get."""
    cluster = Cluster()
    cluster.create(ACTIVITY_STREAM, 1)
    cluster.create("s", 2)
    cluster.delete(ACTIVITY_STREAM)
    assert not cluster.outbox.open
    cluster.create("t", 3)
    assert cluster.told() == []
    trim = TrimActivity(stream_uuid=uuid(1), through=9)
    assert isinstance(cluster.refused(trim), StreamRecreatedError)
    cluster.create(ACTIVITY_STREAM, 4)
    assert cluster.told() == [
        {"id": 3, "op": "create_stream", "stream": ACTIVITY_STREAM, "partitions": (0,)}
    ]
    assert isinstance(cluster.refused(trim), StreamRecreatedError)


def test_the_outbox_is_bounded_and_tells_how_many_it_gave_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By number and by weight; the oldest go, and the ids show it."""
    monkeypatch.setattr(activity, "OUTBOX_EVENTS_MAX", 5)
    cluster = Cluster()
    cluster.create(ACTIVITY_STREAM, 1)
    for number in range(2, 12):
        cluster.create(f"s{number}", number)
    assert [one.id for one in cluster.outbox.events] == [7, 8, 9, 10, 11]
    assert cluster.outbox.given_up == 6
    monkeypatch.setattr(activity, "OUTBOX_WEIGHT_MAX", 300)
    cluster.create("wide", 20, partitions=30)
    assert [one.id for one in cluster.outbox.events] == [12]
    assert cluster.outbox.weight <= 300


def test_the_weight_of_an_event_bounds_its_text() -> None:
    """So the bound of the outbox bounds what a snapshot takes."""
    cluster = Cluster()
    cluster.create(ACTIVITY_STREAM, 1)
    cluster.create("s" * 100, 2, partitions=1024)
    text = cluster.state.to_json()
    events = text[text.index('"events":') : text.index('"given_up"')]
    assert len(events) <= cluster.outbox.weight


def test_older_builds_note_nothing() -> None:
    """A stream of this name that a user made before is an ordinary stream, also later."""
    cluster = Cluster(level=FEATURE_LEVEL_LIFTBRIDGE)
    cluster.create(ACTIVITY_STREAM, 1)
    assert cluster.state.activity is None
    trim = TrimActivity(stream_uuid=uuid(1), through=9)
    assert isinstance(cluster.refused(trim), FeatureLevelError)
    cluster.state = replace(cluster.state, feature_level=FEATURE_LEVEL_STREAMS)
    cluster.create("s", 2)
    assert cluster.state.activity is None
    assert isinstance(cluster.refused(trim), StreamRecreatedError)
    assert '"activity":' not in cluster.state.to_json()
