"""What Spark Connect cannot do with a view's name is refused before anything is sent."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.errors import InvalidRequestError
from spark_jobs.connect_sql import sql_with_views


@pytest.mark.parametrize("name", ["old-ones", "1st", "a.b", "", "a b", "a`b", "flügel"])
def test_a_name_that_needs_quotes_is_refused(name: str) -> None:
    """The server would create the view, not find it again to drop it, and hang."""
    nobody = cast("Any", None)
    with pytest.raises(InvalidRequestError, match="register"):
        sql_with_views(nobody, "SELECT 1", {"fine": nobody, name: nobody})
