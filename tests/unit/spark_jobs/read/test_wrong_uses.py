"""Issue 11, second tour: what a beginner gives ``headwater.read`` by mistake is named."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import InvalidRequestError
from spark_jobs.read.unified import read, read_many

SESSION: Any = object()  # no request reaches it


@pytest.mark.parametrize(
    ("session", "stream"),
    [("orders", SESSION), ("orders", "orders"), (SESSION, 5), (SESSION, None)],
)
def test_a_session_and_a_name_are_asked_for(session: Any, stream: Any) -> None:
    """It was "'str' object has no attribute 'conf'", or an AssertionError about cuts."""
    with pytest.raises(InvalidRequestError, match=r"headwater\.read\(spark, 'orders'\)"):
        read(session, stream)


@pytest.mark.parametrize("call", [read, lambda *given, **more: read_many(given[0], ["s"], **more)])
def test_a_column_in_place_of_a_list_is_refused(call: Any) -> None:
    """It was refused as the column 'v'."""
    with pytest.raises(InvalidRequestError, match=r"columns takes a list of names: \['value'\]"):
        call(SESSION, "orders", columns="value")
