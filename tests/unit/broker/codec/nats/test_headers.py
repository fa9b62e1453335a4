"""NATS header blocks: order, repeated names, bytes; and every way to be malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec.nats import headers as nats_headers
from broker.codec.nats.headers import HeaderBlock
from broker.errors import MalformedMessageError

NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"),
    min_size=1,
    max_size=20,
)
VALUES = st.binary(max_size=40).filter(
    lambda value: not set(value) & {10, 13} and value[:1] not in {b" ", b"\t"}
)


def test_several_values_for_one_name_keep_their_order() -> None:
    """Nothing is merged or reordered; space and tab before a value are not part of it."""
    block = b"NATS/1.0\r\nA: 1\r\nb:2\r\nA: \t3 \r\nEmpty:\r\n\r\n"
    assert nats_headers.parse(block) == HeaderBlock(
        (("A", b"1"), ("b", b"2"), ("A", b"3 "), ("Empty", b""))
    )


def test_values_are_bytes_and_may_hold_colons() -> None:
    """A value is whatever follows the first colon, UTF-8 or not."""
    headers = nats_headers.parse(b"NATS/1.0\r\nX: a:b\xff\xfe\r\n\r\n").headers
    assert headers == (("X", b"a:b\xff\xfe"),)


@pytest.mark.parametrize(
    ("line", "status", "description"),
    [
        (b"NATS/1.0", 0, ""),
        (b"NATS/1.0 503", 503, ""),
        (b"NATS/1.0 100 Idle Heartbeat", 100, "Idle Heartbeat"),
        (b"NATS/1.0  404  none ", 404, "none"),
    ],
)
def test_the_first_line_may_carry_a_status(line: bytes, status: int, description: str) -> None:
    """A status line gives code and description; without one the code is 0."""
    assert nats_headers.parse(line + b"\r\n\r\n") == HeaderBlock((), status, description)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\nA: 1\r\n",
        b"NATS/2.0\r\nA: 1\r\n\r\n",
        b"NATS/1.0x\r\n\r\n",
        b"NATS/1.0 5O3\r\n\r\n",
        b"NATS/1.0 -1\r\n\r\n",
        b"NATS/1.0\r\nA 1\r\n\r\n",
        b"NATS/1.0\r\n: 1\r\n\r\n",
        b"NATS/1.0\r\nA b: 1\r\n\r\n",
        b"NATS/1.0\r\n A: 1\r\n\r\n",
        b"NATS/1.0\r\n\xc3\xa4: 1\r\n\r\n",
        b"NATS/1.0\r\nA: 1\nB: 2\r\n\r\n",
        b"NATS/1.0\r\nA: 1\rB: 2\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n",
    ],
    ids=repr,
)
def test_a_malformed_block_is_one_typed_error(block: bytes) -> None:
    """The reader does not guess what a publisher meant: each of these is refused by name."""
    for read in (nats_headers.parse, nats_headers.read):
        with pytest.raises(MalformedMessageError) as caught:
            read(block)
        assert caught.value.part == "headers"


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_what_is_encoded_comes_back(headers: list[tuple[str, bytes]]) -> None:
    """Parsing undoes encoding for every legal list of headers."""
    block = nats_headers.encode(headers)
    assert nats_headers.parse(block).headers == tuple(headers)
    assert nats_headers.read(block) == tuple(headers)


@given(st.binary(max_size=80))
def test_no_block_raises_anything_else(tail: bytes) -> None:
    """Any bytes parse, or are a MalformedMessageError."""
    for block in (tail, b"NATS/1.0" + tail + b"\r\n\r\n", b"NATS/1.0\r\n" + tail + b"\r\n\r\n"):
        try:
            nats_headers.parse(block)
        except MalformedMessageError:
            continue


@pytest.mark.parametrize(
    ("name", "value"),
    [("", b"x"), ("a b", b"x"), ("a:b", b"x"), ("ä", b"x"), ("a", b"x\ny"), ("a", b" x")],
)
def test_headers_that_would_not_come_back_are_not_sent(name: str, value: bytes) -> None:
    """Encoding refuses a name or value that means something else on the wire."""
    with pytest.raises(MalformedMessageError):
        nats_headers.encode([(name, value)])


@given(st.binary(max_size=60))
def test_both_readers_agree(tail: bytes) -> None:
    """The quick reader refuses what the careful one refuses, and reads the same."""
    for block in (
        tail,
        b"NATS/1.0\r\nA" + tail + b"\r\n\r\n",
        b"NATS/1.0 200" + tail + b"\r\n\r\n",
    ):
        try:
            parsed = nats_headers.parse(block)
        except MalformedMessageError:
            with pytest.raises(MalformedMessageError):
                nats_headers.read(block)
        else:
            stored = nats_headers.read(block)
            assert stored[len(stored) - len(parsed.headers) :] == parsed.headers


def test_long_names_are_not_kept() -> None:
    """A publisher may send one of a megabyte with each message."""
    before = nats_headers._known_name.cache_info().currsize
    for number in range(20):
        (header,) = nats_headers.read(b"NATS/1.0\r\n%05d%b: v\r\n\r\n" % (number, b"n" * 1_000_000))
        assert len(header[0]) == 1_000_005
    assert nats_headers._known_name.cache_info().currsize == before
