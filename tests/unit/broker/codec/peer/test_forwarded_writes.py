"""Forwarded writes as bytes: decoding undoes encoding, and other bytes are refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.peer.forwarded_writes import decode, encode, rows_from_bytes, rows_to_bytes
from broker.errors import EnvelopeError, OverloadedError
from broker.model.forwarded_writes import ForwardingMessage, WriteAnswered, WriteForwarded
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from cases import each_of, seeds
from simkit.brokers.memory_broker import records

P = PartitionId(StreamUuid("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), PartitionNumber(3))


def _bytes(message: ForwardingMessage) -> bytes:
    return b"".join(encode(message))


def _write(**facts: object) -> WriteForwarded:
    told = {
        "request_id": 7, "partition_id": P, "policy": AckPolicy.ALL, "expected_end": None,
        "rows": rows_to_bytes(records([b"a", None])), **facts,
    }  # fmt: skip
    return WriteForwarded(**told)  # type: ignore[arg-type]


@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from(AckPolicy),
    st.one_of(st.none(), st.integers(0, 2**62)),
    st.binary(min_size=1, max_size=100),
)
def test_a_write_comes_back(
    request_id: int, policy: AckPolicy, expected: int | None, rows: bytes
) -> None:
    """The rows are carried as bytes, not decoded."""
    end = None if expected is None else Offset(expected)
    message = _write(request_id=request_id, policy=policy, expected_end=end, rows=rows)
    assert decode(memoryview(_bytes(message))) == message


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62), max_size=20), st.integers(0, 99))
def test_an_answer_comes_back(request_id: int, offsets: list[int], epoch: int) -> None:
    """An offset for each row, or an error with its facts."""
    told = tuple(map(Offset, offsets))
    message = WriteAnswered(request_id=request_id, offsets=told, leader_epoch=epoch)
    assert decode(memoryview(_bytes(message))) == message
    refusal = WriteAnswered(request_id=request_id, refused=OverloadedError("full", waiting=3))
    found = decode(memoryview(_bytes(refusal)))
    assert isinstance(found, WriteAnswered)
    assert isinstance(found.refused, OverloadedError)
    assert (found.refused.message, found.refused.facts) == ("full", {"waiting": 3})


@each_of(seeds(300))
def test_other_bytes_are_refused(seed: int) -> None:
    """Damaged bytes decode to a valid message or raise one typed error; so do damaged rows."""
    chance = random.Random(seed)
    messages: list[ForwardingMessage] = [
        _write(),
        WriteAnswered(request_id=1, offsets=(Offset(1), Offset(2)), leader_epoch=3),
        WriteAnswered(request_id=1, refused=OverloadedError("full")),
    ]
    message = chance.choice(messages)
    data = bytearray(_bytes(message))
    for _ in range(chance.randint(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    cut = memoryview(bytes(data[: chance.randint(0, len(data))] if chance.random() < 0.5 else data))
    try:
        found = decode(cut)
    except EnvelopeError:
        return
    if isinstance(found, WriteForwarded):
        rows = rows_from_bytes(found.rows)
        assert isinstance(rows, EnvelopeError) or rows.num_rows >= 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(40),
        _bytes(_write())[:40],
        b"\x01\x04\0\0" + bytes(20),
        b"\x01\x02\x01\0" + bytes(16),
        _bytes(WriteAnswered(request_id=1, offsets=(Offset(1),), leader_epoch=1))[:-1],
        _bytes(WriteAnswered(request_id=1, offsets=(Offset(-1),), leader_epoch=1)),
        b"\x01\x03\0\0" + bytes(8) + b'{"error": "Nothing", "message": "x", "facts": {}}',
    ],
)
def test_what_is_no_message(data: bytes) -> None:
    """Too short, another version or kind, no rows, half an offset, an unknown error."""
    with pytest.raises(EnvelopeError):
        decode(memoryview(data))


def test_rows_come_back() -> None:
    """One batch; nothing else is taken for rows."""
    rows = records([b"a", None])
    assert rows_from_bytes(rows_to_bytes(rows)) == rows
    assert isinstance(rows_from_bytes(b"junk"), EnvelopeError)
