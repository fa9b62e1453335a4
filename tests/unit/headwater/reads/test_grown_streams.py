"""A stream grows while it is written and read: no record is lost, doubled, or out of its place."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from broker.errors import (
    CommitTimeoutError,
    InvalidRequestError,
    PartitionsAddedError,
    RecordTooLargeError,
    StreamChangedError,
)
from broker.model.offsets import Offset
from broker.model.partitioner import partition_of_key
from headwater.client import Client
from headwater.client.consumer import consumer_of
from headwater.client.fetch import Fetch
from headwater.reads.as_of import AtOffsets, narrowed
from headwater.reads.history import History
from headwater.reads.instant import at_one_instant
from headwater.reads.latest import newest_of_each_key
from headwater.reads.verification import verify_cut
from simkit.tier.lake_broker import Served, serving

KEYS = [b"key-%d" % number for number in range(12)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker with a lake."""
    with serving(str(tmp_path / "lake")) as found:
        yield found


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A client of it, and stream ``s`` of one partition."""
    with Client(served.server) as found:
        found.create_stream("s")
        yield found


def rows(client: Client) -> list[dict[str, Any]]:
    """Return all records of a new cut, by partition and offset."""
    history = History(client, client.cut("s"))
    return [row for batch in history.batches() for row in batch.to_pylist()]


def latest(history: History) -> dict[bytes, bytes]:
    """Return the newest value of each key; a key that is returned twice is an error."""
    found: dict[bytes, bytes] = {}
    for batch in newest_of_each_key(history):
        for row in batch.to_pylist():
            assert row["key"] not in found
            found[row["key"]] = row["value"]
    return found


def test_an_open_producer_learns_of_added_partitions(served: Served, client: Client) -> None:
    """Two threads send; the stream grows twice. Each key is in its sender's order afterwards."""
    begun = [threading.Event(), threading.Event()]
    sent: dict[bytes, list[int]] = defaultdict(list)
    futures: list[Any] = []

    def send(keys: list[bytes]) -> None:
        for number in range(240):
            key = keys[number % len(keys)]
            futures.append(producer.send([{"key": key, "value": b"%d" % number}]))
            sent[key].append(number)
            if number in (60, 140):
                begun[number > 100].set()

    with client.partitioned_producer("s") as producer:
        threads = [threading.Thread(target=send, args=(half,)) for half in (KEYS[:6], KEYS[6:])]
        for one in threads:
            one.start()
        for event, partitions in zip(begun, (2, 4), strict=True):
            assert event.wait(20)
            client.alter_stream("s", partitions=partitions)
        for one in threads:
            one.join(20)
        producer.flush()
    found: dict[bytes, list[int]] = defaultdict(list)
    for row in rows(client):  # by partition and offset: the order of a key's records
        found[row["key"]].append(int(row["value"]))
        assert row["partition"] in {partition_of_key(row["key"], count) for count in (1, 2, 4)}
    assert found == sent
    places = [(n, one.base_offset) for f in futures for n, one in f.result(0).items()]
    assert len(set(places)) == len(places) == 480
    assert latest(History(client, client.cut("s"))) == {
        key: b"%d" % numbers[-1] for key, numbers in sent.items()
    }


def test_an_idle_producer_does_not_write_behind_the_others(client: Client) -> None:
    """It still knows one partition; its record becomes the newest of its key, as it is."""
    moving = next(key for key in KEYS if partition_of_key(key, 2) == 1)
    with client.partitioned_producer("s") as idle, client.partitioned_producer("s") as busy:
        for one in (idle, busy):
            one.send([{"key": moving, "value": b"old"}]).result(20)
        client.alter_stream("s", partitions=2)
        busy.send([{"key": moving, "value": b"new"}]).result(20)
        result = idle.send([{"key": moving, "value": b"newest"}]).result(20)
    assert list(result) == [1]
    assert latest(History(client, client.cut("s"))) == {moving: b"newest"}


def test_batches_with_and_without_keys_are_divided_anew(client: Client) -> None:
    """Rows without a key stay in their partition; the future has all offsets of its batch."""
    batch = [{"key": key, "value": key} for key in KEYS] + [{"key": None, "value": b"none"}]
    with client.partitioned_producer("s") as producer:
        client.alter_stream("s", partitions=2)
        client.alter_stream("s", partitions=6)
        found = producer.send(batch).result(20)
        assert sum(one.records_count for one in found.values()) == 13
        assert producer.send([b"next"]).result(20)[0].base_offset >= 1
        for key in KEYS:
            assert partition_of_key(key, 6) in found


def test_without_answers_the_loss_is_told_once(client: Client) -> None:
    """A refused batch is gone; the next flush says so, and the one after it is fine."""
    with client.partitioned_producer("s", acks="none") as producer:
        producer.send([b"1"])
        producer.flush()
        client.alter_stream("s", partitions=2)
        producer.send([{"key": b"k", "value": b"lost"}])
        with pytest.raises(PartitionsAddedError):
            producer.flush()
        producer.send([{"key": b"k", "value": b"kept"}])
        producer.flush()
    assert [row["value"] for row in rows(client)] == [b"1", b"kept"]


def test_a_producer_of_one_partition_says_by_what_it_places(client: Client) -> None:
    """A program with a partitioner of its own is told, too; one that says nothing is not asked."""
    with client.producer("s", 0, placed_by=1) as placed, client.producer("s", 0) as free:
        placed.send([b"1"]).result(20)
        client.alter_stream("s", partitions=2)
        with pytest.raises(PartitionsAddedError) as caught:
            placed.send([b"2"]).result(20)
        assert caught.value.partitions_count == 2
        free.send([b"3"]).result(20)
        with pytest.raises(PartitionsAddedError):
            placed.flush()
    assert [row["value"] for row in rows(client)] == [b"1", b"3"]


def test_a_failure_of_a_partition_is_the_failure_of_a_flush(client: Client, served: Served) -> None:
    """A batch that is refused for another reason is not sent again."""
    client.alter_stream("s", record_bytes_max=10)
    with client.partitioned_producer("s") as producer:
        large = producer.send([b"x" * 100])
        with pytest.raises(InvalidRequestError):
            producer.flush()
        assert isinstance(large.exception(0), InvalidRequestError)
        producer.send([b"small"]).result(20)
        served.broker.handle("s", 0).hold()
        pending = producer.send([b"later"])
        with pytest.raises(CommitTimeoutError):
            producer.flush(timeout_ms=50)
        served.broker.handle("s", 0).release()
        assert pending.result(20)[0].base_offset == 1


@pytest.mark.parametrize("acks", ["all", "leader"])
def test_a_loss_behind_a_batch_that_is_placed_anew_is_told(
    client: Client, served: Served, acks: Literal["all", "leader"]
) -> None:
    """The first batch is stored in the end, so the error of a flush is that of the second one."""
    with client.partitioned_producer("s", acks=acks) as producer:
        producer.send([b"1"]).result(20)
        client.alter_stream("s", partitions=2, record_bytes_max=10)
        served.broker.handle("s", 0).hold()
        placed_anew, large = producer.send([b"2"]), producer.send([b"x" * 100])
        served.broker.handle("s", 0).release()
        assert isinstance(large.exception(20), RecordTooLargeError)
        with pytest.raises(RecordTooLargeError):
            producer.flush()
        assert placed_anew.result(20)[0].records_count == 1
        producer.flush()
    assert [row["value"] for row in rows(client)] == [b"1", b"2"]


def test_who_follows_reads_added_partitions_from_their_first_record(client: Client) -> None:
    """Also a consumer that began at the end: all records of such a partition are later ones."""
    with client.producer("s", 0) as producer:
        producer.send([b"before"]).result(20)
    with client.consume("s", "latest", columns=["value"], follow=True) as consumer:
        client.alter_stream("s", partitions=4)
        for number in (3, 0, 2):
            with client.producer("s", number) as producer:
                producer.send([b"%d" % number]).result(20)
        found: set[tuple[int, bytes]] = set()
        while len(found) < 3:
            one = next(consumer)
            (value,) = one.fetched.batch.column("value").to_pylist()
            found.add((one.partition, value))
        assert found == {(0, b"0"), (2, b"2"), (3, b"3")}
        assert consumer.positions == {0: 2, 2: 1, 3: 1}


class SmallFetches:
    """A client whose reads have a batch for each record of these tests."""

    def __init__(self, client: Client) -> None:
        self.stream, self.describe = client.stream, client.describe
        self._client = client

    def fetch(self, *places: Any, **options: Any) -> Fetch:
        """See ``Client``."""
        return self._client.fetch(*places, batch_bytes_max=4096, **options)


@pytest.mark.parametrize("start", ["earliest", {0: 0}, {0: 0, 1: 1}, {1: 1}])
def test_a_consumer_that_follows_gives_no_newer_record_of_a_key_before_an_older_one(
    client: Client, start: Literal["earliest"] | dict[int, int]
) -> None:
    """Though the stream has grown before the consumer began, wherever it begins."""
    with client.producer("s", 0) as producer:
        for number in range(40):
            producer.send([{"key": b"k", "value": b"%4096d" % number}]).result(20)
    client.alter_stream("s", partitions=2)
    for value in (b"new", b"newer"):
        client.producer("s", 1).send([{"key": b"k", "value": value}]).result(20)
    reads = consumer_of(
        SmallFetches(client), "s", start, columns=None, follow=True, stream_uuid=None
    )
    with reads:
        while (one := next(reads)).partition == 0:
            pass
        assert reads.positions[0] == 40
    assert one.fetched.base_offset == (0 if isinstance(start, str) else start.get(1, 0))


# ------------------------------------------------------------------------------ cuts


def test_a_cut_from_before_reads_the_same_rows_as_ever(served: Served, client: Client) -> None:
    """From both tiers, after the growth, and after the table has the new partitions."""
    with client.partitioned_producer("s") as producer:
        for key in KEYS:
            producer.send([{"key": key, "value": b"old"}])
        producer.flush()
        served.broker.ship("s", 0, Offset(8), files=2)
        before = client.cut("s")
        client.alter_stream("s", partitions=4)
        for key in KEYS:
            producer.send([{"key": key, "value": b"new"}])
    expected = [(0, n, KEYS[n]) for n in range(12)]
    for shipped in (False, True):
        if shipped:
            client.tier_flush("s")
        history = History(client, before)
        found = [row for batch in history.batches() for row in batch.to_pylist()]
        assert [(r["partition"], r["offset"], r["key"]) for r in found] == expected
        assert [one.end for one in history.certificate().partitions] == [12]
        assert [one.end for one in verify_cut(client, before).partitions] == [12]
        assert set(latest(History(client, before)).values()) == {b"old"}
        now = client.cut("s")
        history = History(client, now)
        assert len([row for batch in history.batches() for row in batch.to_pylist()]) == 24
        assert sum(one.end for one in history.certificate().partitions) == 24
        assert sum(one.end for one in verify_cut(client, now).partitions) == 24
        assert latest(History(client, now)) == dict.fromkeys(KEYS, b"new")
        at = narrowed(now, AtOffsets({0: Offset(12)}), client)
        assert len([row for b in History(client, at).batches() for row in b.to_pylist()]) == 12
        with pytest.raises(InvalidRequestError):
            narrowed(now, AtOffsets({1: Offset(0)}), client)


def test_a_deleted_key_stays_deleted_in_the_partition_that_it_left(client: Client) -> None:
    """The tombstone is in the new partition, the value in the old one."""
    gone = next(key for key in KEYS if partition_of_key(key, 2) == 1)
    stays = next(key for key in KEYS if partition_of_key(key, 2) == 0)
    with client.partitioned_producer("s") as producer:
        for key in (gone, stays):
            producer.send([{"key": key, "value": b"v"}]).result(20)
        client.alter_stream("s", partitions=2)
        producer.send([{"key": gone, "value": None}]).result(20)
        assert latest(History(client, client.cut("s"))) == {stays: b"v"}
        producer.send([{"key": gone, "value": b"again"}]).result(20)
        assert latest(History(client, client.cut("s"))) == {stays: b"v", gone: b"again"}


def test_streams_are_not_brought_to_one_moment_over_a_growth(client: Client) -> None:
    """The cut has none of the new partitions' records, so the read is refused, to be repeated."""
    cut = client.cut("s")
    client.alter_stream("s", partitions=2)
    with pytest.raises(StreamChangedError):
        at_one_instant({"s": cut}, client)
