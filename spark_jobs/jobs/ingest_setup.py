"""How an ingest decodes: the arguments of the first run are pinned, later runs use the pin.

The first run of a table decides the stream, the schema and the first offsets, and stores them as a
pin beside the table. Later runs need no arguments for this; arguments that contradict the pin are
refused. So a run on another machine, with an edited schema file, cannot write other kinds of rows.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.errors import (
    InvalidRequestError,
    MetadataCorruptError,
    SchemaMismatchError,
    StreamRecreatedError,
    UnavailableError,
)
from broker.model.offsets import Offset
from spark_jobs.decode import ddl, json_inference, types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.pins import Pin, Pins
from spark_jobs.decode.spec import FORMATS, ROW_COLUMNS_DEFAULT, DecodeSpec
from spark_jobs.source import positions

if TYPE_CHECKING:
    from headwater.client import Client, StreamDescription
    from spark_jobs.tables import Watermarks

_FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_SAMPLE_RECORDS: Final = 2000  # of all partitions together
_SPEC_ARGUMENTS: Final = (
    "format",
    "schema",
    "schema_file",
    "avro_schema",
    "avro_schema_id",
    "descriptors",
    "message",
    "row_columns",
    "record_bytes_max",
    "depth_max",
    "columns_max",
)


def add_arguments(made: argparse.ArgumentParser) -> None:
    """Add the arguments for decoding."""
    group = made.add_argument_group(
        "decoding", "For a table's first run; later runs read these settings from the table."
    )
    group.add_argument(
        "--format", choices=FORMATS, default=None, help="format of the values (default: json)"
    )
    group.add_argument(
        "--schema",
        metavar="DDL",
        default=None,
        help="columns of JSON values, such as 'id bigint, tags array<string>'; without it they are "
        "inferred from the first records",
    )
    group.add_argument(
        "--schema-file",
        type=Path,
        metavar="FILE",
        default=None,
        help="the columns from a file: .json is the output of df.schema.json(), .arrow an Arrow "
        "schema, any other name DDL",
    )
    group.add_argument(
        "--avro-schema", type=Path, metavar="FILE", default=None, help="the writer's schema, .avsc"
    )
    group.add_argument(
        "--avro-schema-id",
        type=int,
        metavar="N",
        default=None,
        help="each value begins with a schema registry's 5-byte frame, which must have this number",
    )
    group.add_argument(
        "--descriptors",
        type=Path,
        metavar="FILE",
        default=None,
        help="a descriptor set: protoc --include_imports --descriptor_set_out=FILE",
    )
    group.add_argument(
        "--message", metavar="NAME", default=None, help="the Protobuf message, package.Message"
    )
    group.add_argument(
        "--row-columns",
        metavar="NAMES",
        default=None,
        help="columns of the record itself to keep beside the decoded columns (default: "
        f"{','.join(ROW_COLUMNS_DEFAULT)}; partition and offset are required)",
    )
    group.add_argument(
        "--evolve",
        choices=("none", "add"),
        default="none",
        help="new JSON fields: ignore them (none), or add nullable columns for them (add)",
    )
    for name, value in (
        ("--record-bytes-max", DecodeBounds().record_bytes_max),
        ("--depth-max", DecodeBounds().depth_max),
        ("--columns-max", DecodeBounds().columns_max),
    ):
        group.add_argument(
            name,
            type=int,
            metavar="N",
            default=None,
            help=f"limit; records beyond it are rejected, schemas are refused (default: {value})",
        )


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that are wrong whatever stream and table have; raises InvalidRequestError.

    Reads the files that are named, and builds the decoder; needs neither broker nor Spark. A bound
    that is not given refuses nothing yet: the table's pin may have a wider one than the default.
    """
    given = _spec(args)
    if given is not None:
        replace(given, bounds=_bounds(args, DecodeBounds.widest())).decoder()


def settle(
    args: argparse.Namespace,
    pins: Pins,
    *,
    described: StreamDescription,
    watermarks: Watermarks,
    client: Client,
    job: str,
) -> Pin:
    """Return the pin in force for this run; store it if this is the table's first run.

    Blocks on the object store and, to infer a schema, on the broker. ``job`` is the job that asks;
    a new pin says so. What a dead run has begun must be finished first, see
    :mod:`spark_jobs.jobs.begun`: ``watermarks`` are those after it.

    Raises:
        InvalidRequestError: the arguments do not make a valid spec.
        UnavailableError: the stream has no records yet from which columns could be inferred.
        SchemaMismatchError: the arguments contradict the pin.
        StreamRecreatedError: the table is pinned to another incarnation of the stream.
        MetadataCorruptError: the table has rows of this ingest, but no pin.
    """
    while True:
        pin = pins.newest()
        says_spec, says_start = says_anything(args), args.starting_offsets is not None
        if pin is not None and (watermarks.ends or not (says_spec or says_start)):
            return _agreed(args, pin, pins, described)
        if watermarks.ends:
            raise MetadataCorruptError(
                "the table was filled by this ingest, but its pin under _headwater/ is missing, so "
                "it is not known how the rows were decoded; restore the pin, or use another table"
            )
        known = pin if pin is not None and pin.stream_uuid == described.stream.uuid else None
        spec = _spec(args) if known is None or says_spec else known.spec
        made = Pin(
            stream=described.stream.name,
            stream_uuid=described.stream.uuid,
            starts=_starts(args.starting_offsets, described, known.starts if known else {}),
            spec=spec or _inferred(args, described, client),
            job=job,
            # A pin of a run that never appended any rows may be replaced by other arguments.
            number=0 if pin is None else pin.number,
        )
        if pin is not None and replace(pin, job=pin.job or job) == made:
            return pin
        made.spec.decoder()  # refuses a schema that cannot become columns
        stored = pins.put(made)
        if stored is not None:
            return stored
        # Another first run stored its pin first, so that pin is in force for this run too.


def _agreed(args: argparse.Namespace, pin: Pin, pins: Pins, described: StreamDescription) -> Pin:
    stream = described.stream
    if (stream.name, stream.uuid) != (pin.stream, pin.stream_uuid):
        raise StreamRecreatedError(
            f"the table is filled from stream {pin.stream} {pin.stream_uuid}, but this run reads "
            f"{stream.name} {stream.uuid}; use another table",
            expected=pin.stream_uuid,
            found=stream.uuid,
        )
    if not says_anything(args):
        return pin
    if args.format not in {None, pin.spec.format}:
        raise SchemaMismatchError(
            f"the table is pinned to format {pin.spec.format}, not {args.format}; leave --format "
            "out, or use another table"
        )
    given = respecified(args, pin.spec)
    if pin.spec.grown_from(given):
        return pin
    if given.grown_from(pin.spec) and args.evolve == "add":
        given.decoder()
        stored = pins.put(replace(pin, spec=given))
        if stored is None:
            raise UnavailableError("another run changed the table's set-up; run this job again")
        return stored
    raise SchemaMismatchError(
        "the arguments for decoding differ from the table's pin; leave them out, or use another "
        "table"
        + (". To add columns at the end, give --evolve add" if given.grown_from(pin.spec) else "")
    )


def respecified(args: argparse.Namespace, known: DecodeSpec) -> DecodeSpec:
    """Return the spec from the arguments; settings that are not given come from ``known``."""
    args = argparse.Namespace(**{**vars(args), "format": args.format or known.format})
    given = _spec(args, known)
    if given is None:  # only bounds or row columns were given
        given = replace(
            known,
            row_columns=_row_columns(args, known.row_columns),
            bounds=_bounds(args, known.bounds),
        )
    return given


def says_anything(args: argparse.Namespace) -> bool:
    """Tell whether an argument for decoding was given."""
    return any(getattr(args, name) is not None for name in _SPEC_ARGUMENTS)


def _spec(args: argparse.Namespace, known: DecodeSpec | None = None) -> DecodeSpec | None:
    """Return the spec from the arguments; None if the format is JSON and no columns are given.

    Row columns and bounds that are not given come from ``known``, else from the defaults.
    """
    form = args.format or "json"
    schema = _schema(args)
    if form == "json" and schema is None:
        return None
    return DecodeSpec(
        format=form,
        schema=None if schema is None else types.to_json(schema),
        avro_schema=_compact(_text(args.avro_schema)),
        avro_schema_id=args.avro_schema_id,
        descriptors=(
            None
            if args.descriptors is None
            else base64.b64encode(_bytes(args.descriptors)).decode()
        ),
        message=args.message,
        row_columns=_row_columns(args, known.row_columns if known else ROW_COLUMNS_DEFAULT),
        bounds=_bounds(args, known.bounds if known else DecodeBounds()),
    )


def _schema(args: argparse.Namespace) -> pa.Schema | None:
    if args.schema is not None and args.schema_file is not None:
        raise InvalidRequestError("give --schema or --schema-file, not both")
    if args.schema is not None:
        return ddl.parse(args.schema)
    if args.schema_file is None:
        return None
    if args.schema_file.suffix == ".arrow":
        try:
            found = pa.ipc.read_schema(pa.BufferReader(_bytes(args.schema_file)))
        except (pa.ArrowException, OSError) as cause:
            raise InvalidRequestError(
                f"{args.schema_file} is not an Arrow schema: {cause}"
            ) from cause
        return pa.schema([pa.field(each.name, types.normal(each.type)) for each in found])
    text = _text(args.schema_file)
    assert text is not None, "the file is named"
    if args.schema_file.suffix != ".json":
        return ddl.parse(text)
    try:
        return types.from_json(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"{args.schema_file}: {error.message}; a file of any other name is read as DDL"
        ) from error


def _inferred(args: argparse.Namespace, described: StreamDescription, client: Client) -> DecodeSpec:
    bounds = _bounds(args, DecodeBounds())
    sample = []
    share = max(1, _SAMPLE_RECORDS // len(described.partitions))
    for part in described.partitions:
        if part.high_watermark == part.start:
            continue
        left = share  # key compaction may have removed the first records
        fetched = client.fetch(
            described.stream.name,
            part.partition,
            part.start,
            part.high_watermark,
            columns=["value"],
            stream_uuid=described.stream.uuid,
        )
        try:
            for piece in fetched:
                values = piece.batch.column("value").slice(0, left).to_pylist()
                sample += json_inference.objects(
                    each for each in values if each and len(each) <= bounds.record_bytes_max
                )
                left -= len(values)
                if left == 0:
                    break
        finally:
            fetched.close()
    schema = json_inference.infer(sample, bounds)
    if len(schema) == 0:
        raise UnavailableError(
            f"stream {described.stream.name} has no JSON objects yet from which columns could be "
            "inferred; publish some, or give --schema"
        )
    return DecodeSpec(
        format="json",
        schema=types.to_json(schema),
        row_columns=_row_columns(args, ROW_COLUMNS_DEFAULT),
        bounds=bounds,
    )


def begin(text: str | None) -> str | dict[Any, Any]:
    """Return where a table begins: a word, or offsets; raises InvalidRequestError."""
    if text is None or text in (positions.EARLIEST, positions.LATEST):
        return text or positions.EARLIEST
    found = positions.parse_bound("--from", text)
    if not isinstance(found, dict):
        raise InvalidRequestError(f"--from takes earliest, latest or JSON, not {text}")
    return found


def _starts(
    text: str | None, described: StreamDescription, known: Mapping[int, Offset]
) -> Mapping[int, Offset]:
    """Return the first offset of each partition that does not begin at its first record.

    ``known`` are the starts of an earlier run that appended nothing. What that run has called
    `latest` stays where it was, or the records since then would be skipped.
    """
    if text is None:
        return known
    found = begin(text)
    if found == positions.EARLIEST:
        return {}
    if found == positions.LATEST:
        return known or {part.partition: part.high_watermark for part in described.partitions}
    assert isinstance(found, dict), "the other two are words"
    parts = {part.partition: part for part in described.partitions}
    starts: dict[int, Offset] = {}
    for number, at in found.items():
        if not isinstance(number, int) or number not in parts:
            raise InvalidRequestError(
                f"--from names partition {number}, but the stream has {sorted(parts)}"
            )
        part = parts[number]
        if at == positions.EARLIEST:
            continue
        place = known.get(number, part.high_watermark) if at == positions.LATEST else at
        if not isinstance(place, int) or not part.start <= place <= part.high_watermark:
            raise InvalidRequestError(
                f"--from: partition {number} holds [{part.start}, "
                f"{part.high_watermark}), not {place}"
            )
        starts[number] = Offset(place)
    return starts


def _row_columns(args: argparse.Namespace, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    if args.row_columns is None:
        return otherwise
    return tuple(name.strip() for name in args.row_columns.split(","))


def _bounds(args: argparse.Namespace, otherwise: DecodeBounds) -> DecodeBounds:
    given = {
        name: getattr(args, name)
        for name in ("record_bytes_max", "depth_max", "columns_max")
        if getattr(args, name) is not None
    }
    return replace(otherwise, **given)


def _compact(text: str | None) -> str | None:
    """Return JSON in canonical form, so that a reformatted file gives the same spec."""
    if text is None:
        return None
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except (ValueError, RecursionError):
        return text  # not JSON: the decoder refuses it later


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as cause:
        raise InvalidRequestError(f"{path} is not UTF-8 text") from cause


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise InvalidRequestError(f"{path} is larger than {_FILE_BYTES_MAX} bytes")
        return path.read_bytes()
    except OSError as cause:
        raise InvalidRequestError(f"cannot read {path}: {cause.strerror}") from cause
