"""A stream's whole history as one Arrow table, without Spark, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.errors import InvalidCutError, SchemaMismatchError
from broker.model.certificate import Certificate
from broker.model.cut import Cut
from headwater.client import Client
from headwater.reads.as_of import AsOf, narrowed, parse_as_of
from headwater.reads.history import History
from headwater.reads.latest import newest_of_each_key
from headwater.reads.leases import held_cut


def read_table(
    stream: str,
    *,
    columns: Sequence[str] | None = None,
    as_of: AsOf | None = None,
    latest: bool = False,
    server: str | Client | None = None,
) -> tuple[pa.Table, Certificate]:
    """Read every record of a stream, each once, from its Delta table and the broker's tail.

    The rows are in the memory of this process. If they do not fit, use ``headwater.read``.

    Args:
        stream: The stream's name.
        columns: Names of the record's columns, in the order of the result; None means all.
        as_of: An earlier moment: a cut or its text, a time, or offsets by partition.
        latest: Only the newest record of each key, without tombstones.
        server: A client of the broker, or its address; the default is HEADWATER_SERVER, then this
            machine.

    Returns:
        The rows, by partition and offset, and the certificate of what was checked.

    Raises:
        UnknownStreamError, UnavailableError.
        SchemaMismatchError: ``columns`` is not a list of names of the record's columns.
        InvalidCutError, OffsetOutOfRangeError: ``as_of`` is of another stream, or not kept.
        CorruptDataError: the read cannot be exact; a subclass says why.
    """
    moment = None if as_of is None else parse_as_of(as_of)
    if isinstance(columns, str):
        raise SchemaMismatchError(f"columns takes a list of names: [{columns!r}]", column=columns)
    # A client of the caller's stays open.
    with nullcontext(server) if isinstance(server, Client) else Client(server) as client:
        if isinstance(moment, Cut):
            if moment.stream != stream:
                raise InvalidCutError(f"the cut is of stream {moment.stream!r}, not of {stream!r}")
            client.check_cut(moment)
            return _read(History(client, moment), columns, latest=latest)
        with held_cut(client, stream) as taken:
            cut = taken if moment is None else narrowed(taken, moment, client)
            return _read(History(client, cut), columns, latest=latest)


def _read(
    history: History, columns: Sequence[str] | None, *, latest: bool
) -> tuple[pa.Table, Certificate]:
    wanted = None if columns is None else list(columns)
    rows = newest_of_each_key(history, wanted) if latest else history.batches(wanted)
    batches = list(rows)
    names = ROW_SCHEMA.names if wanted is None else wanted
    empty = pa.schema([ROW_SCHEMA.field(name) for name in names])
    schema = batches[0].schema if batches else empty
    return pa.Table.from_batches(batches, schema=schema), history.certificate()
