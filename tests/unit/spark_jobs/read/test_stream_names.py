"""Streams whose names differ by case only: SQL does not tell them apart, so none is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from broker.errors import InvalidRequestError, UnknownStreamError
from headwater.client import Client
from headwater.local_sql.local import resolve
from headwater.local_sql.parsing import parse_statement
from spark_jobs.read import sql as statements
from spark_jobs.read.stream_names import refuse_alike, stream_named


class Stream:
    """A stream, of which only the name matters."""

    def __init__(self, name: str) -> None:
        self.name = name


class Names(Client):
    """A client of a broker that has streams with these names. Nothing else is asked of it."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def streams(self) -> list[Any]:
        """Return the streams."""
        return [Stream(name) for name in self._names]


class Session:
    """A session without any view, which a refused call leaves as it is."""


def test_a_name_is_that_of_one_stream() -> None:
    """Case does not matter, as in Spark."""
    assert stream_named("orders", ["orders", "returns"]) == "orders"
    assert stream_named("ORDERS", ["Orders", "returns"]) == "Orders"
    with pytest.raises(UnknownStreamError, match="neither a stream nor a table"):
        stream_named("order", ["orders"])


@pytest.mark.parametrize("wanted", ["orders", "Orders", "ORDERS"])
def test_a_name_of_two_streams_is_refused(wanted: str) -> None:
    """The exact name is not enough: Spark and DuckDB see the lower-case one."""
    with pytest.raises(InvalidRequestError) as told:
        stream_named(wanted, ["orders", "returns", "Orders"])

    assert "Orders and orders" in str(told.value)
    assert "headwater.`Orders`" in str(told.value)
    assert "headwater.read" in str(told.value)


def test_only_a_wanted_name_is_refused() -> None:
    """Two streams that nobody asks for do no harm."""
    refuse_alike(["returns"], ["orders", "Orders", "returns"])
    refuse_alike([], ["orders", "Orders"])
    with pytest.raises(InvalidRequestError, match="Orders and orders"):
        refuse_alike(["returns", "orders"], ["orders", "Orders", "returns"])


def test_a_statement_without_spark_is_refused() -> None:
    """One of the two was counted twice, without an error."""
    client = Names("orders", "Orders")
    with pytest.raises(InvalidRequestError, match="Orders and orders"):
        resolve(parse_statement("select count(*) from orders join Orders o"), client)
    assert resolve(parse_statement("select 1 from ORDERS"), Names("orders")) == {"ORDERS": "orders"}


@pytest.mark.parametrize("wanted", [None, ["orders"], ["returns", "Orders"]])
def test_views_are_refused_before_one_is_made(wanted: list[str] | None) -> None:
    """The view of one stream took the place of the other's."""
    session = Session()  # a call of any method would be another error
    with pytest.raises(InvalidRequestError, match="Orders and orders"):
        statements.register(
            cast("Any", session), wanted, server=Names("orders", "Orders", "returns")
        )


@pytest.fixture
def with_view() -> Iterator[Session]:
    """A session in which ``register`` has made the view ``orders``."""
    session = Session()
    statements._REGISTERED.swap(cast("Any", session), {"orders": cast("Any", object())})
    yield session
    statements._REGISTERED.swap(cast("Any", session), {})


def test_a_view_that_may_be_meant_for_another_stream_is_refused(with_view: Session) -> None:
    """The stream Orders was created after ``register``; the statement would read the view."""
    with pytest.raises(InvalidRequestError, match="Orders and orders"):
        statements.sql(
            cast("Any", with_view), "select * from Orders", server=Names("orders", "Orders")
        )
