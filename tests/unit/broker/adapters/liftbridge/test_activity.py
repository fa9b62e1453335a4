"""Events of the activity stream as protobuf messages: each kind, field by field."""

from __future__ import annotations

import pytest

from broker.adapters.liftbridge.activity import encode_event
from broker.model.activity import ActivityEvent
from broker.wire.liftbridge import api_pb2 as api

EVENTS = [
    (
        ActivityEvent(id=1, op="create_stream", stream="s", partitions=(0, 1)),
        api.ActivityStreamEvent(
            id=1,
            op=api.CREATE_STREAM,
            createStreamOp=api.CreateStreamOp(stream="s", partitions=[0, 1]),
        ),
    ),
    (
        ActivityEvent(id=2, op="delete_stream", stream="s"),
        api.ActivityStreamEvent(
            id=2, op=api.DELETE_STREAM, deleteStreamOp=api.DeleteStreamOp(stream="s")
        ),
    ),
    (
        ActivityEvent(id=3, op="pause_stream", stream="s", partitions=(1,), flag=True),
        api.ActivityStreamEvent(
            id=3,
            op=api.PAUSE_STREAM,
            pauseStreamOp=api.PauseStreamOp(stream="s", partitions=[1], resumeAll=True),
        ),
    ),
    (
        ActivityEvent(id=4, op="resume_stream", stream="s", partitions=(1,)),
        api.ActivityStreamEvent(
            id=4,
            op=api.RESUME_STREAM,
            resumeStreamOp=api.ResumeStreamOp(stream="s", partitions=[1]),
        ),
    ),
    (
        ActivityEvent(id=5, op="set_stream_readonly", stream="s", partitions=(0,), flag=True),
        api.ActivityStreamEvent(
            id=5,
            op=api.SET_STREAM_READONLY,
            setStreamReadonlyOp=api.SetStreamReadonlyOp(stream="s", partitions=[0], readonly=True),
        ),
    ),
    (
        ActivityEvent(id=6, op="join_consumer_group", group="g", member="m", streams=("s", "t")),
        api.ActivityStreamEvent(
            id=6,
            op=api.JOIN_CONSUMER_GROUP,
            joinConsumerGroupOp=api.JoinConsumerGroupOp(
                groupId="g", consumerId="m", streams=["s", "t"]
            ),
        ),
    ),
    (
        ActivityEvent(id=1 << 40, op="leave_consumer_group", group="g", member="m", flag=True),
        api.ActivityStreamEvent(
            id=1 << 40,
            op=api.LEAVE_CONSUMER_GROUP,
            leaveConsumerGroupOp=api.LeaveConsumerGroupOp(
                groupId="g", consumerId="m", expired=True
            ),
        ),
    ),
]


@pytest.mark.parametrize(("event", "message"), EVENTS)
def test_each_kind_has_its_message(event: ActivityEvent, message: api.ActivityStreamEvent) -> None:
    """Readers of Liftbridge's activity stream find what they know."""
    assert api.ActivityStreamEvent.FromString(encode_event(event)) == message
