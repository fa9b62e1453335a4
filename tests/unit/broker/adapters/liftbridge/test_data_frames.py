"""Joined frames say what the client's frames said, wherever its bytes were cut."""

from __future__ import annotations

from itertools import groupby

import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.adapters.liftbridge.data_frames import DataFrameJoiner, cut
from cases import examples

FRAME_BYTES_MAX = 40
HEAD_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
Frame = tuple[int, int, int, bytes]  # type, flags, stream, body

FRAMES = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 8]),
        st.sampled_from([0, 0, 0, 1, 8]),
        st.sampled_from([1, 3]),
        st.binary(max_size=FRAME_BYTES_MAX),
    ),
    max_size=12,
)


def encoded(frames: list[Frame]) -> bytes:
    """Return frames as a client sends them."""
    return b"".join(
        len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
        for kind, flags, stream, body in frames
    )


def decoded(data: bytes) -> list[Frame]:
    """Return the frames in bytes that are whole."""
    found, at = [], 0
    while at < len(data):
        end = at + HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
        stream = int.from_bytes(data[at + 5 : at + HEAD_BYTES], "big")
        found.append((data[at + 3], data[at + 4], stream, data[at + HEAD_BYTES : end]))
        at = end
    assert at == len(data)
    return found


def meaning(frames: list[Frame]) -> list[Frame]:
    """Return frames with all neighbours of plain data of one call in one."""
    found = []
    for (kind, flags, stream), group in groupby(frames, lambda one: one[:3]):
        bodies = [body for *_, body in group]
        if kind == flags == 0:
            bodies = [b"".join(bodies)]
        found += [(kind, flags, stream, body) for body in bodies]
    return found


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, again and again."""
    found, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return found


@examples(300)
@given(frames=FRAMES, sizes=st.lists(st.integers(1, 100), min_size=1, max_size=5))
def test_joined_frames_mean_the_same(frames: list[Frame], sizes: list[int]) -> None:
    """Nothing is lost, added or moved; no joined frame is longer than the longest legal one."""
    joiner = DataFrameJoiner(FRAME_BYTES_MAX)
    out = b"".join(joiner.join(one) for one in in_pieces(PREFACE + encoded(frames), sizes))
    assert out.startswith(PREFACE)
    joined = decoded(out.removeprefix(PREFACE))
    assert meaning(joined) == meaning(frames)
    assert all(len(body) <= FRAME_BYTES_MAX for *_, body in joined)


def test_small_messages_become_one_frame() -> None:
    """A hundred messages that arrive together are as few frames as the limit lets them be."""
    joiner = DataFrameJoiner(1000)
    out = joiner.join(PREFACE + encoded([(0, 0, 1, b"x" * 20)] * 100))
    assert [len(body) for *_, body in decoded(out.removeprefix(PREFACE))] == [1000, 1000]


def test_a_frame_that_is_too_long_is_not_waited_for() -> None:
    """Its head goes to h2, which refuses it; so does all that comes after it, as it came."""
    joiner = DataFrameJoiner(FRAME_BYTES_MAX)
    good = encoded([(0, 0, 1, b"x")])
    long = encoded([(0, 0, 1, b"x" * (FRAME_BYTES_MAX + 1))])
    assert joiner.join(PREFACE + good + long[:HEAD_BYTES]) == PREFACE + good + long[:HEAD_BYTES]
    assert joiner.join(long[HEAD_BYTES:]) == long[HEAD_BYTES:]
    assert joiner.join(good + good) == good + good


@given(FRAMES, st.integers(1, FRAME_BYTES_MAX))
@examples(100)
def test_cut_frames_mean_the_same(frames: list[Frame], frame_bytes_max: int) -> None:
    """No byte of a call's data is lost or moved; no frame of plain data is too long."""
    found = decoded(cut(encoded(frames), frame_bytes_max))
    assert meaning(found) == meaning(frames)
    assert all(len(body) <= frame_bytes_max for kind, flags, _, body in found if not kind | flags)


@pytest.mark.parametrize(
    "before",
    [
        PREFACE[:-1],  # the preface is not whole
        PREFACE + encoded([(0, 0, 1, b"data")])[:-1],  # a frame is not whole
        PREFACE + encoded([(1, 0, 1, b"headers")]),  # a header block is not whole
        PREFACE + encoded([(1, 0, 1, b"headers"), (9, 0, 1, b"more")]),
        PREFACE + b"\xff" * HEAD_BYTES,  # no frame
    ],
)
def test_a_ping_within_something_else_is_left_to_h2(before: bytes) -> None:
    """There its bytes are no PING, or the peer has broken HTTP/2."""
    joiner = DataFrameJoiner(FRAME_BYTES_MAX)
    joiner.join(before)
    assert joiner.pong(encoded([(6, 0, 0, b"12345678")])) is None


@pytest.mark.parametrize(
    "frame",
    [
        (6, 1, 0, b"12345678"),  # an answer to one of ours
        (6, 0, 1, b"12345678"),  # of a call: that breaks HTTP/2
        (6, 0, 0, b"1234567"),
        (6, 0, 0, b"123456789"),
        (7, 0, 0, b"12345678"),
    ],
)
def test_what_is_no_legal_ping_is_left_to_h2(frame: Frame) -> None:
    """Only h2 says how HTTP/2 was broken."""
    joiner = DataFrameJoiner(FRAME_BYTES_MAX)
    joiner.join(PREFACE + encoded([(1, 4, 1, b"a whole header block")]))
    assert joiner.pong(encoded([frame])) is None
    assert joiner.pong(encoded([(6, 0, 0, b"12345678")])) == encoded([(6, 1, 0, b"12345678")])
