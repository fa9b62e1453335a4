"""Attempts of one task against a real broker on a disk, without Spark: what is stored, once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from broker.errors import InvalidRequestError, RecordTooLargeError
from headwater.client import Client
from headwater.local.embedded import free_port
from simkit.brokers.served_broker import served_disk_broker
from spark_jobs.sink.columns import to_records
from spark_jobs.sink.cuts import CUTS_PER_PRODUCER, Cutter, Origin
from spark_jobs.sink.sender import PartitionSender

pytestmark = pytest.mark.integration

ORIGIN = Origin(kind="query", key="q", batch=7, task=2)
ROWS_PER_CUT = 10
VALUES = [f"{number:04}".encode() for number in range(CUTS_PER_PRODUCER * ROWS_PER_CUT + 55)]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a broker with the stream ``s``."""
    with served_disk_broker(tmp_path / "broker") as server, Client(server) as found:
        found.create_stream("s", tiering=False)
        yield found


def attempt(
    client: Client, values: list[bytes | None], *, origin: Origin = ORIGIN, die_after: int = -1
) -> PartitionSender:
    """Run one attempt of the task; with ``die_after`` it vanishes after so many cuts were sent."""
    sender = PartitionSender(
        client,
        origin,
        stream="s",
        stream_uuid=client.stream("s").uuid,
        partition=0,
        timeout_ms=120_000,
    )
    cutter = Cutter(rows_max=ROWS_PER_CUT)
    records = to_records(pa.record_batch({"value": pa.array(values, pa.binary())}))
    try:
        for number, cut in enumerate([*cutter.add(records), *cutter.finish()]):
            if number == die_after:
                return sender
            sender.send(cut)
        sender.finish()
    finally:
        sender.abandon()
    return sender


def stored(client: Client) -> list[bytes | None]:
    """Return all values of the stream."""
    with client.fetch("s", columns=["value"]) as fetch:
        return [value for piece in fetch for value in piece.batch.column(0).to_pylist()]


@pytest.mark.parametrize("die_after", [1, 3, CUTS_PER_PRODUCER, CUTS_PER_PRODUCER + 2, len(VALUES)])
def test_a_retried_task_completes_what_the_first_attempt_began(
    client: Client, die_after: int
) -> None:
    """This holds even if the first attempt sent more batches than the broker remembers."""
    attempt(client, [*VALUES], die_after=die_after)
    second = attempt(client, [*VALUES])

    assert stored(client) == VALUES
    assert second.records_count == len(VALUES)
    # The last cut that was sent may or may not have arrived before its sender vanished.
    least = min((die_after - 1) * ROWS_PER_CUT, len(VALUES))
    assert second.repeated_count >= least


@pytest.mark.parametrize(
    "shortened",
    [(3,), (25,), (20, 20), (25, 27, 41), (643,), (13, 649, 650), (len(VALUES) - 1,)],
)
def test_an_attempt_whose_rows_ended_early_is_completed(
    client: Client, shortened: tuple[int, ...]
) -> None:
    """Spark ends the rows where their source failed, so a last cut is stored that is too short."""
    for end in shortened:
        attempt(client, [*VALUES[:end]])
        assert stored(client) == VALUES[:end]
    for _ in range(2):
        again = attempt(client, [*VALUES])
        assert again.records_count == len(VALUES)
        assert stored(client) == VALUES


def test_copies_of_a_task_at_the_same_time_store_one(client: Client) -> None:
    """Speculative execution: both succeed, the rows are there once, in their order."""
    with ThreadPoolExecutor(3) as pool:
        senders = list(pool.map(lambda _: attempt(client, [*VALUES]), range(3)))
    assert stored(client) == VALUES
    assert [sender.records_count for sender in senders] == [len(VALUES)] * 3
    assert sum(sender.repeated_count for sender in senders) >= 2 * len(VALUES)


def test_a_restarted_broker_still_knows_the_task(tmp_path: Path) -> None:
    """The broker recognises acknowledged batches, after a restart as before."""
    port = free_port()
    with served_disk_broker(tmp_path / "b", port=port) as server, Client(server) as client:
        client.create_stream("s", tiering=False)
        attempt(client, [*VALUES])
    with served_disk_broker(tmp_path / "b", port=port) as server, Client(server) as client:
        again = attempt(client, [*VALUES])
        assert again.repeated_count == len(VALUES)
        assert stored(client) == VALUES


@pytest.mark.parametrize(
    ("before", "rows", "text"),
    [
        (30, [b"0001", b"0000", *VALUES[2:30]], "has another value in offsets 0 to 10"),
        (30, [*VALUES[:10], b"new", *VALUES[11:30]], "has another value in offsets 10 to 20"),
        (30, VALUES[:25], "batches of other sizes"),
        (30, VALUES[:20], "stored more rows"),
        (27, [*VALUES[:26], b"new", *VALUES[27:40]], "has another value in offsets 20 to 27"),
    ],
)
def test_a_plan_that_gives_other_rows_is_refused(
    client: Client, before: int, rows: list[bytes | None], text: str
) -> None:
    """Nobody can say which of the two is right, so the query stops and nothing more is stored."""
    attempt(client, [*VALUES[:before]])
    with pytest.raises(InvalidRequestError, match=text):
        attempt(client, rows)
    assert stored(client) == VALUES[:before]


def test_another_batch_with_the_same_rows_is_stored(client: Client) -> None:
    """Equal rows are no repeats: only the same task of the same batch is."""
    attempt(client, [b"x", None])
    attempt(client, [b"x", None], origin=Origin(kind="query", key="q", batch=8, task=2))
    assert stored(client) == [b"x", None, b"x", None]


def test_a_refused_record_ends_the_task_before_anything_behind_it(client: Client) -> None:
    """Later rows must not be stored under a producer that the retry does not use."""
    client.create_stream("small", tiering=False, record_bytes_max=100)
    sender = PartitionSender(
        client,
        ORIGIN,
        stream="small",
        stream_uuid=client.stream("small").uuid,
        partition=0,
        timeout_ms=120_000,
    )
    good, large, behind = (
        to_records(pa.record_batch({"value": pa.array([value])}))
        for value in (b"good", b"x" * 200, b"behind it")
    )
    sender.send(good)
    sender.send(large)
    with pytest.raises(RecordTooLargeError):
        sender.send(behind)
    sender.abandon()
    assert client.describe("small").records_count == 1


def test_an_8_mib_record_passes(client: Client) -> None:
    """The largest record that a stream takes by default goes in a cut of its own."""
    values: list[bytes | None] = [b"before", b"x" * (8 * 1024 * 1024), b"after"]
    attempt(client, values)
    attempt(client, values)
    assert stored(client) == values
