"""The metadata machine is deterministic, refuses by value and never loses an epoch."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from broker.core.metadata.apply import Rejected, apply
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    DropLease,
    RecordColdEnd,
    RegisterBroker,
    RenewLease,
    TakeLease,
    decode,
    encode,
)
from broker.core.metadata.leftovers import Belongs, where_belongs
from broker.core.metadata.state import DELETED_KEPT_MAX, MetadataState
from broker.errors import (
    MetadataCorruptError,
    StaleColdEndError,
    StreamExistsError,
    StreamRecreatedError,
    UnknownLeaseError,
    UnknownStreamError,
)
from broker.model.ids import BrokerId, LeaseId, PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
OTHER = StreamUuid("00000000-0000-0000-0000-000000000002")
ME = BrokerId("me")
LEASE = LeaseId("l1")


def _stream(uuid: StreamUuid = UUID, subject: str = "orders", partitions: int = 2) -> Stream:
    config = StreamConfig(subject=subject, partitions=partitions)
    return Stream(name="orders", uuid=uuid, config=config, created_us=1, table_name="orders")


def _run(*commands: Command) -> MetadataState:
    state = MetadataState()
    for command in commands:
        state, reply = apply(state, decode(encode(command)))
        assert not isinstance(reply, Rejected), reply
    return state


CREATE = CreateStream(stream=_stream(), leader=ME)


def _refusal(state: MetadataState, command: Command) -> Exception:
    after, reply = apply(state, command)
    assert isinstance(reply, Rejected)
    assert after is state, "a refused command changes nothing"
    return reply.error


def test_creating_the_same_stream_again_is_fine_and_another_shape_is_not() -> None:
    """Creation is idempotent for an equal configuration and names what differs otherwise."""
    state = _run(CREATE)
    again, reply = apply(state, CreateStream(stream=_stream(uuid=OTHER), leader=ME))
    assert again == state
    assert reply == {"uuid": UUID, "created": False}
    error = _refusal(state, CreateStream(stream=_stream(partitions=3), leader=ME))
    assert isinstance(error, StreamExistsError)
    assert "partitions is 2, not 3" in error.message


def test_each_start_of_a_broker_begins_a_new_leader_epoch() -> None:
    """An epoch is never continued after a restart: same epoch, same leader life."""
    state = _run(RegisterBroker(broker=ME), CREATE, RegisterBroker(broker=ME))
    assert state.broker_epochs[ME] == 2
    assert [one.leader_epoch for one in state.partitions[UUID]] == [2, 2]


def test_the_cold_end_only_grows() -> None:
    """A smaller cold end is refused and names both."""
    state = _run(CREATE, RecordColdEnd(stream_uuid=UUID, partition=1, cold_end=Offset(50)))
    assert [one.cold_end for one in state.partitions[UUID]] == [0, 50]
    stale = RecordColdEnd(stream_uuid=UUID, partition=1, cold_end=Offset(49))
    assert isinstance(_refusal(state, stale), StaleColdEndError)
    unknown = RecordColdEnd(stream_uuid=OTHER, partition=0, cold_end=Offset(1))
    assert isinstance(_refusal(state, unknown), UnknownStreamError)


def test_a_lease_holds_from_the_cold_ends_of_its_moment_until_it_expires() -> None:
    """Floors are taken in the command; renewing after the end is refused."""
    take = TakeLease(lease_id=LEASE, stream_uuid=UUID, owner="t", expires_us=100, now_us=50)
    state = _run(CREATE, RecordColdEnd(stream_uuid=UUID, partition=0, cold_end=Offset(7)), take)
    assert state.leases[LEASE].floors == (7, 0)
    state, reply = apply(state, RenewLease(lease_id=LEASE, expires_us=200, now_us=99))
    assert reply == {"expires_us": 200}
    slower = RenewLease(lease_id=LEASE, expires_us=150, now_us=99)  # sent first, applied last
    state, reply = apply(state, slower)
    assert reply == {"expires_us": 200}
    late = RenewLease(lease_id=LEASE, expires_us=400, now_us=200)
    assert isinstance(_refusal(state, late), UnknownLeaseError)
    state, _ = apply(state, DropLease(lease_id=LEASE))
    assert not state.leases


def test_deleting_names_the_incarnation_and_takes_its_leases_along() -> None:
    """A delete meant for an older stream of the same name is fenced."""
    take = TakeLease(lease_id=LEASE, stream_uuid=UUID, owner="t", expires_us=100, now_us=50)
    state = _run(CREATE, take)
    stale = DeleteStream(name="orders", expected_uuid=OTHER)
    assert isinstance(_refusal(state, stale), StreamRecreatedError)
    state, _ = apply(state, DeleteStream(name="orders", expected_uuid=UUID))
    assert state == MetadataState(deleted=(UUID,))


def test_only_a_deletion_that_is_remembered_says_that_a_log_is_a_leftover() -> None:
    """A stream that the metadata does not mention may be younger than the metadata."""
    one = PartitionId(UUID, PartitionNumber(0))
    assert where_belongs(MetadataState(), one, ME) is Belongs.UNKNOWN
    state = _run(CREATE)
    assert where_belongs(state, one, ME) is Belongs.HERE
    assert where_belongs(state, one, BrokerId("another")) is Belongs.ELSEWHERE
    assert where_belongs(state, PartitionId(UUID, PartitionNumber(9)), ME) is Belongs.UNKNOWN
    state, _ = apply(state, DeleteStream(name="orders", expected_uuid=UUID))
    assert where_belongs(state, one, ME) is Belongs.DELETED
    again = MetadataState.from_json(state.to_json())
    assert where_belongs(again, one, ME) is Belongs.DELETED
    state, _ = apply(again, CREATE)  # proposed again, because no answer came
    assert where_belongs(state, one, ME) is Belongs.HERE
    assert state.deleted == ()


def test_deletions_are_remembered_up_to_a_number() -> None:
    """The newest ones; of an older one nothing is known, and nothing is removed."""
    many = tuple(StreamUuid(str(uuid.UUID(int=at + 99))) for at in range(DELETED_KEPT_MAX))
    state = replace(_run(CREATE), deleted=many)
    state, _ = apply(state, DeleteStream(name="orders", expected_uuid=UUID))
    assert state.deleted == (*many[1:], UUID)
    one = PartitionId(many[0], PartitionNumber(0))
    assert where_belongs(state, one, ME) is Belongs.UNKNOWN


def test_state_survives_its_text_and_damage_is_named() -> None:
    """Equal states have equal text; anything else is one typed error."""
    take = TakeLease(lease_id=LEASE, stream_uuid=UUID, owner="t", expires_us=100, now_us=50)
    state = _run(RegisterBroker(broker=ME), CREATE, take)
    assert MetadataState.from_json(state.to_json()) == state
    body = json.loads(state.to_json())
    for broken in (
        "",
        "[]",
        "{}",
        json.dumps({**body, "v": 9}),
        json.dumps({**body, "streams": 3}),
    ):
        with pytest.raises(MetadataCorruptError):
            MetadataState.from_json(broken)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"op":"Nope"}', b'{"op":"DropLease","x":1}', b"\xff"]
)
def test_bytes_that_are_no_command_are_named(data: bytes) -> None:
    """The decoder raises one typed error for every malformed input."""
    with pytest.raises(MetadataCorruptError):
        decode(data)
