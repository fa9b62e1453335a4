"""Whatever arrives at the Flight service's border is parsed or refused by one of our errors."""

from __future__ import annotations

import contextlib
import json
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.flight.actions import ACTIONS, decode_body
from broker.codec.flight.protocol import (
    ERROR_WIRE_BYTES_MAX,
    ReadRequest,
    RowsMark,
    StreamPath,
    bounded_wire,
    decode_ack,
    decode_put_mark,
    encode_ack,
)
from broker.errors import EnvelopeError, HeadwaterError, InvalidRequestError, from_wire
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.records import AppendResult

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["earliest", "latest", "offset", "value", "s"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=8,
)
TICKET_FIELDS = st.sampled_from(
    ["v", "stream", "stream_uuid", "partition", "start", "end", "follow", "columns", "x"]
)
OFFSETS = st.integers(0, OFFSET_MAX)
# A text of 5,000 letters of its own would take Hypothesis a tenth of a second.
LONG = st.builds(operator.mul, st.text(max_size=50), st.integers(1, 100))


@given(st.binary(max_size=200))
def test_bytes_as_a_ticket(data: bytes) -> None:
    """Noise is an InvalidRequestError and nothing else."""
    with pytest.raises(InvalidRequestError):
        ReadRequest.from_ticket(data)


@given(st.dictionaries(TICKET_FIELDS, VALUES))
def test_json_as_a_ticket(fields: dict[str, Any]) -> None:
    """A ticket with any values either is a request that comes back the same, or is refused."""
    body = {"v": 1, "stream": "s", "partition": 0, **fields}
    with contextlib.suppress(InvalidRequestError):
        request = ReadRequest.from_ticket(json.dumps(body).encode())
        assert ReadRequest.from_ticket(request.to_ticket()) == request


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"s", b"0", b"7"]), max_size=4))
def test_bytes_as_a_path(path: list[bytes]) -> None:
    """A path that parses is written the same way, up to leading zeros of the number."""
    with contextlib.suppress(InvalidRequestError):
        parsed = StreamPath.from_path(path)
        assert StreamPath.from_path(parsed.to_path()) == parsed


@given(st.sampled_from([*ACTIONS, "other"]), st.binary(max_size=100))
def test_bytes_as_a_body(action: str, data: bytes) -> None:
    """Noise is refused; the empty body of an action without fields is not noise."""
    with contextlib.suppress(InvalidRequestError):
        assert decode_body(action, data).keys() == ACTIONS[action].fields.keys()


@given(
    st.sampled_from(sorted(ACTIONS)),
    st.dictionaries(
        st.sampled_from(["name", "config", "owner", "ttl_ms", "lease_id", "timeout_ms", "x"]),
        VALUES,
    ),
)
def test_json_as_a_body(action: str, fields: dict[str, Any]) -> None:
    """What passes has exactly the fields of its action."""
    with contextlib.suppress(InvalidRequestError):
        decoded = decode_body(action, json.dumps(fields).encode())
        assert decoded.keys() == ACTIONS[action].fields.keys()


@given(st.binary(max_size=40))
def test_bytes_as_marks_and_acknowledgements(data: bytes) -> None:
    """Every decoder of a frame raises its own error only."""
    with contextlib.suppress(EnvelopeError):
        assert RowsMark.from_bytes(data).to_bytes() == data
    with contextlib.suppress(EnvelopeError):
        decode_ack(data)
    with contextlib.suppress(EnvelopeError):
        decode_ack(b"\x01" + data)
    with contextlib.suppress(InvalidRequestError):
        decode_put_mark(data)


@given(OFFSETS, st.integers(1, 2**32 - 1), OFFSETS, st.booleans())
def test_acknowledgements_come_back(base: int, count: int, epoch: int, duplicate: bool) -> None:
    """Every possible outcome survives its frame."""
    result = AppendResult(Offset(base), count, LeaderEpoch(epoch), duplicate)
    assert decode_ack(encode_ack(result)) == result


@given(LONG, st.dictionaries(st.text(max_size=10), LONG))
def test_errors_fit_their_frame(message: str, facts: dict[str, Any]) -> None:
    """Whatever an error says, it can be sent, and it is still that error."""
    facts = {name: value for name, value in facts.items() if name.isidentifier()}
    wire = bounded_wire(HeadwaterError(message, **facts))
    assert len(wire) <= ERROR_WIRE_BYTES_MAX
    back = from_wire(wire.decode())
    assert back is not None
    assert back.facts.items() <= facts.items()
