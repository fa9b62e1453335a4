"""Messages that are laid out by hand are those that protobuf makes."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from broker.adapters.liftbridge.http2 import PREFIX_BYTES
from broker.adapters.liftbridge.laid_columns import lay_out_columns
from broker.adapters.liftbridge.laid_messages import (
    lay_out,
    lay_out_answers,
    varint,
)
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from cases import seeds

NUMBERS = [0, 1, 127, 128, 129, 16383, 16384, 2**31, 2**35 - 1, 2**35, 2**56, 2**62, 2**63 - 1]


def test_varints_are_those_of_protobuf() -> None:
    """Of every length, and again when the higher bits of a number are remembered."""
    expected = [wire.Message(offset=one).SerializeToString()[1:] or b"\x00" for one in NUMBERS]
    assert [varint(one) for one in NUMBERS] == expected
    assert [varint(one) for one in NUMBERS] == expected


@pytest.mark.parametrize("seed", seeds(20))
def test_messages_are_those_of_protobuf(seed: int) -> None:
    """Whatever their sizes and numbers are; an empty key is no key, a tombstone has no value."""
    draw = random.Random(seed)
    count = draw.randrange(1, 40)
    numbers = [draw.choice(NUMBERS) for _ in range(count)]
    stamps = [draw.choice(NUMBERS) for _ in range(count)]
    sizes = [0, 1, 100, 127, 128, 20_000]
    values = [draw.choice([None, draw.randbytes(draw.choice(sizes))]) for _ in range(count)]
    keys = [draw.choice([None, b"", draw.randbytes(draw.choice(sizes))]) for _ in range(count)]
    common = wire.Message(stream="s", partition=3, subject="foo", headers={"subject": b"foo"})
    laid = lay_out(common.SerializeToString(), numbers, stamps, keys, values)
    for place in range(count):
        end = PREFIX_BYTES + int.from_bytes(laid[1:PREFIX_BYTES], "big")
        data, laid = laid[:end], laid[end:]
        expected = wire.Message(
            offset=numbers[place],
            timestamp=stamps[place],
            key=keys[place] or b"",
            value=values[place] or b"",
            stream="s",
            partition=3,
            subject="foo",
            headers={"subject": b"foo"},
        )
        assert data[0] == 0
        assert wire.Message.FromString(data[PREFIX_BYTES:]) == expected
    assert not laid


@pytest.mark.parametrize("seed", seeds(20))
def test_columns_give_the_same_messages(seed: int) -> None:
    """Numbers of every length in any order, slices of columns, null, empty and long data."""
    draw = random.Random(seed)
    count = draw.randrange(1, 300)
    offsets = sorted(draw.choice(NUMBERS) for _ in range(count))
    if draw.random() < 0.5:
        offsets.reverse()
    stamps = draw.choices(NUMBERS[draw.randrange(len(NUMBERS)) :], k=count)
    sizes = draw.sample([0, 1, 100, 127, 128, 20_000], draw.randrange(1, 7))
    values = [draw.choice([None, draw.randbytes(draw.choice(sizes))]) for _ in range(count)]
    keys = [draw.choice([None, b"", draw.randbytes(draw.choice(sizes))]) for _ in range(count)]
    before = draw.randrange(3)
    columns = [pa.array([b"else"] * before + one, pa.binary())[before:] for one in (keys, values)]
    numbers = np.array(offsets), np.array(stamps)
    laid = lay_out_columns(b"common", *numbers, *columns)
    assert bytes(laid) == lay_out(b"common", offsets, stamps, keys, values)
    without = lay_out_columns(b"", *numbers, None, columns[1])
    assert bytes(without) == lay_out(b"", offsets, stamps, [None] * count, values)


@pytest.mark.parametrize("seed", seeds(20))
def test_answers_are_those_of_protobuf(seed: int) -> None:
    """Few and many of them, with and without correlation ids and inboxes."""
    draw = random.Random(seed)
    count = draw.randrange(1, 40)
    offsets = [draw.choice(NUMBERS) for _ in range(count)]
    received = [draw.choice(NUMBERS) for _ in range(count)]
    ids = [draw.choice(["", "7", "größe" * 30]) for _ in range(count)]
    inboxes = [draw.choice(["", "_INBOX.x"]) for _ in range(count)]
    common = wire.Ack(
        stream="s",
        partitionSubject="foo.1",
        msgSubject="foo.1",
        ackPolicy=wire.ALL,
        commitTimestamp=2**61,
    )
    laid = lay_out_answers(common.SerializeToString(), offsets, received, ids, inboxes)
    for place, data in enumerate(laid):
        ack = wire.Ack(
            offset=offsets[place],
            receptionTimestamp=received[place],
            correlationId=ids[place],
            ackInbox=inboxes[place],
        )
        ack.MergeFrom(common)
        expected = api.PublishResponse(ack=ack, correlationId=ids[place])
        assert int.from_bytes(data[1:PREFIX_BYTES], "big") == len(data) - PREFIX_BYTES
        assert api.PublishResponse.FromString(data[PREFIX_BYTES:]) == expected
