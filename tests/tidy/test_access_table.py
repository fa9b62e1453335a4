"""Every call of every door has a row in the table of what calls ask, and every row is of a call.

A call without a row is refused to everybody. So whoever adds a call adds its row, in
``broker/core/access/doors.py``, and its line in ``docs/security.md``.
"""

from __future__ import annotations

import re
from typing import Final

import pytest
from pyarrow import flight

from broker.adapters.flight.service import _Server
from broker.codec.flight.actions import ACTIONS
from broker.core.access.doors import DOORS, FLIGHT, HTTP, LIFTBRIDGE
from broker.wire.liftbridge import api_pb2
from projectfiles import ROOT

_NOT_CALLS: Final = {"do_action"}  # its actions are the calls
_NEVER_SERVED: Final = {"poll_flight_info"}  # gRPC knows it, pyarrow does not


def test_each_flight_call_has_a_row() -> None:
    """Actions by their names, and the methods that pyarrow calls."""
    methods = {
        name
        for name in vars(_Server)
        if hasattr(flight.FlightServerBase, name) and not name.startswith("_")
    }
    served = {name for name in methods if name.startswith(("do_", "list_", "get_"))}
    assert FLIGHT.keys() == ACTIONS.keys() | (served - _NOT_CALLS) | _NEVER_SERVED


def test_each_liftbridge_call_has_a_row() -> None:
    """The methods of the service in proto/, gRPC's health check and reflection."""
    service = api_pb2.DESCRIPTOR.services_by_name["API"]
    assert LIFTBRIDGE.keys() == {one.name for one in service.methods} | {
        "Check",
        "ServerReflectionInfo",
    }


def test_each_http_path_has_a_row() -> None:
    """The paths that the handler knows."""
    text = (ROOT / "broker/adapters/http/health.py").read_text(encoding="utf-8")
    assert HTTP.keys() == set(re.findall(r'case "(/[a-z]+)"', text))


@pytest.mark.parametrize("door", DOORS)
def test_a_row_that_asks_names_what_it_asks(door: str) -> None:
    """``asks`` without a right would let everybody who is known do it by mistake."""
    for call, row in DOORS[door].items():
        assert bool(row.asks) == (row.way == "asks"), call
