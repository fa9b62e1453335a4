"""The decode spec: how a table's payloads are decoded, as one value that is pinned with the table.

A spec has everything that decides a record's outcome: format, schema, bounds, and the row columns
that are kept beside the payload. It is stored, and sent to workers, as text and never as code. A
spec of a newer build is refused, not guessed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.errors import InvalidRequestError, SchemaMismatchError
from spark_jobs.decode import types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.outcome import Decoder
from spark_jobs.source.columns import check_projection

FORMATS: Final = ("json", "avro", "protobuf", "raw")
ROW_COLUMNS_DEFAULT: Final = ("partition", "offset", "timestamp", "key")
_NEEDED: Final = ("partition", "offset")  # without them a check could not find missing records
_VERSION: Final = 1
_TEXT_MAX: Final = 64 * 1024 * 1024


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpec:
    """One way to decode. ``raw`` decodes nothing: the table has the row columns and the value."""

    format: str
    schema: str | None = None  # json: Spark's schema JSON
    avro_schema: str | None = None
    avro_schema_id: int | None = None  # None: no frame before the datum
    descriptors: str | None = None  # base64 of a FileDescriptorSet
    message: str | None = None
    row_columns: tuple[str, ...] = ROW_COLUMNS_DEFAULT
    bounds: DecodeBounds = field(default_factory=DecodeBounds)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidRequestError(
                f"format {self.format!r} is not known; the known formats are {', '.join(FORMATS)}"
            )
        check_projection(self.row_columns, where="row columns")
        missing = [name for name in _NEEDED if name not in self.row_columns]
        if missing:
            raise InvalidRequestError(f"row columns must include {' and '.join(missing)}")
        for name, needed in self._needs().items():
            if needed and getattr(self, name) is None:
                raise InvalidRequestError(f"format {self.format} needs {_option(name)}")
            if not needed and getattr(self, name) is not None:
                raise InvalidRequestError(f"format {self.format} takes no {_option(name)}")

    def _needs(self) -> dict[str, bool]:
        return {
            "schema": self.format == "json",
            "avro_schema": self.format == "avro",
            "descriptors": self.format == "protobuf",
            "message": self.format == "protobuf",
        }

    def decoder(self) -> Decoder | None:
        """Build the decoder; None for ``raw``. Imports only the modules of the format.

        Raises:
            InvalidRequestError: the schema cannot become columns.
        """
        match self.format:
            case "json":
                from spark_jobs.decode import json_decoder  # noqa: PLC0415

                assert self.schema is not None, "checked at construction"
                schema = json_decoder.check_json_schema(types.from_json(self.schema))
                return json_decoder.JsonDecoder(schema, self.bounds)
            case "avro":
                from spark_jobs.decode.avro_decoder import AvroDecoder  # noqa: PLC0415

                assert self.avro_schema is not None, "checked at construction"
                return AvroDecoder(
                    self.avro_schema, schema_id=self.avro_schema_id, bounds=self.bounds
                )
            case "protobuf":
                from spark_jobs.decode.protobuf_decoder import ProtobufDecoder  # noqa: PLC0415

                assert self.descriptors is not None, "checked at construction"
                assert self.message is not None, "checked at construction"
                try:
                    body = base64.b64decode(self.descriptors, validate=True)
                except binascii.Error as cause:
                    raise InvalidRequestError("the descriptor set is not base64") from cause
                return ProtobufDecoder(body, self.message, self.bounds)
        return None

    def names(self, payload: pa.Schema) -> list[str]:
        """Return the table's name for each payload column.

        Characters that Delta refuses become ``_``. If a row column or an earlier payload column
        has the name already, apart from case, the name gets the prefix ``value_``, as often as
        needed. Columns are only ever added at the end, so the names of old columns never change.
        """
        taken = {name.lower() for name in self.row_columns}
        found = []
        for each in payload:
            name = types.FORBIDDEN.sub("_", each.name) or "_"
            while name.lower() in taken:
                name = f"value_{name}"
            taken.add(name.lower())
            found.append(name)
        return found

    def table_schema(self, payload: pa.Schema | None) -> pa.Schema:
        """Return the columns of the decoded table."""
        rows = [types_of_row(name) for name in self.row_columns]
        if payload is None:
            if "value" not in self.row_columns:
                rows.append(types_of_row("value"))
            return pa.schema(rows)
        named = zip(self.names(payload), payload, strict=True)
        return pa.schema([*rows, *(pa.field(name, each.type) for name, each in named)])

    def with_fields(self, added: pa.Schema) -> DecodeSpec:
        """Return the spec with more JSON columns at the end."""
        assert self.schema is not None, "only JSON grows"
        known = types.from_json(self.schema)
        return replace(self, schema=types.to_json(pa.schema([*known, *added])))

    def grown_from(self, older: DecodeSpec) -> bool:
        """Tell whether this spec equals the older one, apart from columns added at the end."""
        if self.format != "json" or older.schema is None or self.schema is None:
            return self == older
        if replace(self, schema=older.schema) != older:
            return False
        before, now = list(types.from_json(older.schema)), list(types.from_json(self.schema))
        return now[: len(before)] == before

    def to_text(self) -> str:
        """Return the spec as canonical JSON: equal specs have equal texts."""
        body = {"headwater_decode": _VERSION, **asdict(self)}
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> DecodeSpec:
        """Parse :meth:`to_text`.

        Raises:
            SchemaMismatchError: the text is not a spec, or a newer build wrote it.
        """
        if len(text) > _TEXT_MAX:
            raise SchemaMismatchError(
                f"the decode spec has {len(text)} characters; the limit is {_TEXT_MAX}"
            )
        try:
            body: Any = json.loads(text)
            version = body.pop("headwater_decode")
            body["row_columns"] = tuple(body["row_columns"])
            body["bounds"] = DecodeBounds(**body["bounds"])
            _require_types(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
            raise SchemaMismatchError(f"the text is not a decode spec: {cause!r}") from cause
        if version != _VERSION:
            raise SchemaMismatchError(
                f"the decode spec has version {version}; this build knows only {_VERSION}"
            )
        try:
            return cls(**body)
        except TypeError as cause:
            raise SchemaMismatchError(f"the text is not a decode spec: {cause}") from cause


def _require_types(body: Mapping[str, Any]) -> None:
    """Raise TypeError for a value of another type than the field's; a missing one is no matter."""
    named = ("format", "schema", "avro_schema", "descriptors", "message")
    texts = [*body["row_columns"], *(body[name] for name in named if body.get(name) is not None)]
    number = body.get("avro_schema_id")
    if not all(isinstance(one, str) for one in texts):
        raise TypeError("a name or a schema is not a text")
    if number is not None and type(number) is not int:
        raise TypeError(f"avro_schema_id is {number!r}")


def types_of_row(name: str) -> pa.Field:
    """Return a row column with its type in decoded tables."""
    each = ROW_SCHEMA.field(name)
    return pa.field(name, types.normal(each.type))
