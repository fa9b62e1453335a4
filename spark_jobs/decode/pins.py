"""The pins of a table: its set-up for decoding, stored beside the table's files.

    <table>/_headwater/ingest/<app>/00000001.json

A pin is created once and never changed; the pin with the highest number is in force. A change is a
new pin with the next number; if two runs create it, the store accepts exactly one. VACUUM ignores
names that begin with ``_``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from broker.codec.checksum import crc32c
from broker.errors import MetadataCorruptError, SchemaMismatchError
from broker.model.ids import is_stream_name, is_uuid
from broker.model.offsets import OFFSET_MAX, Offset
from spark_jobs.decode import types
from spark_jobs.decode.spec import DecodeSpec
from tiering.store.object_store import ObjectStore

_VERSION: Final = 1
_FOLDER: Final = "_headwater/ingest"
_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One set-up of a table: stream, beginnings and decode spec."""

    stream: str
    stream_uuid: str
    starts: Mapping[int, Offset]  # first offset per partition; others begin at their first record
    spec: DecodeSpec
    job: str | None = None  # the job that stored the pin; older builds did not say
    number: int = 0  # 0: not stored yet

    def to_text(self) -> str:
        """Return the stored form."""
        body: dict[str, object] = {
            "headwater_ingest": _VERSION,
            "stream": self.stream,
            "stream_uuid": self.stream_uuid,
            "starts": {str(partition): at for partition, at in sorted(self.starts.items())},
            "spec": json.loads(self.spec.to_text()),
        }
        if self.job is not None:
            body["job"] = self.job  # builds that do not know this key ignore it
        return json.dumps(body, sort_keys=True, indent=1)

    @classmethod
    def from_text(cls, text: str, number: int) -> Pin:
        """Parse :meth:`to_text`.

        Raises:
            MetadataCorruptError: the text is not a pin.
            SchemaMismatchError: a newer build wrote it.
        """
        try:
            body: Any = json.loads(text)
            version = body["headwater_ingest"]
            stream, uuid = str(body["stream"]), str(body["stream_uuid"])
            starts = {int(name): Offset(int(at)) for name, at in body["starts"].items()}
            spec = json.dumps(body["spec"])
            job = body.get("job")
        except (
            ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ) as cause:  # fmt: skip
            raise MetadataCorruptError(
                f"pin {number} of the table is damaged: {cause!r}"
            ) from cause
        if version != _VERSION:
            raise SchemaMismatchError(
                f"pin {number} of the table has version {version}; this build knows only {_VERSION}"
            )
        sane = all(0 <= at <= OFFSET_MAX for at in starts.values())
        sane = sane and (job is None or isinstance(job, str))
        if not (is_stream_name(stream) and is_uuid(uuid) and sane):
            raise MetadataCorruptError(f"pin {number} of the table is damaged")
        return cls(
            stream=stream,
            stream_uuid=uuid,
            starts=starts,
            spec=DecodeSpec.from_text(spec),
            job=job,
            number=number,
        )


class Pins:
    """The pins of one table and one appender. Blocks on the object store."""

    def __init__(self, store: ObjectStore, app: str) -> None:
        self._store = store
        self._folder = f"{_FOLDER}/{app}/"

    def newest(self) -> Pin | None:
        """Return the pin in force; None for a table that was never set up."""
        names = [info.key for info in self._store.list(self._folder) if info.key.endswith(".json")]
        if not names:
            return None
        number = _number(names[-1])
        if len(names) != number:
            raise MetadataCorruptError(
                f"{self._store.config.uri} has {len(names)} pins, but the last one is {names[-1]}: "
                "a pin is missing"
            )
        return self.at(number)

    def at(self, number: int) -> Pin:
        """Return the stored pin with this number; errors as for :meth:`Pin.from_text`."""
        body = self._store.get(self._key(number), 0, None)
        return Pin.from_text(body[:_BYTES_MAX].decode(), number)

    def put(self, pin: Pin) -> Pin | None:
        """Store a pin with the number after ``pin.number``; None if another run stored it first."""
        number = pin.number + 1
        body = pin.to_text().encode()
        if not self._store.put_if_absent(self._key(number), body, crc32c=crc32c(body)):
            return None
        return replace(pin, number=number)

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:08}.json"


def newest_pins(store: ObjectStore) -> dict[str, Pin]:
    """Return the pin in force of each appender of a table, by name; raises as :class:`Pins`."""
    prefix = f"{_FOLDER}/"
    keys = [info.key for info in store.list(prefix) if info.key.endswith(".json")]
    apps = sorted({key.removeprefix(prefix).partition("/")[0] for key in keys})
    found = {app: Pins(store, app).newest() for app in apps}
    return {app: pin for app, pin in found.items() if pin is not None}


def continued(spec: DecodeSpec, others: Iterable[DecodeSpec]) -> DecodeSpec:
    """Return a spec with all columns of the others that it lacks, by name, at its end.

    Limits stay those of ``spec``; others that decode in another way are passed over.
    """
    for schema in _alike(spec, others):
        spec = _with_new(spec, schema)
    return spec


def agreed(spec: DecodeSpec, added: pa.Schema, others: Iterable[DecodeSpec]) -> pa.Schema:
    """Return new fields of a spec with the types that others have given them already."""
    fields = {each.name: each for each in added}
    for schema in reversed(_alike(spec, others)):
        fields |= {each.name: each for each in schema if each.name in fields}
    return pa.schema(fields.values())


def grow(store: ObjectStore, app: str, known: Pin, added: pa.Schema) -> Pin:
    """Pin new columns with the types that the table's other pins give them; return the newest pin.

    ``known`` is the pin by which the columns are new. If another run has stored a later one, that
    one is in force.

    Raises:
        InvalidRequestError: the pin's limits do not admit the columns.
    """
    pins = Pins(store, app)
    newest = pins.newest()
    assert newest is not None, "a run that decodes begins with a pin"
    if newest.number != known.number:
        return newest
    others = [
        one.spec for one in newest_pins(store).values() if one.stream_uuid == known.stream_uuid
    ]
    spec = _with_new(newest.spec, agreed(newest.spec, added, others))
    if spec == newest.spec:
        return newest
    spec.decoder()
    stored = pins.put(replace(newest, spec=spec)) or pins.newest()
    assert stored is not None, "another run's pin exists"
    return stored


def _alike(spec: DecodeSpec, others: Iterable[DecodeSpec]) -> list[pa.Schema]:
    """Return the JSON columns of the specs that differ from this one in columns and limits only."""
    return [
        types.from_json(other.schema)
        for other in others
        if other.schema is not None
        and replace(other, schema=spec.schema, bounds=spec.bounds) == spec
    ]


def _with_new(spec: DecodeSpec, fields: pa.Schema) -> DecodeSpec:
    assert spec.schema is not None, "only JSON grows"
    known = types.from_json(spec.schema)
    new = [each for each in fields if types.position(known, each.name) < 0]
    return spec.with_fields(pa.schema(new)) if new else spec


def _number(key: str) -> int:
    text = key.rpartition("/")[2].removesuffix(".json")
    if not (text.isdecimal() and len(text) == 8):
        raise MetadataCorruptError(f"{key} is not a pin")
    return int(text)
