"""Reading PublishRequest messages: each is read as protobuf reads it, whatever came before."""

from __future__ import annotations

from typing import Final

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from broker.adapters.liftbridge.publish_requests import Envelope, RequestReader
from broker.errors import InvalidRequestError
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire

_TEXTS: Final = st.text(max_size=3)
_REQUESTS: Final = st.builds(
    api.PublishRequest,
    key=st.sampled_from([b"", b"k", b"other"]),
    value=st.binary(max_size=4),
    stream=st.sampled_from(["", "s", "streams"]),
    partition=st.sampled_from([0, 1, 300]),
    headers=st.dictionaries(_TEXTS, st.binary(max_size=2), max_size=2),
    ackInbox=st.sampled_from(["", "_INBOX.x"]),
    correlationId=st.one_of(st.just("0123"), _TEXTS),
    ackPolicy=st.sampled_from([wire.LEADER, wire.ALL, wire.NONE]),
    expectedOffset=st.sampled_from([0, -1, 2**40]),
)


def shown(reader: RequestReader, payload: bytes) -> object:
    """Return what a reader finds in a message, or that it refuses it."""
    try:
        (found,) = reader.read([payload], [5], 9)
    except InvalidRequestError:
        return "refused"
    assert (found.request_bytes, found.window_bytes, found.received_us) == (len(payload), 5, 9)
    return found.envelope, found.value, found.correlation_id


def read_by_protobuf(payload: bytes) -> object:
    """Return what protobuf finds in a message."""
    try:
        request = api.PublishRequest.FromString(payload)
    except DecodeError:
        return "refused"
    envelope = Envelope(
        stream=request.stream,
        partition=request.partition,
        key=request.key,
        headers=dict(request.headers),
        ack_inbox=request.ackInbox,
        ack_policy=request.ackPolicy,
        expected_offset=request.expectedOffset,
    )
    return envelope, request.value, request.correlationId


@given(st.lists(_REQUESTS, max_size=12), st.data())
def test_messages_are_read_as_protobuf_reads_them(
    requests: list[api.PublishRequest], data: st.DataObject
) -> None:
    """Each message twice, then with changed bytes: the reader knows all of the earlier ones."""
    reader = RequestReader()
    for request in requests:
        payload = request.SerializeToString()
        assert shown(reader, payload) == read_by_protobuf(payload)
        assert shown(reader, payload) == read_by_protobuf(payload)
        changed = bytearray(payload)
        for _ in range(data.draw(st.integers(0, 3)) if payload else 0):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        assert shown(reader, bytes(changed)) == read_by_protobuf(bytes(changed))


def test_messages_of_many_partitions_are_cut() -> None:
    """A publisher in turns to partitions is as quick as one to a single partition."""
    reader = RequestReader()
    payloads = [
        api.PublishRequest(
            stream="s", partition=number % 8, value=b"%07d" % number, correlationId=f"{number:09d}"
        ).SerializeToString()
        for number in range(2000)
    ]
    found = reader.read(payloads, [1] * len(payloads), 0)
    assert [one.value for one in found] == [b"%07d" % number for number in range(2000)]
    assert [one.correlation_id for one in found] == [f"{number:09d}" for number in range(2000)]
    assert [one.envelope.partition for one in found] == [number % 8 for number in range(2000)]
    assert len({id(one.envelope) for one in found}) == 8


@pytest.mark.parametrize(("key_bytes", "kept_max"), [(7, 256), (600, 0)])
def test_what_a_reader_keeps_is_bounded(key_bytes: int, kept_max: int) -> None:
    """Every message has another key: the reader learns some of them, and none that is long."""
    reader = RequestReader()
    keys = [b"%0*d" % (key_bytes, number) for number in range(2000)]
    payloads = [
        api.PublishRequest(stream="s", key=key, value=b"v").SerializeToString() for key in keys
    ]
    first, second = (reader.read(payloads, [1] * len(payloads), 0) for _ in range(2))
    assert [one.envelope.key for one in second] == keys
    again = sum(one.envelope is two.envelope for one, two in zip(first, second, strict=True))
    assert again <= kept_max
    assert bool(again) == bool(kept_max)


def test_a_correlation_id_that_is_no_text_is_refused() -> None:
    """Protobuf refuses it, so a message that was cut is refused as well."""
    reader = RequestReader()
    payload = api.PublishRequest(stream="s", value=b"v", correlationId="ab").SerializeToString()
    reader.read([payload], [1], 0)
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        reader.read([payload.replace(b"ab", b"\xff\xff")], [1], 0)
