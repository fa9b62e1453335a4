"""Every call of every door has a row in the table of what calls ask, and every row is of a call.

A call without a row is refused to everybody. So whoever adds a call adds its row, in
``broker/core/access/doors.py``, and its line in ``docs/security.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from google.protobuf.descriptor import Descriptor
from pyarrow import flight

from broker.adapters.flight.service import _Server
from broker.adapters.liftbridge.guard import named_in
from broker.codec.flight.actions import ACTIONS
from broker.core.access.doors import DOORS, FLIGHT, HTTP, LIFTBRIDGE
from broker.wire.liftbridge import api_pb2
from projectfiles import ROOT

_NOT_CALLS: Final = {"do_action"}  # its actions are the calls
_NEVER_SERVED: Final = {"poll_flight_info"}  # gRPC knows it, pyarrow does not
_NO_CONSUMER_GROUPS: Final = {
    "CreateStream.group",  # a queue group of NATS
    "FetchMetadata.groups",  # its answer is filtered
}


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


def test_each_liftbridge_request_that_names_a_group_asks_for_the_group() -> None:
    """In a field of its own, deep in the request, or by the cursor that is a group's position."""
    service = api_pb2.DESCRIPTOR.services_by_name["API"]
    found = set()
    for call in service.methods:
        for path in _text_fields(call.input_type):
            field = path[-1]
            if "group" not in field.lower() and field != "cursorId":
                continue
            if f"{call.name}.{field}" in _NO_CONSUMER_GROUPS:
                continue
            request = getattr(api_pb2, call.input_type.name)()
            holder: Any = request
            for one in path[:-1]:
                holder = getattr(holder, one)
            setattr(holder, field, "__group:g" if field == "cursorId" else "g")
            assert named_in(call.name, request.SerializeToString())["group"] == "g", call.name
            asks = [one for one in LIFTBRIDGE[call.name].asks if one.kind == "group"]
            assert [list(one.names({"group": "g"})) for one in asks] == [["g"]], call.name
            found.add(call.name)
    assert found >= {"Subscribe", "SetCursor", "FetchCursor", "JoinConsumerGroup"}


def _text_fields(kind: Descriptor, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of each text of a request, also of those in messages within it."""
    for field in kind.fields:
        path = (*above, field.name)
        if field.message_type is not None:
            assert len(path) < 8, "a message within itself"
            if not field.is_repeated:
                yield from _text_fields(field.message_type, *path)
        elif field.type == field.TYPE_STRING:
            yield path


def test_each_flight_action_that_names_a_group_asks_for_the_group() -> None:
    """By its field ``group``."""
    for name, spec in ACTIONS.items():
        asked = any(ask.kind == "group" for ask in FLIGHT[name].asks)
        assert asked == ("group" in spec.fields), name


def test_each_http_path_has_a_row() -> None:
    """The paths that the handler knows."""
    text = (ROOT / "broker/adapters/http/health.py").read_text(encoding="utf-8")
    assert HTTP.keys() == set(re.findall(r'case "(/[a-z]+)"', text))


@pytest.mark.parametrize("door", DOORS)
def test_a_row_that_asks_names_what_it_asks(door: str) -> None:
    """``asks`` without a right would let everybody who is known do it by mistake."""
    for call, row in DOORS[door].items():
        assert bool(row.asks) == (row.way == "asks"), call
