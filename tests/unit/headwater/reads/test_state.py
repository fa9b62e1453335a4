"""A consumer of state: the newest record of each key at a cut, then everything after the cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import (
    InvalidRequestError,
    ObjectMissingError,
    StreamRecreatedError,
    UnknownStreamError,
)
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.client.consumer import Consumer, ends_of, partitions_of
from headwater.client.fetch import Fetch
from headwater.reads.as_of import AtOffsets, narrowed
from headwater.reads.history import History
from headwater.reads.latest import newest_of_each_key
from headwater.reads.state import StateConsumer, consume_state
from simkit.tier.key_snapshots import build_key_snapshot
from simkit.tier.lake_broker import Served, serving
from tiering.keys.of_cut import usable_snapshot
from tiering.read import parquet_source

RECORDS: list[tuple[bytes | None, bytes | None]] = [
    (b"a", b"0"), (b"b", b"1"), (None, b"2"), (b"c", b"3"), (b"a", b"4"), (b"b", None),
    (b"d", b"6"), (b"e", b"7"), (b"d", b"8"), (b"c", None), (b"b", b"10"), (b"f", b"11"),
]  # fmt: skip
OTHER = StreamUuid("01234567-89ab-4def-8123-456789abcdef")
STATE = [4, 7, 8, 10, 11]  # of a, e, d, b, f


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Stream ``s``: files [0, 4) and [4, 8), the key snapshot of [0, 8), the rest a tail."""
    with serving(str(tmp_path / "lake")) as found, Client(found.server) as client:
        client.create_stream("s")
        with client.producer("s") as producer:
            for key, value in RECORDS:
                producer.send([{"key": key, "value": value}])
        found.broker.ship("s", 0, Offset(8), files=2)
        build_key_snapshot(found.broker, "s")
        yield found


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A client of it."""
    with Client(served.server) as found:
        yield found


def offsets(consumer: StateConsumer, count: int | None = None) -> list[int]:
    """Return the offsets of the next ``count`` rows, or of all."""
    found: list[int] = []
    while count is None or len(found) < count:
        one = next(consumer, None)
        if one is None:
            break
        found += one.rows.column("offset").to_pylist()
    return found


def test_the_state_is_exact_at_a_cut_that_is_named(client: Client) -> None:
    """What is published after the cut is not in it; the certificate covers all of the cut."""
    with consume_state("s", server=client) as consumer:
        client.producer("s").send([{"key": b"a", "value": b"later"}]).result(20)
        before = consumer.positions
        assert before is None
        with pytest.raises(InvalidRequestError, match="after its last row"):
            _ = consumer.certificate
        assert offsets(consumer) == STATE
        assert consumer.positions == {0: 12}
        (proof,) = consumer.certificate.partitions
        assert (proof.cold_count, proof.hot_count, proof.end) == (8, 4, 12)
        assert next(consumer, None) is None
    assert client.leases("s") == []


def test_who_follows_gets_each_later_record_once(client: Client) -> None:
    """Tombstones too, and those of added partitions; the lease ends when the state has."""
    with consume_state("s", columns=["offset", "key"], follow=True, server=client) as consumer:
        with client.producer("s", 0) as producer:
            producer.send([{"key": b"a", "value": b"12"}, {"key": b"a", "value": None}]).result(20)
        assert len(client.leases("s")) == 1
        assert offsets(consumer, len(STATE)) == STATE
        later = next(consumer)
        assert (later.partition, later.is_state) == (0, False)
        assert later.rows.to_pylist() == [
            {"offset": 12, "key": b"a"},
            {"offset": 13, "key": b"a"},
        ]
        assert client.leases("s") == []
        client.alter_stream("s", partitions=2)
        client.producer("s", 1).send([{"key": b"new", "value": b"0"}]).result(20)
        assert next(consumer).partition == 1
        assert consumer.positions == {0: 14, 1: 1}


def test_only_the_key_snapshot_and_what_follows_it_are_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of the history is opened."""
    opened: list[str] = []
    original = parquet_source.ParquetObject.__init__

    def noted(self: object, store: object, file: object) -> None:
        opened.append(file.path)  # type: ignore[attr-defined]
        original(self, store, file)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_source.ParquetObject, "__init__", noted)
    assert offsets(consume_state("s", server=client)) == STATE
    assert opened
    assert all("-of-" in path for path in opened), "names of buckets"


def test_a_key_snapshot_serves_the_cuts_that_it_covers(served: Served, client: Client) -> None:
    """Others are read from the history; the rows are those of the cut either way."""
    whole = client.cut("s")
    early = narrowed(whole, AtOffsets({0: Offset(7)}), client)
    assert usable_snapshot(whole) is not None
    assert usable_snapshot(early) is None, "it ends above the cut"
    served.broker.expire("s", 0, Offset(4))
    later = client.cut("s")
    found = usable_snapshot(later)
    assert found is not None
    assert (found.starts, found.ends) == ({0: 0}, {0: 8}), "its rows below the start are left out"
    build_key_snapshot(served.broker, "s")
    assert usable_snapshot(whole) is None, "it begins above the cut"
    assert usable_snapshot(client.cut("s")) is not None
    for cut in (whole, later):
        rows = [
            n for b in newest_of_each_key(History(client, cut)) for n in b["offset"].to_pylist()
        ]
        assert rows == STATE


def test_rows_below_the_start_are_not_of_the_state(served: Served, client: Client) -> None:
    """The key snapshot still has the last record of a key that has expired."""
    client.create_stream("t")
    with client.producer("t") as producer:
        for key in (b"gone", b"stays"):
            producer.send([{"key": key, "value": b"v"}]).result(20)
    served.broker.ship("t", 0, Offset(2), files=2)
    build_key_snapshot(served.broker, "t")
    served.broker.expire("t", 0, Offset(1))
    assert offsets(consume_state("t", server=client)) == [1]
    served.broker.expire("t", 0, Offset(2))
    assert offsets(consume_state("t", server=client)) == []


def test_damage_of_a_key_snapshot_is_named(served: Served, client: Client) -> None:
    """A file that is gone is an error, not a state with fewer keys; the lease ends with it."""
    found = usable_snapshot(client.cut("s"))
    assert found is not None
    (served.broker.lake.config.root / "default/s__latest" / found.files[0].path).unlink()
    held = len(client.leases("s"))
    with (
        pytest.raises(ObjectMissingError),
        consume_state("s", server=client) as consumer,
    ):
        next(consumer)
    assert len(client.leases("s")) == held


def test_what_is_not_there_is_told_at_once(client: Client) -> None:
    """An unknown stream, and one that was created again before the state was complete."""
    with pytest.raises(UnknownStreamError):
        consume_state("nothing", server=client)
    with consume_state("s", follow=True, server=client) as consumer:
        consumer.cut = replace(consumer.cut, stream_uuid=OTHER)
        with pytest.raises(StreamRecreatedError):
            offsets(consumer, 100)


def test_an_added_partition_comes_after_the_rows_that_its_keys_had_before(client: Client) -> None:
    """However slow the caller is: else a table of keys would get an older record last."""
    seen = threading.Event()
    present = partitions_of(client.stream, client.stream("s"))

    def count() -> int:
        if (found := present()) == 2:
            seen.set()
        return found

    def opened(partition: int) -> Fetch:
        return client.fetch("s", partition, follow=True, batch_bytes_max=4096)

    with Consumer(
        [0], opened, count=count, ends=ends_of(client.describe, "s"), look_s=0.01
    ) as read:
        with client.producer("s", 0) as producer:
            for number in range(40):
                producer.send([{"key": b"k", "value": b"%4096d" % number}]).result(20)
        client.alter_stream("s", partitions=2)
        client.producer("s", 1).send([{"key": b"k", "value": b"new"}]).result(20)
        assert seen.wait(20)
        ends = {0: 0}
        while 1 not in ends:
            one = next(read)
            ends[one.partition] = one.fetched.end_offset
    assert ends == {0: len(RECORDS) + 40, 1: 1}


def test_a_cut_from_before_partitions_were_added_has_nothing_of_theirs(
    served: Served, client: Client
) -> None:
    """The key snapshot covers a partition by now that the cut has not: it is left out."""
    cut = client.cut("s", ttl_ms=600_000)
    client.alter_stream("s", partitions=2)
    client.producer("s", 1).send([{"key": b"new", "value": b"0"}]).result(20)
    served.broker.ship("s", 1, Offset(1))
    build_key_snapshot(served.broker, "s")
    found = usable_snapshot(cut)
    assert found is not None
    assert set(found.ends) == set(found.starts) == {0}
    assert {file.partition for file in found.files} == {0}


def test_a_key_snapshot_that_ends_below_a_compaction_is_passed_over(client: Client) -> None:
    """An older copy of it may have keys whose tombstones have left the table since."""
    cut = client.cut("s", ttl_ms=600_000)
    assert usable_snapshot(cut, whole_start=lambda _: Offset(8)) is not None
    assert usable_snapshot(cut, whole_start=lambda _: Offset(9)) is None
