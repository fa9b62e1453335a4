"""Places for long calls: counted in all, and on each connection."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from broker.adapters.flight.places import Places
from broker.errors import OverloadedError


def test_places_are_counted_in_all_and_of_each_connection() -> None:
    """A refusal takes no place, and every place is given back."""
    places = Places("reads", 3, of_connection_max=2)
    with ExitStack() as stack:
        assert [stack.enter_context(places.take("a")) for _ in range(2)] == [1, 2]
        with pytest.raises(OverloadedError, match="2 reads are open on this connection"):
            stack.enter_context(places.take("a"))
        assert stack.enter_context(places.take("b")) == 3
        with pytest.raises(OverloadedError, match="3 reads are open on this broker"):
            stack.enter_context(places.take("c"))
    assert places.taken_count == 0
    assert not places._taken
