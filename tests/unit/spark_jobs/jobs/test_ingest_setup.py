"""An ingest's columns: from the arguments in the first run, from the table's pin afterwards."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest

from broker.codec.checksum import crc32c
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    MetadataCorruptError,
    SchemaMismatchError,
    StreamRecreatedError,
    UnavailableError,
)
from broker.model.offsets import Offset
from spark_jobs.decode import ddl, types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.pins import Pin, Pins
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.jobs import ingest, ingest_setup
from spark_jobs.jobs.ingest_batches import starting_offsets
from spark_jobs.tables import Target, Watermarks
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_store

UUID: Final = "8ff10987-013b-4fdf-8f5d-3f093c1a7364"
OTHER: Final = "00000000-013b-4fdf-8f5d-3f093c1a7364"
Settle = Callable[..., Pin]


class Records:
    """A broker that has these values in partition 0 of stream ``s``, and nothing in partition 1."""

    def __init__(self, *values: bytes | None) -> None:
        self.values = values

    def described(self, uuid: str = UUID) -> Any:
        """Return what describing the stream would."""
        parts = [
            SimpleNamespace(partition=number, start=Offset(0), high_watermark=Offset(count))
            for number, count in enumerate((len(self.values), 0))
        ]
        return SimpleNamespace(stream=SimpleNamespace(name="s", uuid=uuid), partitions=parts)

    def fetch(self, _stream: str, _partition: int, start: int, end: int, **_more: Any) -> Any:
        """Return the values as one batch."""
        batch = pa.record_batch({"value": pa.array(self.values[start:end], pa.binary())})

        class _Fetched(list[Any]):
            def close(self) -> None:
                """Close nothing."""

        return _Fetched([SimpleNamespace(batch=batch)])


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """The folder of the table."""
    return open_store(StoreConfig.from_env(str(tmp_path / "table")))


@pytest.fixture
def settle(store: ObjectStore) -> Settle:
    """Return a function that settles a run with given arguments."""

    def settled(
        *words: str, records: Records | None = None, uuid: str = UUID, end: int | None = None
    ) -> Pin:
        args = ingest.PARSER.parse_args(["--stream", "s", "--table", "t", *words])
        known = records or Records(b'{"a":1}')
        return ingest_setup.settle(
            args,
            Pins(store, "ingest"),
            described=known.described(uuid),
            watermarks=Watermarks(
                version=1, ends={} if end is None else {0: Offset(end)}, starts={}
            ),
            client=known,  # type: ignore[arg-type]  # only fetch is used
            job="ingest",
        )

    return settled


def schema_of(pin: Pin) -> pa.Schema:
    """Return a pin's JSON columns."""
    assert pin.spec.schema is not None
    return types.from_json(pin.spec.schema)


def test_a_first_run_infers_and_pins(settle: Settle) -> None:
    """Columns come from the records; every later run has the same, whatever arrives by then."""
    records = Records(b'{"a":1}', None, b"noise", b'{"b":[true]}')
    first = settle(records=records)
    assert (first.number, schema_of(first)) == (1, ddl.parse("a bigint, b array<boolean>"))
    assert settle(records=Records(b'{"z":"x"}'), end=4) == first
    with pytest.raises(UnavailableError, match="give --schema"):
        ingest_setup._inferred(
            argparse.Namespace(record_bytes_max=None, depth_max=None, columns_max=None),
            Records(b"noise").described(),
            Records(b"noise"),  # type: ignore[arg-type]
        )


def test_what_contradicts_the_pin_is_refused(settle: Settle) -> None:
    """Other columns, limits or formats need another table; repeating the same ones is fine."""
    first = settle("--schema", "a bigint, b string")
    same = ("--schema", "a BIGINT, `b` STRING")
    assert settle(*same, end=1) == first
    assert settle("--format", "json", "--depth-max", "64", end=1) == first
    for words in (
        ("--schema", "b string, a bigint"),
        ("--depth-max", "10"),
        ("--row-columns", "partition,offset"),
        ("--format", "raw"),
    ):
        with pytest.raises(SchemaMismatchError):
            settle(*words, end=1)
    assert settle("--schema", "a bigint", end=1) == first  # the pin has grown from that


def test_columns_are_added_at_the_end_when_asked(settle: Settle) -> None:
    """A schema that continues the pinned one becomes the next pin."""
    settle("--schema", "a bigint")
    wider = ("--schema", "a bigint, b string")
    with pytest.raises(SchemaMismatchError, match="--evolve add"):
        settle(*wider, end=1)
    grown = settle(*wider, "--evolve", "add", end=1)
    assert (grown.number, schema_of(grown).names) == (2, ["a", "b"])
    assert settle(end=1) == grown


def test_a_pin_without_any_row_binds_nobody(settle: Settle) -> None:
    """A first run that failed over its schema can be started again with a better one."""
    assert settle("--schema", "a bigint").number == 1
    assert settle("--schema", "a bigint").number == 1
    assert settle("--schema", "a string").number == 2
    assert schema_of(settle()) == ddl.parse("a string")


def test_another_stream_and_a_lost_pin_are_refused(settle: Settle, store: ObjectStore) -> None:
    """Rows of a re-created stream are refused, and so are all rows when the pin is lost."""
    settle()
    with pytest.raises(StreamRecreatedError):
        settle(uuid=OTHER, end=1)
    next((store.config.root / "_headwater").rglob("*.json")).unlink()
    with pytest.raises(MetadataCorruptError, match="is missing"):
        settle(end=1)


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ((), {}),
        (("--from", "earliest"), {}),
        (("--from", "latest"), {0: 3, 1: 0}),
        (("--from", '{"0": 2}'), {0: 2}),
        (("--from", '{"0": "latest", "1": -2}'), {0: 3}),
    ],
)
def test_where_a_table_begins_is_pinned(
    settle: Settle, words: tuple[str, ...], starts: dict[int, int]
) -> None:
    """`latest` is a number from the first run on, so that a retry begins at the same place."""
    pin = settle(*words, records=Records(b'{"a":1}', b"{}", b"{}"))
    assert pin.starts == starts
    begins = json.loads(starting_offsets({1: 7}, pin, {0: Offset(0), 1: Offset(0)}))
    assert begins == {"0": starts.get(0, 0), "1": 7}


def test_another_beginning_is_taken_while_the_table_has_no_row(settle: Settle) -> None:
    """A pin without any row binds no beginning either, and its columns stay as they are."""
    records = Records(b'{"a":1}', b'{"b":1}', b"{}")
    assert settle("--schema", "z bigint", records=records).starts == {}
    late = settle("--from", "latest", records=records)
    assert (late.number, late.starts, schema_of(late).names) == (2, {0: 3, 1: 0}, ["z"])
    assert settle("--from", '{"0": 1}', records=records).starts == {0: 1}
    assert settle("--schema", "y bigint", records=records).starts == {0: 1}
    assert settle("--from", "earliest", records=records).starts == {}
    assert settle("--from", "latest", records=records, end=1).starts == {}


@pytest.mark.parametrize("decoding", [(), ("--schema", "a bigint")])
@pytest.mark.parametrize("where", ["latest", '{"0": "latest"}'])
def test_latest_does_not_move_on_before_the_first_append(
    settle: Settle, decoding: tuple[str, ...], where: str
) -> None:
    """A run by a schedule repeats `latest`, and the records since the first run are not skipped."""
    words = ("--from", where, *decoding)
    first = settle(*words, records=Records(b'{"a":1}'))
    assert first.starts[0] == 1
    assert settle(*words, records=Records(b'{"a":1}', b'{"a":2}', b'{"a":3}')) == first


@pytest.mark.parametrize(
    "words",
    [
        ("--from", "yesterday"),
        ("--from", '{"0": 9}'),
        ("--from", '{"5": 0}'),
        ("--from", '{"s": {"0": 1}}'),
        ("--schema", "a map<string,int>"),
        ("--schema", "a int", "--schema-file", "x"),
        ("--schema-file", "/nowhere/x.json"),
        ("--format", "avro"),
        ("--format", "protobuf", "--message", "a.B"),
        ("--format", "raw", "--schema", "a int"),
        ("--row-columns", "offset"),
        ("--record-bytes-max", "0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(settle: Settle, words: tuple[str, ...]) -> None:
    """Nothing is pinned for a run that could not decode."""
    with pytest.raises(InvalidRequestError):
        settle(*words, records=Records(b'{"a":1}', b"{}", b"{}"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--format avro", "--avro-schema"),
        ("--format avro --avro-schema FILE", "Avro type"),
        ("--format protobuf --descriptors FILE --message a.B", "descriptor set"),
        ("--schema-file FILE", "frog"),
    ],
)
def test_a_schema_that_cannot_be_decoded_is_refused_before_spark_starts(
    tmp_path: Path, words: str, told: str
) -> None:
    """The start of Spark takes half a minute on a busy machine."""
    text = "a frog" if "--schema-file" in words else '{"type": "struct"}'
    (tmp_path / "file").write_text(text)
    given = words.replace("FILE", str(tmp_path / "file")).split()
    args = ingest.PARSER.parse_args(["--stream", "s", "--table", "t", *given])
    with pytest.raises(InvalidRequestError, match=told):
        ingest.check(args)


def test_a_check_leaves_bounds_that_are_not_given_to_the_pin() -> None:
    """The pin of a table with many columns has a wider bound than the default."""
    wide = ", ".join(f"c{number} int" for number in range(DecodeBounds().columns_max + 1))
    words = ["--stream", "s", "--table", "t", "--schema", wide]
    ingest.check(ingest.PARSER.parse_args(words))
    with pytest.raises(InvalidRequestError, match="columns"):
        ingest.check(ingest.PARSER.parse_args([*words, "--columns-max", "10"]))


def test_schemas_come_from_files_too(settle: Settle, tmp_path: Path) -> None:
    """DDL, Spark's JSON and an Arrow schema are the same columns."""
    schema = ddl.parse("a bigint, b array<struct<x: string>>")
    (tmp_path / "s.ddl").write_text("a bigint,\n b array<struct<x: string>>")
    (tmp_path / "s.json").write_text(types.to_json(schema))
    arrow = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.struct([("x", pa.string())])))])
    (tmp_path / "s.arrow").write_bytes(arrow.serialize().to_pybytes())
    (tmp_path / "bad.arrow").write_bytes(b"noise")
    for name in ("s.ddl", "s.json", "s.arrow"):
        assert schema_of(settle("--schema-file", str(tmp_path / name))) == schema
    with pytest.raises(InvalidRequestError, match="not an Arrow schema"):
        settle("--schema-file", str(tmp_path / "bad.arrow"))


def test_another_beginning_has_another_checkpoint() -> None:
    """Spark would go on where the checkpoint of the earlier --from says."""
    target = Target.at("/t", app="eu")
    names = [
        ingest.default_checkpoint(target, pin(starts=starts))
        for starts in ({}, {0: Offset(5)}, {0: Offset(6)}, {0: Offset(6), 1: Offset(0)})
    ]
    assert names[0].endswith(f"/_headwater/checkpoints/eu-{UUID}")
    assert len(set(names)) == 4
    ordered = pin(starts={1: Offset(0), 0: Offset(6)})
    assert ingest.default_checkpoint(target, ordered) == names[3]


def test_a_pin_says_which_job_stored_it(settle: Settle, store: ObjectStore) -> None:
    """A pin without this is an older build's, and stays in force as it is."""
    assert settle("--schema", "a bigint").job == "ingest"
    newest = Pins(store, "ingest").newest()
    assert newest is not None
    assert newest.job == "ingest"
    older = Pins(store, "ingest").put(replace(newest, job=None))
    assert older is not None
    assert older == Pins(store, "ingest").newest() == settle("--schema", "a bigint")
    Pins(store, "ingest").put(replace(older, job="backfill"))
    assert (settle("--schema", "a bigint").job, settle(end=1).number) == ("ingest", 4)


def pin(**more: Any) -> Pin:
    """Return a pin to store."""
    spec = DecodeSpec(format="raw", bounds=DecodeBounds())
    values: dict[str, Any] = {"stream": "s", "stream_uuid": UUID, "starts": {0: Offset(5)}}
    return Pin(**{**values, "spec": spec, **more})


def test_of_two_who_pin_one_is_first(store: ObjectStore) -> None:
    """The next number is given once; the second run uses the first one's pin."""
    pins = Pins(store, "ingest")
    assert pins.newest() is None
    first = pins.put(pin())
    assert first is not None
    assert pins.put(pin(stream="t")) is None
    assert pins.newest() == first == replace(pin(), number=1)
    assert pins.put(first) == pins.newest() == replace(pin(), number=2)
    assert Pins(store, "other").newest() is None


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("00000001.json", "{", MetadataCorruptError),
        ("00000001.json", '{"headwater_ingest": 2}', MetadataCorruptError),
        ("00000001.json", pin(stream_uuid="x").to_text(), MetadataCorruptError),
        ("00000001.json", pin(starts={0: Offset(-1)}).to_text(), MetadataCorruptError),
        ("00000001.json", pin(job=5).to_text(), MetadataCorruptError),
        (
            "00000001.json",
            pin().to_text().replace('"headwater_ingest": 1', '"headwater_ingest": 9'),
            SchemaMismatchError,
        ),
        ("00000002.json", pin().to_text(), MetadataCorruptError),
        ("one.json", pin().to_text(), MetadataCorruptError),
    ],
)
def test_a_damaged_pin_is_refused(
    store: ObjectStore, name: str, text: str, kind: type[HeadwaterError]
) -> None:
    """A pin that is not whole, is of a newer program, or has lost a predecessor, is not used."""
    body = text.encode()
    assert store.put_if_absent(f"_headwater/ingest/ingest/{name}", body, crc32c=crc32c(body))
    with pytest.raises(kind):
        Pins(store, "ingest").newest()
