"""Tasks of the source on a real broker and table, without Spark: equal rows from either tier."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from broker.codec.schema import HEADERS_TYPE, ROW_SCHEMA
from broker.errors import (
    ObjectMissingError,
    OffsetOutOfRangeError,
    RemoteTierUnavailableError,
    UnavailableError,
)
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream
from broker.model.tiering import TierStatus
from headwater.client import Client
from simkit.brokers.memory_broker import numbered
from simkit.encryption_keys import ENCRYPTION, FIRST, SECOND, keys_in, write_keyring
from simkit.tier.lake_broker import LakeBroker, Served, serving
from spark_jobs.source import lookup, tiers
from spark_jobs.source.columns import ROW_COLUMNS
from spark_jobs.source.partitions import OffsetSlice, TableRef
from spark_jobs.source.reader import read_slice
from tiering.store.location import StoreConfig

pytestmark = pytest.mark.integration

ALL = tuple(ROW_COLUMNS)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is a worker that has opened nothing."""
    monkeypatch.setattr(tiers.TABLES, "_tables", {})
    monkeypatch.setattr(tiers.TABLES, "_refs", {})
    monkeypatch.setattr(lookup, "_WAIT_FIRST_S", 0.01)


@pytest.fixture
def no_cold_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the broker unable to read the table for others."""

    def refuse(*_arguments: Any) -> Any:
        raise AssertionError("the broker was asked for cold rows")

    monkeypatch.setattr(LakeBroker, "read", refuse)


def publish(served: Served, batch: pa.RecordBatch) -> Stream:
    """Store a batch in stream `s`, which is made if there is none."""
    with Client(served.server) as client:
        stream = client.create_stream("s")
        with client.producer("s") as producer:
            producer.send(batch)
    return stream


def read(
    served: Served, start: int, end: int, *, columns: tuple[str, ...] = ALL, **options: Any
) -> pa.Table:
    """Read a slice as an executor does."""
    with Client(served.server) as client:
        task = OffsetSlice(0, Offset(start), Offset(end))
        uuid = client.stream("s").uuid
        batches = list(
            read_slice(client, task, stream="s", stream_uuid=uuid, columns=columns, **options)
        )
    schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema=schema)


def offsets(rows: pa.Table) -> list[int]:
    """Return the offsets of rows."""
    found: list[int] = rows.column("offset").to_pylist()
    return found


def odd() -> pa.RecordBatch:
    """Return records of every odd kind: nulls, repeats, times out of order, one of 8 MiB less."""
    headers = [None, [], [{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, None]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None, b"", b"k\x00", None, b"x"], pa.binary()),
            "value": pa.array([None, b"", b"\xff", bytes(8 * 1024 * 1024 - 4096), b"y"]),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": pa.array([9_000, 5, 1_700_000_000_123_456, 3, 4]),
            "correlation_id": pa.array([None, "c", None, None, ""], pa.string()),
        }
    )


def test_hot_at_first_and_cold_at_the_retry_are_the_same_rows(
    served: Served, no_cold_reads: None
) -> None:
    """Bit for bit, odd records included; the second time, the broker is not asked for a row."""
    publish(served, odd())
    publish(served, numbered(5, 95))
    hot = read(served, 0, 100)
    served.broker.ship("s", 0, Offset(60), files=3)

    at_the_seam = read(served, 0, 100)
    served.broker.ship("s", 0, Offset(100))
    cold = read(served, 0, 100)

    assert offsets(hot) == list(range(100))
    assert at_the_seam.equals(hot)
    assert cold.equals(hot)


def test_any_range_and_projection_across_the_seam(served: Served, no_cold_reads: None) -> None:
    """Half-open, exact, in order, columns in the order asked for."""
    publish(served, numbered(0, 100))
    served.broker.ship("s", 0, Offset(60), files=4)

    for start, end in [(0, 1), (59, 61), (60, 61), (14, 46), (99, 100), (0, 60)]:
        rows = read(served, start, end, columns=("value", "partition", "offset"))
        assert offsets(rows) == list(range(start, end))
        assert [int(value) for value in rows.column("value").to_pylist()] == offsets(rows)
    assert read(served, 30, 70, columns=("value",)).num_rows == 40


def test_short_slices_that_the_broker_still_has_come_from_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in both tiers is read from files only if that is worth opening them."""
    publish(served, numbered(0, 100))
    served.broker.ship("s", 0, Offset(60))
    served.broker.partitions.handle("s", 0).log_start = Offset(
        0
    )  # local retention keeps it a while
    both = [
        TierStatus(
            partition=0,
            cold=OffsetRange(Offset(0), Offset(60)),
            local_start=Offset(0),
            high_watermark=Offset(100),
            unshipped_bytes=0,
            last_error=None,
            last_shipped_us=None,
        )
    ]
    monkeypatch.setattr(LakeBroker, "status", lambda _self, _name: both)

    assert offsets(read(served, 0, 60)) == list(range(60))
    assert tiers.TABLES._tables == {}

    monkeypatch.setattr(tiers, "FILES_RECORDS_MIN", 10)
    assert offsets(read(served, 0, 60)) == list(range(60))
    assert len(tiers.TABLES._tables) == 1


def test_files_that_were_rewritten_are_found_again(served: Served, no_cold_reads: None) -> None:
    """OPTIMIZE and VACUUM by others between two slices of one worker change no row."""
    stream = publish(served, numbered(0, 100))
    served.broker.ship("s", 0, Offset(100), files=10)
    assert offsets(read(served, 0, 50)) == list(range(50))
    table = DeltaTable(served.broker.lake.table_uri(stream))
    table.optimize.compact()
    removed = table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert removed

    assert offsets(read(served, 50, 100)) == list(range(50, 100))


def test_a_file_that_is_lost_is_an_error(served: Served, no_cold_reads: None) -> None:
    """A newer version would not have it either: nothing is left out in silence."""
    stream = publish(served, numbered(0, 100))
    served.broker.ship("s", 0, Offset(100), files=2)
    folder = Path(served.broker.lake.table_uri(stream).removeprefix("file://")) / "partition=0"
    shutil.rmtree(folder)

    with pytest.raises(ObjectMissingError):
        read(served, 0, 100)


def test_a_table_out_of_reach_is_read_by_the_broker(served: Served) -> None:
    """An executor without access to the store gets the same rows by Flight."""
    publish(served, numbered(0, 100))
    served.broker.ship("s", 0, Offset(60))

    rows = read(served, 0, 100, table=TableRef("file:///nowhere/at/all", "memory"))

    assert offsets(rows) == list(range(100))


def test_a_broker_without_a_lake_has_everything_itself(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer says that there is no cold tier, so a task does not wait for one."""
    publish(served, numbered(0, 100))

    def without(*_arguments: Any) -> Any:
        raise RemoteTierUnavailableError("this broker runs without a lake")

    monkeypatch.setattr(LakeBroker, "status", without)
    monkeypatch.setattr(lookup.Backoff, "wait", without)

    assert offsets(read(served, 0, 100)) == list(range(100))


def test_cold_rows_do_not_need_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that knows its table reads what the table has, while the broker is away."""
    with serving(str(tmp_path / "lake")) as served:
        stream = publish(served, numbered(0, 100))
        served.broker.ship("s", 0, Offset(60))
        table = TableRef(served.broker.lake.table_uri(stream), served.broker.cluster)
    client = Client(served.server)

    def rows(start: int, end: int) -> list[int]:
        task = OffsetSlice(0, Offset(start), Offset(end))
        found = read_slice(
            client, task, stream="s", stream_uuid=stream.uuid, columns=("offset",), table=table
        )
        return [offset for batch in found for offset in batch.column(0).to_pylist()]

    assert rows(10, 60) == list(range(10, 60))
    monkeypatch.setattr("spark_jobs.source.reader.PATIENCE_S", 1.0)
    with pytest.raises(UnavailableError):
        rows(10, 61)


def test_a_broker_that_comes_back_is_gone_on_with(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the middle of a slice costs time, not rows, and doubles none."""
    publish(served, numbered(0, 40_000))
    publish(served, numbered(40_000, 40_000))
    handle = served.broker.partitions.handle("s", 0)
    real, calls = type(handle).read, []

    def flaky(self: Any, start: Offset, end: Offset, *, bytes_max: int) -> Any:
        calls.append(start)
        if len(calls) in {1, 3}:
            raise UnavailableError("restarting")
        return real(self, start, end, bytes_max=4096)

    monkeypatch.setattr(type(handle), "read", flaky)

    assert offsets(read(served, 0, 80_000, columns=("offset",))) == list(range(80_000))
    assert len(calls) >= 4


@pytest.mark.parametrize("strict", [True, False])
def test_what_retention_deleted_is_named_or_skipped_if_told_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """Option failOnDataLoss decides; the default is to fail."""
    publish(served, numbered(0, 60))
    publish(served, numbered(60, 40))
    served.broker.partitions.handle("s", 0).make_cold(Offset(60))
    monkeypatch.setattr(LakeBroker, "status", lambda _self, _name: [])
    monkeypatch.setattr(LakeBroker, "table_start", lambda _self, _name, _partition: None)

    if strict:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            read(served, 10, 100)
        assert caught.value.start == 60
    else:
        assert offsets(read(served, 10, 100, fail_on_data_loss=False)) == list(range(60, 100))


def test_tasks_decrypt_with_a_keyring_and_else_ask_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an encrypted table: equal rows by the option, by the environment, and without keys."""
    monkeypatch.setattr(tiers, "FILES_RECORDS_MIN", 10)  # so few records are worth opening files
    ring = tmp_path / "keyring.toml"
    ring.write_text(f'current = "one"\n[keys]\none = "{FIRST}"\n')
    ring.chmod(0o600)
    lake = StoreConfig.from_env(str(tmp_path / "lake"))
    with serving(replace(lake, key_provider="file", keyring_file=str(ring))) as served:
        served.broker.keys = keys_in(ring)
        with Client(served.server) as client:
            client.create_stream("s", encryption=ENCRYPTION, table_encryption="ciphertext")
            with client.producer("s") as producer:
                producer.send(numbered(0, 100))
        plain = read(served, 0, 100)
        served.broker.ship("s", 0, Offset(100), files=2)
        asked: list[Any] = []
        serve = LakeBroker.read

        def counted(*arguments: Any) -> Any:
            asked.append(arguments)
            return serve(*arguments)

        monkeypatch.setattr(LakeBroker, "read", counted)
        assert read(served, 0, 100).equals(plain)
        assert len(asked) == 1  # the broker decrypts
        asked.clear()
        tiers.TABLES._tables.clear()
        assert read(served, 0, 100, keyring_file=str(ring)).equals(plain)
        assert asked == []
        tiers.TABLES._tables.clear()
        monkeypatch.setenv("HEADWATER_ENCRYPTION_PROVIDER", "file")
        monkeypatch.setenv("HEADWATER_ENCRYPTION_KEYRING_FILE", str(ring))
        assert read(served, 0, 100).equals(plain)
        assert asked == []


def test_tasks_need_no_provider_key_from_before_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_cold_reads: None
) -> None:
    """Files that name the old key: in a new worker, and in one that had opened the table before."""
    monkeypatch.setattr(tiers, "FILES_RECORDS_MIN", 10)
    ring, worker, alone = (tmp_path / f"{name}.toml" for name in ("brokers", "worker", "alone"))
    write_keyring(ring, one=FIRST)
    write_keyring(worker, one=FIRST)
    write_keyring(alone, two=SECOND)
    lake = StoreConfig.from_env(str(tmp_path / "lake"))
    with serving(replace(lake, key_provider="file", keyring_file=str(ring))) as served:
        served.broker.keys = keys_in(ring)
        with Client(served.server) as client:
            stream = client.create_stream("s", encryption=ENCRYPTION, table_encryption="ciphertext")
            with client.producer("s") as producer:
                producer.send(numbered(0, 100))
            plain = read(served, 0, 100)
            served.broker.ship("s", 0, Offset(100), files=2)
            ref = TableRef(served.broker.lake.table_uri(stream), served.broker.cluster)
            tiers.TABLES.newest(client, "s", ref, StreamUuid(stream.uuid), str(worker))

            write_keyring(ring, two=SECOND, one=FIRST)
            assert len(client.rotate_key("s").data_keys) == 2
            write_keyring(ring, two=SECOND)
            write_keyring(worker, two=SECOND)

        for keyring in (worker, alone):
            rows = read(served, 0, 100, table=ref, keyring_file=str(keyring))
            assert rows.equals(plain)
