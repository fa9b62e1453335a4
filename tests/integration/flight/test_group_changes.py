"""Streams that change under a group, over a real broker on a disk, whose pump gives them out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkit.group_reading import Reader, send, take
from headwater.client import AssignedPartition, Client
from simkit.brokers.served_broker import served_disk_broker

pytestmark = pytest.mark.integration

SESSION_MS = 6_000  # a busy machine may take seconds for a heartbeat


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Give a client of a broker, and stream s with a record in each of its two partitions."""
    with served_disk_broker(tmp_path) as address, Client(address) as client:
        client.create_stream("s", partitions=2, tiering=False)
        for partition in (0, 1):
            send(client, partition, b"first")
        yield client


def test_a_stream_that_is_made_anew_is_read_from_its_start(client: Client) -> None:
    """Its member stays; no position of the former stream is one in the new stream."""
    lost: list[AssignedPartition] = []
    with client.consumer("s", group="g", session_ms=SESSION_MS, on_lost=lost.extend) as consumer:
        assert len(take(consumer, 2)) == 2
        consumer.commit()
        client.delete_stream("s")
        client.create_stream("s", partitions=1, tiering=False)
        send(client, 0, b"new")
        (record,) = take(consumer, 1)
        assert (record.offset, record.value) == (0, b"new")
        assert lost == [AssignedPartition("s", 0), AssignedPartition("s", 1)]
        consumer.commit()
        (told,) = client.describe_group("g").partitions
        assert (told.offset, told.stream_uuid) == (1, client.stream("s").uuid)


def test_partitions_that_come_while_a_partition_is_given_up(client: Client) -> None:
    """The member that gives up and the one that waits share all of them in the end."""
    with client.consumer("s", group="g", session_ms=SESSION_MS) as first:
        assert len(take(first, 2)) == 2
        with client.consumer("s", group="g", session_ms=SESSION_MS) as second:
            waiting = Reader(second)
            waiting.until(lambda: second.is_member)
            assert second.assignment == []  # the first has not asked for more yet
            client.alter_stream("s", partitions=4)
            reading = Reader(first)
            waiting.until(lambda: len(first.assignment) == len(second.assignment) == 2)
            held = {*first.assignment, *second.assignment}
            assert held == {AssignedPartition("s", number) for number in range(4)}
            for one in (reading, waiting):
                one.stop()
    offsets = [one.offset for one in client.describe_group("g").partitions]
    assert offsets[:2] == [1, 1]
