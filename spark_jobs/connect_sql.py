"""A SQL statement with DataFrames as its views, in Spark Connect.

There a result is resolved again at every action, on the server, so views that were dropped after
the first look would be missing later. The plan itself has a place for them: the server makes them
for the time of each resolution. PySpark only offers it with generated names; the classes behind it
take ours. This is the one file that uses PySpark's Connect plans, of the version that is pinned.
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
    """Return a statement's result; a name of ``views`` means that DataFrame. Blocks.

    A query is analyzed, a command is executed, once.

    Raises:
        InvalidRequestError: a name that SQL would have to quote. The server parses a view's name
            when it makes it, but not when it drops it, so a quoted one would stay, and stand still.
        pyspark.errors.AnalysisException: what the server finds wrong with the statement.
    """
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame  # noqa: PLC0415
    from pyspark.sql.connect.plan import SQL, CachedRelation, SubqueryAlias  # noqa: PLC0415

    for name in views:
        if _PLAIN_NAME.match(name) is None:
            raise InvalidRequestError(
                f"in Spark Connect a statement cannot name {name!r} by itself; make a view of it "
                f"first: headwater.register(spark, [{name!r}])"
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
