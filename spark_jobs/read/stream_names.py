"""Which stream a table's name in a statement of SQL means.

Spark and DuckDB do not tell names apart that differ by case only. Streams may have such names. So a
name that several streams have in lower case is refused: one of them would be read for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.errors import InvalidRequestError, UnknownStreamError
from spark_jobs.source.columns import nearest


def stream_named(wanted: str, names: Sequence[str]) -> str:
    """Return the only stream of all whose name is that name, apart from case, as in Spark.

    Raises:
        UnknownStreamError: there is none; the message has the nearest name.
        InvalidRequestError: there are several.
    """
    refuse_alike([wanted], names)
    alike = [name for name in names if name.lower() == wanted.lower()]
    if alike:
        return alike[0]
    raise UnknownStreamError(
        f"{wanted} is neither a stream nor a table{nearest(wanted, names)}", stream=wanted
    )


def refuse_alike(wanted: Iterable[str], names: Iterable[str]) -> None:
    """Refuse a wanted name that several streams of the broker have, apart from case.

    Raises:
        InvalidRequestError: the message names these streams, and the ways to read one of them.
    """
    streams: dict[str, set[str]] = {}
    for name in names:
        streams.setdefault(name.lower(), set()).add(name)
    for one in wanted:
        alike = sorted(streams.get(one.lower(), ()))
        if len(alike) > 1:
            raise InvalidRequestError(
                f"the streams {' and '.join(alike)} differ by case only, and SQL does not tell "
                "such names apart. Exact names are taken by the catalog, as in "
                f'headwater.`{alike[0]}`, and by headwater.read(spark, "{alike[0]}")',
                streams=alike,
            )
