"""Issue 11, second tour: what a beginner writes in Python by mistake is refused and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Self

import pytest

import headwater
from broker.errors import (
    HeadwaterError,
    InvalidConfigError,
    InvalidRequestError,
    SchemaMismatchError,
    UnknownPartitionError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult
from headwater.cli.publish_records import OutgoingRecord
from headwater.cli.publish_sinks import FlightSink
from headwater.client import Client

NUMBER: Any = 7410  # a value that is not an address
SEVERAL: Any = ["a:1", "b:1"]


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """Return a client with a stream of two partitions, and one record in each."""
    with Client(address) as found:
        found.create_stream("s", partitions=2)
        for number in range(2):
            with found.producer("s", number) as producer:
                producer.send([b"one"]).result(10)
        yield found


@pytest.mark.parametrize(
    "records",
    ["abc", b"abc", bytearray(b"abc"), {"key": b"k", "value": b"v"}, {}, None, 7],
    ids=repr,
)
def test_one_record_in_place_of_a_list_is_refused(client: Client, records: Any) -> None:
    """Before, ``send("abc")`` stored the records a, b and c, and ``send({"value": …})`` "value"."""
    with (
        client.producer("s", 0) as producer,
        pytest.raises(InvalidRequestError, match=r"send takes a list of records.*send\(\[record"),
    ):
        producer.send(records)
    assert _count(client) == 2


def test_an_empty_mapping_is_a_record_without_a_value(client: Client) -> None:
    """Before, the error was "there is no record to send", as for an empty list."""
    with client.producer("s", 0) as producer:
        assert producer.send([{}, {}]).result(10).records_count == 2
    assert _count(client) == 4


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda c: c.fetch("s", isolation="all"), InvalidRequestError, "uncommitted, not 'all'"),
        (lambda c: c.consume("s", {0: 0, 2: 0}), UnknownPartitionError, r"0 to 1, not 2"),
        (lambda _: Client(NUMBER), InvalidConfigError, "7410 is not.*grpc://host:port"),
        (lambda _: Client(SEVERAL), InvalidConfigError, "with commas"),
        (
            lambda c: headwater.read_table("s", columns="value", server=c.address.url),
            SchemaMismatchError,
            r"\['value'\]",
        ),
        (
            lambda c: headwater.read_table("s", columns=[], server=c.address.url),
            SchemaMismatchError,
            "no column was named",
        ),
        (
            lambda c: headwater.read_table("s", columns=["key", "key"], server=c.address.url),
            SchemaMismatchError,
            "key is named twice",
        ),
        (
            lambda c: headwater.read_table("s", columns=["key", "colour"], server=c.address.url),
            SchemaMismatchError,
            "not colour$",
        ),
    ],
)
def test_what_was_taken_silently_or_ended_in_a_trace(
    client: Client, call: Callable[[Client], object], error: type[HeadwaterError], told: str
) -> None:
    """Each message names what was given and what is taken."""
    with pytest.raises(error, match=told):
        call(client)


def test_read_table_takes_a_client_as_read_does(client: Client) -> None:
    """Before, it called the client's ``split``. The caller's client stays open."""
    rows, _ = headwater.read_table("s", as_of={0: 0, 1: 0}, server=client)
    assert rows.num_rows == 0
    assert client.stream("s").name == "s"


class _Slow:
    """A client whose producers store every batch when a test wants it."""

    def __init__(self) -> None:
        self.futures: list[Future[AppendResult]] = []

    def producer(self, _stream: str, **_options: object) -> _Slow:
        return self

    def send(self, _batch: object) -> Future[AppendResult]:
        self.futures.append(Future())
        return self.futures[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_a_publisher_that_is_stopped_knows_what_is_on_disk(client: Client) -> None:
    """Before, Ctrl-C printed "2 records sent; 0 are known to be on disk" after their answers."""
    slow: Any = _Slow()
    stored = AppendResult(
        base_offset=Offset(0),
        records_count=1,
        leader_epoch=LeaderEpoch(1),
        duplicate=False,
        acks=AckPolicy.ALL,
    )
    with FlightSink(slow, client.stream("s"), []) as sink:
        sink.send([OutgoingRecord(0, "s", None, b"a"), OutgoingRecord(1, "s.1", None, b"b")])
        counts = [sink.acked]
        for future in reversed(slow.futures):
            future.set_result(stored)
            counts.append(sink.acked)
        assert counts == [0, 1, 2]


def _count(client: Client) -> int:
    with client.consume("s") as found:
        return sum(one.fetched.batch.num_rows for one in found)
