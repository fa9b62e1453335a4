"""The words of the appender: where rows come from, where they go, what one append did. Values."""

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
    """One incarnation of a stream, and the broker that answers for it."""

    stream: str
    stream_uuid: str
    server: str | None = None  # None: HEADWATER_SERVER of each process, else the default

    @classmethod
    def of(cls, stream: str, server: str | None = None) -> Source:
        """Ask the broker which incarnation the name means now; raises UnknownStreamError."""
        from spark_jobs.clients import client_of  # noqa: PLC0415  (values import no client)

        client = client_of(server)
        return cls(stream=stream, stream_uuid=client.stream(stream).uuid, server=client.address.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Delta table to append to, by its folder.

    Args:
        store: where the folder is; :meth:`at` makes it from a URI and the environment. Executors
            take credentials from their own environment, never from here.
        app: who appends. Two appenders with one name share their watermarks and the work; those
            with two names have watermarks of their own, and never the same offsets.
        partition_by: partition columns of a table that is created; of one that exists, its own
            columns count, and these must be the same or empty.
        positions: names of the columns with a row's partition and offset. They are added to what a
            transform returns, unless it has them. None: no such columns, and no proof by counting.
        evolve: ``add`` lets an append add nullable columns that the table lacks.
        create: whether a table that does not exist is created.
        verify: whether the table's rows are counted against what was appended. Only for tables
            from which somebody deletes rows on purpose it is turned off.
        properties: Delta properties of a table that is created.
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
        """Return a target at ``s3://…``, ``file://…`` or a path, reached as the environment says.

        Raises:
            InvalidConfigError: it is no such place.
        """
        return cls(store=StoreConfig.from_env(uri), **options)  # type: ignore[arg-type]

    @property
    def uri(self) -> str:
        """Canonical URI of the table's folder."""
        return self.store.uri

    def beside(self, suffix: str) -> Target:
        """Return the table ``<this one><suffix>`` with the same options, created when needed."""
        return replace(self, store=self.store.at(self.uri + suffix), partition_by=(), create=True)


@runtime_checkable
class Transform(Protocol):
    """Turns rows of a stream into rows of a table, on executors. Picklable by its class's name.

    The same input row always gives the same result, whatever batch it is in: a retry may cut
    batches differently. May also have ``columns``, the row columns that it reads (all by default),
    and ``rejected_schema``, that of the rows which it sets aside.
    """

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the rows that it returns."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch | Transformed:
        """Return as many rows, in the same order; or a :class:`Transformed` that accounts for all.

        Raises nothing on account of a row's content.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """What became of a batch when not every row became a row of the table.

    ``kept`` are the indices of the input rows that ``rows`` came from; ``rejected`` holds those set
    aside, for the table of rejected records. Together they are as many as came in, unless
    ``dropped_count`` says how many were left out on purpose. ``counts`` are
    whatever else a transform counts, by name; the append adds them up.
    """

    rows: pa.RecordBatch
    kept: pa.Array | None = None  # int64; None: the rows have their positions themselves
    rejected: pa.RecordBatch | None = None
    dropped_count: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """How far a table has come, at one version; -1 when there is no table yet.

    ``ends`` are exclusive; a partition that was never appended is absent. ``others`` are (app,
    partition, range) of what appenders of other names hold of the same stream.
    """

    version: int
    ends: Mapping[int, Offset]
    starts: Mapping[int, Offset]
    others: tuple[tuple[str, int, OffsetRange], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What one append did. ``ranges`` is what was new; partitions without news are absent."""

    version: int
    ranges: Mapping[int, OffsetRange]
    rows_count: int = 0
    files_count: int = 0
    bytes_count: int = 0
    rejected_count: int = 0
    dropped_count: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)  # what the transform counted

    @property
    def records_count(self) -> int:
        """Offsets that the table moved on by."""
        return sum(len(offsets) for offsets in self.ranges.values())
