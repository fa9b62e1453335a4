"""The values of the appender: its source, its target, its transform, its result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from broker.errors import InvalidRequestError
from broker.model.offsets import Offset, OffsetRange
from tiering.store.location import StoreConfig

if TYPE_CHECKING:
    import pyarrow as pa

POSITIONS_DEFAULT: Final = ("partition", "offset")
APP_DEFAULT: Final = "append"
_APP: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One incarnation of a stream, and the address of its broker."""

    stream: str
    stream_uuid: str
    server: str | None = None  # None: HEADWATER_SERVER of each process, else the default

    @classmethod
    def of(cls, stream: str, server: str | None = None) -> Source:
        """Ask the broker for the stream that has the name now; raises UnknownStreamError."""
        from spark_jobs.clients import client_of  # noqa: PLC0415  (values import no client)

        client = client_of(server)
        return cls(stream=stream, stream_uuid=client.stream(stream).uuid, server=client.address.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Delta table to append to, by its folder.

    Args:
        store: the folder's location; :meth:`at` makes it from a URI and the environment. Executors
            take credentials from their own environment, never from this value.
        app: the appender's name. Two appenders with one name share their watermarks and the work.
            Appenders with different names have separate watermarks, and never the same offsets.
        partition_by: partition columns of a new table. For an existing table these must equal its
            partition columns, or be empty. An empty text in such a column is null in Delta.
        positions: names of the columns with a row's partition and offset. They are added to the
            result of a transform, unless it has them. None: no such columns, and no proof by
            counting.
        evolve: ``add`` lets an append add nullable columns that the table lacks.
        create: whether a table that does not exist is created.
        verify: whether the table's rows are counted and compared with the appended ones. Turn this
            off only for tables from which rows are deleted on purpose.
        properties: Delta properties of a new table.
    """

    store: StoreConfig
    app: str = APP_DEFAULT
    partition_by: tuple[str, ...] = ()
    positions: tuple[str, str] | None = POSITIONS_DEFAULT
    evolve: Literal["none", "add"] = "none"
    create: bool = True
    verify: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _APP.match(self.app) is None:
            raise InvalidRequestError(f"app {self.app!r} must be 1 to 64 of A-Z a-z 0-9 _ . -")
        if self.evolve not in ("none", "add"):
            raise InvalidRequestError(f"evolve must be none or add, not {self.evolve!r}")

    @classmethod
    def at(cls, uri: str, **options: object) -> Target:
        """Return a target at ``s3://…``, ``file://…`` or a path; settings from the environment.

        Raises:
            InvalidConfigError: the URI is not valid.
        """
        return cls(store=StoreConfig.from_env(uri), **options)  # type: ignore[arg-type]

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""
        return self.store.uri

    def beside(self, suffix: str) -> Target:
        """Return the table ``<this table><suffix>`` with the same options, created when needed."""
        return replace(self, store=self.store.at(self.uri + suffix), partition_by=(), create=True)


@runtime_checkable
class Transform(Protocol):
    """Turns rows of a stream into rows of a table, on executors. Picklable by its class's name.

    The same input row must always give the same result, in any batch, because a retry may have
    other batches. A transform may also have ``columns``, the row columns that it reads (default:
    all), and ``rejected_schema``, the schema of the rows that it rejects. ``identity`` is a text
    with all that decides which rows are rejected: an append that died between its two tables is
    finished only by a transform with the same text. Without it nothing is checked.
    """

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the rows that the transform returns."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch | Transformed:
        """Return one row per input row, in the same order; or a :class:`Transformed`.

        A :class:`Transformed` covers all input rows. No content of a row may raise an error.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The result for a batch of which not every row became a row of the table.

    ``kept`` has the indices of the input rows from which ``rows`` were made. ``rejected`` has the
    rows for the table of rejected records. ``dropped_count`` is the number of rows that were left
    out on purpose. The three numbers together equal the number of input rows. ``counts`` are the
    transform's own counters, by name; the append adds them up.
    """

    rows: pa.RecordBatch
    kept: pa.Array | None = None  # int64; None: the rows have the position columns already
    rejected: pa.RecordBatch | None = None
    dropped_count: int = 0
    gone_count: int = 0  # records of the ranges that key compaction had removed
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """The watermarks of a table at one version; version -1 means that there is no table yet.

    ``ends`` are exclusive; a partition that was never appended is absent. ``others`` has (app,
    partition, range) of the records of the same stream that appenders of other names appended.
    """

    version: int
    ends: Mapping[int, Offset]
    starts: Mapping[int, Offset]
    others: tuple[tuple[str, int, OffsetRange], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The result of one append. ``ranges`` has the new ranges; other partitions are absent."""

    version: int
    ranges: Mapping[int, OffsetRange]
    rows_count: int = 0
    files_count: int = 0
    bytes_count: int = 0
    rejected_count: int = 0
    dropped_count: int = 0
    gone_count: int = 0  # records of the ranges that key compaction had removed
    counts: Mapping[str, int] = field(default_factory=dict)  # the transform's counters

    @property
    def records_count(self) -> int:
        """Number of records that were read: of each offset of the ranges, unless it was gone."""
        return sum(len(offsets) for offsets in self.ranges.values()) - self.gone_count
