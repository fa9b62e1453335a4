"""Events of the activity stream as Liftbridge's clients read them: one protobuf message each."""

from __future__ import annotations

from broker.model.activity import ActivityEvent
from broker.wire.liftbridge import api_pb2 as api


def encode_event(event: ActivityEvent) -> bytes:
    """Return the value of an event's record."""
    found = api.ActivityStreamEvent(id=event.id)
    match event.op:
        case "create_stream":
            found.op = api.CREATE_STREAM
            found.createStreamOp.stream = event.stream
            found.createStreamOp.partitions.extend(event.partitions)
        case "delete_stream":
            found.op = api.DELETE_STREAM
            found.deleteStreamOp.stream = event.stream
        case "pause_stream":
            found.op = api.PAUSE_STREAM
            found.pauseStreamOp.stream = event.stream
            found.pauseStreamOp.partitions.extend(event.partitions)
            found.pauseStreamOp.resumeAll = event.flag
        case "resume_stream":
            found.op = api.RESUME_STREAM
            found.resumeStreamOp.stream = event.stream
            found.resumeStreamOp.partitions.extend(event.partitions)
        case "set_stream_readonly":
            found.op = api.SET_STREAM_READONLY
            found.setStreamReadonlyOp.stream = event.stream
            found.setStreamReadonlyOp.partitions.extend(event.partitions)
            found.setStreamReadonlyOp.readonly = event.flag
        case "join_consumer_group":
            found.op = api.JOIN_CONSUMER_GROUP
            found.joinConsumerGroupOp.groupId = event.group
            found.joinConsumerGroupOp.consumerId = event.member
            found.joinConsumerGroupOp.streams.extend(event.streams)
        case "leave_consumer_group":
            found.op = api.LEAVE_CONSUMER_GROUP
            found.leaveConsumerGroupOp.groupId = event.group
            found.leaveConsumerGroupOp.consumerId = event.member
            found.leaveConsumerGroupOp.expired = event.flag
    return found.SerializeToString()
