"""What the Flight service looks at before it copies a request."""

from __future__ import annotations

import pytest
from pyarrow import flight

from broker.adapters.flight.service import check_body
from broker.errors import InvalidRequestError


class Uncopied:
    """An action whose body tells its size only."""

    type = "whoami"

    def __init__(self, size: int) -> None:
        self.body = self
        self.size = size


def test_a_body_is_refused_by_its_size_before_it_is_copied() -> None:
    """The largest one passes; a body of Arrow tells its size as the one here does."""
    check_body(Uncopied(256 * 1024))
    with pytest.raises(InvalidRequestError, match="262145 bytes exceeds 262144"):
        check_body(Uncopied(256 * 1024 + 1))
    with pytest.raises(InvalidRequestError, match=r"^the body of x{64} of 262145 bytes"):
        check_body(flight.Action("x" * 1000, bytes(256 * 1024 + 1)))
