"""Frames between brokers: any cut gives the same messages; nonsense is one typed error."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.peer.frames import (
    LANE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    FrameAssembler,
    LaneKind,
    encode_frame_header,
)
from broker.errors import EnvelopeError
from cases import each_of, seeds

Message = tuple[LaneKind, bytes]


def _frames(lane: LaneKind, data: bytes, size: int = PAYLOAD_BYTES_MAX) -> list[bytes]:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return [encode_frame_header(lane, len(piece), len(data)) + piece for piece in pieces]


def _feed(assembler: FrameAssembler, stream: bytes, cuts: Iterable[int]) -> list[Message]:
    """Feed in pieces of these sizes, the last of which repeats; return the messages."""
    found = []
    at = 0
    sizes = iter(cuts)
    size = 1
    while at < len(stream):
        size = next(sizes, size)
        target = assembler.target
        piece = stream[at : at + min(size, len(target))]
        target[: len(piece)] = piece
        found += [(lane, bytes(data)) for lane, data in assembler.received(len(piece))]
        at += len(piece)
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(LaneKind), st.binary(min_size=1, max_size=40_000)), max_size=6
    ),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=20),
)
def test_messages_arrive_however_the_stream_is_cut(
    messages: list[Message], cuts: list[int]
) -> None:
    """What a read brings has nothing to do with where frames begin."""
    stream = b"".join(frame for lane, data in messages for frame in _frames(lane, data))
    assembler = FrameAssembler()
    assert _feed(assembler, stream, cuts) == messages
    assert not assembler.is_within_frame


@pytest.mark.parametrize("seed", seeds(20))
def test_lanes_interleave_frame_by_frame(seed: int) -> None:
    """A heartbeat goes between two frames of a large batch; each lane keeps its order."""
    chance = random.Random(seed)
    sent = {
        lane: [chance.randbytes(chance.randint(1, 60_000)) for _ in range(5)] for lane in LaneKind
    }
    waiting = {
        lane: [
            frame
            for data in messages
            for frame in _frames(lane, data, chance.choice((7_000, 30_000)))
        ]
        for lane, messages in sent.items()
    }
    stream = b""
    while any(waiting.values()):
        lane = chance.choice([lane for lane, frames in waiting.items() if frames])
        stream += waiting[lane].pop(0)
    found = _feed(FrameAssembler(), stream, [chance.randint(1, 70_000) for _ in range(50)])
    for lane in LaneKind:
        assert [data for kind, data in found if kind == lane] == sent[lane]


def test_a_large_message_grows_with_what_arrives() -> None:
    """A length above the bound is refused; a length within it allocates only what has arrived."""
    assembler = FrameAssembler()
    size = LANE_BYTES_MAX[LaneKind.REPLICA]
    piece = bytes(PAYLOAD_BYTES_MAX)
    frame = encode_frame_header(LaneKind.REPLICA, len(piece), size) + piece
    assert _feed(assembler, frame, [len(frame)]) == []
    unfinished = assembler._unfinished[LaneKind.REPLICA]
    assert len(unfinished.buffer) <= 1024 * 1024


@pytest.mark.parametrize(
    "stream",
    [
        bytes(4),
        b"\xff\xff\xff\x7f",
        encode_frame_header(LaneKind.RAFT, PAYLOAD_BYTES_MAX + 1, PAYLOAD_BYTES_MAX + 1),
        encode_frame_header(LaneKind.CONTROL, 1, LANE_BYTES_MAX[LaneKind.CONTROL] + 1),
        encode_frame_header(LaneKind.REPLICA, 1, LANE_BYTES_MAX[LaneKind.REPLICA] + 1),
        encode_frame_header(LaneKind.RAFT, 2, 1),
        encode_frame_header(LaneKind.RAFT, 1, 3) + b"x" + encode_frame_header(LaneKind.RAFT, 1, 4),
        encode_frame_header(LaneKind.RAFT, 1, 3) + b"x" + encode_frame_header(LaneKind.RAFT, 3, 3),
        b"\x01\0\0\0\x01\0\0\0\x02\0\0\0x",
        b"\x01\0\0\0\x01\0\0\0\x01\x04\0\0x",
        b"\x01\0\0\0\x01\0\0\0\x01\0\x01\0x",
        b"\x80\x04N.\x80\x04N.\x80\x04N.",
    ],
)
def test_bytes_that_are_no_frames_are_refused(stream: bytes) -> None:
    """Lengths, lanes and versions out of bounds are an error before anything is allocated."""
    with pytest.raises(EnvelopeError):
        _feed(FrameAssembler(), stream, [len(stream)])


@each_of(seeds(200))
def test_random_bytes_never_do_anything_else(seed: int) -> None:
    """Damaged streams give whole messages or one typed error."""
    chance = random.Random(seed)
    stream = bytearray(
        b"".join(
            frame
            for lane in LaneKind
            for frame in _frames(lane, chance.randbytes(chance.randint(1, 5000)), 900)
        )
    )
    for _ in range(chance.randint(1, 8)):
        stream[chance.randrange(len(stream))] = chance.randrange(256)
    try:
        found = _feed(FrameAssembler(), bytes(stream), [chance.randint(1, 3000) for _ in range(9)])
    except EnvelopeError:
        return
    assert all(0 < len(data) <= LANE_BYTES_MAX[lane] for lane, data in found)
