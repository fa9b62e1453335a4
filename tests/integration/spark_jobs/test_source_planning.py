"""Planning against a real broker, without Spark: times, several streams, leases, huge records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from broker.errors import (
    InvalidRequestError,
    ObjectMissingError,
    OffsetOutOfRangeError,
    RemoteTierUnavailableError,
    StreamRecreatedError,
    UnknownPartitionError,
)
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.reads.lease_keeper import KEEPER, LeaseKeeper
from simkit.brokers.memory_broker import numbered, records
from simkit.tier.lake_broker import Served
from spark_jobs.failures import typed
from spark_jobs.source.batch_reader import HeadwaterReader
from spark_jobs.source.options import parse_batch, parse_stream
from spark_jobs.source.partitions import TableRef
from spark_jobs.source.source import HeadwaterDataSource
from spark_jobs.source.stream_holds import StreamHolds
from spark_jobs.source.stream_reader import HeadwaterStreamReader

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Hold nothing after a test."""
    yield
    KEEPER.release_all()


def publish(served: Served, stream: str, batch: pa.RecordBatch, partition: int = 0) -> None:
    """Store a batch."""
    with Client(served.server) as client, client.producer(stream, partition) as producer:
        producer.send(batch)


def stamped(stamps: Sequence[int]) -> pa.RecordBatch:
    """Return records with these times, in milliseconds."""
    micros = pa.array([stamp * 1000 for stamp in stamps], pa.int64())
    return records([b"v"] * len(stamps), timestamp=micros)


def planned(served: Served, **options: str) -> list[tuple[str, int, int, int]]:
    """Return the slices of a batch read."""
    given = parse_batch({"server": served.server, **options})
    parts = HeadwaterReader(given, given.columns).partitions()
    pieces = [(task.stream, task.piece) for part in parts for task in part.value]
    return [(name, piece.partition, piece.start, piece.end) for name, piece in pieces]


def test_times_become_offsets_in_both_tiers(served: Served) -> None:
    """The first record stamped then or later begins, and ends, a read; times need no order."""
    Client(served.server).create_stream("s")
    publish(served, "s", stamped([1000, 3000, 2000]))
    publish(served, "s", stamped([4000, 5000]))

    def both() -> list[list[tuple[str, int, int, int]]]:
        return [
            planned(served, stream="s", startingTimestamp="2000"),
            planned(served, stream="s", startingTimestamp="1000", endingTimestamp="4000"),
            planned(served, stream="s", startingTimestamp="3001", endingTimestamp="9999"),
        ]

    expected = [[("s", 0, 1, 5)], [("s", 0, 0, 3)], [("s", 0, 3, 5)]]
    assert both() == expected
    served.broker.ship("s", 0, Offset(3))
    assert both() == expected


def test_a_time_that_nobody_reached(served: Served) -> None:
    """An error by default; the end, where that was asked for."""
    Client(served.server).create_stream("s")
    publish(served, "s", stamped([1000]))

    with pytest.raises(OffsetOutOfRangeError) as caught:
        planned(served, stream="s", startingTimestamp="1001")
    assert isinstance(typed(caught.value), OffsetOutOfRangeError)
    lenient = {"startingTimestamp": "1001", "startingOffsetsByTimestampStrategy": "latest"}
    assert planned(served, stream="s", **lenient) == []


def test_batches_over_several_streams(served: Served) -> None:
    """By list, by pattern, by assignment, with offsets of each; big ranges get more slices."""
    client = Client(served.server)
    client.create_stream("a1", partitions=2)
    client.create_stream("a2")
    publish(served, "a1", numbered(0, 30), 0)
    publish(served, "a1", numbered(0, 10), 1)
    publish(served, "a2", numbered(0, 5))

    assert planned(served, subscribePattern="a.") == [
        ("a1", 0, 0, 30),
        ("a1", 1, 0, 10),
        ("a2", 0, 0, 5),
    ]
    assert planned(served, assign='{"a1": [1]}') == [("a1", 1, 0, 10)]
    bounds = {"startingOffsets": '{"a1": {"0": 20, "1": -1}, "a2": {"0": 2}}'}
    assert planned(served, subscribe="a2,a1", **bounds) == [("a1", 0, 20, 30), ("a2", 0, 2, 5)]
    assert len(planned(served, subscribe="a1", minPartitions="4")) >= 4
    assert planned(served, subscribePattern="none.*") == []
    with pytest.raises(UnknownPartitionError):
        planned(served, assign='{"a1": [2]}')


def test_limits_that_spark_is_told(served: Served) -> None:
    """Spark gets the limit of the options."""

    def limit(**options: str) -> Any:
        given = parse_stream({"server": served.server, "stream": "s", **options})
        return HeadwaterStreamReader(given, given.columns).getDefaultReadLimit()

    assert limit() == ReadAllAvailable()
    assert limit(maxOffsetsPerTrigger="7", maxBytesPerTrigger="9") == ReadMaxRows(7)
    assert limit(maxBytesPerTrigger="9") == ReadMaxBytes(9)


def test_one_huge_record_among_small_ones_is_a_batch_of_its_own(served: Served) -> None:
    """`maxBytesPerTrigger` makes the next batch smaller, but never empty."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 300))
    publish(served, "s", records([bytes(8 * 1024 * 1024 - 4096)]))
    publish(served, "s", numbered(301, 300))
    options = {"stream": "s", "startingOffsets": "earliest", "maxBytesPerTrigger": "8192"}
    given = parse_stream({"server": served.server, **options})
    reader = HeadwaterStreamReader(given, ("offset", "value"))
    at, seen, sizes = reader.initialOffset(), 0, []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        for part in reader.partitions(at, end):
            batches = list(reader.read(part))
            assert [o for batch in batches for o in batch.column(0).to_pylist()] == list(
                range(seen, seen + sum(batch.num_rows for batch in batches))
            )
            seen += sum(batch.num_rows for batch in batches)
            sizes.append(sum(batch.nbytes for batch in batches))
        at = end

    assert seen == 601
    assert len(sizes) > 3


def test_a_plan_depends_on_its_offsets_alone(served: Served) -> None:
    """Another process, later, with more records and partitions shipped, plans the same slices."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 100))
    given = parse_stream(
        {
            "server": served.server,
            "stream": "s",
            "startingOffsets": "earliest",
            "minPartitions": "3",
        }
    )
    one = HeadwaterStreamReader(given, given.columns)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    packs = [part.value for part in one.partitions(start, end)]
    publish(served, "s", numbered(100, 100))
    served.broker.ship("s", 0, Offset(150))
    two = HeadwaterStreamReader(given, given.columns)

    parts = two.partitions(two.initialOffset(), end)

    assert [[task.piece for task in part.value] for part in parts] == [
        [task.piece for task in pack] for pack in packs
    ]
    assert len(packs) == 3
    assert two.partitions(end, end) == []
    rows = [batch for part in parts for batch in two.read(part)]
    assert sum(batch.num_rows for batch in rows) == 100


def test_leases_follow_a_query(served: Served) -> None:
    """One per stream; replaced when it is old, told when it was lost, ended with the query."""
    client = Client(served.server)
    client.create_stream("s")
    publish(served, "s", numbered(0, 10))
    now_s = [0.0]
    keeper = LeaseKeeper()
    holds = StreamHolds(client, keeper=keeper, monotonic_s=lambda: now_s[0])

    assert holds.hold("s") is None
    first = set(served.broker.leases)
    assert holds.hold("s") is None
    assert set(served.broker.leases) == first
    now_s[0] = 1000.0
    assert holds.hold("s") is None
    second = set(served.broker.leases)
    assert len(second) == 1
    assert second != first

    (held,) = keeper.held()
    served.broker.leases.clear()
    keeper._held[held].renew_at_s = 0.0
    keeper.tick()
    assert holds.hold("s") is not None
    assert len(served.broker.leases) == 1
    assert holds.hold("none") is None

    holds.release()
    assert served.broker.leases == {}


def test_the_table_is_asked_for_where_it_is_needed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch above the cold end asks nothing of a store that may be away; a failure is kept."""
    client = Client(served.server)
    stream = client.create_stream("s")
    publish(served, "s", numbered(0, 10))
    served.broker.ship("s", 0, Offset(6))
    now_s = [0.0]
    holds = StreamHolds(client, keeper=LeaseKeeper(), monotonic_s=lambda: now_s[0])
    asked = []

    def away(*_arguments: Any, **_options: Any) -> Any:
        asked.append(1)
        raise RemoteTierUnavailableError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(type(served.broker), "take", away)
        assert holds.table("s", stream.uuid, {0: Offset(6)}) is None
        assert asked == []
        for _ in range(3):
            assert holds.table("s", stream.uuid, {0: Offset(5)}) is None
        assert asked == [1]

    assert holds.table("s", stream.uuid, {0: Offset(5)}) is None
    now_s[0] = 100.0
    found = holds.table("s", stream.uuid, {0: Offset(5)})
    assert found == TableRef(served.broker.lake.table_uri(stream), "memory")
    assert served.broker.leases == {}


def test_the_class_that_spark_makes(served: Served) -> None:
    """A schema of the user projects; errors carry their wire form, whichever method finds them."""
    Client(served.server).create_stream("s")
    source = HeadwaterDataSource({"stream": "s", "server": served.server})
    assert str(source.schema()).startswith("`partition` int, `offset` bigint")
    schema = StructType().add("offset", "long").add("topic", "string")
    assert source.reader(schema).partitions() == []
    wrong: list[Callable[[], Any]] = [
        lambda: HeadwaterDataSource({"stremn": "s"}).schema(),
        lambda: source.reader(StructType().add("offset", "integer")),
        lambda: HeadwaterDataSource({"stream": "s", "endingOffsets": "1"}).streamReader(schema),
    ]
    for call in wrong:
        with pytest.raises(InvalidRequestError) as caught:
            call()
        assert caught.value.__notes__
    other = {
        "stream": "s",
        "server": served.server,
        "streamUuid": "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
    }
    with pytest.raises(StreamRecreatedError):
        HeadwaterDataSource(other).reader(schema).partitions()


def test_what_spark_imports_at_every_start_is_cheap() -> None:
    """Spark imports every `pyspark_*` module for any format: no Arrow, no client, no tables.

    The package `headwater` itself imports nothing.
    """
    code = (
        "import sys, pyspark.sql.datasource, pyspark.sql.streaming.datasource\n"
        "before = set(sys.modules)\n"
        "import pyspark_headwater\n"
        "assert pyspark_headwater.DefaultSource.name() == 'headwater'\n"
        "new = set(sys.modules) - before\n"
        "print(*sorted({name.split('.')[0] for name in new} | new & {'headwater.client'}))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    heavy = {"pyarrow", "numpy", "deltalake", "boto3", "grpc", "tiering", "pandas"}
    assert not {*heavy, "headwater.client"} & set(done.stdout.split()), done.stdout


def batch(served: Served, **options: str) -> HeadwaterReader:
    """Return the reader of a batch as Spark gets it: schema first, in ``load()``, then reader."""
    source = HeadwaterDataSource({"server": served.server, **options})
    source.schema()
    serializer: Any = CloudPickleSerializer()
    loaded = serializer.loads(serializer.dumps(source))
    reader = loaded.reader(StructType([StructField("offset", LongType())]))
    assert isinstance(reader, HeadwaterReader)
    return reader


def offsets(reader: HeadwaterReader) -> list[int]:
    """Return what the tasks of a batch read."""
    parts = reader.partitions()
    return [o for part in parts for b in reader.read(part) for o in b.column(0).to_pylist()]


def test_a_batch_is_of_the_moment_of_its_load(served: Served) -> None:
    """Records between `load()` and an action are not read, however often Spark plans."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 30))
    reader = batch(served, stream="s")
    publish(served, "s", numbered(30, 5))

    assert offsets(reader) == list(range(30))
    assert offsets(reader) == list(range(30)), "a union of it with itself"
    assert offsets(batch(served, stream="s")) == list(range(35))


def test_a_batch_holds_its_stream_from_load_on(served: Served) -> None:
    """One lease, taken before the log is read; its tasks renew it and do not end it."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 30))

    reader = batch(served, stream="s")

    (lease_id,) = served.broker.leases
    taken = served.broker.leases[lease_id][1]
    assert offsets(reader) == list(range(30))
    assert set(served.broker.leases) == {lease_id}
    assert served.broker.leases[lease_id][1] > taken
    assert lease_id not in KEEPER.held()


def test_a_task_whose_lease_ran_out_takes_another(served: Served) -> None:
    """What is still there stays until the task is done; then the new lease goes."""
    Client(served.server).create_stream("s")
    publish(served, "s", numbered(0, 30))
    reader = batch(served, stream="s")
    served.broker.leases.clear()
    (part,) = reader.partitions()

    rows = reader.read(part)
    next(rows)

    assert len(served.broker.leases) == 1
    assert list(rows) == []
    assert len(served.broker.leases) == 0


def test_a_batch_of_a_cut_lives_on_the_lease_of_the_cut(served: Served) -> None:
    """A read whose rows another lease holds takes no lease."""
    client = Client(served.server)
    client.create_stream("s")
    publish(served, "s", numbered(0, 30))
    cut = client.cut("s", ttl_ms=600_000)

    assert offsets(batch(served, cut=cut.save())) == list(range(30))
    assert set(served.broker.leases) == {cut.lease.lease_id}
    fixed = {"startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 9}', "lease": "x"}
    assert offsets(batch(served, stream="s", **fixed)) == [5, 6, 7, 8]
    assert set(served.broker.leases) == {cut.lease.lease_id}


def test_a_streaming_load_leaves_no_lease_of_a_batch(served: Served) -> None:
    """`load()` does not say which it will be; a query holds its streams by itself."""
    Client(served.server).create_stream("s")
    source = HeadwaterDataSource({"server": served.server, "stream": "s"})
    source.schema()
    assert len(served.broker.leases) == 1

    source.streamReader(StructType([StructField("offset", LongType())]))

    assert served.broker.leases == {}


def test_a_batch_reads_the_incarnation_that_it_was_planned_with(served: Served) -> None:
    """Offsets in numbers name no stream: a new one of that name is refused, not read."""
    client = Client(served.server)
    client.create_stream("s")
    publish(served, "s", numbered(0, 30))
    bounds = {"startingOffsets": '{"0": 0}', "endingOffsets": '{"0": 30}'}
    reader = batch(served, stream="s", **bounds)
    client.delete_stream("s")
    client.create_stream("s")
    publish(served, "s", numbered(100, 30))

    with pytest.raises(StreamRecreatedError):
        offsets(reader)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"endingOffsets": '{"0": 30}'},
        {"startingOffsets": '{"0": 0}', "endingOffsets": '{"0": 30}'},
        {"startingOffsets": '{"0": 0}', "endingOffsets": '{"0": -1}'},
    ],
)
def test_connect_refuses_what_would_move(
    served: Served, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """A server that plans again would see another end or stream; the error says what to do."""
    client = Client(served.server)
    client.create_stream("s")
    publish(served, "s", numbered(0, 30))
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "3c8fc162-be12-4e1d-ab65-d4fb533e5b3c")

    with pytest.raises(InvalidRequestError, match=r"headwater\.cut\(\"s\"\)"):
        batch(served, stream="s", **options).partitions()
    assert served.broker.leases == {}
    uuid = str(client.stream("s").uuid)
    fixed = {"startingOffsets": '{"0": 0}', "endingOffsets": '{"0": 30}', "streamUuid": uuid}
    assert offsets(batch(served, stream="s", **fixed)) == list(range(30))
    assert offsets(batch(served, cut=client.cut("s", ttl_ms=600_000).save())) == list(range(30))


def test_a_saved_cut_as_moment_is_proved_by_load(served: Served) -> None:
    """A file that is gone is told before a task reads it, as for ``now`` and for a time."""
    with Client(served.server) as client:
        client.create_stream("s")
        publish(served, "s", records([b"v"] * 4))
        served.broker.ship("s", 0, Offset(4))
        cut = client.cut("s")
    options = {"server": served.server, "stream": "s", "asOf": cut.save()}
    HeadwaterDataSource(options).schema()
    (shipped,) = Path(cut.table_uri.removeprefix("file://")).glob("partition=0/*.parquet")
    shipped.unlink()
    with pytest.raises(Exception, match=shipped.name) as caught:
        HeadwaterDataSource(options).schema()
    assert isinstance(typed(caught.value), ObjectMissingError)
