"""Members of consumer groups over Flight: the client against the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.errors import (
    GroupInUseError,
    InvalidRequestError,
    NoPositionError,
    PurgedError,
    StaleClaimError,
    StaleMemberError,
    UnknownGroupError,
)
from broker.model.groups import PositionReset
from clusterkit.group_reading import Reader, send, take
from headwater.client import AssignedPartition, Client
from simkit.brokers.memory_broker import MemoryBroker

pytestmark = pytest.mark.integration

WAIT_S = 60.0
SESSION_MS = 6_000


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """Give an empty broker."""
    broker = MemoryBroker()
    yield broker
    broker.close()


@pytest.fixture
def client(broker: MemoryBroker) -> Iterator[Client]:
    """Give a client of a running service, and stream s of two partitions."""
    service = FlightService(broker, broker.clock, FlightServiceConfig(port=0, idle_check_ms=20))
    service.start()
    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("s", partitions=2, tiering=False)
        yield client
    assert service.close(timeout_ms=10_000)


def test_a_member_goes_on_where_its_group_was(client: Client) -> None:
    """Records come in order; the next member begins behind what the former has processed."""
    send(client, 0, b"a", b"b", b"c")
    send(client, 1, b"x", b"y")
    with client.consumer("s", group="g") as consumer:
        found = take(consumer, 5)
        assert {(one.partition, one.offset, one.value) for one in found} == {
            (0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c"), (1, 0, b"x"), (1, 1, b"y"),
        }  # fmt: skip
        assert consumer.assignment == [AssignedPartition("s", 0), AssignedPartition("s", 1)]
    send(client, 0, b"d")
    with client.consumer("s", group="g") as consumer:
        assert [one.value for one in take(consumer, 1)] == [b"d"]
    told = client.describe_group("g")
    assert [(one.partition, one.offset) for one in told.partitions] == [(0, 4), (1, 2)]
    assert (told.members, told.kind) == ((), "")
    assert client.groups() == ["g"]


def test_a_record_that_was_not_processed_comes_again(client: Client) -> None:
    """An exception inside the loop leaves its record to the next member."""
    send(client, 0, b"a", b"b")

    def fail_at_b() -> None:
        with client.consumer("s", group="g") as consumer:
            for record in consumer:
                if record.value == b"b":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_b()
    with client.consumer("s", group="g") as consumer:
        assert [one.value for one in take(consumer, 1)] == [b"b"]


def test_only_commit_commits_if_the_application_says_so(client: Client) -> None:
    """Without an interval the position is what was committed; the newest record is included."""
    send(client, 0, b"a", b"b", b"c")
    with client.consumer("s", group="g", commit_ms=None) as consumer:
        for record in consumer:
            if record.value == b"b":
                consumer.commit()
            if record.value == b"c":
                break
    with client.consumer("s", group="g") as consumer:
        assert [one.value for one in take(consumer, 1)] == [b"c"]


def test_partitions_are_shared_and_handed_over(client: Client) -> None:
    """A second member gets one of two partitions, from its position; the first keeps the other."""
    assigned: list[AssignedPartition] = []
    revoked: list[AssignedPartition] = []
    send(client, 0, b"a")
    send(client, 1, b"x")
    with client.consumer(
        "s",
        group="g",
        session_ms=SESSION_MS,
        on_assigned=assigned.extend,
        on_revoked=revoked.extend,
    ) as first:
        assert len(take(first, 2)) == 2
        reader = Reader(first)
        with client.consumer("s", group="g", session_ms=SESSION_MS) as second:
            reader.until(lambda: len(first.assignment) == 1)
            (given,) = revoked
            send(client, given.partition, b"new")
            assert [(one.partition, one.value) for one in take(second, 1)] == [
                (given.partition, b"new")
            ]
            members = client.describe_group("g").members
            assert {one.member for one in members} == {first.member_id, second.member_id}
        reader.until(lambda: len(assigned) == 3)  # the call-back comes after the assignment
        reader.stop()
    assert sorted(assigned) == sorted([AssignedPartition("s", 0), AssignedPartition("s", 1), given])


def test_who_comes_back_under_its_name_has_its_partitions_again(client: Client) -> None:
    """Nobody else stops; the process that was replaced is told so."""
    send(client, 0, b"a")
    first = client.consumer("s", group="g", member_id="m")
    assert len(take(first, 1)) == 1
    with client.consumer("s", group="g", member_id="m") as second:
        send(client, 0, b"b")
        assert [one.value for one in take(second, 2)] == [b"a", b"b"]
        with pytest.raises(StaleMemberError):
            first.commit()
        with pytest.raises(StaleMemberError):
            first.poll(WAIT_S)
    first.close()


def _has_members(client: Client) -> bool:
    with suppress(UnknownGroupError):
        return bool(client.describe_group("g").members)
    return False


def test_a_member_that_was_expelled_commits_nothing(client: Client, broker: MemoryBroker) -> None:
    """Its session is over for the coordinator; then it joins again and goes on."""
    send(client, 0, b"a")
    with client.consumer("s", group="g", session_ms=60_000, commit_ms=None) as consumer:
        assert len(take(consumer, 1)) == 1
        broker.groups.turn(broker.clock.monotonic_ms())
        while _has_members(client):  # a heartbeat may come in between
            for _ in range(10):
                broker.clock.advance(us=7_000_000)
                broker.groups.turn(broker.clock.monotonic_ms())
        with pytest.raises((StaleMemberError, StaleClaimError)):
            consumer.commit()
        assert [one.value for one in take(consumer, 1)] == [b"a"]
        consumer.commit()
    assert client.describe_group("g").partitions[0].offset == 1


def test_seek_pause_and_resume(client: Client) -> None:
    """A seek back is committed, too; a paused partition rests and stays the member's."""
    send(client, 0, b"a", b"b")
    with client.consumer("s", group="g") as consumer:
        assert len(take(consumer, 2)) == 2
        consumer.commit()
        consumer.seek("s", 0, 1)
        assert [one.value for one in take(consumer, 1)] == [b"b"]
        consumer.seek("s", 0, 0)
        consumer.commit()
        assert client.describe_group("g").partitions[0].offset == 0
        consumer.pause(("s", 0))
        send(client, 1, b"x")
        assert [one.value for one in take(consumer, 1)] == [b"x"]
        assert consumer.poll(0.1) is None
        consumer.resume(("s", 0))
        assert [one.value for one in take(consumer, 2)] == [b"a", b"b"]
        with pytest.raises(InvalidRequestError):
            consumer.seek("t", 0, 0)


def test_where_a_group_without_a_position_begins(client: Client) -> None:
    """At the earliest record, or behind the newest, or nowhere."""
    send(client, 0, b"a")
    with client.consumer("s", group="late", auto_offset_reset="latest") as consumer:
        while AssignedPartition("s", 0) not in consumer.positions:  # it is behind the newest
            assert consumer.poll(0.1) is None
        send(client, 0, b"b")
        assert [one.value for one in take(consumer, 1)] == [b"b"]
    with (
        client.consumer("s", group="none", auto_offset_reset="error") as consumer,
        pytest.raises(NoPositionError),
    ):
        consumer.poll(WAIT_S)


def test_a_position_below_the_log_is_told_or_moved(client: Client) -> None:
    """After a purge: an error by its type, or the first record that is left."""
    send(client, 0, b"a", b"b", b"c")
    client.reset_group(
        "g", [PositionReset(stream_uuid=client.stream("s").uuid, partition=0, offset=0)]
    )
    client.purge_stream("s", 0, before=2)
    with client.consumer("s", group="g", auto_offset_reset="error") as consumer:
        errors: list[Exception] = []
        while not any(isinstance(one, PurgedError) for one in errors):
            try:
                consumer.poll(WAIT_S)
            except (PurgedError, NoPositionError) as error:
                errors.append(error)
    with client.consumer("s", group="g") as consumer:
        assert [one.value for one in take(consumer, 1)] == [b"c"]


def test_operators_reset_and_delete_groups_without_members(client: Client) -> None:
    """Not under a member's feet; an unknown group is named."""
    uuid = client.stream("s").uuid
    send(client, 0, b"a", b"b")
    with client.consumer("s", group="g") as consumer:
        assert len(take(consumer, 2)) == 2
        with pytest.raises(GroupInUseError):
            client.reset_group("g", [PositionReset(stream_uuid=uuid, partition=0, offset=0)])
        with pytest.raises(GroupInUseError):
            client.delete_group("g")
    client.reset_group("g", [PositionReset(stream_uuid=uuid, partition=0, offset=1)])
    with client.consumer("s", group="g") as consumer:
        assert [one.value for one in take(consumer, 1)] == [b"b"]
    client.delete_group("g")
    with pytest.raises(UnknownGroupError):
        client.describe_group("g")
