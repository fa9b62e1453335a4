"""Runs a SQL statement in Spark Connect, with DataFrames as its views.

In Spark Connect the server resolves a plan again at every action. So ordinary views that are
dropped after the first action would be missing later. A Connect plan can carry its views instead;
the server then makes them for each resolution. PySpark's public interface gives such views only
generated names, but the plan classes behind it accept our names. This is the only file that uses
PySpark's Connect plan classes, and it fits the pinned version of PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def sql_with_views(
    spark: SparkSession, statement: str, views: Mapping[str, DataFrame]
) -> DataFrame:
    """Return a statement's result; each name in ``views`` means its DataFrame. Blocks.

    A query is analyzed once; a command is executed once.

    Raises:
        InvalidRequestError: a name needs quotes in SQL. The server parses a view's name when it
            creates the view, but not when it drops it, so a view with a quoted name would stay
            and never change.
        pyspark.errors.AnalysisException: the server found an error in the statement.
    """
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame  # noqa: PLC0415
    from pyspark.sql.connect.plan import SQL, CachedRelation, SubqueryAlias  # noqa: PLC0415

    for name in views:
        if _PLAIN_NAME.match(name) is None:
            raise InvalidRequestError(
                f"in Spark Connect a statement cannot name the stream {name!r} directly, because "
                f"the name needs quotes; make a view first: headwater.register(spark, [{name!r}])"
            )
    session: Any = spark
    frames: dict[str, Any] = dict(views)
    plan = SQL(
        statement,
        views=[SubqueryAlias(rows._plan, name) for name, rows in frames.items()],  # noqa: SLF001
    )
    client = session.client
    _, properties, _ = client.execute_command(plan.command(client))
    done = properties.get("sql_command_result")
    found: Any = ConnectDataFrame(plan if done is None else CachedRelation(done), session)
    return found  # type: ignore[no-any-return]
