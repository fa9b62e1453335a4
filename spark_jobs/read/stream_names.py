"""Which stream a table's name in a statement of SQL means."""

from __future__ import annotations

from collections.abc import Sequence

from broker.errors import UnknownStreamError
from spark_jobs.source.columns import nearest


def stream_named(wanted: str, names: Sequence[str]) -> str:
    """Return the stream with that name; else the only one that differs by case, as in Spark.

    Raises:
        UnknownStreamError: there is none; the message has the nearest name.
    """
    if wanted in names:
        return wanted
    alike = [name for name in names if name.lower() == wanted.lower()]
    if len(alike) == 1:
        return alike[0]
    raise UnknownStreamError(
        f"{wanted} is neither a stream nor a table{nearest(wanted, names)}", stream=wanted
    )
