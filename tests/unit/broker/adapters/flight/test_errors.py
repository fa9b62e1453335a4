"""Every error of ours reaches a Flight client as a kind that fits, with its class and facts."""

from __future__ import annotations

import pytest
from pyarrow import flight

from broker.adapters.flight.errors import FLIGHT_KINDS, to_flight
from broker.errors import HeadwaterError, from_wire, leaves

LEAVES = [kind for kind in leaves().values() if not kind.__subclasses__()]


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_leaf_class_has_a_row(kind: type[HeadwaterError]) -> None:
    """No error falls through the table, so none becomes an internal error by accident."""
    assert any(row in FLIGHT_KINDS for row in kind.__mro__)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_class_and_facts_survive_the_translation(kind: type[HeadwaterError]) -> None:
    """A client decodes the error that the broker raised."""
    error = to_flight(kind("what happened", offset=7))
    back = from_wire(error.extra_info.decode())
    assert type(back) is kind
    assert (back.message, back.facts) == ("what happened", {"offset": 7})


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_only_what_may_be_retried_is_unavailable(kind: type[HeadwaterError]) -> None:
    """Foreign clients repeat a call that was unavailable, and no other."""
    unavailable = isinstance(to_flight(kind("x")), flight.FlightUnavailableError)
    assert not unavailable or kind.retriable
