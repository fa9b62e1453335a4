"""The unified read over a real Delta table and a real tail: exact, certified, pinned, held."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

from broker.errors import (
    HeadwaterError,
    InvalidCutError,
    InvalidRequestError,
    ObjectCorruptError,
    ObjectMissingError,
    OffsetOutOfRangeError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.cut import Cut
from broker.model.offsets import Offset
from headwater import certificate, cut, cut_of, read, release
from headwater.client import Client
from headwater.reads.lease_keeper import KEEPER
from simkit.brokers.memory_broker import numbered
from simkit.encryption_keys import ENCRYPTION, FIRST, keys_in
from simkit.tier.lake_broker import Served, serving
from spark_jobs.source.columns import ROW_COLUMNS
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

# With code generated, as users have it: what is about the plan and the rows of both tiers together.
as_users = pytest.mark.usefixtures("codegen")


def publish(served: Served, start: int, count: int, partition: int = 0) -> None:
    """Store records whose values are their numbers, ten to a batch."""
    with Client(served.server) as client, client.producer("s", partition) as producer:
        for first in range(start, start + count, 10):
            producer.send(numbered(first, min(10, start + count - first)))


@pytest.fixture
def stream(served: Served) -> Served:
    """Stream ``s``: two partitions; 600 and 250 records cold in several files, 41 and 9 hot."""
    Client(served.server).create_stream("s", partitions=2)
    publish(served, 0, 641, 0)
    publish(served, 0, 259, 1)
    served.broker.ship("s", 0, Offset(400), files=3)
    served.broker.ship("s", 0, Offset(600))
    served.broker.ship("s", 1, Offset(250), files=2)
    return served


def offsets(rows: DataFrame) -> dict[int, list[int]]:
    """Collect the offsets of each partition, in order; each value must be its offset."""
    found: dict[int, list[int]] = {0: [], 1: []}
    for row in rows.select("partition", "offset", "value").collect():
        assert int(row.value) == row.offset
        found[row.partition].append(row.offset)
    return {partition: sorted(values) for partition, values in found.items()}


@as_users
def test_every_record_is_there_once(spark: SparkSession, stream: Served) -> None:
    """Both tiers together are each offset up to the high watermark, once, under a certificate."""
    rows = read(spark, "s", server=stream.server)

    assert rows.columns == list(ROW_COLUMNS)
    assert [kind for _, kind in rows.dtypes] == list(ROW_COLUMNS.values())
    assert offsets(rows) == {0: list(range(641)), 1: list(range(259))}
    proof = certificate(rows)
    assert (proof.form, proof.records_count, proof.files_count) == ("counts", 900, 6)
    assert [(part.cold_count, part.hot_count) for part in proof.partitions] == [(600, 41), (250, 9)]
    assert cut_of(rows).records_count == 900


@as_users
def test_the_cold_side_stays_a_native_vectorised_scan(spark: SparkSession, stream: Served) -> None:
    """The plan has one Parquet scan in batches without a filter, and the source beside it."""
    plan = read(spark, "s", server=stream.server)._jdf.queryExecution().toString()

    assert "Batched: true" in plan
    assert "PartitionFilters: []" in plan
    assert "DataFilters: []" in plan
    assert "BatchScan headwater" in plan


@as_users
def test_one_tier_alone_and_none_at_all(spark: SparkSession, served: Served) -> None:
    """An empty stream, a stream without a table and one without a tail read as what they are."""
    Client(served.server).create_stream("s", partitions=2)
    empty = read(spark, "s", server=served.server)
    assert (empty.count(), empty.columns) == (0, list(ROW_COLUMNS))
    assert certificate(empty).records_count == 0

    publish(served, 0, 30)
    hot = read(spark, "s", server=served.server)
    assert offsets(hot) == {0: list(range(30)), 1: []}

    served.broker.ship("s", 0, Offset(30))
    cold = read(spark, "s", server=served.server)
    assert offsets(cold) == {0: list(range(30)), 1: []}
    assert "BatchScan headwater" not in cold._jdf.queryExecution().toString()


@as_users
def test_cold_rows_equal_those_of_plain_delta_readers(spark: SparkSession, stream: Served) -> None:
    """Below the cold end, our rows are delta-spark's and delta-rs's own, nothing of ours loaded."""
    rows = read(spark, "s", server=stream.server)
    path = stream.broker.table("s").store.config.root
    ours = rows.where(
        "(partition = 0 and offset < 600) or (partition = 1 and offset < 250)"
    ).orderBy("partition", "offset")
    plain = spark.read.format("delta").load(str(path)).select(*ROW_COLUMNS)

    assert ours.exceptAll(plain).count() == plain.exceptAll(ours).count() == 0
    from_rust = DeltaTable(str(path)).to_pyarrow_table(columns=list(ROW_COLUMNS))
    from_rust = from_rust.sort_by([("partition", "ascending"), ("offset", "ascending")])
    from_spark = pa.table(ours.toArrow()).cast(from_rust.schema)
    assert from_spark.equals(from_rust)


@as_users
def test_columns_are_projected_on_both_sides(spark: SparkSession, stream: Served) -> None:
    """The selected columns come in the given order from both tiers."""
    rows = read(spark, "s", columns=["value", "offset", "partition"], server=stream.server)

    assert rows.columns == ["value", "offset", "partition"]
    assert offsets(rows) == {0: list(range(641)), 1: list(range(259))}
    with pytest.raises(InvalidRequestError, match="did you mean 'offset'"):
        read(spark, "s", columns=["ofset"], server=stream.server)


@as_users
def test_a_later_select_and_filter_narrow_the_log(spark: SparkSession, stream: Served) -> None:
    """The broker is asked for what an action needs; the next action has needs of its own."""
    rows = read(spark, "s", server=stream.server)
    narrow = rows.where("partition = 1 AND offset >= 255").select("value")
    plan = narrow._jdf.queryExecution().executedPlan().toString()

    assert "[offset, value, partition] by Python, pushed [EqualTo(partition,1), " in plan
    assert sorted(int(row.value) for row in narrow.collect()) == [255, 256, 257, 258]
    assert rows.count() == 900
    assert read(spark, "s", columns=["value"], server=stream.server).count() == 900


def test_new_commits_and_records_do_not_move_a_read(spark: SparkSession, stream: Served) -> None:
    """A DataFrame, and its cut saved as text, give the same rows after the log and table moved."""
    rows = read(spark, "s", server=stream.server)
    text = cut_of(rows).save()
    expected = offsets(rows)

    publish(stream, 641, 100)
    stream.broker.ship("s", 0, Offset(700))

    assert offsets(rows) == expected
    assert offsets(read(spark, "s", as_of=text, server=stream.server)) == expected
    assert offsets(read(spark, Cut.load(text), server=stream.server)) == expected
    assert offsets(read(spark, "s", server=stream.server))[0] == list(range(741))


@as_users
def test_optimize_leaves_every_read_exact(spark: SparkSession, stream: Served) -> None:
    """Spark rewrites the table's files; old cuts read the old files, new reads the new ones."""
    before = cut("s", server=stream.server)
    path = stream.broker.table("s").store.config.root

    spark.sql(f"OPTIMIZE delta.`{path}`")

    for rows in (
        read(spark, "s", server=stream.server),
        read(spark, "s", as_of=before, server=stream.server),
    ):
        assert offsets(rows) == {0: list(range(641)), 1: list(range(259))}
    assert certificate(read(spark, "s", server=stream.server)).files_count == 2
    publish(stream, 641, 9)
    stream.broker.ship("s", 0, Offset(650))
    assert offsets(read(spark, "s", server=stream.server))[0] == list(range(650))


def _delete_a_file(table: Path) -> None:
    sorted(table.glob("partition=0/*.parquet"))[1].unlink()


def _truncate_a_file(table: Path) -> None:
    file = min(table.glob("partition=1/*.parquet"))
    file.write_bytes(file.read_bytes()[:-100])


def _remove_the_last_commit(table: Path) -> None:
    max(table.glob("_delta_log/*.json")).unlink()


def _remove_a_commit_in_the_middle(table: Path) -> None:
    sorted(table.glob("_delta_log/*.json"))[1].unlink()


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_delete_a_file, ObjectMissingError),
        (_truncate_a_file, ObjectCorruptError),
        (_remove_the_last_commit, TableRolledBackError),
        (_remove_a_commit_in_the_middle, ObjectMissingError),
    ],
)
def test_damage_fails_the_next_read_by_name(
    spark: SparkSession, stream: Served, damage: Callable[[Path], None], kind: type[HeadwaterError]
) -> None:
    """A file or commit that is gone or cut fails the read before a DataFrame exists."""
    saved = cut("s", server=stream.server)
    assert offsets(read(spark, "s", server=stream.server))[0] == list(range(641))
    held = set(KEEPER.held())

    damage(stream.broker.table("s").store.config.root)

    with pytest.raises(kind):
        read(spark, "s", server=stream.server)
    with pytest.raises((kind, ObjectMissingError)):
        read(spark, "s", as_of=saved, server=stream.server)
    assert set(KEEPER.held()) == held, "a read that failed must not hold a lease"


@as_users
def test_rows_that_the_broker_never_committed_fail_the_read(
    spark: SparkSession, stream: Served
) -> None:
    """A foreign append is refused with a certificate, and cut off without one."""
    path = stream.broker.table("s").store.config.root
    foreign = spark.read.format("delta").load(str(path)).where("partition = 0 and offset < 5")
    foreign = foreign.withColumn("offset", F.col("offset") + 5000)
    foreign.write.format("delta").mode("append").save(str(path))

    with pytest.raises(TableMismatchError):
        read(spark, "s", server=stream.server)
    unproved = read(spark, "s", certificate="none", server=stream.server)
    assert offsets(unproved) == {0: list(range(641)), 1: list(range(259))}


def test_the_full_certificate_reads_every_byte(spark: SparkSession, stream: Served) -> None:
    """Digests depend on the rows alone; a flipped bit that no size or count shows is found."""
    saved = cut("s", server=stream.server)
    proofs = [
        certificate(read(spark, saved, certificate="full", server=stream.server)) for _ in range(2)
    ]
    assert proofs[0] == proofs[1]
    assert (proofs[0].form, proofs[0].records_count) == ("full", 900)
    assert all(part.digest for part in proofs[0].partitions)

    file = min(stream.broker.table("s").store.config.root.glob("partition=0/*.parquet"))
    body = bytearray(file.read_bytes())
    body[len(body) // 4] ^= 1
    file.write_bytes(body)

    with pytest.raises(ObjectCorruptError):
        read(spark, saved, certificate="full", server=stream.server)


def test_a_file_that_vanishes_after_the_certificate_fails_the_action(
    spark: SparkSession, stream: Served
) -> None:
    """Spark itself fails without the file, and does not return fewer rows."""
    rows = read(spark, "s", server=stream.server)
    _delete_a_file(stream.broker.table("s").store.config.root)

    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist|FileNotFound"):
        rows.agg(F.sum("offset")).collect()


def test_settings_that_drop_rows_are_refused(spark: SparkSession, stream: Served) -> None:
    """With ignoreMissingFiles Spark would return fewer rows, so such a session cannot read."""
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(HeadwaterError, match="ignoreMissingFiles"):
            read(spark, "s", server=stream.server)
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_the_lease_is_held_until_released(spark: SparkSession, stream: Served) -> None:
    """A read's lease is renewed by its owner and gone from the broker after release."""
    rows = read(spark, "s", server=stream.server, lease_ttl_ms=60_000)
    lease_id = cut_of(rows).lease.lease_id
    first = stream.broker.leases[lease_id][1]

    with KEEPER._changed:  # a third of its time is over
        KEEPER._held[lease_id].renew_at_s = 0.0
        KEEPER._changed.notify_all()
    assert _until(lambda: stream.broker.leases[lease_id][1] > first)
    assert release(rows)
    assert lease_id not in stream.broker.leases
    assert not release(rows)


def test_a_saved_cut_keeps_its_lease_for_others(spark: SparkSession, stream: Served) -> None:
    """Releasing a read of a given cut stops renewing the lease, but does not end it."""
    saved = cut("s", server=stream.server)
    rows = read(spark, saved, server=stream.server)
    assert cut_of(rows).lease.lease_id == saved.lease.lease_id

    assert release(rows)

    assert saved.lease.lease_id in stream.broker.leases


def test_a_cut_whose_lease_ended_is_read_under_a_new_one(
    spark: SparkSession, stream: Served
) -> None:
    """After the end of its lease a cut has the same rows while every record is still there."""
    saved = cut("s", server=stream.server)
    Client(stream.server).drop_lease(saved.lease.lease_id)

    rows = read(spark, saved, server=stream.server)

    assert offsets(rows) == {0: list(range(641)), 1: list(range(259))}
    assert cut_of(rows).lease.lease_id != saved.lease.lease_id


@pytest.mark.parametrize(
    ("as_of", "kind"),
    [
        ("not a cut", InvalidCutError),
        ("hwcut1.0000000000000000.{}", InvalidCutError),
        ({"0": 5}, InvalidRequestError),
        ({"0": 5, "1": 260}, OffsetOutOfRangeError),
        (1_700_000_000, InvalidRequestError),
    ],
)
def test_an_as_of_that_is_no_cut_is_refused(
    spark: SparkSession, stream: Served, as_of: Any, kind: type[HeadwaterError]
) -> None:
    """Damaged text, offsets that do not fit, and seconds taken for microseconds are refused."""
    with pytest.raises(kind):
        read(spark, "s", as_of=as_of, server=stream.server)


def test_a_cut_of_another_stream_is_refused(spark: SparkSession, stream: Served) -> None:
    """A cut names its stream; another name beside it is refused."""
    Client(stream.server).create_stream("t")
    with pytest.raises(InvalidRequestError, match="'s'"):
        read(spark, "t", as_of=cut("s", server=stream.server), server=stream.server)


def test_a_cut_that_disagrees_with_the_table_is_refused(
    spark: SparkSession, stream: Served
) -> None:
    """A cold end that the version's transactions do not have means that the log was rewritten."""
    good = cut("s", server=stream.server)
    moved = dataclasses.replace(good.partitions[0], cold_end=Offset(610))
    forged = dataclasses.replace(good, partitions=(moved, good.partitions[1]))

    with pytest.raises(TableRolledBackError):
        read(spark, forged, server=stream.server)


def test_only_what_read_returned_has_a_certificate(spark: SparkSession, stream: Served) -> None:
    """A derived DataFrame has no certificate of its own, and the error says where to ask."""
    rows = read(spark, "s", server=stream.server)
    with pytest.raises(InvalidRequestError, match="filtered"):
        certificate(rows.where("offset > 1"))
    with pytest.raises(InvalidRequestError, match="none"):
        certificate(read(spark, "s", certificate="none", server=stream.server))


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait for a condition of another thread."""
    import threading
    import time

    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        threading.Event().wait(0.05)
    return True


@as_users
def test_an_encrypted_table_is_read_by_tasks_that_decrypt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both tiers, once each, under a certificate; by the broker's keys, and by a keyring."""
    ring = tmp_path / "keyring.toml"
    ring.write_text(f'current = "one"\n[keys]\none = "{FIRST}"\n')
    ring.chmod(0o600)
    lake = StoreConfig.from_env(str(tmp_path / "lake"))
    with serving(dataclasses.replace(lake, key_provider="file", keyring_file=str(ring))) as served:
        served.broker.keys = keys_in(ring)
        Client(served.server).create_stream(
            "s", encryption=ENCRYPTION, table_encryption="ciphertext"
        )
        publish(served, 0, 120)
        served.broker.ship("s", 0, Offset(100), files=2)
        rows = read(spark, "s", server=served.server)
        assert offsets(rows) == {0: list(range(120)), 1: []}
        assert certificate(rows).records_count == 120
        assert "Batched: true" not in rows._jdf.queryExecution().toString()
        release(rows)
        source = spark.read.format("headwater").option("encryptionKeyring", str(ring))
        found = source.options(server=served.server, stream="s").load()
        assert offsets(found) == {0: list(range(120)), 1: []}
