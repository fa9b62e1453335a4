"""How a backfill decodes, and how new fields become columns, in a store of the table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import SchemaMismatchError
from spark_jobs.decode import ddl, types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.pins import Pin, Pins, continued
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.jobs import backfill
from spark_jobs.jobs.job import Report
from spark_jobs.tables import Source, Target
from spark_jobs.tables.redecode import Redecoded
from tiering.store.opening import open_store

UUID = "0f0e0d0c-0b0a-4908-8706-050403020100"
OTHER = "1f0e0d0c-0b0a-4908-8706-050403020100"
SPARK: Any = object()  # no task runs


def spec_of(columns: str, *, record_bytes_max: int = 99) -> DecodeSpec:
    """Return a way to decode JSON."""
    bounds = DecodeBounds(record_bytes_max=record_bytes_max)
    return DecodeSpec(format="json", schema=types.to_json(ddl.parse(columns)), bounds=bounds)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A table that does not exist yet."""
    return Target.at(str(tmp_path / "t"), app="backfill")


def pinned(target: Target, app: str, columns: str, uuid: str = UUID) -> Pin:
    """Store the next pin of an appender."""
    pins = Pins(open_store(target.store), app)
    newest = pins.newest()
    pin = Pin(
        stream="s",
        stream_uuid=uuid,
        starts={},
        spec=spec_of(columns),
        number=newest.number if newest else 0,
    )
    stored = pins.put(pin)
    assert stored is not None
    return stored


def decoding(target: Target, pin: Pin, *, grow: bool = True) -> backfill._Decoding:
    """Return how a run of stream ``s`` decodes."""
    source = Source(stream="s", stream_uuid=UUID, server="grpc://127.0.0.1:1")
    return backfill._Decoding(SPARK, target, source, pin=pin, grow=grow)


def test_a_spec_goes_on_with_columns_that_were_added_elsewhere() -> None:
    """All columns of specs alike come at the end, once by name, with the spec's own limits."""
    own = spec_of("a bigint", record_bytes_max=7)
    others = (
        spec_of("a bigint, b string"),
        spec_of("a bigint, b string, c date"),
        spec_of("a bigint, z string"),
        spec_of("b string, a bigint"),
        DecodeSpec(format="raw"),
    )
    every = spec_of("a bigint, b string, c date, z string", record_bytes_max=7)
    assert continued(own, others) == continued(own, others[1:]) == every
    assert continued(own, others[4:]) == own
    assert continued(every, others) == every
    mixed = spec_of("a bigint, z bigint", record_bytes_max=7)
    assert continued(mixed, others[3:]) == spec_of(
        "a bigint, z bigint, b string", record_bytes_max=7
    )


def test_new_fields_are_pinned_once(target: Target) -> None:
    """They come at the end of the pin; a run that comes second takes what is pinned by then."""
    pin = pinned(target, "backfill", "a bigint")
    report = Report("backfill", io.StringIO())
    first, second = decoding(target, pin), decoding(target, pin)
    first.grow(ddl.parse("b string"), report)
    second.grow(ddl.parse("b string, c string"), report)
    assert first.pin == second.pin == Pins(open_store(target.store), "backfill").newest()
    assert first.pin is not None
    assert (first.pin.number, first.pin.spec) == (2, spec_of("a bigint, b string"))


def test_new_fields_get_the_type_that_the_ingest_gave_them(target: Target) -> None:
    """One table has one type for a column, and another stream's pins say nothing about it."""
    pin = pinned(target, "backfill", "a bigint")
    pinned(target, "ingest", "a bigint, b double")
    pinned(target, "stranger", "a bigint, b double, x date", uuid=OTHER)
    growing = decoding(target, pin)
    growing.grow(ddl.parse("b bigint"), Report("backfill", io.StringIO()))
    assert growing.pin is not None
    assert growing.pin.spec == spec_of("a bigint, b double")


def test_what_is_decoded_again_with_new_columns_pins_them(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is repeated without --evolve fills the columns, too; types are the table's."""
    pinned(target, "ingest", "a bigint")
    pinned(target, "front", "a bigint, c double")
    kept: list[pa.Schema] = []

    class Moving:
        """Stands for the mover of rows: it meets a new field as long as nothing has the column."""

        def __init__(self, _table: Target, _rejects: Target, _source: Source, how: Any) -> None:
            self.how = how

        def run(self) -> Redecoded:
            """Refuse the new fields, or note the columns."""
            kept.append(self.how.output_schema)
            if self.how._grow and "d" not in self.how.output_schema.names:
                raise SchemaMismatchError("new", added=types.to_json(ddl.parse("d string")))
            return Redecoded()

    monkeypatch.setattr(backfill, "Redecoder", Moving)
    source = Source(stream="s", stream_uuid=UUID, server="grpc://127.0.0.1:1")
    for words in (("--evolve", "add"), ()):
        args = backfill.PARSER.parse_args(
            ["--stream", "s", "--table", target.uri, "--redecode", *words]
        )
        backfill._redecode(args, target, source, Report("backfill", io.StringIO()))
        assert kept[-1].names[-3:] in (["a", "c", "d"], ["a", "d", "c"])
    newest = Pins(open_store(target.store), "ingest").newest()
    assert newest is not None
    assert newest.spec == spec_of("a bigint, d string")


def test_new_fields_become_columns_only_if_asked(target: Target) -> None:
    """Without --evolve add the error about new fields stays an error."""
    pin = pinned(target, "backfill", "a bigint")
    error = SchemaMismatchError("new", added=types.to_json(ddl.parse("b string")))
    assert decoding(target, pin).added(error) == ddl.parse("b string")
    assert decoding(target, pin).added(SchemaMismatchError("other")) is None
    assert decoding(target, pin, grow=False).added(error) is None
