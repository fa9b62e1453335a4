"""What a read without Spark refuses and counts: history, the newest of each key, tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from broker.codec.flight.protocol import AtTime
from broker.errors import (
    ForeignHistoryError,
    GapError,
    InvalidCutError,
    ObjectMissingError,
    SchemaMismatchError,
    StreamChangedError,
    StreamRecreatedError,
    TableMismatchError,
)
from broker.model.certificate import Hole
from broker.model.cut import Cut
from broker.model.cut_positions import refusal
from broker.model.epochs import LeaderEpoch
from broker.model.lineage import Leadership
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.reads.as_of import AtOffsets, narrowed, parse_as_of
from headwater.reads.history import History
from headwater.reads.instant import at_one_instant
from headwater.reads.latest import newest_of_each_key
from headwater.reads.verification import verify_cut
from headwater.reads.whole import read_table
from simkit.tier.lake_broker import Served, serving

BASE_US = 1_700_000_000_000_000
# Keys and values by offset; the first eight are in the table, in two files.
RECORDS: list[tuple[bytes | None, bytes | None]] = [
    (b"a", b"0"), (b"b", b"1"), (None, b"2"), (b"c", b"3"), (b"a", b"4"), (b"b", None),
    (None, b"6"), (b"d", b"7"), (b"d", b"8"), (b"c", None), (b"b", b"10"), (b"e", b"11"),
]  # fmt: skip
NEWEST = [4, 8, 10, 11]  # of a, d, b, e; c is deleted


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Stream ``s`` of one partition with these records, of which eight are cold."""
    with serving(str(tmp_path / "lake")) as found, Client(found.server) as client:
        client.create_stream("s")
        with client.producer("s") as producer:
            for number, (key, value) in enumerate(RECORDS):
                producer.send([{"key": key, "value": value, "timestamp": BASE_US + number}])
        found.broker.ship("s", 0, Offset(8), files=2)
        yield found


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A client of it."""
    with Client(served.server) as found:
        yield found


class ShortClient:
    """A client whose broker ends a read of the tail one record early, without an error."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.call = client.call

    @contextmanager
    def fetch(self, *arguments: Any, **options: Any) -> Iterator[Iterator[Any]]:
        """See ``Client.fetch``."""
        with self._client.fetch(*arguments, **options) as fetched:
            yield self._shortened(list(fetched))

    def _shortened(self, batches: list[Any]) -> Iterator[Any]:
        yield from batches[:-1]
        last = batches[-1].batch
        yield SimpleNamespace(
            removed_count=0,
            batch=last.slice(0, last.num_rows - 1),
            base_offset=batches[-1].base_offset,
        )


def short(client: Client) -> Any:
    """Return such a client in the place of a ``Client``."""
    return ShortClient(client)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """Return the offsets of the rows."""
    return [offset for one in batches for offset in one.column("offset").to_pylist()]


# ------------------------------------------------------------------------------ all of it


def test_a_tail_that_ends_early_is_a_gap(client: Client) -> None:
    """It is found whatever ended the tail, and however many batches it had."""
    cut = client.cut("s")
    history = History(short(client), cut)
    with pytest.raises(GapError) as caught:
        list(history.batches())
    assert (caught.value.start, caught.value.end) == (11, 12)
    assert not history.complete
    with pytest.raises(GapError) as caught:
        verify_cut(short(client), cut)
    assert (caught.value.start, caught.value.end) == (11, 12)


def test_a_certificate_counts_the_rows_of_the_read(client: Client) -> None:
    """For the whole cut, and for a cut narrowed to an end in either tier."""
    for end, counts in ((None, (8, 4)), (10, (8, 2)), (8, (8, 0)), (5, (5, 0)), (0, (0, 0))):
        cut = client.cut("s")
        if end is not None:
            cut = narrowed(cut, AtOffsets({0: Offset(end)}), client)
        history = History(client, cut)
        assert len(offsets(history.batches())) == sum(counts)
        (part,) = history.certificate().partitions
        assert (part.cold_count, part.hot_count) == counts
        (full,) = verify_cut(client, cut).partitions
        assert (full.cold_count, full.hot_count, full.end) == (*counts, sum(counts))


def test_a_digest_is_of_the_rows_of_the_cut(client: Client) -> None:
    """Another end is another digest; the same end is the same, in any tier."""
    found = {
        end: verify_cut(client, narrowed(client.cut("s"), AtOffsets({0: Offset(end)}), client))
        for end in range(13)
    }
    assert len({one.partitions[0].digest for one in found.values()}) == 13


@pytest.mark.parametrize("columns", [["offset", "offset"], [], ["nothing"], ["offset", "x"]])
def test_columns_are_of_a_row_and_named_once(client: Client, columns: list[str]) -> None:
    """The refusal comes before the first row."""
    with pytest.raises(SchemaMismatchError):
        next(History(client, client.cut("s")).batches(columns))


def test_a_history_of_a_table_that_is_not_ours_is_refused_before_the_first_row(
    served: Served, client: Client
) -> None:
    """Its counts and bounds are right, but a value is wrong; a lookup by time is refused, too."""
    before = client.cut("s")
    uri = before.table_uri
    DeltaTable(uri).update({"value": "X'00'"}, predicate="offset = 1")
    version = DeltaTable(uri).version()
    cut = replace(before, table_version=version, table_digest=None)
    with pytest.raises(TableMismatchError, match="UPDATE"):
        History(client, cut)
    with pytest.raises(TableMismatchError, match="UPDATE"):
        narrowed(cut, AtTime(BASE_US + 3), client)
    assert served.broker is not None
    assert len(offsets(History(client, before).batches())) == 12


def test_a_time_is_not_looked_up_in_a_table_that_lacks_a_file(
    served: Served, client: Client
) -> None:
    """It is refused even if the file with the answer is there."""
    table = served.broker.table("s")
    last = table.snapshot().files[-1]
    (table.store.config.root / last.path).unlink()
    with pytest.raises(ObjectMissingError):
        narrowed(client.cut("s"), AtTime(BASE_US + 1), client)


# ------------------------------------------------------------------------------ the newest


def test_the_newest_record_of_each_key_is_read(client: Client) -> None:
    """Both tiers are read; a tombstone ends its key, records without a key are ignored."""
    history = History(client, client.cut("s"))
    assert offsets(newest_of_each_key(history)) == NEWEST
    (part,) = history.certificate().partitions
    assert (part.cold_count, part.hot_count) == (8, 4)
    history = History(client, client.cut("s"))
    (names,) = {tuple(one.schema.names) for one in newest_of_each_key(history, ["value"])}
    assert names == ("value",)
    narrow = narrowed(client.cut("s"), AtOffsets({0: Offset(9)}), client)
    assert offsets(newest_of_each_key(History(client, narrow))) == [3, 4, 8]


def test_a_table_is_read_in_one_call(served: Served, client: Client) -> None:
    """The whole table, the newest records, or a moment; the certificate covers the rows read."""
    rows, proof = read_table("s", server=served.server)
    assert rows.column("value").to_pylist() == [value for _, value in RECORDS]
    assert proof.partitions[0].records_count == 12
    rows, _ = read_table("s", server=served.server, latest=True, columns=["offset"])
    assert rows.column("offset").to_pylist() == NEWEST
    saved = narrowed(client.cut("s"), AtOffsets({0: Offset(5)}), client).save()
    rows, proof = read_table("s", server=served.server, as_of=saved)
    assert (rows.num_rows, proof.partitions[0].end) == (5, 5)


def test_a_cut_of_something_else_is_not_read(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut of another stream, or of a history that the broker refuses, is an error."""
    client.create_stream("other")
    cut = client.cut("other")
    with pytest.raises(InvalidCutError, match="is of stream 'other'"):
        read_table("s", server=served.server, as_of=cut)

    def refuse(self: Client, cut: Cut) -> None:
        raise ForeignHistoryError(f"another history: {self is not None}, {cut.stream}")

    monkeypatch.setattr(Client, "check_cut", refuse)
    with pytest.raises(ForeignHistoryError, match="another history"):
        read_table("s", server=served.server, as_of=client.cut("s"))


def test_cuts_of_several_streams_move_to_one_moment(client: Client) -> None:
    """Each stream keeps its incarnation; one that was created again is named."""
    cut = client.cut("s")
    with client.producer("s") as producer:
        producer.send([{"value": b"more"}])
    moved = at_one_instant({"s": cut}, client)["s"]
    assert (moved.partitions[0].hot_end, moved.partitions[0].cold_end) == (13, 8)
    other = "00000000-0000-0000-0000-000000000009"
    for values in ({"stream_uuid": other}, {"partitions": ()}):
        with pytest.raises((StreamRecreatedError, StreamChangedError)) as caught:
            at_one_instant({"s": replace(cut, **values)}, client)
        recreated = "stream_uuid" in values
        assert isinstance(caught.value, StreamRecreatedError) is recreated


def test_a_cut_that_moves_over_a_failover_is_of_the_history_that_it_ends_in(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader committed the record at the new hot end: saved, the cut can be read again."""
    cut = client.cut("s")
    told = client.high_watermarks(["s"])["s"]
    (one,) = cut.partitions
    lineage = tuple(
        Leadership(leader_epoch=LeaderEpoch(epoch), lineage_id=lineage_id, start=start)
        for epoch, lineage_id, start in ((1, "a" * 32, Offset(0)), (2, "b" * 32, one.hot_end))
    )
    before = replace(cut, partitions=(replace(one, lineage_id=lineage[0].lineage_id),))
    assert refusal("s", [lineage], before.positions) is None
    now = replace(told, offsets=(Offset(13),), lineage_ids=(lineage[1].lineage_id,))
    monkeypatch.setattr(Client, "high_watermarks", lambda *_: {"s": now})
    moved = Cut.load(at_one_instant({"s": before}, client)["s"].save())
    assert moved.partitions[0].hot_end == 13
    assert refusal("s", [lineage], moved.positions) is None


def test_certificates_of_both_forms_say_what_retention_took(served: Served, client: Client) -> None:
    """Without the hole, a certificate from offset 4 on does not say where the first four are."""
    served.broker.expire("s", 0, Offset(4))
    cut = client.cut("s")
    for end in (12, 8, 6, 4):
        at = narrowed(cut, AtOffsets({0: Offset(end)}), client)
        history = History(client, at)
        assert len(offsets(history.batches())) == end - 4
        (counted,), (full,) = history.certificate().partitions, verify_cut(client, at).partitions
        assert counted.holes == full.holes == (Hole(Offset(0), Offset(4), "retention"),)


@pytest.mark.parametrize("text", ['{"0": 1, "0": 2}', '{"0": 1, "00": 2}'])
def test_a_partition_is_named_once(text: str) -> None:
    """A JSON object with a repeated name would keep the last one silently."""
    with pytest.raises(Exception, match="as_of"):
        parse_as_of(text)
