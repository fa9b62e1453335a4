"""How a backfill decodes, and how new fields become columns, in a store of the table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from broker.errors import SchemaMismatchError
from spark_jobs.decode import ddl, types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.pins import Pin, Pins, continued
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.jobs import backfill
from spark_jobs.jobs.job import Report
from spark_jobs.tables import Source, Target
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
    """The longest continuation counts, with the spec's own limits; other columns do not."""
    own = spec_of("a bigint", record_bytes_max=7)
    others = (
        spec_of("a bigint, b string"),
        spec_of("a bigint, b string, c date"),
        spec_of("a bigint, z string"),
        spec_of("b string, a bigint"),
        DecodeSpec(format="raw"),
    )
    longest = spec_of("a bigint, b string, c date", record_bytes_max=7)
    assert continued(own, others) == continued(own, others[1:]) == longest
    assert continued(own, others[3:]) == own
    assert continued(longest, others) == longest


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


def test_new_fields_become_columns_only_if_asked(target: Target) -> None:
    """Without --evolve add the error about new fields stays an error."""
    pin = pinned(target, "backfill", "a bigint")
    error = SchemaMismatchError("new", added=types.to_json(ddl.parse("b string")))
    assert decoding(target, pin).added(error) == ddl.parse("b string")
    assert decoding(target, pin).added(SchemaMismatchError("other")) is None
    assert decoding(target, pin, grow=False).added(error) is None
