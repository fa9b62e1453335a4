"""The options of ``format("headwater")``: parsed once; unknown options are refused.

Names and meanings follow Spark's Kafka source. Spark turns option names into lower case before we
get them, so they are compared without case. A misspelt option would silently read other rows, so it
is an error. An option without effect on the read is an error too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast, get_args

from broker.errors import InvalidRequestError
from broker.model.cut import Cut
from broker.model.ids import StreamUuid, is_uuid
from broker.model.offsets import OFFSET_MAX
from spark_jobs.source import positions, task_history
from spark_jobs.source.columns import (
    KAFKA,
    KAFKA_COLUMNS,
    RANGE_COLUMNS,
    READ_COLUMNS,
    ROW_COLUMNS,
    STREAM_COLUMN,
    STREAMS_COLUMNS,
    check_projection,
    nearest,
)
from spark_jobs.source.partitions import HistoryPositions
from spark_jobs.source.positions import EARLIEST, LATEST, Bound, Position, positions_text
from spark_jobs.source.selection import SELECTORS, Selection, parse_selection

__all__ = ["EARLIEST", "KNOWN", "LATEST", "SERVER_VARIABLE", "SourceOptions", "positions_text"]

SERVER_VARIABLE: Final = "HEADWATER_SERVER"

# A task with this many records of 100 B runs for about a second: long compared with its start, and
# short enough that all cores end at about the same time.
RECORDS_PER_PARTITION_DEFAULT: Final = 2_000_000
_SPARK_PARTITIONS_MAX: Final = 100_000

KNOWN: Final = (
    "server",
    *SELECTORS,
    "streamUuid",
    "lease",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "asOf",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "isolation",
    "emit",
    "encryptionKeyring",
    "compactedRows",
    "historyPositions",
    "coldFiles",
)
_BATCH_ONLY: Final = (
    "endingOffsets",
    "endingTimestamp",
    "cut",
    "lease",
    "compactedRows",
    "historyPositions",
)
NOW: Final = "now"  # a value of asOf; a table of the catalog has it, and may be read as a stream
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
# Options that Spark adds when the source belongs to a table of its catalog.
_OF_CATALOG: Final = frozenset(
    {"provider", "owner", "comment", "external", "is_managed_location", "location", "collation"}
)

Emit = Literal["records", "ranges", "streams"]
_COLUMNS_OF: Final[Mapping[Emit, Mapping[str, str]]] = {
    "records": READ_COLUMNS,
    "ranges": RANGE_COLUMNS,
    "streams": STREAMS_COLUMNS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options of one read."""

    server: str | None  # None: HEADWATER_SERVER, else the client's default
    selection: Selection
    stream_uuid: StreamUuid | None  # refuse a stream re-created under the same name
    starting: Bound | None  # None: by default earliest for a batch, latest for a stream
    ending: Bound
    cut: Cut | None
    as_of: str | None = None  # the moment of a cut that the planner takes
    lease: str | None  # a lease that the caller renews during the read
    columns: tuple[str, ...]
    emit: Emit
    partitions_min: int  # at least so many Spark partitions; 0: no minimum
    records_per_partition_max: int
    records_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    fail_on_data_loss: bool
    keyring_file: str = ""  # where executors find the keys of an encrypted table
    compacted_rows: str | None = (
        None  # the records that the lease's holder has counted, see left.py
    )
    history_positions: HistoryPositions | None = None  # of a stream, see task_history.py
    files_by_jvm: bool = False  # a table of the catalog: see jvm_plan.py

    def known_columns(self) -> Mapping[str, str]:
        """Return all columns that this read can have, with their types."""
        return _COLUMNS_OF[self.emit]

    def of_cut(self, cut: Cut) -> SourceOptions:
        """Return the options of a read of this cut; a beginning that was given stays."""
        starts, ends = _range_of(cut)
        return replace(self, cut=cut, ending=ends, starting=self.starting or starts)

    def started_at(self, word: str) -> SourceOptions:
        """Return the options with a default for the beginning."""
        return self if self.starting is not None else replace(self, starting=word)


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Return the checked options of a read.

    Raises:
        InvalidRequestError: an option is unknown (the message suggests the most similar name),
            missing or out of bounds.
        InvalidCutError: option ``cut`` is not a saved cut.
    """
    given = _given(options)
    cut = Cut.load(given["cut"]) if "cut" in given else None
    emit = cast("Emit", _word(given, "emit", get_args(Emit)))
    if emit == "streams" and not any(name.lower() in given for name in SELECTORS):
        selection = Selection(pattern=".*")
    else:
        selection = parse_selection(given, None if cut is None else cut.stream)
    _check_isolation(given)
    uuid = given.get("streamuuid")
    if uuid is not None and not is_uuid(uuid):
        raise InvalidRequestError(f"streamUuid {uuid!r} is not a uuid")
    if uuid is not None and selection.single is None:
        raise InvalidRequestError("streamUuid is only for a read of one stream")
    if cut is not None and uuid not in {None, cut.stream_uuid}:
        raise InvalidRequestError(f"the cut belongs to stream {cut.stream_uuid}, not to {uuid}")
    _check_as_of(given, selection)
    starting, ending = _bounds(given, selection, cut)
    return SourceOptions(
        server=given.get("server") or None,
        selection=selection,
        stream_uuid=None if uuid is None else StreamUuid(uuid),
        starting=starting,
        ending=LATEST if ending is None else ending,
        cut=cut,
        as_of=given.get("asof"),
        lease=given.get("lease") or None,
        columns=_columns(given, selection, emit),
        emit=emit,
        partitions_min=_integer(given, "minPartitions", 0, _SPARK_PARTITIONS_MAX) or 0,
        records_per_partition_max=_integer(given, "maxRecordsPerPartition", 1, OFFSET_MAX)
        or RECORDS_PER_PARTITION_DEFAULT,
        records_per_trigger_max=_integer(given, "maxOffsetsPerTrigger", 1, OFFSET_MAX),
        bytes_per_trigger_max=_integer(given, "maxBytesPerTrigger", 1, OFFSET_MAX),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        keyring_file=given.get("encryptionkeyring", ""),
        compacted_rows=given.get("compactedrows"),
        history_positions=_history_positions(given, selection),
        files_by_jvm=_word(given, "coldFiles", ("python", "jvm")) == "jvm",
    )


def parse_batch(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of ``spark.read``; raises as :func:`parse`."""
    _refuse(options, _STREAM_ONLY, "is only for readStream; a batch read takes its whole range")
    return parse(options).started_at(EARLIEST)


def parse_stream(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of ``spark.readStream``; raises as :func:`parse`."""
    _refuse(options, _BATCH_ONLY, "is only for spark.read; a stream has no end")
    found = parse(options)
    if found.as_of not in {None, NOW}:
        raise InvalidRequestError("a stream has no end, so it cannot be read as of a moment")
    if found.emit == "streams":
        raise InvalidRequestError("emit=streams is only for spark.read")
    return found.started_at(LATEST)


def columns_of(options: Mapping[str, str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the requested columns, and all possible columns with their types.

    The options need not name a stream: a table of Spark's catalog is declared once and gets its
    stream with each query. Raises as :func:`parse`.
    """
    if not any(name.lower() in _given(options) for name in SELECTORS):
        options = {**options, "stream": "unnamed"}
    found = parse(options)
    return found.columns, found.known_columns()


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by lower-case name; raises if one is unknown."""
    known = {name.lower() for name in KNOWN}
    given = {name.lower(): value for name, value in options.items()}
    if "provider" in given:
        given = {
            name: value
            for name, value in given.items()
            if name not in _OF_CATALOG and not name.startswith("option.")
        }
    if "path" in given:
        raise InvalidRequestError(
            'load("...") takes no path here; name the stream with .option("stream", "...")'
        )
    for name in given:
        if name not in known:
            raise InvalidRequestError(f"unknown option {name!r}{nearest(name, KNOWN)}")
    return given


def _refuse(options: Mapping[str, str], names: tuple[str, ...], why: str) -> None:
    lowered = {name.lower() for name in options}
    for name in names:
        if name.lower() in lowered:
            raise InvalidRequestError(f"option {name} {why}")


def _bounds(
    given: Mapping[str, str], selection: Selection, cut: Cut | None
) -> tuple[Bound | None, Bound | None]:
    """Return the beginning and the end; a time overrides offsets, as in Spark's Kafka source."""
    strategy = _word(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
    found: list[Bound | None] = []
    for side in ("starting", "ending"):
        offsets, stamp = given.get(f"{side}offsets"), given.get(f"{side}timestamp")
        if cut is not None and (offsets is not None or stamp is not None):
            raise InvalidRequestError(
                f"the cut fixes the range of the read; leave {side}Offsets and {side}Timestamp out"
            )
        if stamp is not None:
            or_latest = side == "ending" or strategy == "latest"
            name = f"{side}Timestamp"
            found.append(positions.parse_timestamp(name, stamp, or_latest=or_latest))
        elif offsets is not None:
            bound = positions.parse_bound(f"{side}Offsets", offsets)
            _check_bound(bound, selection, f"{side}Offsets")
            found.append(bound)
        else:
            found.append(None)
    if cut is not None:
        return _range_of(cut)
    return found[0], found[1]


def _range_of(cut: Cut) -> tuple[Bound, Bound]:
    starts: dict[int, Position] = {part.partition: part.start for part in cut.partitions}
    ends: dict[int, Position] = {part.partition: part.end for part in cut.partitions}
    return starts, ends


def _check_as_of(given: Mapping[str, str], selection: Selection) -> None:
    if "asof" not in given:
        if "coldfiles" in given:
            raise InvalidRequestError("coldFiles is set by the catalog, with asOf; leave it out")
        return
    if selection.single is None:
        raise InvalidRequestError("asOf is only for a read of one stream")
    for name in ("cut", "endingOffsets", "endingTimestamp", "lease", "streamUuid"):
        if name.lower() in given:
            raise InvalidRequestError(f"asOf fixes the end of the read; leave {name} out")


def _history_positions(given: Mapping[str, str], selection: Selection) -> HistoryPositions | None:
    text = given.get("historypositions")
    if text is None:
        return None
    if selection.single is None:
        raise InvalidRequestError("historyPositions is only for a read of one stream")
    return task_history.from_text(text)


def _check_bound(bound: Bound, selection: Selection, option: str) -> None:
    streams = positions.named_streams(bound)
    if isinstance(bound, dict) and not streams and selection.single is None:
        raise InvalidRequestError(
            f"{option} must name each stream, because the read has several: "
            '{"flights": {"0": 5}}'
        )
    strangers = streams - set(selection.names)
    if strangers and selection.pattern is None:
        raise InvalidRequestError(
            f"{option} names stream {min(strangers)!r}, which this read does not have"
            f"{nearest(min(strangers), selection.names)}"
        )


def _columns(given: Mapping[str, str], selection: Selection, emit: Emit) -> tuple[str, ...]:
    text = given.get("columns")
    if emit != "records":
        for name in ("columns", "includeHeaders"):
            if name.lower() in given:
                raise InvalidRequestError(
                    f"emit={emit} returns no records, so {name} has no effect; leave it out"
                )
        return tuple(_COLUMNS_OF[emit])
    if text is None:
        # Without the stream's name the rows of several streams could not be told apart.
        names = (*ROW_COLUMNS, STREAM_COLUMN) if selection.single is None else tuple(ROW_COLUMNS)
    elif text.strip().lower() == KAFKA:
        names = KAFKA_COLUMNS
    else:
        asked = [name.strip() for name in text.split(",")]
        names = check_projection(asked, where="option columns", known=READ_COLUMNS)
    if "includeheaders" not in given:
        return names
    wanted = _flag(given, "includeHeaders", default=False)
    if wanted:
        return names if "headers" in names else (*names, "headers")
    return check_projection(
        [name for name in names if name != "headers"],
        where="option columns, without headers,",
        known=READ_COLUMNS,
    )


def _check_isolation(given: Mapping[str, str]) -> None:
    text = given.get("isolation", "committed").strip().lower()
    if text in {"uncommitted", "read_uncommitted"}:
        raise InvalidRequestError(
            "isolation=uncommitted is not offered: readers get committed records only"
        )
    if text not in {"committed", "read_committed"}:
        raise InvalidRequestError(f"isolation must be committed, not {text[:100]!r}")


def _word(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return one of the words; the first is the default."""
    text = given.get(name.lower(), words[0]).strip().lower()
    if text not in words:
        raise InvalidRequestError(f"{name} must be {' or '.join(words)}, not {text[:100]!r}")
    return text


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _word(given, name, ("true", "false") if default else ("false", "true")) == "true"


def _integer(given: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError as cause:
        raise InvalidRequestError(f"{name} must be a whole number, not {text[:100]!r}") from cause
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be {low} to {high}, not {value}")
    return value
